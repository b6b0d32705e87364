//! Promises of SECURITY.md: secrets.

use super::{Promise, Section};

pub(super) const SECRETS: Section = Section {
    heading: "Secrets",
    introduction: "Secrets are keys, tokens, passwords and header values in options, locations \
                   and the environment, and the query of a URL.",
    promises: &[
        Promise {
            says: "No error shows a secret, whatever status, redirect or broken response a \
                   server sends, or if it sends none. This holds for its text, hint, causes and \
                   `Debug`, and in Python for the traceback and pickles.",
            tests: &[
                "crates/core/tests/objects/secrets.rs::errors_show_no_secret",
                "crates/core/tests/objects/secrets.rs::unreachable_servers_show_no_secret",
                "tests/test_secrecy.py::test_no_kind_of_signed_url_is_shown",
                "tests/test_secrecy.py::test_secrets_of_the_environment_are_not_shown",
            ],
        },
        Promise {
            says: "No error repeats a secret that a server echoes: verbatim, percent-encoded, or \
                   in base64.",
            tests: &[
                "crates/core/tests/objects/echoes.rs::errors_show_no_secret_echoed_by_server",
                "crates/store/src/errors/redactor.rs::secrets_are_masked_in_every_form",
                "crates/store/src/errors/redactor.rs::sent_secrets_are_masked",
                "crates/cli/tests/it/secrets.rs::secrets_echoed_by_server_are_redacted",
            ],
        },
        Promise {
            says: "No error about a malformed option or location shows a secret.",
            tests: &[
                "crates/core/tests/objects/secrets.rs::malformed_options_and_urls_show_no_secret",
                "crates/base/src/options/location/tests.rs::rejected_locations_report_kind_and_hide_secrets",
                "crates/base/src/options/store_options.rs::wrong_values_of_secrets_are_not_shown",
            ],
        },
        Promise {
            says: "No log shows a secret, even at its highest level.",
            tests: &[
                "crates/core/tests/objects/secrets.rs::errors_show_no_secret",
                "tests/test_logging.py::test_no_secret_is_logged",
                "tests/test_secrecy.py::test_uncaught_error_and_debug_log_hide_secrets",
            ],
        },
        Promise {
            says: "No checkpoint, stream or report shows a secret, in text, `Debug`, `repr` or \
                   JSON.",
            tests: &[
                "crates/core/tests/objects/secrets.rs::open_objects_show_no_secret",
                "tests/test_object_store.py::test_secret_in_url_is_not_shown",
            ],
        },
        Promise {
            says: "Options and locations are shown without secrets.",
            tests: &[
                "crates/base/src/options/store_options.rs::debug_shows_no_secret",
                "crates/base/src/options/location/tests.rs::displayed_location_hides_secrets",
                "crates/verify/src/choice.rs::secrets_of_a_manifests_url_are_not_shown",
                "tests/test_stores.py::test_repr_shows_no_secret",
            ],
        },
        Promise {
            says: "In Python, checkpoints and options with a secret are not pickled.",
            tests: &[
                "tests/test_pickle.py::test_secrets_are_not_pickled",
                "tests/test_pickle.py::test_secrets_of_urls_are_not_pickled",
                "tests/test_pickle.py::test_options_are_pickled",
                "tests/test_stores.py::test_secrets_of_stores_are_not_pickled",
            ],
        },
        Promise {
            says: "No output of `tload ls`, `load`, `bench`, `doctor` and `cp` shows a secret of \
                   the environment or the arguments when the store cannot be reached or refuses \
                   access.",
            tests: &[
                "crates/cli/tests/it/secrets.rs::commands_hide_secrets_of_environment_and_arguments",
                "crates/cli/tests/it/remote.rs::outputs_hold_no_secret",
            ],
        },
        Promise {
            says: "The configuration file takes no secret, and none that is in it after all is \
                   shown. A file that other users own or may write to is not read.",
            tests: &[
                "crates/config/src/tests.rs::secrets_are_errors_that_name_the_variable_and_do_not_show_them",
                "crates/config/src/tests.rs::owner_and_mode_are_those_of_ssh",
                "crates/cli/tests/it/configuration.rs::secrets_are_not_shown_with_a_file",
                "tests/test_config.py::test_wrong_files_name_line_and_key",
            ],
        },
        Promise {
            says: "The files that `tload bench` exports, the pages and traces of `--html` and \
                   `--trace`, and what an interrupted `tload cp` leaves contain no secret.",
            tests: &[
                "crates/cli/tests/it/store.rs::exports_have_no_secret",
                "crates/cli/tests/it/pages.rs::pages_and_traces_hide_secrets_of_environment_and_arguments",
                "crates/cli/tests/it/remote.rs::interrupted_copy_files_hold_no_secret",
            ],
        },
        Promise {
            says: "Errors about a malformed manifest or signature do not quote it.",
            tests: &[
                "crates/core/tests/it/expectations.rs::manifest_errors_do_not_quote_contents",
                "crates/core/tests/it/expectations.rs::sidecar_links_out_of_folder_are_rejected",
            ],
        },
        Promise {
            says: "All output of the test suite is searched for the secrets that tests plant.",
            tests: &[
                "tests/test_secrecy.py::test_suite_search_finds_shown_secret",
                "tests/test_secrecy.py::test_this_session_is_searched",
                "tests/test_secrecy.py::test_rust_tests_are_searched_too",
            ],
        },
    ],
};
