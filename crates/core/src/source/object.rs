//! An object of a checkpoint: opened by one ranged request, its identity required of every later one.
//!
//! [`ObjectSource::read`] (in `reading.rs`) is the only way to its bytes, for headers as for extents: it asks for exactly one range,
//! checks that the answer is of the same object and of that length, and continues where a failed request stopped.

mod reading;

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use futures_util::StreamExt;
use object_store::path::Path;
use object_store::{GetOptions, GetRange, GetResult, ObjectMeta, ObjectStore};

use super::object_hints::object_hints;
use super::remote::Remote;
use super::store::{Exchange, Fault, Store};
use super::{Location, ReadHints, Source, StoreOptions};
use crate::error::{Error, ErrorKind, FailedRequest, Result};
use crate::retry::{Retries, Transient};
use crate::tally::Tally;
pub(crate) use reading::Hedging;

/// What tells one state of an object from another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectIdentity {
    /// Length, bytes.
    pub len: u64,
    /// Its `ETag`, if the store gives one.
    pub e_tag: Option<String>,
    /// Its version or generation, if the store keeps any.
    pub version: Option<String>,
    /// Time of the last change, seconds since 1970.
    pub modified: i64,
}

/// An object of a store and the state it was in when it was opened. Cheap to clone.
#[derive(Clone, Debug)]
pub struct ObjectSource(Arc<Opened>);

#[derive(Debug)]
struct Opened {
    location: Location,
    remote: Arc<Remote>,
    store: Arc<Store>,
    path: Path,
    identity: ObjectIdentity,
    modified: DateTime<Utc>,
    /// Whether requests name the version: S3 has a permission of its own for that, which the caller may lack.
    by_version: AtomicBool,
}

/// Takes what a read brings.
pub(crate) trait Receive: Send {
    /// A request was sent; `again` if the one before it failed.
    fn requested(&mut self, again: bool);

    /// A request failed and is to be sent again, for what is missing of the range.
    fn failed(&mut self, _error: &Error) {}

    /// A request takes much longer than others; `hedged` if a second one was sent for what is missing.
    fn stalled(&mut self, _hedged: bool) {}

    /// The second one brings the bytes from here on.
    fn hedge_won(&mut self) {}

    /// The next bytes of the range.
    fn bytes(&mut self, bytes: &[u8]);
}

impl ObjectSource {
    /// Opens the object at `location`: one request.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotFound`], [`ErrorKind::PermissionDenied`], [`ErrorKind::Remote`] and [`ErrorKind::TimedOut`] as the store
    /// answers; [`ErrorKind::Unsupported`] from servers that cannot serve ranges.
    pub fn at(location: &Location, store: &StoreOptions) -> Result<Self> {
        let remote = Remote::start(store)?;
        Self::open(&remote, location, 1, remote.open_deadline()).map(|(source, _)| source)
    }

    /// Opens the object at `path` in a store of the caller's own. `store` says how failed requests are tried again.
    ///
    /// # Errors
    ///
    /// As [`Self::at`].
    pub fn of(objects: Arc<dyn ObjectStore>, path: &str, store: &StoreOptions) -> Result<Self> {
        let location = Location::custom(&objects.to_string(), path);
        let url = location.remote().expect("made as one");
        let remote = Remote::with_store(store, objects, url)?;
        Self::open(&remote, &location, 1, remote.open_deadline()).map(|(source, _)| source)
    }

    /// Opens the object at `location` and returns its first bytes, up to `first` of them, with it: one request,
    /// until `deadline`.
    ///
    /// # Errors
    ///
    /// Whatever the store answers, translated; [`ErrorKind::Unsupported`] from servers that cannot serve ranges.
    pub(crate) fn open(
        remote: &Arc<Remote>,
        location: &Location,
        first: u64,
        deadline: Option<Instant>,
    ) -> Result<(Self, Vec<u8>)> {
        let url = location.remote().ok_or_else(|| {
            Error::new(ErrorKind::InvalidRequest, "is not in an object store")
                .with_location(location)
        })?;
        let (store, path) = remote
            .store(url)
            .map_err(|error| error.or_location(location))?;
        Self::open_in(remote, (store, path), location.clone(), first, deadline)
    }

    /// The same for an object of an opened store.
    pub(crate) fn open_in(
        remote: &Arc<Remote>,
        (store, path): (Arc<Store>, Path),
        location: Location,
        first: u64,
        deadline: Option<Instant>,
    ) -> Result<(Self, Vec<u8>)> {
        let (retries, tally) = (remote.options().retries(), remote.tally().clone());
        let task = {
            let (store, path, location) = (Arc::clone(&store), path.clone(), location.clone());
            async move {
                let opening = || open_once(&store, &path, first);
                with_retries(retries, &tally, opening)
                    .await
                    .map_err(|error| error.with_location(&location))
            }
        };
        let (meta, bytes) = remote
            .run(deadline, task)
            .map_err(|error| error.or_location(&location))?;
        let identity = ObjectIdentity::of(&meta);
        let opened = Opened {
            location,
            remote: Arc::clone(remote),
            store,
            path,
            by_version: AtomicBool::new(identity.version.is_some()),
            identity,
            modified: meta.last_modified,
        };
        Ok((Self(Arc::new(opened)), bytes))
    }

    /// The state it was in when it was opened.
    pub fn identity(&self) -> &ObjectIdentity {
        &self.0.identity
    }

    /// Where the credentials for it came from; never what they are.
    pub fn credentials(&self) -> String {
        self.0.store.credentials()
    }

    /// How the object likes to be read.
    pub fn hints(&self) -> ReadHints {
        object_hints()
    }

    /// What the store says of the object's own checksums: names of headers in lower case, and their values. One small request, under
    /// the object's identity; none where stores say nothing.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Changed`] for an object that was replaced, and whatever else the store answers, translated.
    pub(crate) fn checksums(&self) -> Result<Vec<(&'static str, String)>> {
        if !self.0.store.states_checksums() {
            return Ok(Vec::new());
        }
        let source = self.clone();
        let (retries, tally) = (self.retries(), self.0.remote.tally().clone());
        let asked = self.0.remote.run(None, async move {
            with_retries(retries, &tally, || source.ask_checksums()).await
        });
        asked.map_err(|error| error.or_location(self.location()))
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
        let (meta, exchange) = match ask(by_version).await {
            // As for reads: another permission.
            Err(fault) if by_version && status(&fault.error) == Some(403) => {
                ask(false).await.map_err(judge)?
            }
            answer => answer.map_err(judge)?,
        };
        self.require_same(&meta, &exchange)?;
        Ok(exchange.stated)
    }

    /// What a hub calls the object's contents: SHA-256 of large files, git's name of small ones.
    pub(crate) fn contents_name(&self) -> Option<&str> {
        self.0.store.contents_name(&self.0.path)
    }

    /// Whether both are in the same store.
    pub(crate) fn shares_store(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0.store, &other.0.store)
    }

    /// The threads that its requests run on.
    pub(crate) fn remote(&self) -> &Arc<Remote> {
        &self.0.remote
    }

    /// Retries as the options of the store say.
    pub(crate) fn retries(&self) -> Retries {
        self.0.remote.options().retries()
    }

    /// The store's answer to a request for `range`.
    async fn ask(&self, range: Range<u64>) -> Result<(GetResult, Exchange), Fault> {
        let by_version = self.0.by_version.load(Ordering::Relaxed);
        let options = self.conditions(by_version, range.clone());
        let fault = match self.0.store.get(&self.0.path, options).await {
            Ok(answer) => return Ok(answer),
            Err(fault) => fault,
        };
        if !by_version || status(&fault.error) != Some(403) {
            return Err(judge(fault));
        }
        // On S3 `s3:GetObjectVersion` is another permission than `s3:GetObject`. The ETag is required all the same.
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

    /// The range, and that it be of the same object. Compared with what comes back as well: not every server looks.
    fn conditions(&self, by_version: bool, range: Range<u64>) -> GetOptions {
        let identity = &self.0.identity;
        let strong = self.strong_tag();
        // The next best where there is none.
        let modified = Some(self.0.modified).filter(|at| strong.is_none() && at.timestamp() > 0);
        GetOptions {
            range: Some(GetRange::Bounded(range)),
            if_match: strong.map(str::to_owned),
            if_unmodified_since: modified,
            version: identity.version.clone().filter(|_| by_version),
            ..GetOptions::default()
        }
    }

    /// The entity tag, if it is one that changes with every byte. A weak one never matches (RFC 9110, 13.1.1).
    fn strong_tag(&self) -> Option<&str> {
        let tag = self.0.identity.e_tag.as_deref()?;
        (!tag.starts_with("W/")).then_some(tag)
    }

    fn require_same(&self, meta: &ObjectMeta, exchange: &Exchange) -> Result<(), Fault> {
        let (seen, found) = (&self.0.identity, ObjectIdentity::of(meta));
        let what = if found.len != seen.len {
            format!("its length went from {} to {} bytes", seen.len, found.len)
        } else if found.e_tag != seen.e_tag {
            let shown = |tag: &Option<String>| tag.clone().unwrap_or_else(|| "none".to_owned());
            format!(
                "its ETag went from {} to {}",
                shown(&seen.e_tag),
                shown(&found.e_tag)
            )
        } else if self.strong_tag().is_none() && found.modified != seen.modified {
            "its modification time moved".to_owned()
        } else {
            return Ok(());
        };
        let request = self.0.store.failed_request(exchange, "GET");
        Err(changed(&self.0.store.redacted(&what, exchange), request))
    }
}

/// What a refusal means for an object that could be read before.
fn judge(fault: Fault) -> Fault {
    let what = match (fault.error.kind(), status(&fault.error)) {
        (ErrorKind::NotFound, _) => "it is not there any more",
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
        let source = self.clone();
        let room = usize::try_from(end - offset).unwrap_or(len);
        self.0.remote.run(None, async move {
            let mut collected = Collected {
                bytes: Vec::with_capacity(room),
                tally: source.remote().tally().clone(),
            };
            let retries = source.retries();
            source
                .read(offset..end, retries, None, &mut collected)
                .await?;
            Ok(collected.bytes)
        })
    }
}

/// Bytes that are wanted in one piece.
struct Collected {
    bytes: Vec<u8>,
    tally: Tally,
}

impl Receive for Collected {
    fn requested(&mut self, _again: bool) {}

    fn failed(&mut self, error: &Error) {
        self.tally.tried_again(error);
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }
}

impl ObjectIdentity {
    pub(crate) fn of(meta: &ObjectMeta) -> Self {
        Self {
            len: meta.size,
            e_tag: meta.e_tag.clone(),
            // What S3 calls the version of an object in a bucket that keeps none.
            version: meta.version.clone().filter(|version| version != "null"),
            modified: meta.last_modified.timestamp(),
        }
    }
}

/// The first bytes of an object and what the store says of it.
async fn open_once(store: &Store, path: &Path, first: u64) -> Result<(ObjectMeta, Vec<u8>), Fault> {
    let options = GetOptions {
        range: Some(GetRange::Bounded(0..first)),
        ..GetOptions::default()
    };
    let (result, exchange) = match store.get(path, options).await {
        Ok(answer) => answer,
        Err(fault) if may_be_empty(&fault) => {
            return match store.head(path).await {
                Ok((meta, _)) if meta.size == 0 => Ok((meta, Vec::new())),
                _ => Err(fault),
            };
        }
        Err(fault) => return Err(fault),
    };
    let meta = result.meta.clone();
    let wanted = first.min(meta.size);
    let misbehaved = |message: String| store.misbehaved(&exchange, &message);
    let mut bytes = Vec::with_capacity(usize::try_from(wanted).unwrap_or_default());
    let mut body = result.into_stream();
    while let Some(more) = body.next().await {
        bytes.extend_from_slice(&more.map_err(|error| store.fault(&error, &exchange, "GET"))?);
        if bytes.len() as u64 > wanted {
            return Err(misbehaved(too_long(wanted)));
        }
    }
    if (bytes.len() as u64) < wanted {
        return Err(cut_short(misbehaved, bytes.len() as u64, wanted));
    }
    Ok((meta, bytes))
}

/// An object without bytes has no range either, and stores say so in different ways: 416, the whole of nothing, a range that is
/// none, or (those without HTTP) an error of their own.
fn may_be_empty(fault: &Fault) -> bool {
    fault.transient.is_none()
        && match status(&fault.error) {
            Some(status) => status == 416 || (200..300).contains(&status),
            None => fault.error.kind() == ErrorKind::Remote,
        }
}

/// Tries `once` again while that may help.
pub(crate) async fn with_retries<T, F: Future<Output = Result<T, Fault>>>(
    retries: Retries,
    tally: &Tally,
    mut once: impl FnMut() -> F,
) -> Result<T> {
    let mut attempts = 0;
    loop {
        attempts += 1;
        match once().await {
            Ok(found) => return Ok(found),
            Err(fault) => match wait(retries, &fault, attempts) {
                Some(wait) => {
                    tally.tried_again(&fault.error);
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

fn changed(what: &str, request: FailedRequest) -> Fault {
    let message = format!("changed while it was read: {what}");
    Fault {
        error: Error::new(ErrorKind::Changed, message)
            .with_request(request)
            .with_hint("load again when nobody writes to the checkpoint"),
        transient: None,
        asked: None,
    }
}

fn too_long(wanted: u64) -> String {
    format!("the store sent more than the {wanted} bytes it was asked for")
}

/// A connection that was closed early looks like a short body too, so it is worth another try.
fn cut_short(misbehaved: impl Fn(String) -> Fault, came: u64, wanted: u64) -> Fault {
    let mut fault = misbehaved(format!("the body ended after {came} of {wanted} bytes"));
    fault.transient = Some(Transient::Broken);
    fault
}
