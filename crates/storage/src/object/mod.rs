//! Object of a checkpoint. One ranged request opens it; every later request requires its identity.
//!
//! [`ObjectSource::read`] (in `cache/through.rs`) is the only way to its bytes, both headers and
//! extents. It takes what the cache has, and requests the rest with `read_remote` (in
//! `reading.rs`): exactly one range, of the same object (`asking.rs`) and of that length, continued
//! where a failed request stopped.

pub mod cache;
pub(crate) mod folder;
pub(crate) mod hints;
mod measure;
mod mirrors;
pub(crate) mod remote;
pub(crate) mod store_client;

mod asking;
mod elsewhere;
mod identity;
mod opening;
mod reading;
mod receive;
mod retrying;
mod revalidation;
mod senders;
mod sending;
mod site;
mod unchanged;

// Path of a module that is a crate.
pub(crate) use tload_store as store;

use std::fs::File;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use object_store::ObjectStore;
use object_store::path::Path;

use self::cache::{Entry, Question, State};
use self::hints::object_hints;
use self::mirrors::{Ends, Replicas};
pub use self::store::Store;
use super::{FileSource, ReadHints, Source};
use crate::error::{Error, ErrorKind, Result, printable};
use crate::options::location::{Protocol, hexadecimal};
use crate::options::{Location, StoreOptions};
use crate::sync::address_space::vec_for;
use crate::sync::retry::Retries;
pub use cache::TILE_BYTES;
pub use elsewhere::OpenedState;
pub use folder::{Folder, level};
pub use identity::ObjectIdentity;
pub use opening::unversioned_note;
use opening::{Seen, look_unless, question};
use reading::Collected;
pub use reading::Hedging;
pub use receive::{Events, Provenance, Receive};
pub use remote::{Remote, open_deadline};
pub use retrying::with_retries;
use revalidation::Known;
use senders::Senders;
pub use site::ObjectSite;
pub use store::{
    Fault, Level, Listed, Writable, cached, cached_copy, commit_in_cache, is_hub_offline,
    is_in_snapshot, object_path, repository_folder, snapshot,
};
#[cfg(feature = "testing")]
pub use store::{assert_content_store_is_bounded, assert_levels_are_whole};
pub use store_client::StoreClient;

/// Object of a store, in the state in which it was opened. Cheap to clone.
#[derive(Clone, Debug)]
pub struct ObjectSource(Arc<Opened>);

#[derive(Clone, Debug)]
struct Opened {
    location: Location,
    remote: Arc<Remote>,
    store: Arc<Store>,
    path: Path,
    identity: ObjectIdentity,
    seen: Seen,
    /// True while requests name the version. S3 has a separate permission for that, which the
    /// caller may lack.
    by_version: Arc<AtomicBool>,
    /// Its bytes in the cache, if it is cached.
    entry: Option<Arc<Entry>>,
    /// File of the claims of one load of these bytes.
    claims: Option<Arc<File>>,
    /// Its file in each mirror.
    replicas: Arc<Replicas>,
    ends: Arc<Ends>,
    /// Places that have sent its bytes to the load.
    senders: Arc<Senders>,
}

/// Path of an object in an opened store.
#[derive(Clone, Debug)]
pub(crate) struct ObjectPath {
    pub store: Arc<Store>,
    pub path: Path,
}

/// State of an object, and what its opening saw of it.
struct Version {
    identity: ObjectIdentity,
    seen: Seen,
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
    pub fn open(
        remote: &Arc<Remote>,
        location: &Location,
        first: u64,
        deadline: Option<Instant>,
    ) -> Result<(Self, Vec<u8>)> {
        let no_url = || Error::invalid_request("is not in an object store");
        let url = location
            .remote()
            .ok_or_else(|| no_url().with_location(location))?;
        let found = remote.store(url);
        let (store, path) = found.map_err(|error| error.or_location(location))?;
        let object = ObjectPath { store, path };
        Self::open_in(remote, object, location.clone(), first, deadline)
    }

    /// Like [`Self::open`], for an object of an opened store.
    pub(crate) fn open_in(
        remote: &Arc<Remote>,
        object: ObjectPath,
        location: Location,
        first: u64,
        deadline: Option<Instant>,
    ) -> Result<(Self, Vec<u8>)> {
        let question = question(remote, &object.store, &location);
        if let Some(known) = question.as_ref().and_then(Question::recall::<State>)
            && let Some(opened) = Self::recall(remote, object.clone(), &location, first, known)?
        {
            remote.has_recalled.store(true, Ordering::Relaxed);
            return Ok(opened);
        }
        if question.is_some() {
            remote.has_asked.store(true, Ordering::Relaxed);
        }
        let known = Known::find(remote, &object, &location, first);
        let tag = known.as_ref().map(|known| known.tag().to_owned());
        let (own, its) = (Arc::clone(remote), object.clone());
        let look = async move { look_unless(&own, &its, first, tag.as_deref()).await };
        let looked = remote.run_until(deadline, "requesting its header", look);
        if let (Some(question), Err(error)) = (&question, &looked)
            && error.kind() == ErrorKind::NotFound
            && !matches!(error.status(), Some(401 | 403))
        {
            question.remember(&State::Absent);
        }
        let looked = looked.map_err(|error| error.or_location(&location))?;
        let (meta, bytes, seen) = match (looked, known) {
            (None, Some(known)) => return Ok(known.opened()),
            (looked, _) => looked.expect("only a known state is left out"),
        };
        let identity = ObjectIdentity::from_meta(&meta);
        let opened = Self::with_identity(remote, object, location, identity, seen);
        opened.0.ends.take(&bytes, opened.len());
        if let Some(entry) = opened.entry() {
            entry.keep_first(&bytes);
        }
        if let Some(question) = &question {
            match opened.entry() {
                Some(_) => question.remember(&State::of(opened.identity(), opened.0.seen.sha256)),
                // A state without an entry cannot be opened from the cache, and others are past.
                None => question.forget(),
            }
        }
        Ok((opened, bytes))
    }

    fn with_identity(
        remote: &Arc<Remote>,
        object: ObjectPath,
        location: Location,
        identity: ObjectIdentity,
        seen: Seen,
    ) -> Self {
        let origin = object.store.origin();
        let (cache, is_settled) = (remote.cache(), seen.is_settled);
        let entry = cache.and_then(|it| it.entry(&location, origin, &identity, is_settled));
        Self::with_entry(remote, object, location, Version { identity, seen }, entry)
    }

    fn with_entry(
        remote: &Arc<Remote>,
        object: ObjectPath,
        location: Location,
        version: Version,
        entry: Option<Arc<Entry>>,
    ) -> Self {
        let ObjectPath { store, path } = object;
        let Version { identity, seen } = version;
        Self(Arc::new(Opened {
            location,
            remote: Arc::clone(remote),
            store,
            path,
            by_version: Arc::new(AtomicBool::new(identity.version.is_some())),
            identity,
            seen,
            entry,
            claims: None,
            ends: Arc::default(),
            replicas: Arc::default(),
            senders: Arc::default(),
        }))
    }

    /// Returns the same opening for one load. Loads at the same time do not request the same bytes
    /// if the object is cached.
    #[must_use]
    pub fn for_load(&self) -> Self {
        Self(Arc::new(Opened {
            claims: self.entry().and_then(|entry| entry.claims_of_load()),
            senders: Arc::default(),
            ..Opened::clone(&self.0)
        }))
    }

    /// Returns where the object is in its store.
    fn place(&self) -> ObjectPath {
        ObjectPath {
            store: Arc::clone(&self.0.store),
            path: self.0.path.clone(),
        }
    }

    /// Returns the places that have sent its bytes to the load.
    pub(super) fn senders(&self) -> &Senders {
        &self.0.senders
    }

    fn claims(&self) -> Option<&Arc<File>> {
        self.0.claims.as_ref()
    }

    /// Opens the cache's file of the object, if it has most of the wanted bytes.
    pub fn cached_file(&self, wanted: &[Range<u64>]) -> Option<FileSource> {
        let entry = self.entry().filter(|entry| entry.has_most_of(wanted))?;
        // If the file cannot be opened, the bytes come from the store.
        let file = FileSource::open_with(&Location::from_path(entry.path()), Some(0)).ok()?;
        // Another file if the directory was replaced.
        entry.is_file(file.identity()).then_some(file)
    }

    /// Returns the object's bytes in the cache, if it is cached.
    pub fn entry(&self) -> Option<&Arc<Entry>> {
        self.0.entry.as_ref()
    }

    /// Returns whether the cache has this range of the object.
    pub fn is_cached(&self, range: &Range<u64>) -> bool {
        self.entry().is_some_and(|entry| entry.has(range))
    }

    /// Returns the state of the object when it was opened.
    pub fn identity(&self) -> &ObjectIdentity {
        &self.0.identity
    }

    /// Returns a digest of the object's location and of the address of its server.
    pub fn digest(&self) -> String {
        self.0.location.digest(self.0.store.origin())
    }

    /// Returns whether the time of the last modification was old enough at the opening to tell
    /// states of the object apart.
    pub fn is_settled(&self) -> bool {
        self.0.seen.is_settled
    }

    /// Returns the origin of the credentials for the object, never their values.
    pub fn credentials(&self) -> String {
        self.0.store.credentials()
    }

    /// Returns the read hints of the object.
    pub fn hints(&self) -> ReadHints {
        object_hints()
    }

    /// Returns the store's name for the object's contents. A hub has the SHA-256 of large files,
    /// and the git object id of small ones; a registry has the SHA-256.
    pub fn contents_name(&self) -> Option<&str> {
        if self.location().protocol() == Some(Protocol::Oci) {
            let tag = self.identity().e_tag.as_deref()?;
            return tag.trim_matches('"').strip_prefix("sha256:");
        }
        self.0.store.contents_name(&self.0.path)
    }

    /// Returns the SHA-256 of all bytes that a server has stated, in lower-case hexadecimal digits:
    /// a hub, a registry, or the server of the bytes (`Repr-Digest`, RFC 9530). Sends no request.
    pub fn stated_sha256(&self) -> Option<String> {
        let is_hex = |byte| u8::is_ascii_hexdigit(&byte);
        let is_sha256 = |name: &&str| name.len() == 64 && name.bytes().all(is_hex);
        let name = self.contents_name().filter(is_sha256);
        let name = name.map(str::to_ascii_lowercase);
        name.or_else(|| Some(hexadecimal(&self.0.seen.sha256?)))
    }

    /// Returns whether both objects are in the same store.
    pub fn shares_store(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0.store, &other.0.store)
    }

    /// Returns the threads that run the object's requests.
    pub fn remote(&self) -> &Arc<Remote> {
        &self.0.remote
    }

    /// Returns the retries that the options of the store allow.
    pub fn retries(&self) -> Retries {
        self.0.remote.options().retries()
    }
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
        self.0.remote.run(async move {
            let mut collected = Collected {
                bytes: vec_for(room)?,
                retry_counter: source.remote().retry_counter().clone(),
            };
            let retries = source.retries();
            let read = source.read(offset..end, retries, None, &mut collected);
            read.await?;
            Ok(collected.bytes)
        })
    }

    fn verify_unchanged(&self) -> Result<()> {
        self.verify_sample()
    }

    fn verify_in_place(&self) -> Result<()> {
        self.verify_path()
    }

    fn require_versioned(&self) -> Result<()> {
        self.require_validator()
    }

    fn is(&self, other: &dyn Source) -> bool {
        let other = other.as_object();
        other.is_some_and(|other| other.location() == self.location())
    }

    fn validator(&self) -> String {
        let identity = self.identity();
        if let Some(tag) = &identity.e_tag {
            return format!("ETag {}", printable(tag));
        }
        let modified = format!("modified {}", identity.modified);
        // The query is added here because it is not in the names of files that are compared with
        // the states.
        match self.location().query_digest() {
            Some(query) => format!("{modified}, query with SHA-256 {query}"),
            None => modified,
        }
    }

    fn commit_name(&self) -> Option<&str> {
        self.0.store.commit_name()
    }

    fn clear_cached(&self) -> bool {
        self.entry().is_some_and(|entry| entry.clear())
    }

    fn as_object(&self) -> Option<&ObjectSource> {
        Some(self)
    }
}
