//! Opens sources, and copies byte ranges of them into a file. Never buffers more of a range than
//! one read or one response delivers.

mod object;

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use super::cancel::ask_unless_stopped;
use super::journal::Origin;
use super::target::cannot_write;
use crate::cancel::cancelled;
use crate::control::Ongoing;
use crate::error::Result;
use crate::format::Precedence;
use crate::options::{Location, Protocol, StoreOptions};
use crate::storage::{FileSource, ObjectSource, Remote, Source, StoreClient, cached, cannot_open};

/// Length of one read of a local file, bytes.
const READ_BYTES: usize = 1 << 20;

/// Access to sources.
#[derive(Debug)]
pub struct Sources {
    store: StoreOptions,
    client: StoreClient,
    /// Started with the first object.
    remote: OnceLock<Arc<Remote>>,
}

/// Open source.
#[derive(Debug)]
pub enum Opened {
    /// File.
    File(FileSource),
    /// Object with its first bytes.
    Object(ObjectSource, Vec<u8>),
}

impl Sources {
    /// Creates the access; nothing is opened.
    pub fn new(store: &StoreOptions, client: &StoreClient) -> Self {
        Self {
            store: store.clone(),
            client: client.clone(),
            remote: OnceLock::new(),
        }
    }

    /// Opens a source.
    ///
    /// # Errors
    ///
    /// Those of opening.
    pub fn open(&self, location: &Location, ongoing: &Arc<Ongoing>) -> Result<Opened> {
        if location.as_path().is_some() {
            return FileSource::open(location).map(Opened::File);
        }
        self.open_object(location, ongoing)
    }

    /// Returns the location of a hub's file in the cache of `huggingface_hub`, if it is there; any
    /// other location as it is.
    ///
    /// # Errors
    ///
    /// `ErrorKind::NotFound` if requests to the hub are forbidden and
    /// the file is not in the cache.
    pub(super) fn in_cache(&self, location: Location) -> Result<Location> {
        if let (Some(Protocol::Hub), Some(url)) = (location.protocol(), location.remote()) {
            let found = cached(url, &self.store, Precedence::default())?;
            return Ok(found.map_or(location, Location::from_path));
        }
        Ok(location)
    }
}

impl Opened {
    /// Returns the state of the source.
    ///
    /// # Errors
    ///
    /// The system returns no metadata of an open file.
    pub fn origin(&self) -> Result<Origin> {
        Ok(match self {
            Self::File(file) => {
                let metadata = file.file().metadata();
                let location = file.location();
                Origin::from_metadata(
                    location,
                    &metadata.map_err(|error| cannot_open(error, location))?,
                )
            }
            Self::Object(object, _) => {
                let identity = object.identity();
                Origin {
                    source: object.digest(),
                    len: identity.len,
                    e_tag: identity.e_tag.clone(),
                    version: identity.version.clone(),
                    modified: (identity.modified, 0),
                    is_settled: object.is_settled(),
                    file: None,
                }
            }
        })
    }

    /// Returns all bytes of a small source.
    pub(super) fn bytes(&self, ongoing: &Arc<Ongoing>) -> Result<Vec<u8>> {
        match self {
            Self::File(file) => file.fetch(0, usize::try_from(file.len()).unwrap_or(usize::MAX)),
            Self::Object(object, first) => object::bytes(object, first, ongoing),
        }
    }

    /// Returns the bytes of a range.
    ///
    /// # Errors
    ///
    /// Those of reading.
    pub fn read(&self, range: Range<u64>, ongoing: &Arc<Ongoing>) -> Result<Vec<u8>> {
        let len = usize::try_from(range.end - range.start).unwrap_or(usize::MAX);
        match self {
            Self::File(file) => file.fetch(range.start, len),
            Self::Object(_, first) if range.end <= first.len() as u64 => {
                let start = usize::try_from(range.start).expect("within memory");
                Ok(first[start..start + len].to_vec())
            }
            Self::Object(object, _) => {
                Ongoing::add(&ongoing.requests, 1);
                let asked = object.clone();
                let ask = move || asked.fetch(range.start, len);
                ask_unless_stopped(object.remote(), ongoing, ask)
            }
        }
    }

    /// Returns the bytes fetched while opening.
    pub(super) fn first(&self) -> &[u8] {
        match self {
            Self::File(_) => &[],
            Self::Object(_, first) => first,
        }
    }

    /// Requires that the source is still in the state in which it was opened. Most objects check
    /// this with every request; one without a validator that took several responses is checked once
    /// more.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Changed`](crate::error::ErrorKind::Changed).
    pub fn verify(&self, ongoing: &Arc<Ongoing>) -> Result<()> {
        match self {
            Self::File(file) => file.verify_unchanged(),
            Self::Object(object, first)
                if object.identity().is_versioned() || first.len() as u64 == object.len() =>
            {
                Ok(())
            }
            Self::Object(object, _) => {
                Ongoing::add(&ongoing.unversioned_files, 1);
                let asked = object.clone();
                ask_unless_stopped(object.remote(), ongoing, move || asked.verify_unchanged())
            }
        }
    }

    /// Writes a range to its place in `file`, whose final path is `path`.
    pub(super) fn bring(
        &self,
        fetching: &Arc<Fetching>,
        file: &Arc<File>,
        path: &Path,
        ongoing: &Arc<Ongoing>,
    ) -> Result<()> {
        match self {
            Self::File(source) => fetch_file(source, fetching, file, path, ongoing),
            Self::Object(object, _) => object::fetch_object(object, fetching, file, path, ongoing),
        }
    }
}

/// Range that is being copied, from its first byte to its last.
#[derive(Debug)]
pub(super) struct Fetching {
    range: Range<u64>,
    /// Offset reached.
    at: AtomicU64,
}

impl Fetching {
    pub(super) fn new(range: Range<u64>) -> Self {
        let at = AtomicU64::new(range.start);
        Self { range, at }
    }

    /// Returns the offset reached.
    fn at(&self) -> u64 {
        self.at.load(Ordering::Acquire)
    }

    /// Returns the part that has been written.
    pub(super) fn written(&self) -> Range<u64> {
        self.range.start..self.at()
    }

    /// Counts `bytes` that have been written.
    fn advance(&self, bytes: u64, ongoing: &Ongoing) {
        // A thread that sees the new offset syncs the bytes before it.
        self.at.fetch_add(bytes, Ordering::Release);
        Ongoing::add(&ongoing.bytes_read, bytes);
    }
}

fn fetch_file(
    source: &FileSource,
    fetching: &Fetching,
    file: &File,
    path: &Path,
    ongoing: &Ongoing,
) -> Result<()> {
    let end = fetching.range.end;
    while fetching.at() < end {
        if ongoing.stop.is_cancelled() {
            return Err(cancelled());
        }
        let at = fetching.at();
        let wanted = usize::try_from(end - at).map_or(READ_BYTES, |left| left.min(READ_BYTES));
        let bytes = source.fetch(at, wanted)?;
        file.write_all_at(&bytes, at)
            .map_err(|error| cannot_write(path, source.len() - at, error))?;
        fetching.advance(bytes.len() as u64, ongoing);
    }
    Ok(())
}
