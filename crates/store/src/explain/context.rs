//! Context of a failed request, and what is peculiar to its protocol.

use super::rules::{CODES, Rules, STATUSES};
use crate::errors::redactor::Redactor;

/// Context of a request: operation, store and credentials.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "five independent facts")]
pub(crate) struct RequestContext<'a> {
    pub(crate) operation: &'a str,
    /// Peculiarities of the store's protocol.
    pub(crate) hints: &'static Hints,
    /// Origin of the credentials.
    pub(crate) credentials: &'a str,
    pub(crate) anonymous: bool,
    /// Region that requests are signed for.
    pub(crate) region: Option<&'a str>,
    /// True if the URL carries its own signature.
    pub(crate) signed_url: bool,
    /// True if the request went to the store itself, false if it fetched credentials.
    pub(crate) own: bool,
    /// True if an earlier request to the store succeeded.
    pub(crate) has_succeeded: bool,
    /// True if the credentials were refused as expired, and newer ones are or will be available.
    pub(crate) refreshed: bool,
    /// Holds the secrets that the store was opened with.
    pub(crate) redactor: &'a Redactor,
}

/// Peculiarities of a protocol, as far as they concern errors.
#[derive(Debug)]
pub(crate) struct Hints {
    /// Tables that classify error responses, in order.
    pub(crate) rules: &'static [Rules],
    /// Permissions that listing and reading need, as the store calls them.
    pub(crate) permissions: Option<[&'static str; 2]>,
    /// Advice if a host is unknown or does not answer; `None` if it is that for all stores.
    pub(crate) unreachable: Option<&'static str>,
    /// False if there are no listings.
    pub(crate) lists: bool,
}

impl Hints {
    /// Hints for a store without peculiarities.
    pub(crate) const NONE: Self = Self {
        rules: &[CODES, STATUSES],
        permissions: None,
        unreachable: None,
        lists: true,
    };
}

#[cfg(test)]
impl RequestContext<'static> {
    /// Returns the context of a read from a store without peculiarities, for tests.
    pub(crate) fn sample() -> Self {
        static NOTHING: std::sync::LazyLock<Redactor> = std::sync::LazyLock::new(Redactor::default);
        Self {
            operation: "GET",
            hints: &Hints::NONE,
            credentials: "file X",
            anonymous: false,
            region: None,
            signed_url: false,
            own: true,
            has_succeeded: false,
            refreshed: false,
            redactor: &NOTHING,
        }
    }
}
