//! Limits of responses that are read whole, and of one listing, which comes in pages:
//! `object_store` requests page after page for as long as the store names another one, and keeps
//! all of them.
//!
//! [`bounded`] encloses a listing; `response_capture.rs` reports each of its requests and responses
//! here.

use std::cell::RefCell;
use std::collections::HashSet;

use object_store::client::{HttpError, HttpErrorKind};

/// Longest response to a request without a range, bytes: listings (a page of S3 has 1000 names of
/// at most 1024 bytes), tokens, and a hub's description of a model. `object_store` reads them
/// whole, however much a server sends.
pub(in crate::storage) const ANSWER_MAX: usize = 64 << 20;

/// Maximum number of pages. Stores put 1000 names and more into each.
const PAGES_MAX: usize = 4000;

/// Maximum number of bytes of all pages: about a million names.
const BYTES_MAX: usize = 512 << 20;

/// Query parameters that name a page: S3 and GCS, GCS's JSON interface, Azure, buckets of hubs.
const TOKENS: [&str; 4] = ["continuation-token", "pageToken", "marker", "cursor"];

/// Error for a server that sends without end.
#[derive(Debug)]
pub(in crate::storage) struct TooLong;

impl std::fmt::Display for TooLong {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "a response of more than {ANSWER_MAX} bytes")
    }
}

impl std::error::Error for TooLong {}

/// Pages of one listing so far.
#[derive(Default)]
struct Pages {
    /// Tokens that were sent.
    tokens: HashSet<String>,
    bytes: usize,
}

tokio::task_local! {
    static PAGES: RefCell<Pages>;
}

/// Runs the requests of one listing, which fail if the listing does not end.
pub(in crate::storage) async fn bounded<T>(list: impl Future<Output = T>) -> T {
    PAGES.scope(RefCell::default(), list).await
}

/// Counts a request, if it is for a further page of a listing.
///
/// # Errors
///
/// [`TooLong`] for a page that was requested before, and for one page too many.
pub(in crate::storage) fn asked(query: Option<&str>) -> Result<(), HttpError> {
    let pairs = query.into_iter().flat_map(|query| query.split('&'));
    let token = pairs
        .filter_map(|pair| pair.split_once('='))
        .find_map(|(name, value)| TOKENS.contains(&name).then_some(value));
    let Some(token) = token else {
        return Ok(());
    };
    count(|pages| pages.tokens.insert(token.to_owned()) && pages.tokens.len() < PAGES_MAX)
}

/// Counts the bytes of a page.
///
/// # Errors
///
/// [`TooLong`] if there are too many.
pub(in crate::storage) fn received(bytes: usize) -> Result<(), HttpError> {
    count(|pages| {
        pages.bytes = pages.bytes.saturating_add(bytes);
        pages.bytes <= BYTES_MAX
    })
}

/// Applies `fits` inside of a listing. Nothing is counted outside of one.
fn count(fits: impl FnOnce(&mut Pages) -> bool) -> Result<(), HttpError> {
    match PAGES.try_with(|pages| fits(&mut pages.borrow_mut())) {
        Ok(false) => Err(HttpError::new(HttpErrorKind::Decode, TooLong)),
        Ok(true) | Err(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn in_a_list<T>(check: impl FnOnce() -> T) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        let runtime = runtime.expect("a runtime");
        runtime.block_on(bounded(async { check() }))
    }

    #[test]
    fn repeated_page_token_ends_list() {
        for name in TOKENS {
            in_a_list(|| {
                let query = |token: &str| format!("prefix=a&{name}={token}&list-type=2");
                asked(Some("prefix=a")).expect("the first page");
                asked(Some(&query("b"))).expect("the second page");
                asked(Some(&query("c"))).expect("the third page");
                asked(Some(&query("b"))).expect_err("the second page again");
                asked(Some("prefix=a")).expect("another request");
            });
        }
        asked(Some("marker=a")).expect("no list");
        asked(Some("marker=a")).expect("no list");
    }

    #[test]
    fn list_over_page_or_byte_limit_fails() {
        in_a_list(|| {
            for page in 1..PAGES_MAX {
                asked(Some(&format!("marker={page}"))).expect("as many as there may be");
            }
            asked(Some("marker=0")).expect_err("one more");
        });
        in_a_list(|| {
            received(BYTES_MAX - 1).expect("a long page");
            received(1).expect("as many as there may be");
            received(1).expect_err("one more");
        });
        received(usize::MAX).expect("no list");
    }
}
