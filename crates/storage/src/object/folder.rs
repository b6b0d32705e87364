//! Lists what is directly below a prefix of an object store, as if the prefix were a directory.

use std::sync::Arc;
use std::time::Instant;

use object_store::path::Path;

use super::cache::Question;
use super::remote::Remote;
use super::store::{Level, Store};
use super::with_retries;
use crate::error::{Error, ErrorKind, Result, shortened};
use crate::options::{Location, Protocol};

/// Names below a prefix.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Folder {
    /// Names of objects, in alphabetical order, without hidden ones.
    pub names: Vec<String>,
    /// Names of prefixes that stand for directories, in alphabetical order, without hidden ones.
    pub below: Vec<String>,
    /// Note on keys that cannot be requested, if there are any.
    pub note: Option<String>,
}

impl Folder {
    /// Lists one level below `location`, until `deadline`.
    ///
    /// # Errors
    ///
    /// The store's error, translated; [`ErrorKind::Unsupported`] over HTTP, which has no listing.
    pub fn list(
        remote: &Arc<Remote>,
        location: &Location,
        deadline: Option<Instant>,
    ) -> Result<Self> {
        let url = location.remote().ok_or_else(|| {
            Error::new(ErrorKind::InvalidRequest, "is not in an object store")
                .with_location(location)
        })?;
        if url.protocol == Protocol::Http {
            return Err(Error::new(
                ErrorKind::Unsupported,
                "web servers do not list directories",
            )
            .with_location(location)
            .with_hint("pass the URL of an index or of a *.safetensors file"));
        }
        let (store, prefix) = remote
            .store(url)
            .map_err(|error| error.or_location(location))?;
        let (on, of) = (Arc::clone(remote), location.clone());
        let level = async move { level(&on, &store, &prefix, &of).await };
        let level = remote
            .run_until(deadline, "listing it", level)
            .map_err(|error| error.or_location(location))?;
        let visible = |name: Option<&str>| {
            name.filter(|name| !name.starts_with('.'))
                .map(str::to_owned)
        };
        let mut folder = Self {
            names: level
                .objects
                .iter()
                .filter_map(|object| visible(object.location.filename()))
                .collect(),
            below: level
                .prefixes
                .iter()
                .filter_map(|prefix| visible(prefix.filename()))
                .collect(),
            note: unusable_note(&level.unusable),
        };
        folder.names.sort();
        folder.below.sort();
        Ok(folder)
    }
}

/// Returns a note that names keys that are left out because nothing can be requested by them.
fn unusable_note(keys: &[String]) -> Option<String> {
    const KEYS_SHOWN: usize = 5;
    if keys.is_empty() {
        return None;
    }
    // `{:?}` escapes control characters.
    let shown = keys.iter().take(KEYS_SHOWN);
    let shown: Vec<_> = shown.map(|key| format!("{:?}", shortened(key))).collect();
    let more = match keys.len().saturating_sub(KEYS_SHOWN) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    Some(format!(
        "keys that are no paths (empty components, dots, control characters) are left out: {}{more}",
        shown.join(", ")
    ))
}

/// Lists the direct children of `prefix`, which is that of `location` in `store`: without a request
/// if the cache knows them and is trusted.
pub async fn level(
    remote: &Remote,
    store: &Store,
    prefix: &Path,
    location: &Location,
) -> Result<Level> {
    let cache = remote.cache().zip(location.remote());
    let question = cache.and_then(|(cache, url)| cache.listing(url, store.origin()));
    if let Some(known) = question.as_ref().and_then(Question::recall) {
        return Ok(known);
    }
    let asked = Some(prefix).filter(|prefix| !prefix.as_ref().is_empty());
    let (retries, retry_counter) = (remote.options().retries(), remote.retry_counter());
    let level = with_retries(retries, retry_counter, || store.list(asked))
        .await
        .map_err(|error| error.with_location(location))?;
    if let Some(question) = question {
        question.remember(&level);
    }
    Ok(level)
}
