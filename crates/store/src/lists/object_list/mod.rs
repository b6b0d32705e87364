//! Lists of objects in pages, as S3, Google and Azure send them: what is gathered of them, and how
//! a list goes on. `page` parses one. Pure; called by `pages.rs`.
//!
//! `object_store` would take a page for the whole list if it lacks a token for the next page,
//! whatever the page itself says, and a page of any other document for an empty list. It also
//! refuses a list for one name that is no path. So it only sends the requests: it is given pages
//! without entries ([`Gathered::take_page`]).

mod page;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use object_store::path::Path;
use quick_xml::escape::escape;

use self::page::{Entry, Page, Rest};
use super::tree::{Level, Listed, is_component};
use crate::error::ErrorKind;
use crate::errors::classification::Classification;
use crate::steps::step;

/// Token for the next page of a list that the server did not give one for.
pub(crate) const CONTINUED: &str = "tload-continued";

/// Advice for lists that cannot be read to their end.
const HINT: &str = "update the server, or pass the URL of a file or of an index (*.safetensors.index.json), which needs no \
                    listing";

/// Form of a list in pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// `ListBucketResult` of S3 and Google.
    Objects,
    /// `EnumerationResults` of Azure.
    Blobs,
}

/// Entries of the pages of one list so far.
#[derive(Debug)]
pub(crate) struct Gathered {
    format: Format,
    /// Beginning of all keys: empty, or with a slash at its end.
    prefix: String,
    objects: Vec<Listed>,
    prefixes: BTreeSet<Path>,
    unusable: BTreeSet<String>,
    /// Key after which the list goes on, if its last page was truncated and named no next one.
    after: Option<String>,
    has_resumed: bool,
    /// True if the last page was not UTF-8.
    is_lossy: bool,
}

impl Gathered {
    /// Creates an empty list of what is directly below `prefix`.
    pub(crate) fn new(format: Format, prefix: Option<&Path>) -> Self {
        let prefix = prefix.map(AsRef::as_ref).filter(|it: &&str| !it.is_empty());
        Self {
            format,
            prefix: prefix.map_or_else(String::new, |prefix| format!("{prefix}/")),
            objects: Vec::new(),
            prefixes: BTreeSet::new(),
            unusable: BTreeSet::new(),
            after: None,
            has_resumed: false,
            is_lossy: false,
        }
    }

    /// Returns whether a query requests a page of a list of this form.
    pub(crate) fn is_page(&self, query: &str) -> bool {
        let pair = match self.format {
            Format::Objects => "list-type=2",
            Format::Blobs => "comp=list",
        };
        query.split('&').any(|it| it == pair)
    }

    /// Returns the key after which the list goes on, if the next request must say so.
    pub(crate) fn after(&self) -> Option<&str> {
        self.after.as_deref()
    }

    /// Adds the entries of a page. Returns the same page without them, with a token if another one
    /// follows.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Remote`] for a page that is malformed, or that is truncated and cannot be
    /// continued; a page is never taken for the whole list.
    pub(crate) fn take_page(&mut self, body: &[u8]) -> Result<Vec<u8>, Classification> {
        let page = Page::parse(self.format, body)?;
        self.is_lossy = page.is_lossy;
        let before = self.after.take();
        if let Some(before) = before.as_deref() {
            self.has_resumed = true;
            let is_before = page.entries.iter().any(|it| it.key.as_str() <= before)
                || page.prefixes.iter().any(|prefix| prefix.as_str() < before);
            if is_before {
                return Err(cut_short(before));
            }
        }
        let token = match &page.rest {
            Rest::Nothing => String::new(),
            Rest::Token(token) => token.clone(),
            Rest::Unnamed(marker) => {
                self.after = Some(self.next_after(&page, marker.as_deref(), before.as_deref())?);
                CONTINUED.to_owned()
            }
        };
        for entry in page.entries {
            self.add(entry)?;
        }
        for prefix in page.prefixes {
            self.add_prefix(prefix)?;
        }
        let token = escape(&token);
        let page = match self.format {
            Format::Objects => format!(
                "<ListBucketResult><NextContinuationToken>{token}</NextContinuationToken></ListBucketResult>"
            ),
            Format::Blobs => format!(
                "<EnumerationResults><Blobs></Blobs><NextMarker>{token}</NextMarker></EnumerationResults>"
            ),
        };
        Ok(page.into_bytes())
    }

    /// Returns the key after which a list goes on whose page is truncated and names no next one:
    /// the server's marker, or else the last key of the page. The page itself went on after
    /// `before`. Lists of S3 are in the order of the bytes of the keys.
    fn next_after(
        &self,
        page: &Page,
        marker: Option<&str>,
        before: Option<&str>,
    ) -> Result<String, Classification> {
        let keys = page.entries.iter().map(|entry| entry.key.as_str());
        let prefixes = page.prefixes.iter().map(String::as_str);
        let last_key = keys.clone().next_back();
        let last_prefix = prefixes.clone().next_back();
        let last = last_key.max(last_prefix);
        let shown = marker.or(last).unwrap_or(&self.prefix);
        let is_sorted = keys.is_sorted() && prefixes.is_sorted();
        if self.format != Format::Objects || (marker.is_none() && !is_sorted) {
            return Err(cut_short(shown));
        }
        let is_later = |key: &&str| before.is_none_or(|before| *key > before);
        // Some servers send all prefixes with the first page. Continuing after the smaller of both
        // last names is slower, but leaves nothing out.
        let both = last_key.zip(last_prefix);
        let first = both.map(|(key, prefix)| key.min(prefix));
        let next = match marker {
            Some(marker) => Some(marker).filter(is_later),
            None => first.filter(is_later).or(last.filter(is_later)),
        };
        // A key with replacement characters does not exist on the server, so the list cannot
        // continue after it.
        next.filter(|key| !page.is_replaced(key))
            .map(str::to_owned)
            .ok_or_else(|| cut_short(shown))
    }

    fn add(&mut self, entry: Entry) -> Result<(), Classification> {
        step();
        let below = self.below(&entry.key)?;
        if let Some(at) = below.find('/') {
            // The server has ignored the delimiter, so cut the key to its folder.
            let end = entry.key.len() - below.len() + at + 1;
            return self.add_prefix(entry.key[..end].to_owned());
        }
        if below.is_empty() {
            // This is the marker of the folder itself.
            return Ok(());
        }
        match Path::parse(&entry.key)
            .ok()
            .filter(|_| self.is_usable(below))
        {
            Some(location) => self.objects.push(Listed {
                location,
                len: entry.len,
                modified: entry.modified,
                e_tag: entry.e_tag,
                version: None,
            }),
            None => drop(self.unusable.insert(entry.key)),
        }
        Ok(())
    }

    fn add_prefix(&mut self, prefix: String) -> Result<(), Classification> {
        step();
        let below = self.below(&prefix)?;
        let name = below.strip_suffix('/').unwrap_or(below);
        match Path::parse(&prefix).ok().filter(|_| self.is_usable(name)) {
            Some(path) => drop(self.prefixes.insert(path)),
            None => drop(self.unusable.insert(prefix)),
        }
        Ok(())
    }

    fn is_usable(&self, name: &str) -> bool {
        let is_replaced = self.is_lossy && name.contains(char::REPLACEMENT_CHARACTER);
        is_component(name) && !is_replaced
    }

    /// Returns the part of a key below the prefix.
    fn below<'a>(&self, key: &'a str) -> Result<&'a str, Classification> {
        key.strip_prefix(&self.prefix).ok_or_else(|| {
            Classification::new(
                ErrorKind::Remote,
                format!(
                    "the store lists {key:?}, which is not below the prefix {:?}",
                    self.prefix
                ),
            )
            .hint("check the server, and proxies and caches in front of it")
        })
    }

    /// Returns the whole list.
    pub(crate) fn into_level(self) -> Level {
        let mut objects = self.objects;
        if self.has_resumed {
            // Pages may overlap.
            objects.sort_by(|one, other| one.location.cmp(&other.location));
            objects.dedup_by(|one, other| one.location == other.location);
        }
        Level {
            objects,
            prefixes: self.prefixes.into_iter().collect(),
            unusable: self.unusable.into_iter().collect(),
        }
        .without_folder_markers()
    }
}

fn cut_short(after: &str) -> Classification {
    Classification::new(
        ErrorKind::Remote,
        format!(
            "the server's list ends early: after {after:?} it has more names, but no page with them"
        ),
    )
    .hint(HINT)
}
