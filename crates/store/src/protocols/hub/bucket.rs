//! Buckets of a hub: files without commits, listed level by level. Called by
//! [`crate::Store`].
//!
//! `GET ENDPOINT/api/buckets/org/name/tree/PREFIX` responds with one page of the files and
//! directories whose paths begin with the prefix, and with a `Link` to the next page.
//! `ENDPOINT/buckets/org/name/resolve/FILE` redirects to the file, as for models. A file may be
//! replaced at any time: its state is what the response that is redirected to states.

use std::collections::BTreeSet;
use std::sync::Arc;

use async_trait::async_trait;
use http::{HeaderMap, Uri};
use object_store::client::HttpClient;
use object_store::path::Path;
use object_store::{GetOptions, GetResult, ObjectStore};
use percent_encoding::utf8_percent_encode;
use serde::Deserialize;
use url::Url;

use super::listing::unconditional;
use super::malformed;
use super::repository::{ask, failed, refused};
use crate::answers::Answers;
use crate::backend::StoreBackend;
use crate::explain::failure::Fault;
use crate::http::pages::bounded;
use crate::http::response_capture::ResponseCapture;
use crate::lists::tree::{Level, Listed, is_component};
use crate::options::location::RESERVED;
use crate::requests::Requests;
use crate::steps::step;

/// Bucket of a hub.
pub(crate) struct Bucket {
    pub(super) files: Arc<dyn ObjectStore>,
    pub(super) client: HttpClient,
    /// URL of its listing.
    pub(super) tree: String,
}

/// Entry of a listing, as far as it is used.
#[derive(Deserialize)]
struct Item {
    path: String,
    #[serde(rename = "type")]
    kind: Kind,
}

#[derive(Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
enum Kind {
    File,
    Directory,
    #[serde(other)]
    Other,
}

#[async_trait]
impl StoreBackend for Bucket {
    fn for_opening(self: Arc<Self>, _: &Answers) -> Arc<dyn StoreBackend> {
        self
    }

    async fn get(
        &self,
        requests: &Requests,
        path: &Path,
        options: GetOptions,
    ) -> Result<(GetResult, ResponseCapture), Fault> {
        let options = unconditional(options);
        requests.get(&*self.files, path, options).await
    }

    async fn list(&self, requests: &Requests, prefix: Option<&Path>) -> Result<Level, Fault> {
        let pages = || bounded(self.pages(prefix));
        let (pages, captured) = requests.send("LIST", pages).await?;
        level(&pages, prefix).map_err(|what| malformed(requests, &what, &captured))
    }
}

impl Bucket {
    /// Requests every page of a listing once.
    async fn pages(&self, prefix: Option<&Path>) -> object_store::Result<Vec<Vec<u8>>> {
        let prefix = prefix.map(|prefix| utf8_percent_encode(prefix.as_ref(), RESERVED));
        let first = match prefix {
            Some(prefix) => format!("{}/{prefix}", self.tree),
            None => self.tree.clone(),
        };
        pages(&self.client, first, &self.tree).await
    }
}

/// Requests every page of a listing once: the first one, and those that links lead to, which must
/// be at or below `tree`: another place would receive the token. `pages.rs` bounds their number.
pub(super) async fn pages(
    client: &HttpClient,
    first: String,
    tree: &str,
) -> object_store::Result<Vec<Vec<u8>>> {
    let parsed = |url: &str| Url::parse(url).map_err(|_| failed("a URL that is none".into()));
    let (mut url, tree) = (parsed(&first)?, parsed(tree)?);
    let mut pages = Vec::new();
    loop {
        let asked = Uri::try_from(url.as_str()).map_err(|_| failed("a URL that is none".into()))?;
        let (headers, page) = ask(client, asked, refused).await?;
        pages.push(page);
        let Some(next) = next_page(&headers).map_err(|what| failed(what.into()))? else {
            return Ok(pages);
        };
        url = next_url(&url, &next, &tree).map_err(|what| failed(what.into()))?;
    }
}

/// Returns the URL that a link in the response to `asked` leads to. It may be relative (RFC 8288,
/// section 3.1).
fn next_url(asked: &Url, link: &str, tree: &Url) -> Result<Url, &'static str> {
    let mut next = asked
        .join(link)
        .map_err(|_| "a link to the next page that is no URL")?;
    next.set_fragment(None);
    let place = |url: &Url| {
        (
            url.origin(),
            url.username().to_owned(),
            url.password().map(str::to_owned),
        )
    };
    let rest = next.path().strip_prefix(tree.path());
    let is_below = rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    if is_below && place(&next) == place(tree) {
        Ok(next)
    } else {
        Err("the next page is elsewhere")
    }
}

/// Returns the URL of the next page, from headers such as `Link: <URL>; rel="next"` (RFC 8288).
///
/// # Errors
///
/// A text for a header that seems to name the next page, but cannot be parsed: without that page,
/// files would be missing.
pub(crate) fn next_page(headers: &HeaderMap) -> Result<Option<String>, String> {
    for field in headers.get_all(http::header::LINK) {
        let field = String::from_utf8_lossy(field.as_bytes());
        let mut links = &*field;
        while let Some((url, parameters, others)) = first_link(links) {
            if parameters.into_iter().any(is_next) {
                return Ok(Some(url.to_owned()));
            }
            links = others;
        }
        if links.to_ascii_lowercase().contains("next") {
            return Err("a link to the next page that cannot be parsed".to_owned());
        }
    }
    Ok(None)
}

/// Splits a list of links after the first one: its URL, its parameters, and the others. A URL ends
/// at `>`, and a value in quotes at the second quote, whatever is between.
fn first_link(links: &str) -> Option<(&str, Vec<&str>, &str)> {
    let (url, mut rest) = links
        .trim_start_matches([' ', '\t', ','])
        .strip_prefix('<')?
        .split_once('>')?;
    let mut parameters = Vec::new();
    loop {
        let mut is_quoted = false;
        let end = rest.find(|letter| {
            step();
            is_quoted ^= letter == '"';
            !is_quoted && [';', ','].contains(&letter)
        });
        let (parameter, others) = rest.split_at(end.unwrap_or(rest.len()));
        parameters.push(parameter.trim());
        match others.strip_prefix(';') {
            Some(others) => rest = others,
            None => return Some((url, parameters, others)),
        }
    }
}

/// Returns whether a parameter is of a link to the next page: `rel` has one or more types.
fn is_next(parameter: &str) -> bool {
    let Some((name, value)) = parameter.split_once('=') else {
        return false;
    };
    let mut types = value.trim().trim_matches('"').split_ascii_whitespace();
    name.trim().eq_ignore_ascii_case("rel") && types.any(|kind| kind.eq_ignore_ascii_case("next"))
}

/// Returns the files and directories directly below a prefix, from the pages of its listing. The
/// error describes what is wrong with them.
pub(crate) fn level(pages: &[Vec<u8>], prefix: Option<&Path>) -> Result<Level, String> {
    let root = Path::default();
    let prefix = prefix.unwrap_or(&root);
    let mut objects = Vec::new();
    let (mut prefixes, mut unusable) = (BTreeSet::new(), BTreeSet::new());
    for page in pages {
        let items: Vec<Item> = serde_json::from_slice(page)
            .map_err(|error| format!("it is not a hub's list of a bucket: {error}"))?;
        for item in items {
            step();
            let is_usable = item.path.split('/').all(is_component);
            let Some(path) = Path::parse(&item.path).ok().filter(|_| is_usable) else {
                if item.kind != Kind::Other {
                    unusable.insert(item.path);
                }
                continue;
            };
            // A server may also list names that continue the prefix without a slash.
            let Some(mut below) = path.prefix_match(prefix) else {
                continue;
            };
            match (below.next(), below.next(), item.kind) {
                (None, ..) | (_, _, Kind::Other) => {}
                (Some(_), None, Kind::File) => {
                    drop(below);
                    objects.push(Listed {
                        location: path,
                        // The length is left out so that a copy requests the state of each file:
                        // responses name the contents differently from the list.
                        len: None,
                        modified: 0,
                        e_tag: None,
                        version: None,
                    });
                }
                (Some(first), ..) => {
                    prefixes.insert(prefix.parts().chain([first]).collect::<Path>());
                }
            }
        }
    }
    Ok(Level {
        objects,
        prefixes: prefixes.into_iter().collect(),
        unusable: unusable.into_iter().collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn level_lists_direct_children() {
        let first = br#"[
            {"type": "file", "path": "m/a.json", "size": 1, "xetHash": "x", "mtime": null},
            {"type": "directory", "path": "m/sub", "uploadedAt": "2026-01-01T00:00:00.000Z"},
            {"type": "link", "path": "m/odd"}
        ]"#;
        let second = br#"[
            {"type": "file", "path": "m/deep/er/b", "size": 1, "xetHash": "x"},
            {"type": "file", "path": "m2/c", "size": 1, "xetHash": "x"},
            {"type": "file", "path": "m", "size": 1, "xetHash": "x"}
        ]"#;
        let pages = [first.to_vec(), second.to_vec()];
        let names = |prefix: Option<&str>| {
            let level = level(&pages, prefix.map(Path::from).as_ref()).expect("a list");
            let objects = level.objects.iter().map(|one| one.location.to_string());
            let prefixes = level.prefixes.iter().map(ToString::to_string);
            (objects.collect::<Vec<_>>(), prefixes.collect::<Vec<_>>())
        };
        let owned = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
        let below = (owned(&["m/a.json"]), owned(&["m/deep", "m/sub"]));
        assert_eq!(names(Some("m")), below);
        assert_eq!(names(None), (owned(&["m"]), owned(&["m", "m2"])));
        for page in ["{}", "[{}]"] {
            assert!(level(&[page.into()], None).is_err(), "{page}");
        }
        let odd = br#"[{"type": "file", "path": "../x"}, {"type": "file", "path": "y"}]"#;
        let level = level(&[odd.to_vec()], None).expect("a page");
        assert_eq!(level.unusable, ["../x"]);
        assert_eq!(level.objects.len(), 1);
    }

    fn headers(links: &[&str]) -> HeaderMap {
        let links = links.iter().map(|link| link.parse().expect("a header"));
        links.map(|link| (http::header::LINK, link)).collect()
    }

    #[test]
    fn next_page_is_at_or_below_the_tree() {
        let url = |text: &str| Url::parse(text).expect("a URL");
        let tree = url("https://h.co/api/buckets/o/n/tree");
        let asked = url("https://h.co/api/buckets/o/n/tree/a%20b?cursor=1");
        let at = |rest: &str| Ok(url(&format!("https://h.co/api/buckets/o/n/tree{rest}")));
        let elsewhere = Err("the next page is elsewhere");
        for (link, wanted) in [
            (
                "https://h.co/api/buckets/o/n/tree/a%20b?cursor=2",
                at("/a%20b?cursor=2"),
            ),
            (
                "https://H.co:443/api/buckets/o/n/tree?cursor=2#x",
                at("?cursor=2"),
            ),
            ("//h.co/api/buckets/o/n/tree?cursor=2", at("?cursor=2")),
            (
                "/api/buckets/o/n/tree/a%20b?cursor=2",
                at("/a%20b?cursor=2"),
            ),
            ("?cursor=2", at("/a%20b?cursor=2")),
            ("a%20b?cursor=2", at("/a%20b?cursor=2")),
            ("./c?cursor=2", at("/c?cursor=2")),
            ("../tree?cursor=2", at("?cursor=2")),
            ("", at("/a%20b?cursor=1")),
            (
                "http://h.co/api/buckets/o/n/tree?cursor=2",
                elsewhere.clone(),
            ),
            (
                "https://h.co:444/api/buckets/o/n/tree?cursor=2",
                elsewhere.clone(),
            ),
            (
                "https://other.co/api/buckets/o/n/tree?cursor=2",
                elsewhere.clone(),
            ),
            (
                "https://u@h.co/api/buckets/o/n/tree?cursor=2",
                elsewhere.clone(),
            ),
            (
                "//other.co/api/buckets/o/n/tree?cursor=2",
                elsewhere.clone(),
            ),
            ("/api/buckets/o/n/trees?cursor=2", elsewhere.clone()),
            ("/?cursor=2", elsewhere.clone()),
            ("../../x", elsewhere.clone()),
            ("%2e%2e/%2e%2e/x", elsewhere.clone()),
            ("https://[", Err("a link to the next page that is no URL")),
        ] {
            assert_eq!(next_url(&asked, link, &tree), wanted, "{link}");
        }
    }

    #[test]
    fn next_page_is_named_by_link() {
        for (links, wanted) in [
            (
                &["<http://h/t?cursor=a>; rel=\"next\""][..],
                "http://h/t?cursor=a",
            ),
            (
                &["<http://h/p>; rel=\"prev\", <http://h/n>; rel=\"next\""],
                "http://h/n",
            ),
            (&["<http://h/p>; rel=\"prev\""], ""),
            (&["<http://h/t?a=1,2;b>; rel=next"], "http://h/t?a=1,2;b"),
            (
                &[
                    "<http://h/p>; title=\"a, <b>; rel=next\"; rel=prev,<http://h/n>;REL=\"last Next\"",
                ],
                "http://h/n",
            ),
            (
                &["<http://h/p>; rel=prev", "<http://h/n>; rel=next"],
                "http://h/n",
            ),
            (&["<http://h/next>; rel=prev", "<http://h/p>"], ""),
        ] {
            assert_eq!(
                next_page(&headers(links)),
                Ok(Some(wanted)
                    .filter(|url| !url.is_empty())
                    .map(str::to_owned)),
                "{links:?}"
            );
        }
        for link in [
            "http://h/n; rel=\"next\"",
            "<http://h/n; rel=\"next\"",
            "<http://h/p>; rel=prev, rel=next",
        ] {
            next_page(&headers(&[link])).expect_err(link);
        }
        assert_eq!(next_page(&HeaderMap::new()), Ok(None));
    }
}
