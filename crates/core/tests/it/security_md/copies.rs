//! Promises of SECURITY.md: copies.

use super::{Promise, Section};

pub(super) const COPIES: Section = Section {
    heading: "Copies",
    introduction: "",
    promises: &[
        Promise {
            says: "`tload cp` refuses names that are absolute or contain `..`, and then writes \
                   nothing.",
            tests: &[
                "crates/copy/src/paths.rs::names_outside_target_are_rejected",
                "crates/cli/tests/it/remote.rs::keys_outside_target_directory_are_rejected",
            ],
        },
        Promise {
            says: "`tload cp` writes through no symbolic or hard link in its target.",
            tests: &[
                "crates/cli/tests/it/cp.rs::copy_does_not_write_through_links",
                "crates/copy/src/target.rs::journals_are_separate_and_removed",
            ],
        },
        Promise {
            says: "Writing a manifest follows no symbolic link.",
            tests: &[
                "crates/partial/src/tests.rs::leftovers_of_killed_processes_are_removed_by_the_next_one",
            ],
        },
        Promise {
            says: "`tload cp` skips a file only if a record says that it is a copy of the same \
                   source in the same state, and the file is unchanged since. Sources are \
                   compared by their whole location, whatever is displayed of it. A source whose \
                   versions cannot be told apart is copied every time; so is one with only a \
                   modification time that was recent.",
            tests: &[
                "crates/cli/tests/it/cp.rs::another_version_of_the_same_length_and_time_is_copied",
                "crates/cli/tests/it/cp.rs::changed_or_unrecorded_target_is_copied_again",
                "crates/copy/src/journal.rs::origin_differs_if_state_changed_or_unknown",
                "crates/base/src/options/location/tests.rs::digests_differ_in_all_that_selects_bytes",
                "crates/core/tests/objects/guarded.rs::copy_takes_no_other_object_for_its_source",
                "crates/core/tests/objects/guarded.rs::copy_of_a_recent_object_without_tag_is_not_skipped",
                "crates/core/tests/objects/hubs.rs::copy_from_mirror_without_times_is_of_one_commit",
            ],
        },
        Promise {
            says: "A copy of a hub's model is of one commit, even if its branch moves meanwhile.",
            tests: &[
                "crates/core/tests/objects/hubs.rs::branch_moving_during_copy_does_not_mix_commits",
                "crates/core/tests/objects/hubs.rs::resumed_copy_after_branch_moved_has_one_commit",
            ],
        },
        Promise {
            says: "A file in progress that belongs to another user is not taken over, and that \
                   user's journal is not trusted.",
            tests: &[
                "crates/cli/tests/it/cp.rs::partial_file_of_other_user_is_rejected",
                "crates/cli/tests/it/cp.rs::journal_of_other_user_is_ignored",
            ],
        },
        Promise {
            says: "A copied file with its final name is complete, at whatever moment the copy \
                   ended.",
            tests: &[
                "crates/cli/tests/it/interrupt.rs::copy_interrupted_anywhere_leaves_no_partial_file",
            ],
        },
        Promise {
            says: "A copy does not mix an object with its replacement.",
            tests: &[
                "crates/cli/tests/it/remote.rs::object_replaced_during_copy_is_never_mixed",
                "crates/cli/tests/it/remote.rs::replaced_object_restarts_copy",
            ],
        },
    ],
};
