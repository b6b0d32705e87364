//! Opens an object: its state and first bytes with one request, and a sample of an object that has
//! no validator.
//!
//! A validator (RFC 9110, 8.8) tells one state of an object from another: an entity tag, the time
//! of the last modification, a version. Without one, several responses may be of several states.

use std::ops::Range;
use std::sync::Arc;

use futures_util::StreamExt;
use object_store::path::Path;
use object_store::{GetOptions, GetRange, ObjectMeta};

use super::asking::status;
use super::cache::{Question, State, TILE_BYTES, is_settled};
use super::reading::{cut_short, too_long};
use super::remote::Remote;
use super::repr_digest::Sha256;
use super::store::{Fault, Store};
use super::{ObjectIdentity, ObjectSource, Source, StoreOptions, with_retries};
use crate::crc::Crcs;
use crate::error::{Error, ErrorKind, Result, counted};
use crate::format::{HEADER_BYTES_MAX, LENGTH_BYTES, SUFFIX};
use crate::options::Location;

/// Sample of an object that has no validator. Apart from a changed length, a replaced object can
/// only be noticed by comparing these bytes again.
///
/// The first bytes hold the header: objects with the same header have tensors at the same places.
/// Objects that differ in training differ at their ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sample {
    /// Number of first bytes that were requested.
    pub(super) first: u64,
    /// Checksums of the first bytes, the rest of the header, and the last bytes.
    crcs: Crcs,
}

/// Facts of an opening that its responses do not repeat.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    /// Stands in for a validator if the object has none.
    pub(super) sample: Option<Sample>,
    /// True if the time of the last modification tells states of the object apart.
    pub(super) is_settled: bool,
    /// SHA-256 of the object, if the server states it.
    pub(super) sha256: Option<Sha256>,
}

impl Seen {
    /// Returns the facts of a state that the cache knows, with the SHA-256 that was stated then:
    /// only states that have an entry were kept.
    pub(super) fn known(sha256: Option<Sha256>) -> Self {
        Self {
            sample: None,
            is_settled: true,
            sha256,
        }
    }
}

/// Kind of the question about the state of an object.
const OBJECT: &str = "object";

/// Number of last bytes in a [`Sample`].
const LAST_BYTES: u64 = 64 << 10;

/// Returns the store's metadata of an object, its first bytes, and what else was seen: a sample if
/// it has no validator. An object with the entity tag `known` is an error.
pub(super) async fn look(
    remote: &Remote,
    store: &Store,
    path: &Path,
    first: u64,
    known: Option<&str>,
) -> Result<(ObjectMeta, Vec<u8>, Seen)> {
    let (options, retry_counter) = (remote.options(), remote.retry_counter());
    let ask = |range: Range<u64>, known: Option<&str>| {
        let options = GetOptions {
            range: Some(GetRange::Bounded(range)),
            if_none_match: known.map(str::to_owned),
            ..GetOptions::default()
        };
        with_retries(remote.options().retries(), retry_counter, move || {
            open_once(store, path, options.clone())
        })
    };
    let (meta, bytes, (date, sha256)) = ask(0..first, known)
        .await
        .map_err(|error| with_wildcard_hint(error, path))?;
    let identity = ObjectIdentity::from_meta(&meta);
    let mut seen = Seen {
        sample: None,
        is_settled: is_settled(identity.modified, date),
        sha256,
    };
    if identity.is_versioned() {
        return Ok((meta, bytes, seen));
    }
    let behind = bytes.len() as u64;
    if behind < meta.size && !allows_unversioned(options) {
        return Err(unversioned());
    }
    let header_end = header_end(path, &bytes).min(meta.size).max(behind);
    let start = meta.size.saturating_sub(LAST_BYTES).max(header_end);
    let mut more = Vec::new();
    for range in [behind..header_end, start..meta.size] {
        if !range.is_empty() {
            more.extend(ask(range, None).await?.1);
        }
    }
    let crcs = Crcs::new(&[&bytes, &more]);
    seen.sample = Some(Sample { first, crcs });
    Ok((meta, bytes, seen))
}

impl ObjectSource {
    /// Returns whether the object can probably be opened without a request.
    pub(crate) fn is_known(remote: &Remote, location: &Location) -> bool {
        let (Some(cache), Some(url)) = (remote.cache(), location.remote()) else {
            return false;
        };
        if !cache.is_trusted(url) {
            return false;
        }
        let store = remote.store(url).ok();
        store
            .and_then(|(store, _)| cache.question(OBJECT, url, store.origin()))
            .is_some_and(|question| question.recall::<State>().is_some())
    }

    /// Opens an object in the state that the cache knows; `None` if that does not help.
    pub(super) fn recall(
        remote: &Arc<Remote>,
        place: (Arc<Store>, Path),
        location: &Location,
        first: u64,
        known: State,
    ) -> Result<Option<(Self, Vec<u8>)>> {
        let sha256 = known.sha256();
        let Some(identity) = known.identity() else {
            let message = "did not exist when the cache recorded it (cache_check=never or offline)";
            return Err(Error::new(ErrorKind::NotFound, message)
                .with_location(location)
                .with_hint("load once with cache_check=always if it exists now"));
        };
        let seen = Seen::known(sha256);
        let opened = Self::with_identity(remote, place, location.clone(), identity, seen);
        if opened.entry().is_none() {
            return Ok(None);
        }
        match opened.first_tiles(first) {
            Ok(bytes) => Ok(Some((opened, bytes))),
            // The first bytes were evicted, and the store has another object now.
            Err(error) if error.kind() == ErrorKind::Changed => Ok(None),
            Err(error) => Err(error.or_location(location)),
        }
    }

    /// Opens an object that the cache has, in the state that it knows. Sends no request.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotFound`] if the cache has nothing of it, errors of the cache's file system,
    /// and errors in the options of the store.
    pub(super) fn open_cached(remote: &Arc<Remote>, location: &Location) -> Result<Self> {
        let not_found = || Error::new(ErrorKind::NotFound, "is not in the cache");
        let failed = |error| Error::from_io("cannot read from the cache", error);
        let open = || {
            let (Some(cache), Some(url)) = (remote.cache(), location.remote()) else {
                return Err(not_found());
            };
            let (store, path) = remote.store(url)?;
            let question = question(remote, &store, location).ok_or_else(not_found)?;
            let known = question.try_recall::<State>().map_err(failed)?;
            let known = known.ok_or_else(not_found)?;
            let sha256 = known.sha256();
            let identity = known.identity().ok_or_else(not_found)?;
            let found = cache.find_entry((location, url), store.origin(), &identity);
            let entry = found.map_err(failed)?.ok_or_else(not_found)?;
            let known = (identity, Seen::known(sha256));
            Ok(Self::with_entry(
                remote,
                (store, path),
                location.clone(),
                known,
                Some(entry),
            ))
        };
        open().map_err(|error: Error| error.or_location(location))
    }

    /// Returns the first bytes, up to `first` of them: the first tile alone if it holds the whole
    /// header, as most do.
    fn first_tiles(&self, first: u64) -> Result<Vec<u8>> {
        let fetch = |len: u64| self.fetch(0, usize::try_from(len).unwrap_or(usize::MAX));
        let bytes = fetch(first.min(TILE_BYTES))?;
        let (found, header) = (bytes.len() as u64, header_end(&self.0.path, &bytes));
        if found == first.min(self.len()) || (1..=found).contains(&header) {
            return Ok(bytes);
        }
        fetch(first)
    }

    /// Makes the cache forget the state of an object that turned out to have changed, if openings
    /// rely on it.
    pub(super) fn without_stale_answer(&self, error: Error) -> Error {
        let question = question(&self.0.remote, &self.0.store, &self.0.location);
        match question {
            Some(question) if error.kind() == ErrorKind::Changed => question.forget(),
            Some(_) | None => {}
        }
        error
    }
}

/// Returns the place of the object's state in the cache.
pub(super) fn question(remote: &Remote, store: &Store, location: &Location) -> Option<Question> {
    remote
        .cache()?
        .question(OBJECT, location.remote()?, store.origin())
}

/// Adds to the error of a missing object that its name looks like a pattern, if it does.
fn with_wildcard_hint(error: Error, path: &Path) -> Error {
    if error.kind() != ErrorKind::NotFound || !path.as_ref().contains(['*', '?', '[']) {
        return error;
    }
    error.with_hint(
        "locations take no wildcards: pass the directory (all its shards are loaded), and select tensors by name, \
         or files to copy with include",
    )
}

/// Returns the end of the header if the object is named like a safetensors file and begins with
/// `bytes`; otherwise zero.
pub(super) fn header_end(path: &Path, bytes: &[u8]) -> u64 {
    let is_named = path.as_ref().ends_with(SUFFIX);
    let len = bytes.first_chunk().map(|len| u64::from_le_bytes(*len));
    let len = len.filter(|&len| is_named && len <= HEADER_BYTES_MAX);
    len.map_or(0, |len| LENGTH_BYTES + len)
}

/// Returns a note for the report about the objects that could change undetected.
pub(crate) fn unversioned_note<'a>(
    objects: impl IntoIterator<Item = &'a ObjectSource>,
) -> Option<String> {
    let objects = objects.into_iter();
    let mut objects = objects.filter(|object| !object.identity().is_versioned());
    let first = objects.next()?.location();
    let count = counted(1 + objects.count() as u64, "object");
    Some(format!(
        "the store sends neither ETag nor Last-Modified of {count} ({first}): length, first and last bytes \
         were compared again; a change of other bytes would go unnoticed"
    ))
}

pub(super) fn allows_unversioned(options: &StoreOptions) -> bool {
    options.flag("allow_unversioned") == Some(true)
}

pub(super) fn unversioned() -> Error {
    Error::unsupported("the store sends neither ETag nor Last-Modified: an object that is replaced while it is read \
         cannot be told from the old one",
    )
    .with_hint(
        "make the server send one of them; or, if nothing replaces the object meanwhile, allow it \
         (store option allow_unversioned=true)",
    )
}

/// Returns the store's metadata of an object, a range of it, and what the response says beside
/// them: its date, and the object's SHA-256.
async fn open_once(
    store: &Store,
    path: &Path,
    options: GetOptions,
) -> Result<(ObjectMeta, Vec<u8>, (Option<i64>, Option<Sha256>)), Fault> {
    let range = match &options.range {
        Some(GetRange::Bounded(range)) => range.clone(),
        _ => unreachable!("openings request ranges"),
    };
    let (result, captured) = match store.get(path, options).await {
        Ok(answer) => answer,
        Err(fault) if may_be_empty(&fault) => {
            return match store.head(path).await {
                Ok((meta, _)) if meta.size == 0 => Ok((meta, Vec::new(), (None, None))),
                _ => Err(fault),
            };
        }
        Err(fault) => return Err(fault),
    };
    let meta = result.meta.clone();
    let wanted = range.end.min(meta.size).saturating_sub(range.start);
    let misbehaved = |message: String| store.misbehaved(&captured, &message);
    let mut bytes = Vec::with_capacity(usize::try_from(wanted).unwrap_or_default());
    let mut body = result.into_stream();
    while let Some(more) = body.next().await {
        bytes.extend_from_slice(&more.map_err(|error| store.fault(&error, &captured, "GET"))?);
        if bytes.len() as u64 > wanted {
            return Err(misbehaved(too_long(wanted)));
        }
    }
    if (bytes.len() as u64) < wanted {
        return Err(cut_short(misbehaved, bytes.len() as u64, wanted));
    }
    Ok((meta, bytes, (captured.date, captured.sha256)))
}

/// Returns whether a failure may mean that the object is empty. Such an object has no range, and
/// stores report that in different ways: 416, a full response without bytes, an invalid range, or
/// (those without HTTP) an error of their own.
fn may_be_empty(fault: &Fault) -> bool {
    fault.transient.is_none()
        && match status(&fault.error) {
            Some(status) => status == 416 || (200..300).contains(&status),
            None => fault.error.kind() == ErrorKind::Remote,
        }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_object_named_like_a_pattern_gets_hint_on_wildcards() {
        let hint = |kind, path: &str| {
            let error = Error::new(kind, "missing").with_hint("check the key");
            let error = with_wildcard_hint(error, &Path::parse(path).expect("a path"));
            error.hint().expect("a hint").to_owned()
        };
        assert!(hint(ErrorKind::NotFound, "m/x.safetensors").contains("key"));
        assert!(hint(ErrorKind::Remote, "m/*.safetensors").contains("key"));
        assert!(hint(ErrorKind::NotFound, "m/*.safetensors").contains("wildcards"));
    }
}
