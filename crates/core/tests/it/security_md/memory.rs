//! Promises of SECURITY.md: memory.

use super::{Promise, Section};

pub(super) const MEMORY: Section = Section {
    heading: "Memory",
    introduction: "",
    promises: &[
        Promise {
            says: "Unsafe code is confined to [these files](unsafe.md), which state their reasons.",
            tests: &["crates/core/tests/it/pages/unsafe_code.rs::page_lists_unsafe_code"],
        },
        Promise {
            says: "When a thread panics with reads in flight, their memory is not reused while \
                   the kernel may still write to it.",
            tests: &[
                "crates/core/tests/it/engines.rs::panic_with_reads_in_flight_frees_none_of_their_memory",
            ],
        },
        Promise {
            says: "Read buffers have one owner at a time, and no lane writes to the caller's \
                   memory after a load has released it. This holds in every interleaving of \
                   threads with at most two preemptions (loom).",
            tests: &[
                "crates/memory/tests/loom.rs::slot_has_single_owner",
                "crates/memory/tests/loom.rs::dropped_tensors_memory_reused_by_one_region",
                "crates/memory/tests/loom.rs::closed_gate_blocks_writes",
            ],
        },
        Promise {
            says: "Memory that ranks of a node share is reused only when no tensor of a rank \
                   refers to it, and never after such a rank was killed. This holds in every \
                   interleaving of two ranks and their leader with one preemption (loom).",
            tests: &[
                "crates/ranks/tests/loom/main.rs::shared_memory_is_filled_again_only_once_no_rank_shows_it",
                "crates/ranks/tests/loom/main.rs::shared_memory_of_killed_rank_is_never_filled_again",
            ],
        },
        Promise {
            says: "A notification between threads wakes every thread that waits for it. This \
                   holds in every interleaving with at most three preemptions (loom).",
            tests: &["crates/memory/tests/loom.rs::event_count_waiters_are_never_lost"],
        },
        Promise {
            says: "A load holds at most `memory_limit` bytes of tensors that you have not \
                   received. On a GPU the same holds for `device_memory_limit`.",
            tests: &[
                "crates/core/tests/it/memory.rs::slow_caller_pauses_load_at_budget",
                "crates/core/tests/cuda/budgets.rs::stalled_caller_stops_load_at_budget",
            ],
        },
        Promise {
            says: "A `memory_limit` that cannot hold the largest tensor is refused before the \
                   first read.",
            tests: &[
                "crates/core/tests/it/memory.rs::budget_below_largest_tensor_is_rejected_before_first_read",
            ],
        },
        Promise {
            says: "Besides the tensors that you keep, a load from files to host memory takes at \
                   most `memory_limit`, 64 MiB, and 1.1 MiB for each kept tensor.",
            tests: &[
                "crates/core/tests/retention.rs::kept_tensors_of_large_load_retain_little_else",
            ],
        },
        Promise {
            says: "Without a `memory_limit`, a load in a cgroup of 256 MiB limits itself to at \
                   most half of that, and is not killed. A tensor that the group cannot hold is \
                   an error that names the group.",
            tests: &[
                "crates/cli/tests/it/limits/memory.rs::load_without_limit_fits_in_cgroup_of_256_mib",
                "crates/cli/tests/it/limits/memory.rs::tensor_larger_than_cgroup_limit_is_rejected_before_oom_kill",
            ],
        },
        Promise {
            says: "A command that runs out of address space ends with an error, not with a \
                   crash.",
            tests: &[
                "crates/cli/tests/it/limits/memory.rs::little_address_space_is_an_error_of_memory",
            ],
        },
        Promise {
            says: "With too few file descriptors, a load delivers the right bytes or fails with \
                   an error. In Python the error names the limit and the limit that is needed.",
            tests: &[
                "crates/cli/tests/it/limits/numbers.rs::few_descriptors_load_or_report_the_limit",
                "tests/test_limits.py::test_hundred_shards_with_64_descriptors_name_limit",
            ],
        },
        Promise {
            says: "With too few threads, a load delivers the right bytes or fails with an error \
                   that names the limit.",
            tests: &["crates/cli/tests/it/limits/numbers.rs::few_threads_load_or_report_the_limit"],
        },
        Promise {
            says: "Where io_uring is forbidden, threads deliver the right bytes and the command \
                   reports why. A load that requests `engine=uring` is refused there.",
            tests: &[
                "crates/cli/tests/it/limits/denied.rs::load_without_rings_uses_threads_and_reports_reason",
            ],
        },
        Promise {
            says: "Without `/proc`, `/sys`, `/dev` or `/run`, and on a read-only file system, a \
                   load delivers the right bytes.",
            tests: &[
                "crates/cli/tests/it/limits/bare.rs::load_without_proc_and_sys_succeeds",
                "crates/cli/tests/it/limits/denied.rs::read_only_file_system_is_readable",
            ],
        },
        Promise {
            says: "A tensor of `tload.load`, `stream` and `load_into` keeps its bytes when its \
                   file is truncated after the load, because the file is not mapped. The \
                   exceptions are `cache=\"map\"`, and the two interfaces that map local files \
                   by default, like the packages that they replace: `tload.safetensors` \
                   (`backend=\"mmap\"`) and `tload.transformers.from_pretrained`. The plugins for \
                   vLLM and SGLang map files in the page cache while they load to a CPU.",
            tests: &[
                "crates/core/tests/it/page_cache.rs::tensors_other_than_views_survive_file_truncation",
                "tests/test_engine_views.py::test_copies_survive_a_truncation_after_the_load",
            ],
        },
        Promise {
            says: "A file that is truncated between opening and reading is an error, not a \
                   crash, also with `cache=\"map\"`.",
            tests: &[
                "crates/core/tests/it/faults.rs::file_truncated_before_load_has_changed",
                "crates/core/tests/it/page_cache.rs::file_truncated_before_mapping_is_error_and_no_signal",
            ],
        },
        Promise {
            says: "Memory before the first read does not grow with the length of tensors that \
                   are not selected, and page-cache queries are bounded, also where the kernel \
                   does not answer `cachestat` (overlayfs, old Linux).",
            tests: &[
                "crates/core/tests/alloc_limits.rs::sparse_file_on_overlay_takes_memory_for_selection_only",
                "crates/storage/src/file/page_cache.rs::looks_cover_small_ranges_and_are_bounded_for_large_ones",
            ],
        },
        Promise {
            says: "Memory that a failed ring may still write to is not freed; `parked_bytes` \
                   counts it.",
            tests: &[
                "crates/engine/src/uring/mod.rs::engine_drop_with_failed_ring_leaks_memory_in_flight",
            ],
        },
        Promise {
            says: "A process that is forked while its parent loads waits for no lock of the \
                   parent's threads.",
            tests: &[
                "crates/core/tests/cuda/processes.rs::forked_child_blocks_on_no_lock_of_parent_threads",
                "tests/test_fork.py::test_forked_child_never_waits_for_parent_locks",
            ],
        },
        Promise {
            says: "GPU memory of a load is freed only behind work that was queued on the \
                   process's other GPUs before.",
            tests: &[
                "crates/core/tests/cuda/lifetimes.rs::memory_is_freed_after_queued_peer_copies",
            ],
        },
        Promise {
            says: "`load_into` never writes two tensors to the same bytes: targets that would be \
                   filled and share memory without being one tensor are refused before a byte is \
                   written.",
            tests: &[
                "tests/test_load_into.py::test_targets_sharing_memory_are_rejected",
                "crates/core/src/load/load_target/mod.rs::aliasing_views_are_rejected_unless_same_tensor",
                "crates/core/src/load/load_target/footprint.rs::random_layouts_shares_agrees_with_byte_sets",
            ],
        },
    ],
};
