"""Tests of other projects that end otherwise with tload, on purpose: which, how, and why.

Exact tests, so that a new one that fails with a similar error is noticed. The list was taken from
`RESULTS.md`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

STORES = r"no credentials|account is unknown|Lists differ: \[{'status': 'error'|missing after|got 0|is not true$"
"""Errors of tests that replace the package's access to stores, where tload uses its own."""


@dataclass(frozen=True)
class Difference:
    """Intended difference of some tests."""

    reason: str
    error: str
    """Part of the error, as a regular expression."""
    tests: dict[str, tuple[str, ...]]
    """Names of tests by their file and class: `file.py::Class`."""

    def includes(self, test: str, error: str) -> bool:
        """Return whether the test `file.py::Class::test` is meant to end with this error."""
        where, _, name = test.rpartition("::")
        return name in self.tests.get(where, ()) and re.search(self.error, error) is not None


MEANT: dict[str, tuple[Difference, ...]] = {
    "runai": (
        Difference(
            "it is about internals",
            r"object has no attribute|does not have the attribute|SafetensorMetadata.__init__",
            {
                "distributed_streamer/tests/test_none_device.py::TestOwnedFollowsTheDestination": (
                    "test_a_device_destination_keeps_the_ring",
                    "test_every_host_spelling_hands_the_ring_over",
                ),
                "file_streamer/tests/test_file_streamer.py::TestObjectStorageSkipsTheProbe": (
                    "test_object_storage_uses_the_default_block_and_does_not_probe",
                ),
                "file_streamer/tests/test_file_streamer.py::TestRingConcurrency": (
                    "test_a_consumer_that_gives_up_leaves_the_streamer_usable",
                    "test_a_device_destination_keeps_the_ring_even_when_asked_to_own",
                    "test_a_none_device_is_the_host_and_still_owns",
                    "test_a_second_streamer_does_not_disturb_one_still_streaming",
                    "test_abandoning_the_generator_drains_every_live_submission",
                    "test_an_unowned_stream_can_be_followed_by_an_owned_one",
                    "test_deep_ring_recycles_while_other_submissions_are_still_in_flight",
                    "test_many_submissions_in_flight_deliver_every_range",
                    "test_owned_tensors_survive_a_later_unowned_stream",
                    "test_ring_recycles_buffers_across_many_requests",
                    "test_streaming_again_before_draining_is_rejected",
                ),
                "file_streamer/tests/test_list_files.py::TestListFilesS3": (
                    "test_credentials_applied_once_per_streamer",
                    "test_credentials_applied_to_each_distinct_streamer",
                    "test_handle_object_store_resolves_and_applies_credentials",
                ),
                "safetensors_streamer/tests/test_alignment.py::TestRequiresAlignmentCopy": (
                    "test_a_copy_carries_the_same_bytes",
                    "test_a_misaligned_tensor_needs_a_copy",
                    "test_a_single_byte_dtype_never_needs_a_copy",
                    "test_a_zero_element_tensor_needs_no_copy",
                    "test_an_aligned_tensor_needs_no_copy",
                    "test_the_dtype_view_hides_the_problem",
                ),
                "safetensors_streamer/tests/test_alignment.py::TestSessionCountsAlignmentCopies": (
                    "test_a_copy_is_made_and_counted",
                    "test_a_misaligned_tensor_that_slips_through_is_refused",
                    "test_a_zero_element_tensor_passes_the_post_check",
                    "test_nothing_is_copied_when_every_address_is_usable",
                    "test_the_count_belongs_to_the_session",
                ),
                "safetensors_streamer/tests/test_safetensors_streamer.py::TestSafetensorsStreamer": (
                    "test_ring_info_is_none_before_streaming",
                    "test_ring_info_is_none_for_a_rank_whose_partition_is_empty",
                ),
            },
        ),
        Difference(
            "it replaces functions of the package's library",
            STORES,
            {
                "file_streamer/tests/test_list_files.py::TestListFilesAzure": (
                    "test_basic_listing",
                    "test_ignore_patterns_passed",
                    "test_is_recursive_passed",
                    "test_no_credentials_for_azure",
                ),
                "file_streamer/tests/test_list_files.py::TestListFilesGCS": (
                    "test_allow_patterns_passed",
                    "test_basic_listing",
                    "test_is_recursive_passed",
                    "test_no_credentials_for_gcs",
                ),
                "file_streamer/tests/test_list_files.py::TestListFilesS3": (
                    "test_allow_patterns_passed",
                    "test_basic_listing",
                    "test_ignore_patterns_passed",
                    "test_is_recursive_passed",
                    "test_list_files_does_not_set_credentials",
                ),
            },
        ),
        Difference(
            "it is about an internal cache",
            "",
            {
                "safetensors_streamer/tests/test_alignment.py::TestElementSize": (
                    "test_the_fallback_memoises_by_dtype",
                ),
            },
        ),
        Difference(
            "it replaces the package's clients of stores",
            STORES,
            {
                "safetensors_streamer/tests/test_object_storage_model.py::TestObjectStorageModel": (
                    "test_azure_path_accepted",
                    "test_concurrent_all_processes_succeed",
                    "test_concurrent_files_present_after_download",
                    "test_concurrent_lock_upgrade_no_deadlock",
                    "test_concurrent_only_one_process_downloads",
                    "test_concurrent_sentinel_present_after_download",
                    "test_del_idempotent_after_exit",
                    "test_dst_trailing_slash_lock_outside_dst",
                    "test_empty_download_raises_runtime_error",
                    "test_empty_download_releases_lock",
                    "test_files_present_after_done",
                    "test_gs_path_accepted",
                    "test_lock_released_when_pull_raises",
                    "test_model_path_normalised_to_trailing_slash",
                    "test_retry_after_failed_download",
                    "test_second_call_files_still_accessible",
                    "test_second_call_skips_download",
                    "test_sentinel_not_written_before_exit",
                    "test_sentinel_not_written_when_pull_raises",
                    "test_sentinel_written_after_done",
                    "test_stale_dst_cleaned_before_download",
                    "test_two_pull_files_calls_one_done",
                ),
                "safetensors_streamer/tests/test_object_storage_model.py::TestObjectStorageModelDstPreExists": (
                    "test_azure_path_accepted",
                    "test_concurrent_all_processes_succeed",
                    "test_concurrent_files_present_after_download",
                    "test_concurrent_lock_upgrade_no_deadlock",
                    "test_concurrent_only_one_process_downloads",
                    "test_concurrent_sentinel_present_after_download",
                    "test_del_idempotent_after_exit",
                    "test_dst_trailing_slash_lock_outside_dst",
                    "test_empty_download_raises_runtime_error",
                    "test_empty_download_releases_lock",
                    "test_files_present_after_done",
                    "test_gs_path_accepted",
                    "test_lock_released_when_pull_raises",
                    "test_model_path_normalised_to_trailing_slash",
                    "test_retry_after_failed_download",
                    "test_second_call_files_still_accessible",
                    "test_second_call_skips_download",
                    "test_sentinel_not_written_before_exit",
                    "test_sentinel_not_written_when_pull_raises",
                    "test_sentinel_written_after_done",
                    "test_stale_dst_cleaned_before_download",
                    "test_two_pull_files_calls_one_done",
                ),
            },
        ),
        Difference(
            "so it has with tload, which is the point",
            "every tensor had its own memory",
            {
                "safetensors_streamer/tests/test_safetensors_streamer.py::TestOwnedTensorsEndToEnd": (
                    "test_without_owning_the_same_memory_serves_several_tensors",
                ),
            },
        ),
        Difference(
            "the same error in tload's words",
            'AssertionError: ".*" does not match "',
            {
                "safetensors_streamer/tests/test_safetensors_streamer.py::TestSafetensorsStreamer": (
                    "test_file_longer_than_header_declares_raises",
                    "test_gap_before_the_first_tensor_raises",
                    "test_header_too_large",
                    "test_invalid_json",
                    "test_overlapping_tensors",
                    "test_payload_inconsistency_shape_mismatch",
                    "test_tensor_names_does_not_bypass_header_validation_for_excluded_tensor",
                    "test_unknown_dtype",
                ),
            },
        ),
        Difference(
            "there is no ring to report",
            "no logs of level INFO",
            {
                "safetensors_streamer/tests/test_safetensors_streamer.py::TestSafetensorsStreamer": (
                    "test_the_ring_is_reported_once_per_load_with_the_rank",
                ),
            },
        ),
        Difference(
            "it walks the folders of the package",
            "no modules were discovered",
            {
                "tests/test_annotations.py::TestAnnotationsResolve": (
                    "test_every_annotation_resolves",
                    "test_every_module_imports",
                ),
            },
        ),
    ),
}
"""Intended differences by suite."""
