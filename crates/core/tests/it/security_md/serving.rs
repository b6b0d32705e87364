//! Promises of SECURITY.md: server, cache and mirrors.

use super::{Promise, Section};

pub(super) const SERVING: Section = Section {
    heading: "Server, cache and mirrors",
    introduction: "",
    promises: &[
        Promise {
            says: "`tload serve` sends no file outside its directory, and none whose name begins \
                   with a dot, also through links.",
            tests: &[
                "crates/cli/tests/it/serve.rs::links_show_nothing_hidden",
                "crates/cli/tests/it/serve.rs::requests_cannot_leave_the_directory",
                "crates/serve/src/target.rs::hostile_and_hidden_paths_are_refused",
            ],
        },
        Promise {
            says: "With `--token-file`, each request needs the whole token, which no output \
                   shows.",
            tests: &[
                "crates/cli/tests/it/serve/loads.rs::token_is_required_and_never_shown",
                "crates/serve/src/token.rs::only_the_whole_token_permits",
            ],
        },
        Promise {
            says: "Without a token, a server on the loopback answers no request that names \
                   another host. A web page whose name was made to resolve to the loopback \
                   therefore cannot read from it.",
            tests: &[
                "crates/cli/tests/it/serve.rs::web_page_whose_name_leads_here_is_not_answered",
                "crates/serve/src/host.rs::only_hosts_of_the_loopback_are_answered",
            ],
        },
        Promise {
            says: "No text of a store adds a header to a response: text that is not a digest or \
                   an entity tag is left out, and a header with a control character is not sent.",
            tests: &[
                "crates/cli/tests/it/serve/passed_on.rs::text_of_a_hub_adds_no_header",
                "crates/serve/src/response.rs::control_characters_are_in_no_header",
                "crates/store/src/protocols/hub/listing.rs::contents_name_is_hexadecimal_digits_or_none",
            ],
        },
        Promise {
            says: "Concurrent clients cause one read of a manifest, and one of a cache's list.",
            tests: &[
                "crates/serve/src/digests.rs::requests_at_a_time_read_the_manifest_once",
                "crates/storage/src/object/site.rs::cache_is_read_once_for_all_clients_of_a_second",
            ],
        },
        Promise {
            says: "Slow clients and malformed requests are cut off.",
            tests: &[
                "crates/cli/tests/it/serve.rs::slow_clients_are_cut_off",
                "crates/cli/tests/it/serve.rs::other_methods_and_malformed_requests_are_refused",
            ],
        },
        Promise {
            says: "Below the directory of a cache, of a hub's cache and of a copy's target, \
                   nothing is written or removed through a symbolic link.",
            tests: &[
                "crates/storage/src/guarded_dir.rs::components_below_are_no_links_and_of_no_other_user",
                "crates/core/tests/objects/guarded.rs::cache_that_others_can_change_is_not_used_and_leads_nowhere",
                "crates/core/tests/objects/guarded.rs::hub_cache_that_others_can_change_leads_nowhere",
            ],
        },
        Promise {
            says: "A cache that belongs to another user, or that others may write to, is not \
                   used unless `cache_shared` is set. The same holds for the downloads in \
                   progress in a hub's cache (`.tload`), but not for its finished files, which \
                   tload reads like `huggingface_hub`.",
            tests: &[
                "crates/storage/src/guarded_dir.rs::components_below_are_no_links_and_of_no_other_user",
                "crates/core/tests/objects/passed_on.rs::list_of_a_cache_has_what_openings_trust",
                "crates/core/tests/objects/guarded.rs::cache_that_others_can_change_is_not_used_and_leads_nowhere",
                "crates/core/tests/objects/guarded.rs::hub_cache_that_others_can_change_leads_nowhere",
            ],
        },
        Promise {
            says: "Bytes of mirrors, and of servers whose certificate is not verified, are not \
                   cached as those of the origin.",
            tests: &[
                "crates/storage/src/object/cache/through.rs::bytes_of_mirrors_are_not_cached",
                "crates/core/tests/objects/guarded.rs::bytes_of_a_mirror_do_not_become_those_of_the_origin",
                "crates/core/tests/objects/guarded.rs::bytes_of_an_unverified_server_are_not_those_of_a_verified_one",
            ],
        },
        Promise {
            says: "No secret is written to the cache.",
            tests: &["crates/core/tests/objects/cache_damage.rs::no_secret_reaches_the_directory"],
        },
        Promise {
            says: "A peer that relays another version of a file than the origin's is not read.",
            tests: &[
                "crates/core/tests/objects/mirrors.rs::version_that_a_peer_had_before_is_not_read",
            ],
        },
        Promise {
            says: "A mirror or peer whose bytes do not match a digest is named, and the process does \
                   not ask it again.",
            tests: &[
                "crates/core/tests/objects/wrong_senders.rs::lying_mirror_is_named_and_not_asked_again",
            ],
        },
        Promise {
            says: "Mirrors and peers get no credentials of the origin.",
            tests: &["crates/core/tests/objects/mirrors.rs::credentials_stay_with_the_origin"],
        },
    ],
};
