//! Promises of SECURITY.md: ending, retries and stalls.

use super::{Promise, Section};

pub(super) const ENDINGS: Section = Section {
    heading: "Ending, retries and stalls",
    introduction: "",
    promises: &[
        Promise {
            says: "`timeout=` ends a load, also while a server is silent or during a backoff \
                   before a retry.",
            tests: &[
                "crates/core/tests/it/faults.rs::load_longer_than_its_timeout_fails",
                "crates/core/tests/objects/lifecycle.rs::timeout_applies_to_silence_and_backoff",
            ],
        },
        Promise {
            says: "Cancelling a load wakes a caller that waits for it. Dropping it does not wait \
                   for hanging storage.",
            tests: &[
                "crates/core/tests/it/faults.rs::cancel_wakes_waiting_caller",
                "crates/core/tests/it/retries.rs::cancel_and_drop_do_not_wait_for_hung_mount",
            ],
        },
        Promise {
            says: "Ctrl-C ends a load or an open in Python that waits for a disk that hangs.",
            tests: &["tests/test_interrupt.py::test_ctrl_c_ends_wait_for_hung_disk"],
        },
        Promise {
            says: "Requests to a server that falls silent, or sends only a byte now and then, \
                   time out even without `timeout=`.",
            tests: &[
                "crates/core/tests/objects/network.rs::silent_connection_times_out",
                "crates/core/tests/objects/stalls.rs::dripping_server_times_out_without_load_timeout",
            ],
        },
        Promise {
            says: "A failed request is retried from the first missing byte. The number of \
                   retries without progress is bounded.",
            tests: &[
                "crates/core/tests/objects/recoveries.rs::retry_requests_only_missing_bytes",
                "crates/core/tests/objects/recoveries.rs::progress_resets_retry_count",
                "crates/core/tests/objects/refusals.rs::load_retries_override_store_retries",
            ],
        },
        Promise {
            says: "Failed reads of files are retried a bounded number of times, and not at all \
                   with `retries=0`.",
            tests: &["crates/core/tests/it/retries.rs::read_retries_can_be_disabled_and_exhausted"],
        },
        Promise {
            says: "With `timeout=` or `open_timeout`, a mount that does not respond is an error \
                   that names the pending operation: opening, finding digests or reading.",
            tests: &[
                "crates/core/tests/it/retries.rs::open_timeout_is_kept_and_names_hung_file",
                "crates/core/tests/it/expectations.rs::digest_lookup_times_out_naming_location",
                "crates/core/tests/it/retries.rs::hung_mount_ends_in_timeout_and_memory_is_kept_until_answer",
            ],
        },
        Promise {
            says: "Memory that the kernel may still write to after such an error is counted as \
                   orphaned in the report until the mount responds.",
            tests: &[
                "crates/core/tests/it/retries.rs::hung_mount_ends_in_timeout_and_memory_is_kept_until_answer",
            ],
        },
        Promise {
            says: "After a timeout of a store, no memory is orphaned.",
            tests: &[
                "crates/core/tests/objects/stalls.rs::silent_server_times_out_and_leaks_nothing",
            ],
        },
        Promise {
            says: "Each fault in [faults.md](faults.md) has the outcome that the page states.",
            tests: &[
                "crates/core/tests/faults/table.rs::file_faults_end_as_tabled",
                "crates/core/tests/faults/table.rs::object_faults_end_as_tabled",
                "crates/core/tests/faults/table.rs::device_faults_end_as_tabled",
                "crates/core/tests/faults/table.rs::content_faults_end_as_tabled",
                "crates/core/tests/faults/page.rs::page_matches_rows",
            ],
        },
        Promise {
            says: "A panic of a load's last check is an error of the load.",
            tests: &[
                "crates/core/src/load/stream/ending.rs::panic_in_final_check_becomes_load_error",
            ],
        },
        Promise {
            says: "A failure under `--json` is one JSON object on standard output, also at a \
                   deadline and after a second signal.",
            tests: &[
                "crates/cli/tests/it/hung_mounts.rs::json_tells_of_a_deadline_and_of_signals",
                "crates/cli/tests/it/json.rs::unopenable_location_is_reported_as_json",
                "crates/cli/tests/it/json.rs::store_failing_mid_load_is_reported_as_json",
            ],
        },
        Promise {
            says: "A load can be cancelled or dropped, on any thread, while any read, request or \
                   copy begins or ends. Tensors that were received before keep their bytes.",
            tests: &[
                "crates/core/tests/it/cancel_points.rs::load_can_be_cancelled_at_any_read",
                "crates/soundness/tests/simulated.rs::stream_cancelled_during_read_settles",
                "crates/core/tests/objects/lifecycle.rs::end_at_any_moment_leaks_nothing",
                "crates/core/tests/cuda/endings.rs::end_at_any_copy_leaks_nothing",
                "crates/core/tests/cuda/endings.rs::drop_at_any_moment_on_any_thread_is_safe",
            ],
        },
        Promise {
            says: "SIGTERM and SIGHUP end `tload load` at any moment without a partial result, \
                   and with the signal's exit status once its signal handlers are installed.",
            tests: &[
                "crates/cli/tests/it/interrupt.rs::load_interrupted_anywhere_has_signal_status",
            ],
        },
        Promise {
            says: "In Python, Ctrl-C, an exception, leaving a loop and the end of the \
                   interpreter are safe at any moment of a load.",
            tests: &[
                "tests/test_exit.py::test_ctrl_c_at_any_moment",
                "tests/test_exit.py::test_consumer_exit_releases_everything",
                "tests/test_exit.py::test_interpreter_exits_cleanly_during_loads",
            ],
        },
        Promise {
            says: "However loads of files end, they leave no memory, descriptors, mappings or \
                   threads behind.",
            tests: &[
                "crates/core/tests/leaks.rs::load_leaves_no_resources",
                "tests/test_exit.py::test_loads_leak_neither_memory_nor_descriptors",
            ],
        },
        Promise {
            says: "However loads of objects end, they leave no connections, descriptors or \
                   threads behind.",
            tests: &[
                "crates/core/tests/objects/lifecycle.rs::loads_ending_in_every_way_leak_nothing",
            ],
        },
        Promise {
            says: "However loads to a GPU end, they leave no allocations, streams, events, \
                   contexts, descriptors or threads behind.",
            tests: &["crates/core/tests/cuda/processes.rs::many_loads_leak_nothing"],
        },
    ],
};
