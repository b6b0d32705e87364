//! Promises of SECURITY.md: links and paths.

use super::{Promise, Section};

pub(super) const PATHS: Section = Section {
    heading: "Links and paths",
    introduction: "",
    promises: &[
        Promise {
            says: "The shards of an index lie below its directory: absolute names and names with \
                   `..` are refused.",
            tests: &[
                "crates/format/src/index/tests.rs::shard_name_stays_below_index_directory",
                "crates/format/src/index/tests.rs::hostile_indexes_are_rejected_with_reason",
            ],
        },
        Promise {
            says: "Files of a manifest and of a signature lie below its directory as well.",
            tests: &[
                "crates/verify/src/manifest/tests.rs::manifest_names_stay_below_directory",
                "crates/verify/src/full_scan/signed.rs::names_outside_directory_and_weak_digests_are_rejected",
                "crates/core/tests/it/signed.rs::signed_name_outside_directory_is_rejected_before_first_read",
            ],
        },
        Promise {
            says: "A symbolic link that leads out of the directory of a checkpoint or index is \
                   refused, unless `follow_symlinks` allows it.",
            tests: &[
                "crates/core/tests/it/links.rs::links_out_of_directory_are_rejected",
                "crates/core/tests/it/links.rs::links_out_of_index_directory_are_rejected",
                "tests/test_hostile.py::test_links_out_of_directory_are_followed_if_allowed",
            ],
        },
        Promise {
            says: "A snapshot in a hub's cache may link to the blobs of its own repository and \
                   to those that `huggingface_hub` shares between the repositories of a cache, \
                   and to no other's. Only in the cache that `huggingface_hub` is set to \
                   (`HF_HUB_CACHE`, `HF_HOME`) are links followed wherever they lead.",
            tests: &[
                "crates/core/tests/it/links.rs::hub_cache_snapshot_links_only_to_blobs_of_its_repository",
                "tests/test_hub_layouts.py::test_shared_blobs_are_read_from_a_cache_elsewhere",
                "tests/test_hub_layouts.py::test_links_out_of_a_directory_that_looks_like_a_cache_need_permission",
            ],
        },
        Promise {
            says: "A manifest or signature that is found beside a checkpoint and leads out of \
                   its directory is refused, unless `follow_symlinks` allows it. Its contents do \
                   not appear in the error.",
            tests: &[
                "crates/core/tests/it/expectations.rs::sidecar_links_out_of_folder_are_rejected",
            ],
        },
        Promise {
            says: "A file or manifest that you name explicitly may be a link.",
            tests: &[
                "crates/core/tests/it/links.rs::link_named_by_caller_may_lead_anywhere",
                "crates/core/tests/it/expectations.rs::sidecar_links_out_of_folder_are_rejected",
                "tests/test_hostile.py::test_listed_file_may_be_symlink",
            ],
        },
        Promise {
            says: "A FIFO, a socket, a device or a directory in place of a file is refused and \
                   does not block.",
            tests: &[
                "crates/core/tests/it/links.rs::irregular_file_is_rejected_by_its_type",
                "crates/core/tests/it/checkpoints.rs::missing_or_irregular_file_is_named_in_error",
            ],
        },
    ],
};
