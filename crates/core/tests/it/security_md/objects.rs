//! Promises of SECURITY.md: objects.

use super::{Promise, Section};

pub(super) const OBJECTS: Section = Section {
    heading: "Objects",
    introduction: "",
    promises: &[
        Promise {
            says: "Every read of an object with a strong ETag requests the version that was \
                   opened (`If-Match`).",
            tests: &[
                "crates/core/tests/objects/requests.rs::shards_open_concurrently_with_one_request_each",
            ],
        },
        Promise {
            says: "An object that is replaced or removed during a load ends it with an error, \
                   without a retry. Tensors that were delivered before have the old bytes.",
            tests: &[
                "crates/core/tests/objects/changes.rs::object_replaced_during_load_is_changed",
            ],
        },
        Promise {
            says: "Where a server ignores `If-Match`, has weak ETags or has only modification \
                   times, a replaced object is still an error: the ETag, time and length of each \
                   response are compared.",
            tests: &[
                "crates/core/tests/objects/changes.rs::ignored_if_match_is_detected",
                "crates/core/tests/objects/changes.rs::weak_etag_is_compared",
                "crates/core/tests/objects/changes.rs::modification_time_replaces_missing_etag",
                "crates/core/tests/objects/changes.rs::disappearing_etag_is_changed",
            ],
        },
        Promise {
            says: "An object without ETag, version and modification time is refused if it takes \
                   more than one request, unless the store option `allow_unversioned` is set. \
                   Then its length, its header and its last 64 KiB are compared again at the \
                   end, and the report says so.",
            tests: &[
                "crates/core/tests/objects/unversioned.rs::objects_differing_inside_long_header_are_distinguished",
                "crates/core/tests/objects/unversioned.rs::objects_without_validator_are_rejected_by_default",
                "crates/core/tests/objects/unversioned.rs::unversioned_object_replaced_during_load_is_changed",
                "crates/core/tests/objects/unversioned.rs::unversioned_object_replaced_during_copy_leaves_no_file",
            ],
        },
        Promise {
            says: "An index that is replaced during a load is an error before the stream ends.",
            tests: &[
                "crates/core/tests/it/faults.rs::index_replaced_during_load_is_error",
                "crates/core/tests/objects/changes.rs::index_replaced_in_versioned_bucket_is_changed",
            ],
        },
        Promise {
            says: "A list of a store is read to its end, or is an error: a page that says that \
                   it is truncated is never taken for the whole list, and another document never \
                   for an empty one.",
            tests: &[
                "crates/core/tests/objects/lists.rs::list_is_complete_or_an_error",
                "crates/core/tests/objects/lists.rs::other_responses_are_no_lists",
                "crates/core/tests/objects/lists.rs::files_beyond_the_description_of_a_hub_are_listed",
            ],
        },
        Promise {
            says: "An endless list from a store is an error, whatever names its pages, and ends \
                   at a cancellation. Lists, manifests and `Link` headers are read in time that \
                   grows with their length, not with its square, and so are the lists of shards.",
            tests: &[
                "crates/core/tests/objects/requests.rs::endless_list_is_error",
                "crates/core/tests/objects/lists.rs::pages_of_hubs_that_never_end_are_an_error",
                "crates/core/tests/objects/lists.rs::endless_list_ends_at_cancel",
                "crates/store/src/steps.rs::work_is_linear_in_the_answers_of_servers",
                "crates/store/src/http/pages.rs::list_over_page_or_byte_limit_fails",
                "crates/format/src/shards.rs::missing_shard_is_linear",
                "crates/store/src/protocols/hub/listing.rs::level_of_large_commit_visits_only_folder",
            ],
        },
        Promise {
            says: "A response that is compressed, that does not say which range it has, or that \
                   has another one, is an error. No byte of it becomes part of a tensor or of a \
                   copied file.",
            tests: &[
                "crates/core/tests/objects/answers.rs::meaningless_answers_are_errors",
                "crates/core/tests/objects/answers.rs::legal_answers_give_right_bytes",
            ],
        },
        Promise {
            says: "Lengths that a content store of a hub states for chunks and terms are \
                   limited, and compared with each other and with the range. Others are an \
                   error, and so are many times the requested bytes.",
            tests: &[
                "crates/core/tests/objects/xet.rs::many_times_the_requested_bytes_are_refused",
                "crates/store/src/protocols/hub/xet/terms.rs::hostile_terms_are_refused",
                "crates/store/src/protocols/hub/xet/unpack.rs::hostile_headers_are_refused",
                "crates/core/tests/objects/xet.rs::damaged_xorb_is_requested_again_and_then_an_error",
            ],
        },
        Promise {
            says: "In a bucket with versions, the version that was opened is read. Without \
                   permission to read versions, its ETag is required instead.",
            tests: &[
                "crates/core/tests/objects/changes.rs::versioned_bucket_serves_old_version",
                "crates/core/tests/objects/changes.rs::denied_versions_fall_back_to_etag",
            ],
        },
        Promise {
            says: "A load from a hub reads one commit, even if the branch moves meanwhile.",
            tests: &["crates/core/tests/objects/hubs.rs::one_commit_is_read_while_branch_moves"],
        },
        Promise {
            says: "A file whose length differs from the hub's listing is an error.",
            tests: &["crates/core/tests/objects/hubs.rs::file_differing_from_hub_list_is_error"],
        },
    ],
};
