//! Promises of SECURITY.md: files and headers.

use super::{Promise, Section};

pub(super) const FILES: Section = Section {
    heading: "Files and headers",
    introduction: "",
    promises: &[
        Promise {
            says: "A header has at most 100,000,000 bytes and ends within its file. A larger \
                   length is refused after the first eight bytes are read.",
            tests: &[
                "crates/format/src/header/tests.rs::header_len_needs_only_the_first_eight_bytes",
                "crates/core/tests/it/hostile.rs::hostile_files_are_rejected_with_exact_message",
            ],
        },
        Promise {
            says: "An index has at most 100,000,000 bytes. A longer one is refused by its \
                   length.",
            tests: &[
                "crates/core/tests/it/checkpoints.rs::index_over_limit_is_rejected_by_its_length",
            ],
        },
        Promise {
            says: "Memory for opening is bounded by the actual length of a file, not by what it \
                   claims: 1 MiB, and 24 times the length of a header, 60 times that of an \
                   index, 9 times that of a manifest or signature. This holds for endless \
                   nesting, names, numbers and shapes, and for as many entries as fit.",
            tests: &[
                "crates/core/tests/alloc_limits.rs::opening_takes_memory_for_file_length_and_not_for_claims",
            ],
        },
        Promise {
            says: "More than a hundred kinds of malformed file are refused, each with one line \
                   that names the file and the defect.",
            tests: &[
                "crates/core/tests/it/hostile.rs::hostile_files_are_rejected_with_exact_message",
            ],
        },
        Promise {
            says: "Python pickles, the zip archives of `torch.save`, GGUF files, NumPy arrays \
                   and HTML pages are recognized by their first bytes and refused. tload does \
                   not read these formats.",
            tests: &[
                "crates/core/tests/it/hostile.rs::hostile_files_are_rejected_with_exact_message",
            ],
        },
        Promise {
            says: "Random bytes, damaged files and the inputs of the fuzzer cause no panic when \
                   they are parsed as a header. None of them is accepted unless the safetensors \
                   crate accepts it.",
            tests: &[
                "crates/format/src/header/tests.rs::any_bytes_are_read_without_a_panic",
                "crates/format/src/header/tests.rs::damaged_headers_are_judged_like_safetensors_crate",
                "crates/core/tests/it/fuzz.rs::corpora_replay_without_failure",
                "crates/core/tests/it/fuzz.rs::seeded_inputs_run_without_failure",
            ],
        },
        Promise {
            says: "For each fuzz target, every test run tries the committed corpus and 4,000 \
                   inputs mutated from it. None of them causes a panic.",
            tests: &[
                "crates/core/tests/it/fuzz.rs::every_target_has_a_fuzzer_and_a_small_corpus",
                "crates/core/tests/it/fuzz.rs::corpora_replay_without_failure",
                "crates/core/tests/it/fuzz.rs::seeded_inputs_run_without_failure",
            ],
        },
        Promise {
            says: "A manifest that is malformed, nested without end or longer than 256 MiB is \
                   refused with an error that names it. Duplicate and unknown fields count as \
                   malformed.",
            tests: &[
                "crates/core/tests/it/whole.rs::hostile_manifests_are_rejected_and_named",
                "crates/verify/src/manifest/tests.rs::duplicates_unknown_fields_and_wrong_types_are_rejected",
                "crates/verify/src/manifest/tests.rs::long_or_deep_manifest_gives_short_error",
            ],
        },
        Promise {
            says: "A load of more than 4,194,304 reads, such as one of a sparse file of 64 GiB \
                   in reads of 4 KiB, is refused before the first read.",
            tests: &["crates/core/tests/it/memory.rs::sparse_file_of_too_many_reads_is_rejected"],
        },
        Promise {
            says: "Control characters and bidirectional overrides in names of tensors and files \
                   are escaped in errors, in `repr` in Python, and in the output of the \
                   commands.",
            tests: &[
                "crates/base/src/error/display.rs::location_with_control_characters_is_escaped",
                "crates/base/src/error/display.rs::error_texts_are_escaped_and_truncated",
                "crates/core/tests/it/checkpoints.rs::control_characters_in_shard_name_are_escaped",
                "crates/cli/src/output/table.rs::names_cannot_move_the_cursor",
                "crates/cli/tests/it/terminal_escapes.rs::hostile_names_are_escaped_in_every_command",
                "crates/cli/tests/it/terminal_escapes.rs::hostile_file_contents_are_escaped_in_errors",
                "crates/cli/tests/it/verify.rs::names_cannot_move_the_cursor",
                "tests/test_hostile.py::test_tensor_names_are_escaped_in_output",
            ],
        },
        Promise {
            says: "The text of an error is shorter than 16,000 bytes, however long the names in \
                   a file are.",
            tests: &[
                "crates/base/src/error/display.rs::error_texts_are_escaped_and_truncated",
                "crates/core/tests/alloc_limits.rs::opening_takes_memory_for_file_length_and_not_for_claims",
                "tests/test_hostile.py::test_long_name_is_truncated",
            ],
        },
    ],
};
