//! Object of a checkpoint. One ranged request opens it; every later request requires its identity.
//!
//! [`ObjectSource::read`] (in `cache/through.rs`) is the only way to its bytes, both headers and
//! extents. It takes what the cache has, and requests the rest with `read_remote` (in
//! `reading.rs`): exactly one range, of the same object and of that length, continued where a
//! failed request stopped.

pub(crate) mod cache;
pub(crate) mod folder;
pub(crate) mod hints;
pub(crate) mod kept;
mod measure;
mod mirrors;
pub(crate) mod remote;
pub(crate) mod store;

mod opening;
mod reading;
mod sending;
mod site;

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use object_store::path::Path;
use object_store::{GetOptions, GetRange, GetResult, ObjectMeta, ObjectStore};

use self::cache::{Entry, Question, State};
use self::hints::object_hints;
use self::mirrors::{Ends, Replica};
use self::remote::Remote;
use self::store::{Fault, ResponseCapture, Store};
use super::{ReadHints, Source};
use crate::error::{Error, ErrorKind, FailedRequest, Result};
use crate::options::{Location, StoreOptions};
use crate::sync::retry::{Retries, Transient};
use crate::sync::retry_counter::RetryCounter;
pub(crate) use opening::unversioned_note;
use opening::{Sample, allows_unversioned, look, question, unversioned};
use reading::Collected;
pub(crate) use reading::Hedging;
pub use site::ObjectSite;

/// Identity of one state of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectIdentity {
    /// Length, bytes.
    pub len: u64,
    /// `ETag`, if the store gives one.
    pub e_tag: Option<String>,
    /// Version or generation, if the store keeps any.
    pub version: Option<String>,
    /// Time of the last modification, seconds since 1970.
    pub modified: i64,
}

/// Object of a store, in the state in which it was opened. Cheap to clone.
#[derive(Clone, Debug)]
pub struct ObjectSource(Arc<Opened>);

#[derive(Debug)]
struct Opened {
    location: Location,
    remote: Arc<Remote>,
    store: Arc<Store>,
    path: Path,
    identity: ObjectIdentity,
    /// Stands in for a validator if the object has none.
    sample: Option<Sample>,
    /// True while requests name the version. S3 has a separate permission for that, which the
    /// caller may lack.
    by_version: AtomicBool,
    /// Its bytes in the cache, if it is cached.
    entry: Option<Arc<Entry>>,
    /// Its file in each mirror.
    replicas: Vec<Replica>,
    ends: Ends,
}

/// Receiver of the bytes and the events of a read.
pub(crate) trait Receive: Send {
    /// Called when a request was sent; `again` if the one before it failed.
    fn requested(&mut self, again: bool);

    /// Called when a request failed and will be retried for the missing part of the range.
    fn failed(&mut self, _error: &Error) {}

    /// Called when a request takes much longer than others; `hedged` if a second one was sent for
    /// the missing part.
    fn stalled(&mut self, _hedged: bool) {}

    /// Called when the second request delivers the bytes from here on.
    fn hedge_won(&mut self) {}

    /// Receives the next bytes of the range.
    fn bytes(&mut self, bytes: &[u8]);

    /// Receives the next bytes of the range, which the cache had.
    fn cached(&mut self, bytes: &[u8]) {
        self.bytes(bytes);
    }

    /// Called when bytes outside of the range came, which are for the cache.
    fn surplus(&mut self, _bytes: u64) {}
}

impl ObjectSource {
    /// Opens the object at `location` with one request.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotFound`], [`ErrorKind::PermissionDenied`], [`ErrorKind::Remote`] and
    /// [`ErrorKind::TimedOut`] as the store responds; [`ErrorKind::Unsupported`] from servers that
    /// cannot serve ranges, and from those that send no validator with an object of more than a
    /// byte, unless the option `allow_unversioned` is set.
    pub fn at(location: &Location, store: &StoreOptions) -> Result<Self> {
        let remote = Remote::start(store)?;
        Self::open(&remote, location, 1, remote.open_deadline()).map(|(source, _)| source)
    }

    /// Opens the object at `path` in a store that the caller provides. `store` sets how failed
    /// requests are retried.
    ///
    /// # Errors
    ///
    /// Those of [`Self::at`].
    pub fn from_store(
        objects: Arc<dyn ObjectStore>,
        path: &str,
        store: &StoreOptions,
    ) -> Result<Self> {
        let location = Location::custom(&objects.to_string(), path);
        let url = location.remote().expect("a custom URL");
        let remote = Remote::with_store(store, objects, url)?;
        Self::open(&remote, &location, 1, remote.open_deadline()).map(|(source, _)| source)
    }

    /// Opens the object at `location` and returns it with its first bytes, up to `first` of them.
    /// Takes one request, until `deadline`.
    ///
    /// # Errors
    ///
    /// The translated error of the store; [`ErrorKind::Unsupported`] from servers that cannot serve
    /// ranges.
    pub(crate) fn open(
        remote: &Arc<Remote>,
        location: &Location,
        first: u64,
        deadline: Option<Instant>,
    ) -> Result<(Self, Vec<u8>)> {
        let url = location.remote().ok_or_else(|| {
            Error::invalid_request("is not in an object store").with_location(location)
        })?;
        let (store, path) = remote
            .store(url)
            .map_err(|error| error.or_location(location))?;
        Self::open_in(remote, (store, path), location.clone(), first, deadline)
    }

    /// Like [`Self::open`], for an object of an opened store.
    pub(crate) fn open_in(
        remote: &Arc<Remote>,
        (store, path): (Arc<Store>, Path),
        location: Location,
        first: u64,
        deadline: Option<Instant>,
    ) -> Result<(Self, Vec<u8>)> {
        let question = question(remote, &store, &location);
        if let Some(known) = question.as_ref().and_then(Question::recall::<State>) {
            let place = (Arc::clone(&store), path.clone());
            if let Some(opened) = Self::recall(remote, place, &location, first, known)? {
                return Ok(opened);
            }
        }
        let look = {
            let (remote, store, path) = (Arc::clone(remote), Arc::clone(&store), path.clone());
            async move { look(&remote, &store, &path, first).await }
        };
        let looked = remote.run(deadline, look);
        if let (Some(question), Err(error)) = (&question, &looked)
            && error.kind() == ErrorKind::NotFound
        {
            question.remember(&State::Absent);
        }
        let (meta, bytes, sample) = looked.map_err(|error| error.or_location(&location))?;
        let identity = ObjectIdentity::from_meta(&meta);
        let place = (store, path);
        let opened = Self::with_identity(remote, place, location, identity, sample);
        opened.0.ends.take(&bytes, opened.len());
        if let Some(entry) = opened.entry() {
            entry.keep_first(&bytes);
            if let Some(question) = &question {
                question.remember(&State::of(opened.identity()));
            }
        }
        Ok((opened, bytes))
    }

    fn with_identity(
        remote: &Arc<Remote>,
        (store, path): (Arc<Store>, Path),
        location: Location,
        identity: ObjectIdentity,
        sample: Option<Sample>,
    ) -> Self {
        let mirrors = remote.mirrors();
        let entry = remote.cache().and_then(|cache| {
            cache.entry(&location, location.remote()?, store.origin(), &identity)
        });
        Self(Arc::new(Opened {
            location,
            remote: Arc::clone(remote),
            store,
            path,
            by_version: AtomicBool::new(identity.version.is_some()),
            identity,
            sample,
            entry,
            ends: Ends::default(),
            replicas: mirrors.map_or_else(Vec::new, |mirrors| {
                (0..mirrors.count()).map(|_| Replica::default()).collect()
            }),
        }))
    }

    /// Returns the object's bytes in the cache, if it is cached.
    pub(crate) fn entry(&self) -> Option<&Arc<Entry>> {
        self.0.entry.as_ref()
    }

    /// Makes the cache forget the object: its bytes turned out to be wrong.
    pub(crate) fn clear_cached(&self) {
        if let Some(entry) = self.entry() {
            entry.clear();
        }
    }

    /// Returns the state of the object when it was opened.
    pub fn identity(&self) -> &ObjectIdentity {
        &self.0.identity
    }

    /// Returns the origin of the credentials for the object, never their values.
    pub fn credentials(&self) -> String {
        self.0.store.credentials()
    }

    /// Returns the read hints of the object.
    pub fn hints(&self) -> ReadHints {
        object_hints()
    }

    /// Returns the object's own checksums as the store states them: header names in lower case, and
    /// their values. Sends one small request under the object's identity; none where stores state
    /// no checksums.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Changed`] for an object that was replaced, and any other error of the store,
    /// translated.
    pub(crate) fn checksums(&self) -> Result<Vec<(&'static str, String)>> {
        if !self.0.store.states_checksums() {
            return Ok(Vec::new());
        }
        let source = self.clone();
        let (retries, retry_counter) = (self.retries(), self.0.remote.retry_counter().clone());
        let asked = self.0.remote.run(None, async move {
            with_retries(retries, &retry_counter, || source.ask_checksums()).await
        });
        asked.map_err(|error| error.or_location(self.location()))
    }

    /// Requires that the object may be read with more than one response: it has a validator, or the
    /// options allow it to lack one. An object that came whole with one response needs none.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`] otherwise.
    pub(crate) fn require_versioned(&self) -> Result<()> {
        if self.0.sample.is_none() || allows_unversioned(self.0.remote.options()) {
            return Ok(());
        }
        Err(unversioned().with_location(self.location()))
    }

    /// Requires that all bytes read are of one state of the object, where the responses do not
    /// tell. For an object without a validator, its length, beginning and end are compared once
    /// more. Sends no request for other objects.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Changed`], and any other error of the store, translated.
    pub(crate) fn verify_unchanged(&self) -> Result<()> {
        let Some(sample) = self.0.sample else {
            return Ok(());
        };
        let (source, remote) = (self.clone(), Arc::clone(&self.0.remote));
        let looked = self.0.remote.run(None, async move {
            look(&remote, &source.0.store, &source.0.path, sample.first).await
        });
        let what = match looked {
            Ok((meta, ..)) if meta.size != self.len() => {
                let (seen, found) = (self.len(), meta.size);
                format!("its length changed from {seen} to {found} bytes")
            }
            // The server's other words are not repeated: they may be anything.
            Ok((_, _, found)) if found != Some(sample) => {
                "its first or last bytes differ".to_owned()
            }
            Ok(_) => return Ok(()),
            Err(error) if error.kind() == ErrorKind::NotFound => GONE.to_owned(),
            // The object was small enough to come with one response.
            Err(error) if error.kind() == ErrorKind::Unsupported => "it is longer now".to_owned(),
            Err(error) => return Err(error.or_location(self.location())),
        };
        Err(changed_error(&what).with_location(self.location()))
    }

    /// Requires that the object at this path is still the one that was opened, with one small
    /// request; with none if `cache_check` says so. A commit of a hub
    /// and a manifest of a registry do not change, so these are not asked.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Changed`], and any other error of the store, translated.
    pub(crate) fn verify_in_place(&self) -> Result<()> {
        let cache = self.0.remote.cache().zip(self.0.location.remote());
        let is_trusted = cache.is_some_and(|(cache, url)| cache.is_trusted(url));
        let is_fixed = is_trusted || self.is_empty() || self.commit_name().is_some();
        if self.0.sample.is_some() || is_fixed {
            return self.verify_unchanged();
        }
        let source = self.clone();
        let (retries, retry_counter) = (self.retries(), self.0.remote.retry_counter().clone());
        let asked = self.0.remote.run(None, async move {
            with_retries(retries, &retry_counter, || source.ask_in_place()).await
        });
        asked.map_err(|error| error.or_location(self.location()))
    }

    /// Requests the object regardless of its version.
    async fn ask_in_place(&self) -> Result<(), Fault> {
        let options = self.conditions(false, 0..1);
        let asked = self.0.store.get(&self.0.path, options).await;
        let (result, captured) = asked.map_err(judge)?;
        self.require_same(&result.meta, &captured)
    }

    async fn ask_checksums(&self) -> Result<Vec<(&'static str, String)>, Fault> {
        let ask = |by_version| {
            let options = GetOptions {
                range: None,
                ..self.conditions(by_version, 0..1)
            };
            self.0.store.checksums(&self.0.path, options)
        };
        let by_version = self.0.by_version.load(Ordering::Relaxed);
        let (meta, captured) = match ask(by_version).await {
            // As for reads, naming the version takes a separate permission.
            Err(fault) if by_version && status(&fault.error) == Some(403) => {
                ask(false).await.map_err(judge)?
            }
            answer => answer.map_err(judge)?,
        };
        self.require_same(&meta, &captured)?;
        Ok(captured.stated)
    }

    /// Returns the hub's name for the object's contents: SHA-256 for large files, the git object id
    /// for small ones.
    pub(crate) fn contents_name(&self) -> Option<&str> {
        self.0.store.contents_name(&self.0.path)
    }

    /// Returns the commit that the object is of, if the store is a hub, or the digest of its
    /// artifact's manifest.
    pub(crate) fn commit_name(&self) -> Option<&str> {
        self.0.store.commit_name()
    }

    /// Returns whether both objects are in the same store.
    pub(crate) fn shares_store(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0.store, &other.0.store)
    }

    /// Returns the threads that run the object's requests.
    pub(crate) fn remote(&self) -> &Arc<Remote> {
        &self.0.remote
    }

    /// Returns the retries that the options of the store allow.
    pub(crate) fn retries(&self) -> Retries {
        self.0.remote.options().retries()
    }

    /// Requests `range` and returns the store's response.
    async fn ask(&self, range: Range<u64>) -> Result<(GetResult, ResponseCapture), Fault> {
        self.require_versioned().map_err(|error| Fault {
            error,
            transient: None,
            asked: None,
        })?;
        let by_version = self.0.by_version.load(Ordering::Relaxed);
        let options = self.conditions(by_version, range.clone());
        let fault = match self.0.store.get(&self.0.path, options).await {
            Ok(answer) => return Ok(answer),
            Err(fault) => fault,
        };
        if !by_version || status(&fault.error) != Some(403) {
            return Err(judge(fault));
        }
        // On S3, `s3:GetObjectVersion` is a separate permission from `s3:GetObject`. The ETag is
        // still required.
        let options = self.conditions(false, range);
        let answer = self
            .0
            .store
            .get(&self.0.path, options)
            .await
            .map_err(judge)?;
        self.0.by_version.store(false, Ordering::Relaxed);
        Ok(answer)
    }

    /// Returns the options of a request for `range` of the same object. The response is compared as
    /// well, because not every server checks conditions. A time of modification is only compared:
    /// servers that keep fractions of a second refuse `If-Unmodified-Since` with the whole second
    /// that they state themselves.
    fn conditions(&self, by_version: bool, range: Range<u64>) -> GetOptions {
        let identity = &self.0.identity;
        GetOptions {
            range: Some(GetRange::Bounded(range)),
            if_match: self.strong_tag().map(str::to_owned),
            version: identity.version.clone().filter(|_| by_version),
            ..GetOptions::default()
        }
    }

    /// Returns the entity tag if it changes with every byte. A weak one never matches (RFC 9110,
    /// 13.1.1).
    fn strong_tag(&self) -> Option<&str> {
        let tag = self.0.identity.e_tag.as_deref()?;
        (!tag.starts_with("W/")).then_some(tag)
    }

    fn require_same(&self, meta: &ObjectMeta, captured: &ResponseCapture) -> Result<(), Fault> {
        match self.difference(&ObjectIdentity::from_meta(meta)) {
            Some(what) => {
                let request = self.0.store.failed_request(captured, "GET");
                Err(changed(&self.0.store.redacted(&what, captured), request))
            }
            None => Ok(()),
        }
    }

    /// Returns the difference between `found` and the state that was opened, in words.
    fn difference(&self, found: &ObjectIdentity) -> Option<String> {
        let seen = &self.0.identity;
        let shown = |text: &Option<String>| text.clone().unwrap_or_else(|| "none".to_owned());
        let is_weak = self.strong_tag().is_none();
        Some(if found.len != seen.len {
            format!(
                "its length changed from {} to {} bytes",
                seen.len, found.len
            )
        } else if found.e_tag != seen.e_tag {
            format!(
                "its ETag changed from {} to {}",
                shown(&seen.e_tag),
                shown(&found.e_tag)
            )
        } else if is_weak && found.version != seen.version {
            format!(
                "its version changed from {} to {}",
                shown(&seen.version),
                shown(&found.version)
            )
        } else if is_weak && found.modified != seen.modified {
            "its modification time changed".to_owned()
        } else {
            return None;
        })
    }
}

/// Text of the error for an object that was removed.
const GONE: &str = "it was removed";

/// Translates a refusal for an object that could be read before.
fn judge(fault: Fault) -> Fault {
    let what = match (fault.error.kind(), status(&fault.error)) {
        (ErrorKind::NotFound, _) => GONE,
        (_, Some(416)) => "it is shorter than it was",
        _ => return fault,
    };
    changed(what, fault.error.request().cloned().unwrap_or_default())
}

fn status(error: &Error) -> Option<u16> {
    error.request()?.status
}

impl Source for ObjectSource {
    fn location(&self) -> &Location {
        &self.0.location
    }

    fn len(&self) -> u64 {
        self.0.identity.len
    }

    fn fetch(&self, offset: u64, len: usize) -> Result<Vec<u8>> {
        let end = offset.saturating_add(len as u64).min(self.len());
        if offset >= end {
            return Ok(Vec::new());
        }
        if let Some(bytes) = self.entry().and_then(|entry| entry.find_all(offset..end)) {
            return Ok(bytes);
        }
        let source = self.clone();
        let room = usize::try_from(end - offset).unwrap_or(len);
        self.0.remote.run(None, async move {
            let mut collected = Collected {
                bytes: Vec::with_capacity(room),
                retry_counter: source.remote().retry_counter().clone(),
            };
            let retries = source.retries();
            source
                .read(offset..end, retries, None, &mut collected)
                .await?;
            Ok(collected.bytes)
        })
    }
}

impl ObjectIdentity {
    pub(crate) fn from_meta(meta: &ObjectMeta) -> Self {
        Self {
            len: meta.size,
            e_tag: meta.e_tag.clone().filter(|tag| !is_blank(tag)),
            // S3 calls the version "null" in a bucket without versioning.
            version: meta.version.clone().filter(|version| version != "null"),
            modified: meta.last_modified.timestamp(),
        }
    }

    /// Returns whether the store can tell states of the object apart by more than its length: by an
    /// entity tag, a version, or the time of the last modification.
    pub fn is_versioned(&self) -> bool {
        // `object_store` says 1970 if there is no time.
        self.e_tag.is_some() || self.version.is_some() || self.modified > 0
    }
}

/// Returns whether an entity tag is the same for every object: `""`, `W/""`.
fn is_blank(tag: &str) -> bool {
    let opaque = tag.strip_prefix("W/").unwrap_or(tag);
    opaque.trim_matches('"').is_empty()
}

/// Calls `once` and retries transient errors.
pub(crate) async fn with_retries<T, F: Future<Output = Result<T, Fault>>>(
    retries: Retries,
    retry_counter: &RetryCounter,
    mut once: impl FnMut() -> F,
) -> Result<T> {
    let mut attempts = 0;
    loop {
        attempts += 1;
        match once().await {
            Ok(found) => return Ok(found),
            Err(fault) => match wait(retries, &fault, attempts) {
                Some(wait) => {
                    tracing::debug!(error = %fault.error, ?wait, "retried");
                    retry_counter.count(&fault.error);
                    tokio::time::sleep(wait).await;
                }
                None => return Err(fault.into_error(attempts)),
            },
        }
    }
}

fn wait(retries: Retries, fault: &Fault, failed: u32) -> Option<Duration> {
    retries.wait(fault.transient?, failed, fault.asked, fastrand::u32(..))
}

fn changed_error(what: &str) -> Error {
    let message = format!("changed while it was read: {what}");
    Error::new(ErrorKind::Changed, message)
        .with_hint("load again when no process is writing to the checkpoint")
}

fn changed(what: &str, request: FailedRequest) -> Fault {
    Fault {
        error: changed_error(what).with_request(request),
        transient: None,
        asked: None,
    }
}

fn too_long(wanted: u64) -> String {
    format!("the store sent more than the {wanted} bytes requested")
}

/// A connection that was closed early also looks like a short body, so it is worth a retry.
fn cut_short(misbehaved: impl Fn(String) -> Fault, came: u64, wanted: u64) -> Fault {
    let mut fault = misbehaved(format!("the body ended after {came} of {wanted} bytes"));
    fault.transient = Some(Transient::Broken);
    fault
}

#[cfg(test)]
mod tests {
    use chrono::DateTime;

    use super::*;

    #[test]
    fn blank_tag_null_version_and_epoch_are_no_validator() {
        let identity = |e_tag: Option<&str>, version: Option<&str>, modified: i64| {
            ObjectIdentity::from_meta(&ObjectMeta {
                location: Path::default(),
                last_modified: DateTime::from_timestamp(modified, 0).expect("a time"),
                size: 1,
                e_tag: e_tag.map(str::to_owned),
                version: version.map(str::to_owned),
            })
        };
        for (e_tag, version, modified) in [
            (Some("\"a\""), None, 0),
            (Some("W/\"a\""), None, 0),
            (None, Some("1"), 0),
            (None, None, 1_767_225_600),
        ] {
            assert!(identity(e_tag, version, modified).is_versioned());
        }
        for e_tag in [None, Some(""), Some("\"\""), Some("W/\"\"")] {
            assert!(
                !identity(e_tag, Some("null"), 0).is_versioned(),
                "{e_tag:?}"
            );
        }
    }
}
