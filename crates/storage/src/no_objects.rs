//! Stands in for `object/` in builds without object stores, so that the crates above need no
//! conditions.
//!
//! Nothing has the type [`ObjectSource`] or [`Remote`] here, so no method of these is ever called.
//! Functions that would open or look up something in a store fail.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use serde::{Deserialize, Serialize};
use tload_format::Precedence;

use super::{CacheReport, FileSource, MirrorReport, ReadHints, Source, StoreProbe};
use crate::error::{Error, Result};
use crate::options::location::RemoteUrl;
use crate::options::{Location, StoreOptions};
use crate::sync::retry_counter::RetryCounter;
use crate::sync::timeline::Timeline;

/// Object of a store.
#[derive(Clone, Debug)]
pub enum ObjectSource {}

/// Threads, connections and credentials that openings in object stores share. A build without
/// object stores has none.
#[derive(Clone, Debug, Default)]
pub struct StoreClient;

/// Threads and stores of a checkpoint.
#[derive(Debug)]
pub enum Remote {}

/// State in which an object was opened.
#[derive(Debug, Serialize, Deserialize)]
pub enum OpenedState {}

/// Names below a prefix.
#[derive(Debug)]
pub struct Folder {
    /// Names of objects.
    pub names: Vec<String>,
    /// Names of prefixes.
    pub below: Vec<String>,
    /// Note on keys that cannot be requested.
    pub note: Option<String>,
}

/// Length of a tile of the cache, bytes.
pub const TILE_BYTES: u64 = 1;

/// Declares methods that are never called, by their arguments and results.
macro_rules! uncallable {
    ($type:ty { $($name:ident($($argument:ty),*) -> $result:ty;)* }) => {
        impl $type {
            $(
                /// Is never called.
                pub fn $name(&self $(, _: $argument)*) -> $result {
                    match *self {}
                }
            )*
        }
    };
}

uncallable!(ObjectSource {
    cached_file(&[Range<u64>]) -> Option<FileSource>;
    checksums() -> Result<Vec<(&'static str, String)>>;
    contents_name() -> Option<&str>;
    distrust(&Range<u64>, Error) -> Error;
    hints() -> ReadHints;
    measure(&[Self], Instant) -> Result<StoreProbe>;
    opened_state() -> Option<OpenedState>;
    remote() -> &Arc<Remote>;
    shares_store(&Self) -> bool;
});

uncallable!(Remote {
    cache_report() -> Option<CacheReport>;
    mixes_states() -> bool;
    mirror_reports() -> Vec<MirrorReport>;
    retry_counter() -> &RetryCounter;
    timeline() -> &Timeline;
});

impl ObjectSource {
    /// Is never called.
    #[must_use]
    pub fn for_load(&self) -> Self {
        match *self {}
    }

    /// Is never called.
    pub fn open(
        remote: &Arc<Remote>,
        _: &Location,
        _: u64,
        _: Option<Instant>,
    ) -> Result<(Self, Vec<u8>)> {
        match **remote {}
    }

    /// Is never called.
    pub fn in_state(
        remote: &Arc<Remote>,
        _: &Location,
        _: OpenedState,
        _: Option<Instant>,
    ) -> Result<Option<Self>> {
        match **remote {}
    }

    /// Is never called.
    pub fn is_known(remote: &Remote, _: &Location) -> bool {
        match *remote {}
    }
}

impl StoreClient {
    /// Creates a client that shares nothing with others.
    #[must_use]
    pub fn new() -> Self {
        Self
    }

    /// Ends threads and closes connections that no checkpoint uses.
    pub fn close_idle(&self) {}
}

impl Source for ObjectSource {
    fn location(&self) -> &Location {
        match *self {}
    }

    fn len(&self) -> u64 {
        match *self {}
    }

    fn fetch(&self, _: u64, _: usize) -> Result<Vec<u8>> {
        match *self {}
    }
}

impl Remote {
    /// Fails.
    pub fn start(_: &StoreOptions) -> Result<Arc<Self>> {
        Err(unsupported())
    }

    /// Fails.
    pub fn start_in(
        _: &StoreClient,
        _: &StoreOptions,
        locations: &[Location],
    ) -> Result<Arc<Self>> {
        let error = unsupported();
        Err(match locations.first() {
            Some(location) => error.with_location(location),
            None => error,
        })
    }
}

impl Folder {
    /// Is never called.
    pub fn list(remote: &Arc<Remote>, _: &Location, _: Option<Instant>) -> Result<Self> {
        match **remote {}
    }
}

/// Fails: this build knows no hubs.
pub fn cached(url: &RemoteUrl, _: &StoreOptions, _: Precedence) -> Result<Option<PathBuf>> {
    Err(unsupported().with_location(url.shown()))
}

/// Returns no commit.
pub fn commit_in_cache(_: &Path) -> Option<&str> {
    None
}

/// Returns false.
pub fn is_in_snapshot(_: &Path, _: &StoreOptions) -> bool {
    false
}

/// Returns no deadline.
pub fn open_deadline(_: &StoreOptions) -> Option<Instant> {
    None
}

/// Returns no note.
pub fn unversioned_note<'a>(_: impl IntoIterator<Item = &'a ObjectSource>) -> Option<String> {
    None
}

fn unsupported() -> Error {
    Error::unsupported("this build does not support object stores")
        .with_hint("build with the feature `object`")
}
