//! Limits of responses that are read whole, and of one listing, which comes in pages:
//! `object_store` requests page after page for as long as the store names another one, and keeps
//! all of them.
//!
//! [`bounded`] encloses a listing, and [`gathered`] one that `object_list` parses;
//! `response_capture.rs` reports each of its requests and responses here.

use std::collections::HashSet;

use http::Uri;
use object_store::client::{HttpError, HttpErrorKind, HttpRequest};
use url::Url;

use super::current_request::current;
use super::signing::sign_changed;
use crate::lists::object_list::CONTINUED;
pub(crate) use crate::lists::object_list::{Format, Gathered};

/// Longest response to a request without a range, bytes: listings (a page of S3 has 1000 names of
/// at most 1024 bytes), tokens, and a hub's description of a model. `object_store` reads them
/// whole, however much a server sends.
pub(crate) const ANSWER_MAX: usize = 64 << 20;

/// Maximum number of pages. Stores put 1000 names and more into each.
const PAGES_MAX: usize = 4000;

/// Maximum number of bytes of all pages: about a million names.
const BYTES_MAX: usize = 512 << 20;

/// Error for a server that sends without end.
#[derive(Debug)]
pub(crate) struct TooLong;

impl std::fmt::Display for TooLong {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "a response of more than {ANSWER_MAX} bytes")
    }
}

impl std::error::Error for TooLong {}

/// Pages of one listing so far.
#[derive(Default)]
pub(crate) struct Pages {
    /// Path and query of each page that was requested.
    requested: HashSet<String>,
    bytes: usize,
    /// Parser of the pages; `None` if the caller parses them.
    gathered: Option<Gathered>,
}

/// Makes the current request one for a list, which fails if the list does not end.
pub(crate) async fn bounded<T>(list: impl Future<Output = T>) -> T {
    current(|it| it.pages.replace(Some(Pages::default())));
    list.await
}

/// Like [`bounded`], for requests of `object_store`, whose pages are added to `gathered`. Returns
/// that.
pub(crate) async fn gathered<T, E>(
    gathered: Gathered,
    list: impl Future<Output = Result<T, E>>,
) -> Result<Gathered, E> {
    let pages = Pages {
        gathered: Some(gathered),
        ..Pages::default()
    };
    current(|it| it.pages.replace(Some(pages)));
    list.await?;
    let gathered = current(|it| it.pages.take()?.gathered).flatten();
    Ok(gathered.expect("set above"))
}

/// Counts a request for a page of a listing, and returns whether it is one. A page without a token
/// is requested by the key that it begins after.
///
/// # Errors
///
/// [`TooLong`] for a page that was requested before, and for one page too many.
pub(crate) async fn asked(request: &mut HttpRequest) -> Result<bool, HttpError> {
    let after = in_list(|pages| {
        let Some(gathered) = &pages.gathered else {
            return (true, None);
        };
        let is_page = gathered.is_page(request.uri().query().unwrap_or_default());
        (is_page, gathered.after().map(str::to_owned))
    });
    let Some((true, after)) = after else {
        return Ok(false);
    };
    if let Some(after) = after {
        *request.uri_mut() = going_on_after(request.uri(), &after)?;
        sign_changed(request).await?;
    }
    let page = request.uri().path_and_query().map_or("", |it| it.as_str());
    count(|pages| pages.requested.insert(page.to_owned()) && pages.requested.len() <= PAGES_MAX)?;
    Ok(true)
}

/// Returns the URL of a page that begins after a key. Servers that know version 2 of S3's listing
/// read `start-after`, others `marker`.
fn going_on_after(uri: &Uri, after: &str) -> Result<Uri, HttpError> {
    fn failed(error: impl std::error::Error + Send + Sync + 'static) -> HttpError {
        HttpError::new(HttpErrorKind::Request, error)
    }
    let mut url = Url::parse(&uri.to_string()).map_err(failed)?;
    let is_token = |(name, value): &(_, _)| name == "continuation-token" && value == CONTINUED;
    let pairs: Vec<(String, String)> = url.query_pairs().into_owned().collect();
    let kept = pairs.iter().filter(|pair| !is_token(pair));
    url.query_pairs_mut()
        .clear()
        .extend_pairs(kept)
        .append_pair("marker", after)
        .append_pair("start-after", after);
    // A form encodes a space as a plus, which some servers do not decode. A real plus is already
    // percent-encoded.
    let query = url.query().map(|query| query.replace('+', "%20"));
    url.set_query(query.as_deref());
    url.as_str().parse().map_err(failed)
}

/// Counts the bytes of a page, and returns what is handed on of it.
///
/// # Errors
///
/// [`TooLong`] if there are too many; those of [`Gathered::take_page`].
pub(crate) fn received(page: Vec<u8>) -> Result<Vec<u8>, HttpError> {
    count(|pages| {
        pages.bytes = pages.bytes.saturating_add(page.len());
        pages.bytes <= BYTES_MAX
    })?;
    let taken = in_list(|pages| Some(pages.gathered.as_mut()?.take_page(&page)));
    match taken.flatten() {
        Some(taken) => taken.map_err(HttpError::from),
        None => Ok(page),
    }
}

/// Applies `fits` to the pages of the current list. Nothing is counted if there is none.
fn count(fits: impl FnOnce(&mut Pages) -> bool) -> Result<(), HttpError> {
    match in_list(fits) {
        Some(false) => Err(HttpError::new(HttpErrorKind::Decode, TooLong)),
        Some(true) | None => Ok(()),
    }
}

/// Applies `look` to the pages of the current list; `None` if the current request is for none.
fn in_list<T>(look: impl FnOnce(&mut Pages) -> T) -> Option<T> {
    current(|it| it.pages.borrow_mut().as_mut().map(look)).flatten()
}

#[cfg(test)]
mod tests {
    use object_store::client::HttpRequestBody;

    use super::*;
    use crate::http::current_request::CurrentRequest;
    use crate::sync::timeline::Timeline;

    fn in_a_request<T>(list: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        let request = CurrentRequest::new(Timeline::default(), None).send(list);
        runtime.expect("a runtime").block_on(request).0
    }

    fn request(target: &str) -> HttpRequest {
        let mut request = HttpRequest::new(HttpRequestBody::empty());
        *request.uri_mut() = format!("http://host{target}").parse().expect("a URL");
        request
    }

    async fn ask(target: &str) -> Result<bool, HttpError> {
        asked(&mut request(target)).await
    }

    /// Whatever the parameter for the page is called.
    #[test]
    fn repeated_page_ends_list() {
        in_a_request(bounded(async {
            ask("/tree").await.expect("the first page");
            for page in ["?cursor=b", "?page=2", "?cursor=b&page=2", "/x"] {
                let target = format!("/tree{page}");
                ask(&target).await.expect("a page");
                ask(&target).await.expect_err("the same page");
            }
        }));
        in_a_request(async {
            assert!(!ask("/?marker=a").await.expect("no list"));
            assert!(!ask("/?marker=a").await.expect("no list"));
        });
    }

    #[test]
    fn list_over_page_or_byte_limit_fails() {
        in_a_request(bounded(async {
            for page in 0..PAGES_MAX {
                let target = format!("/?page={page}");
                ask(&target).await.expect("as many as there may be");
            }
            ask("/").await.expect_err("one more");
        }));
        in_a_request(bounded(async {
            let half = vec![0; BYTES_MAX / 2];
            received(half.clone()).expect("a long page");
            received(half.clone()).expect("as many as there may be");
            received(vec![0]).expect_err("one more");
        }));
    }

    #[test]
    fn spaces_in_a_query_are_no_plus() {
        for (query, after, wanted) in [
            (
                "prefix=a%20b%2F",
                "a b/c",
                "prefix=a%20b%2F&marker=a%20b%2Fc&start-after=a%20b%2Fc",
            ),
            (
                "prefix=a+b%2F",
                "a b/c",
                "prefix=a%20b%2F&marker=a%20b%2Fc&start-after=a%20b%2Fc",
            ),
            (
                "prefix=a%2Bb",
                "a+b",
                "prefix=a%2Bb&marker=a%2Bb&start-after=a%2Bb",
            ),
        ] {
            let uri = format!("http://host/b?{query}").parse().expect("a URL");
            let next = going_on_after(&uri, after).expect("a URL");
            assert_eq!(next.query(), Some(wanted), "{query}");
        }
    }

    #[test]
    fn truncated_list_goes_on_after_a_key() {
        let gathering = Gathered::new(Format::Objects, None);
        let list = gathered(gathering, async {
            let first = ask("/b?list-type=2&delimiter=%2F").await;
            assert!(first.expect("a page"));
            assert!(!ask("/token?comp=list").await.expect("of credentials"));
            let page = "<ListBucketResult><IsTruncated>true</IsTruncated><Contents><Key>a&amp;b \
                        +</Key></Contents></ListBucketResult>";
            let next = received(page.as_bytes().to_vec()).expect("a page");
            assert!(String::from_utf8_lossy(&next).contains(CONTINUED));
            let target = format!("/b?continuation-token={CONTINUED}&delimiter=%2F&list-type=2");
            let mut next = request(&target);
            assert!(asked(&mut next).await.expect("a page"));
            let wanted = "/b?delimiter=%2F&list-type=2&marker=a%26b%20%2B&start-after=a%26b%20%2B";
            assert_eq!(next.uri().path_and_query().expect("a query"), wanted);
            received(b"<ListBucketResult/>".to_vec()).expect("the last page");
            Ok::<_, ()>(())
        });
        let level = in_a_request(list).expect("a list").into_level();
        assert_eq!(level.objects.len(), 1);
    }
}
