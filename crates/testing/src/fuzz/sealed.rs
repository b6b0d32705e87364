//! Sealed files: what they hold is read or refused.

/// Checks `input` as a key file, a keyset, a header, and its first bytes as a length.
pub(super) fn check(input: &[u8]) {
    let errors = tload_sealed::assert_formats_are_bounded(input);
    errors.iter().for_each(super::assert_fit_to_print);
}
