//! Opens an object: its state and first bytes with one request, and a sample of an object that has
//! no validator.
//!
//! A validator (RFC 9110, 8.8) tells one state of an object from another: an entity tag, the time
//! of the last modification, a version. Without one, several responses may be of several states.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures_util::StreamExt;
use object_store::path::Path;
use object_store::{GetOptions, GetRange, ObjectMeta};

use super::asking::{changed, changed_error};
use super::cache::{Question, State, TILE_BYTES, is_settled};
use super::reading::{cut_short, too_long};
use super::remote::Remote;
use super::store::{EndsAt, Fault, KnownLen, NoRange, ResponseCapture, Sha256, Store};
use super::{
    ObjectIdentity, ObjectPath, ObjectSource, Source, StoreOptions, Version, with_retries,
};
use crate::error::{Error, ErrorKind, Result, counted};
use crate::options::Location;
use crate::sync::retry::PROGRESS_BYTES;
use tload_base::crc::Crcs;
use tload_format::{HEADER_BYTES_MAX, LENGTH_BYTES, SUFFIX};

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

/// Object as it was found: the store's metadata, its first bytes, and what else was seen, such as a
/// sample if it has no validator.
pub(super) type Looked = (ObjectMeta, Vec<u8>, Seen);

/// Requests an object's metadata and first bytes.
pub(super) async fn look(remote: &Remote, object: &ObjectPath, first: u64) -> Result<Looked> {
    let looked = look_unless(remote, object, first, None).await?;
    Ok(looked.expect("no entity tag is known"))
}

/// As [`look`]; `None` if the object has the entity tag `known`.
pub(super) async fn look_unless(
    remote: &Remote,
    object: &ObjectPath,
    first: u64,
    known: Option<&str>,
) -> Result<Option<Looked>> {
    let (store, path) = (&*object.store, &object.path);
    let (options, retry_counter) = (remote.options(), remote.retry_counter());
    let opened = with_retries(options.retries(), retry_counter, || {
        open_unless(store, path, first, known)
    });
    let opened = opened
        .await
        .map_err(|error| with_wildcard_hint(error, path))?;
    let Some(opened) = opened else {
        return Ok(None);
    };
    let (meta, mut bytes) = (opened.meta, opened.bytes);
    let identity = ObjectIdentity::from_meta(&meta);
    let mut seen = Seen {
        sample: None,
        is_settled: is_settled(identity.modified, opened.date),
        sha256: opened.sha256,
    };
    if !identity.is_versioned() && (bytes.len() as u64) < meta.size && !allows_unversioned(options)
    {
        return Err(unversioned());
    }
    // The server may send less than the requested range.
    let read = async |range: Range<u64>| {
        let mut bytes = Vec::new();
        while range.start + (bytes.len() as u64) < range.end {
            let rest = range.start + bytes.len() as u64..range.end;
            let more = with_retries(options.retries(), retry_counter, || {
                open_once(store, path, ranged(rest.clone()))
            });
            let more = more.await?;
            if let Some(what) = identity.difference(&ObjectIdentity::from_meta(&more.meta)) {
                let what = store.redacted(&what, &ResponseCapture::default());
                return Err(changed_error(&what));
            }
            bytes.extend(more.bytes);
        }
        Ok(bytes)
    };
    bytes.extend(read(bytes.len() as u64..first.min(meta.size)).await?);
    if identity.is_versioned() {
        return Ok(Some((meta, bytes, seen)));
    }
    let behind = bytes.len() as u64;
    let header_end = header_end(path, &bytes).min(meta.size).max(behind);
    let start = meta.size.saturating_sub(LAST_BYTES).max(header_end);
    let mut more = read(behind..header_end).await?;
    more.extend(read(start..meta.size).await?);
    let crcs = Crcs::new(&[&bytes, &more]);
    seen.sample = Some(Sample { first, crcs });
    Ok(Some((meta, bytes, seen)))
}

impl ObjectSource {
    /// Returns whether the object can probably be opened without a request.
    pub fn is_known(remote: &Remote, location: &Location) -> bool {
        let (Some(cache), Some(url)) = (remote.cache(), location.remote()) else {
            return false;
        };
        if !cache.is_trusted(url) {
            return false;
        }
        let recall = |(store, _): (Arc<Store>, Path)| question(remote, &store, location)?.recall();
        remote
            .store(url)
            .ok()
            .and_then(recall)
            .is_some_and(|_: State| true)
    }

    /// Opens an object in the state that the cache knows; `None` if that does not help.
    pub(super) fn recall(
        remote: &Arc<Remote>,
        object: ObjectPath,
        location: &Location,
        first: u64,
        known: State,
    ) -> Result<Option<(Self, Vec<u8>)>> {
        let sha256 = known.sha256();
        let Some(identity) = known.identity() else {
            remote.has_recalled.store(true, Ordering::Relaxed);
            let message = "did not exist when the cache recorded it (cache_check=never or offline)";
            return Err(Error::new(ErrorKind::NotFound, message)
                .with_location(location)
                .with_hint("load once with cache_check=always if it exists now"));
        };
        let seen = Seen::known(sha256);
        let opened = Self::with_identity(remote, object, location.clone(), identity, seen);
        if opened.entry().is_none() {
            return Ok(None);
        }
        match opened.first_tiles(first) {
            Ok(bytes) => Ok(Some((opened, bytes))),
            // The cache has evicted the first bytes, and the store has another object now.
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
            let found = cache.find_entry(location, store.origin(), &identity);
            let entry = found.map_err(failed)?.ok_or_else(not_found)?;
            let seen = Seen::known(sha256);
            let (object, version) = (ObjectPath { store, path }, Version { identity, seen });
            Ok(Self::with_entry(
                remote,
                object,
                location.clone(),
                version,
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
        if error.kind() == ErrorKind::Changed
            && let Some(question) = question(&self.0.remote, &self.0.store, &self.0.location)
        {
            question.forget();
        }
        error
    }
}

/// Returns the place of the object's state in the cache.
pub(super) fn question(remote: &Remote, store: &Store, location: &Location) -> Option<Question> {
    let cache = remote.cache()?;
    cache.question(OBJECT, location.remote()?, store.origin())
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
    let len = bytes
        .first_chunk()
        .map(|len| u64::from_le_bytes(*len))
        .filter(|&len| is_named && len <= HEADER_BYTES_MAX);
    len.map_or(0, |len| LENGTH_BYTES + len)
}

/// Returns a note for the report about the objects that could change undetected.
pub fn unversioned_note<'a>(objects: impl IntoIterator<Item = &'a ObjectSource>) -> Option<String> {
    let is_unversioned = |object: &&ObjectSource| !object.identity().is_versioned();
    let mut objects = objects.into_iter().filter(is_unversioned);
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

/// Range of an object, and what else its response says.
struct Opening {
    meta: ObjectMeta,
    bytes: Vec<u8>,
    date: Option<i64>,
    sha256: Option<Sha256>,
}

fn ranged(range: Range<u64>) -> GetOptions {
    GetOptions {
        range: Some(GetRange::Bounded(range)),
        ..GetOptions::default()
    }
}

/// Requests the first bytes of an object, unless it has the entity tag `known`.
async fn open_unless(
    store: &Store,
    path: &Path,
    first: u64,
    known: Option<&str>,
) -> Result<Option<Opening>, Fault> {
    let options = GetOptions {
        if_none_match: known.map(str::to_owned),
        ..ranged(0..first)
    };
    match open_once(store, path, options).await {
        // A server that evaluates conditions that it was not sent is not believed.
        Err(fault) if known.is_some() && fault.is_unmodified => Ok(None),
        opened => opened.map(Some),
    }
}

/// Requests a range of an object. A store that does not state the object's length with it, or has
/// no range because the object is empty, is asked for the length too.
async fn open_once(store: &Store, path: &Path, options: GetOptions) -> Result<Opening, Fault> {
    let fault = match read_once(store, path, options.clone(), None).await {
        Err(fault) => fault,
        opened => return opened,
    };
    if fault.no_range == Some(NoRange::LengthUnknown) {
        let unanswered = |head: Fault| {
            if head.transient.is_some() {
                head
            } else {
                fault
            }
        };
        let (meta, captured) = store.head(path).await.map_err(unanswered)?;
        let opened = read_once(store, path, options, Some(meta.size)).await?;
        let identity = ObjectIdentity::from_meta(&meta);
        return match identity.difference(&ObjectIdentity::from_meta(&opened.meta)) {
            Some(what) => Err(changed(
                &store.redacted(&what, &captured),
                store.failed_request(&captured, "HEAD"),
            )),
            None => Ok(opened),
        };
    }
    match empty(store, path, &fault).await {
        Some(meta) => Ok(Opening {
            meta,
            bytes: Vec::new(),
            date: None,
            sha256: None,
        }),
        None => Err(fault),
    }
}

/// Requests a range of an object of `known_len` bytes, if that is known.
async fn read_once(
    store: &Store,
    path: &Path,
    mut options: GetOptions,
    known_len: Option<u64>,
) -> Result<Opening, Fault> {
    let range = match &options.range {
        Some(GetRange::Bounded(range)) => range.clone(),
        _ => unreachable!("openings request ranges"),
    };
    known_len.map(|len| options.extensions.insert(KnownLen(len)));
    let (result, captured) = store.get(path, options).await?;
    let meta = result.meta.clone();
    let end = range.end.min(meta.size);
    let sent = result.extensions.get().map_or(end, |EndsAt(sent)| *sent);
    let wanted = sent.saturating_sub(range.start);
    let misbehaved = |message: String| store.misbehaved(&captured, &message);
    if sent < end && wanted < u64::from(PROGRESS_BYTES) {
        return Err(misbehaved(format!(
            "the server sent the range up to byte {sent} only, wanted {end}"
        )));
    }
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
    Ok(Opening {
        meta,
        bytes,
        date: captured.date,
        sha256: captured.sha256,
    })
}

/// Returns the metadata of an object that is empty, if that is why a request for a range failed.
/// Such an object has no range, and stores report that in different ways: 416, a full response
/// without bytes, an invalid range, or (those without HTTP) their own error.
async fn empty(store: &Store, path: &Path, fault: &Fault) -> Option<ObjectMeta> {
    let status = fault.error.status();
    let may_be_empty = fault.transient.is_none()
        && match status {
            Some(status) => status == 416 || (200..300).contains(&status),
            None => fault.error.kind() == ErrorKind::Remote,
        };
    if !may_be_empty {
        return None;
    }
    let is_empty = |meta: &ObjectMeta| meta.size == 0;
    match (store.head(path).await, &fault.no_range) {
        (Ok((meta, _)), _) => Some(meta).filter(is_empty),
        // A server may allow GET only. Its response to GET described the object completely.
        (Err(_), Some(said)) => store.described(path, said.meta(path)?),
        (Err(_), None) if status == Some(416) => {
            let asked = store.get(path, GetOptions::default()).await;
            asked.ok().map(|(result, _)| result.meta).filter(is_empty)
        }
        (Err(_), None) => None,
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
