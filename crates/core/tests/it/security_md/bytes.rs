//! Promises of SECURITY.md: bytes and verification.

use super::{Promise, Section};

pub(super) const BYTES: Section = Section {
    heading: "Bytes and verification",
    introduction: "",
    promises: &[
        Promise {
            says: "Each tensor has the bytes of its file, in whatever order reads complete. A \
                   failed read is an error, never a tensor.",
            tests: &[
                "crates/core/tests/it/simulated.rs::one_lane_delivers_every_tensor_once_or_the_injected_error",
                "crates/core/tests/it/simulated.rs::stream_delivers_every_tensor_once_or_injected_error",
                "crates/core/tests/it/slow.rs::failed_read_is_error_naming_file_and_range",
            ],
        },
        Promise {
            says: "A read that returns fewer bytes than requested is continued, also past the \
                   page cache.",
            tests: &[
                "crates/core/tests/it/slow.rs::short_read_is_continued",
                "crates/core/tests/it/slow.rs::short_direct_read_is_continued",
            ],
        },
        Promise {
            says: "A file that is replaced during a load is an error before the stream ends, and \
                   its bytes are not mixed with the new file's.",
            tests: &[
                "crates/core/tests/it/faults.rs::file_replaced_during_load_is_error_and_never_mixed",
                "crates/core/tests/it/faults.rs::file_replaced_before_single_read_is_error",
                "crates/core/tests/it/faults.rs::link_retargeted_during_load_is_error",
            ],
        },
        Promise {
            says: "A file that shrinks during a load, or whose modification time changes, is an \
                   error before the stream ends.",
            tests: &[
                "crates/core/tests/it/faults.rs::file_truncated_during_load_has_changed_and_range_is_named",
                "crates/core/tests/it/faults.rs::file_written_to_during_load_has_changed",
            ],
        },
        Promise {
            says: "Bytes of encrypted checkpoints, sealed or of Tensorizer, are authenticated \
                   before they are handed over. A missing key and a wrong one are errors before \
                   the first tensor.",
            tests: &[
                "crates/core/tests/it/boxed.rs::damage_is_an_error_and_none_of_its_bytes_is_handed_over",
                "crates/core/tests/it/boxed.rs::missing_wrong_and_useless_keys_are_told_apart_before_the_first_tensor",
                "crates/core/tests/it/sealed.rs::damage_is_an_error_and_none_of_its_bytes_is_handed_over",
                "crates/core/tests/it/sealed.rs::missing_and_wrong_keys_are_told_apart_before_the_first_tensor",
                "crates/core/tests/objects/boxed.rs::the_cache_keeps_what_is_encrypted_and_its_damage_is_not_handed_over",
            ],
        },
        Promise {
            says: "With `verify=`, a tensor with a wrong bit is not delivered if it is compared \
                   individually: if it has a CRC or BLAKE3, or a SHA-256 in a file without a \
                   digest of the whole file.",
            tests: &[
                "crates/core/tests/it/verified.rs::any_flipped_bit_is_found_before_its_tensor_is_handed_over",
                "crates/core/tests/it/verified.rs::files_are_compared_by_every_engine",
                "crates/core/tests/cuda/verified.rs::corrupt_tensor_is_never_delivered_on_gpu",
            ],
        },
        Promise {
            says: "With `verify=` and a digest of a whole file, any wrong bit in the file, \
                   including its header, fails the load before it ends. Tensors may have been \
                   delivered before.",
            tests: &[
                "crates/core/tests/it/verified.rs::every_flipped_bit_is_detected",
                "crates/core/tests/it/verified.rs::any_flipped_bit_is_found_before_its_tensor_is_handed_over",
                "crates/core/tests/it/verified.rs::files_are_compared_by_every_engine",
            ],
        },
        Promise {
            says: "Digests are looked up beside the first reads: no tensor is delivered before, and \
                   what is found wrong then is an error of the call that starts the load.",
            tests: &[
                "crates/core/tests/it/verified.rs::nothing_is_handed_over_before_its_check",
                "crates/core/tests/it/verified.rs::known_mismatch_fails_before_first_tensor",
                "crates/core/tests/objects/late_checks.rs::first_read_does_not_wait_for_digests",
                "crates/core/tests/objects/late_checks.rs::wrong_manifest_is_an_error_of_the_start_during_first_reads",
            ],
        },
        Promise {
            says: "With a manifest, the header of a file is compared also when only some tensors \
                   are loaded.",
            tests: &[
                "crates/core/tests/it/expectations.rs::header_is_compared_when_index_omits_tensors",
                "tests/test_verify_streaming.py::test_wrong_header_is_detected_before_first_tensor",
            ],
        },
        Promise {
            says: "`verify=require` refuses what cannot be compared. `verify=auto` loads it and \
                   reports why it was not compared.",
            tests: &[
                "crates/core/tests/it/verified.rs::uncomparable_load_is_reported_or_rejected",
                "crates/core/tests/it/expectations.rs::uncomparable_header_is_reported_or_rejected",
                "tests/test_verify_streaming.py::test_unverified_file_reported_or_rejected",
            ],
        },
        Promise {
            says: "If the request for a store's checksum fails and there is no manifest, \
                   `verify=require` and `verify=sha256` fail with the error of that request.",
            tests: &[
                "crates/core/tests/objects/checksums.rs::failed_checksum_request_is_error_if_required",
            ],
        },
        Promise {
            says: "With `verify=sha256` and `verify=sha256:MANIFEST` only SHA-256 and BLAKE3 \
                   count: a tensor that was forged to keep its CRC is an error, and so is \
                   another header, whatever is selected.",
            tests: &[
                "crates/core/tests/it/expectations.rs::crc_collision_passes_require_but_not_sha256",
                "crates/core/tests/it/expectations.rs::changed_header_fails_sha256_whatever_is_selected",
                "crates/core/tests/it/expectations.rs::sha256_choice_fails_without_sha256",
                "crates/core/tests/objects/checksums.rs::crc_is_not_accepted_where_sha_256_is_required",
                "tests/test_verify_streaming.py::test_sha256_mode_accepts_sha256_only",
            ],
        },
        Promise {
            says: "`tload.safetensors.safe_open` returns neither a tensor that differs from its \
                   digest nor a slice of one. With `require` it returns none that cannot be \
                   compared.",
            tests: &[
                "tests/test_verify_streaming.py::test_safe_open_yields_verified_tensors_only",
                "tests/test_verify_streaming.py::test_safe_open_rejects_unverifiable_parts",
            ],
        },
        Promise {
            says: "A byte that changes in transit from a server is detected by the CRC-64/NVME \
                   of the object.",
            tests: &["crates/core/tests/objects/verified.rs::corrupt_byte_from_server_is_detected"],
        },
        Promise {
            says: "The checksums that a store or a hub states for whole objects are compared: \
                   CRC-64/NVME and SHA-256 of S3, CRC-32C of Google, SHA-256 of a hub's large \
                   files, and the blob names in a hub's cache.",
            tests: &[
                "crates/core/tests/objects/checksums.rs::whole_object_checksum_is_requested_once_and_compared",
                "crates/core/tests/objects/checksums.rs::google_reports_crc_of_every_object",
                "crates/core/tests/objects/checksums.rs::hub_reports_sha_256_of_large_files",
                "tests/test_verify.py::test_hub_cache_states_digests",
            ],
        },
        Promise {
            says: "`tload verify` detects a flipped bit in the header or a tensor of a \
                   checkpoint with a manifest, and names the file, the bytes and the tensor. A \
                   missing file is an error.",
            tests: &[
                "crates/core/tests/it/whole.rs::flipped_bit_anywhere_is_found_and_named",
                "crates/cli/tests/it/verify.rs::written_manifest_is_compared_and_mismatches_are_named",
            ],
        },
        Promise {
            says: "The SHA-256 digests in a manifest are those of Python's `hashlib`.",
            tests: &["tests/test_verify.py::test_manifest_digests_match_hashlib"],
        },
        Promise {
            says: "`tload.verify(…, signature=…)` compares every signed file of a directory. A \
                   file that differs, is missing or is not signed is an error, apart from git's \
                   own files and those that you ignore.",
            tests: &[
                "crates/core/tests/it/signed.rs::signed_files_are_compared_and_all_others_are_extra",
                "crates/core/tests/it/signed.rs::unsigned_sidecars_do_not_vouch_for_files",
                "tests/test_verify.py::test_signed_model_is_verified",
                "tests/test_verify.py::test_unsigned_files_are_rejected_like_model_signing",
            ],
        },
        Promise {
            says: "A signature by another key, a changed signature and a missing one are errors.",
            tests: &["tests/test_verify.py::test_other_signatures_are_rejected"],
        },
        Promise {
            says: "Files are compared with the signature that was checked, even if its file is \
                   replaced in between.",
            tests: &["tests/test_verify.py::test_replaced_signature_is_not_used"],
        },
        Promise {
            says: "With `verify=MANIFEST` and `verify=sha256:MANIFEST` an index must be listed \
                   and have the bytes listed, and each listed file with weights must be part of \
                   the checkpoint, unless files or tensors were selected by name.",
            tests: &[
                "crates/core/tests/objects/tampered.rs::tampered_index_or_file_set_is_rejected",
                "crates/core/tests/objects/tampered.rs::manifest_without_index_is_rejected_with_hint",
                "crates/core/tests/objects/tampered.rs::named_files_and_tensors_may_be_part_of_manifest",
            ],
        },
        Promise {
            says: "With `require`, `sha256` and a manifest, the Python readers return nothing \
                   that was not compared. A reader that cannot compare raises an error.",
            tests: &[
                "tests/test_verify_readers.py::test_readers_reject_unverifiable_parts",
                "tests/test_verify_readers.py::test_transformers_rejects_unverifiable_parts",
                "tests/test_verify_readers.py::test_tensor_requested_again_is_verified_by_options",
                "tests/test_verify_readers.py::test_patched_transformers_rejects_unverifiable_parts",
                "tests/test_verify_readers.py::test_engines_reject_files_left_to_their_own_loader",
            ],
        },
        Promise {
            says: "A missing shard that only a manifest lists is an error, also in readers that \
                   name all tensors.",
            tests: &[
                "tests/test_verify_readers.py::test_missing_shard_is_detected_by_readers_naming_all_tensors",
            ],
        },
        Promise {
            says: "A tensor that differs from the digests of its file is an error in each of \
                   these readers.",
            tests: &["tests/test_verify_readers.py::test_readers_reject_flipped_bit"],
        },
        Promise {
            says: "`tload.dcp` gives each rank the values of its own boxes, also if the files of \
                   ranks have equal headers. If two files have the same elements with different \
                   values, the load fails before a byte is written.",
            tests: &[
                "tests/test_dcp_ranks.py::test_even_shares_of_ranks_are_told_apart",
                "tests/test_dcp_ranks.py::test_ranks_read_layouts_of_other_ranks",
                "tests/test_dcp_ranks.py::test_differing_copies_are_rejected",
                "tests/test_dcp_ranks.py::test_files_of_an_earlier_save_of_more_ranks_are_seen",
            ],
        },
        Promise {
            says: "Elements that are missing from all files of ranks are an error that names the \
                   tensor, the range and the files.",
            tests: &[
                "tests/test_dcp_ranks.py::test_rows_of_a_missing_rank_are_named",
                "tests/test_dcp_ranks.py::test_columns_of_a_missing_rank_are_named",
            ],
        },
    ],
};
