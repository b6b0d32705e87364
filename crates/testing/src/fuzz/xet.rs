//! Content stores of hubs: terms and chunks are refused, or within their limits.

/// Checks `input` as a reconstruction, as the chunks of a xorb, and as the contents of chunks.
pub(super) fn check(input: &[u8]) {
    tload_storage::object::assert_content_store_is_bounded(input);
}
