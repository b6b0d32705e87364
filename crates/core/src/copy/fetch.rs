//! Opens sources, and copies byte ranges of them into a file. Never buffers more of a range than
//! one read or one response delivers.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
#[cfg(feature = "object")]
use std::sync::OnceLock;

#[cfg(feature = "object")]
use super::cancel::{ask_unless_stopped, unless_stopped};
use super::journal::Origin;
use super::target::cannot_write;
use super::{Shared, cancelled};
use crate::error::Result;
#[cfg(not(feature = "object"))]
use crate::error::{Error, ErrorKind};
use crate::options::{Location, StoreOptions};
use crate::storage::{FileSource, Source, cannot_open};
#[cfg(feature = "object")]
use crate::storage::{ObjectSource, Receive, Remote};

/// Length of one read of a local file, bytes.
const READ_BYTES: usize = 1 << 20;

/// Bytes that opening an object fetches with it: all of most configuration files.
#[cfg(feature = "object")]
const FIRST_BYTES: u64 = 64 << 10;

/// Access to sources.
#[derive(Debug)]
pub(super) struct Sources {
    store: StoreOptions,
    /// Started with the first object.
    #[cfg(feature = "object")]
    remote: OnceLock<Arc<Remote>>,
}

/// Open source.
#[derive(Debug)]
pub(super) enum Opened {
    File(Box<FileSource>),
    /// Object with its first bytes.
    #[cfg(feature = "object")]
    Object(ObjectSource, Vec<u8>),
}

impl Sources {
    pub(super) fn new(store: &StoreOptions) -> Self {
        Self {
            store: store.clone(),
            #[cfg(feature = "object")]
            remote: OnceLock::new(),
        }
    }

    /// Returns the options for stores.
    #[cfg(feature = "object")]
    pub(super) fn options(&self) -> &StoreOptions {
        &self.store
    }

    pub(super) fn open(&self, location: &Location, shared: &Arc<Shared>) -> Result<Opened> {
        if location.as_path().is_some() {
            return FileSource::open(location).map(Box::new).map(Opened::File);
        }
        self.open_object(location, shared)
    }

    #[cfg(feature = "object")]
    pub(super) fn remote(&self) -> Result<&Arc<Remote>> {
        if self.remote.get().is_none() {
            // Another thread may have been faster: then this one's ends unused.
            drop(self.remote.set(Remote::start(&self.store)?));
        }
        Ok(self.remote.get().expect("set above"))
    }

    #[cfg(feature = "object")]
    fn open_object(&self, location: &Location, shared: &Arc<Shared>) -> Result<Opened> {
        Shared::add(&shared.requests, 1);
        let remote = self.remote()?;
        let (on, at) = (Arc::clone(remote), location.clone());
        let (object, first) = ask_unless_stopped(remote, shared, move || {
            ObjectSource::open(&on, &at, FIRST_BYTES, on.open_deadline())
        })?;
        Ok(Opened::Object(object, first))
    }

    #[cfg(not(feature = "object"))]
    fn open_object(&self, location: &Location, _shared: &Arc<Shared>) -> Result<Opened> {
        let _ = &self.store;
        Err(unsupported(location))
    }
}

#[cfg(not(feature = "object"))]
pub(super) fn unsupported(location: &Location) -> Error {
    Error::new(
        ErrorKind::Unsupported,
        "this build does not support object stores",
    )
    .with_location(location)
    .with_hint("build with the feature `object`")
}

impl Opened {
    /// Returns the state of the source.
    ///
    /// # Errors
    ///
    /// The system returns no metadata of an open file.
    pub(super) fn origin(&self) -> Result<Origin> {
        Ok(match self {
            Self::File(file) => {
                let metadata = file.file().metadata();
                let location = file.location();
                Origin::of_file(
                    location,
                    &metadata.map_err(|error| cannot_open(error, location))?,
                )
            }
            #[cfg(feature = "object")]
            Self::Object(object, _) => {
                let identity = object.identity();
                Origin {
                    source: object.location().to_string(),
                    len: identity.len,
                    e_tag: identity.e_tag.clone(),
                    version: identity.version.clone(),
                    modified: (identity.modified, 0),
                    file: None,
                }
            }
        })
    }

    /// Returns the bytes fetched while opening.
    pub(super) fn first(&self) -> &[u8] {
        match self {
            Self::File(_) => &[],
            #[cfg(feature = "object")]
            Self::Object(_, first) => first,
        }
    }

    /// Returns all bytes of a small object.
    #[cfg(feature = "object")]
    pub(super) fn bytes(&self, shared: &Arc<Shared>) -> Result<Vec<u8>> {
        let (object, mut bytes) = match self {
            Self::File(file) => {
                return file.fetch(0, usize::try_from(file.len()).unwrap_or(usize::MAX));
            }
            Self::Object(object, first) => (object, first.clone()),
        };
        let missing = usize::try_from(object.len()).unwrap_or(usize::MAX) - bytes.len();
        if missing > 0 {
            let (of, start) = (object.clone(), bytes.len() as u64);
            let ask = move || of.fetch(start, missing);
            bytes.extend(ask_unless_stopped(object.remote(), shared, ask)?);
        }
        Ok(bytes)
    }

    /// Requires that the source is still in the state in which it was opened. Most objects check
    /// this with every request; one without a validator that took several responses is checked once
    /// more.
    #[cfg_attr(
        not(feature = "object"),
        expect(unused_variables, reason = "files are checked without a request")
    )]
    pub(super) fn verify(&self, shared: &Arc<Shared>) -> Result<()> {
        match self {
            Self::File(file) => file.verify_unchanged(),
            #[cfg(feature = "object")]
            Self::Object(object, first)
                if object.identity().is_versioned() || first.len() as u64 == object.len() =>
            {
                Ok(())
            }
            #[cfg(feature = "object")]
            Self::Object(object, _) => {
                Shared::add(&shared.unversioned_files, 1);
                let asked = object.clone();
                ask_unless_stopped(object.remote(), shared, move || asked.verify_unchanged())
            }
        }
    }

    /// Writes `range` to its place in `file`, whose final path is `path`. Returns the offset
    /// reached, also after an error.
    pub(super) fn bring(
        &self,
        range: Range<u64>,
        file: &Arc<File>,
        path: &Path,
        shared: &Arc<Shared>,
    ) -> (u64, Result<()>) {
        match self {
            Self::File(source) => {
                let mut at = range.start;
                let outcome = fetch_file(source, &mut at, range.end, file, path, shared);
                (at, outcome)
            }
            #[cfg(feature = "object")]
            Self::Object(object, _) => fetch_object(object, range, file, path, shared),
        }
    }
}

fn fetch_file(
    source: &FileSource,
    at: &mut u64,
    end: u64,
    file: &File,
    path: &Path,
    shared: &Shared,
) -> Result<()> {
    while *at < end {
        if shared.stop.is_cancelled() {
            return Err(cancelled());
        }
        let wanted = usize::try_from(end - *at).map_or(READ_BYTES, |left| left.min(READ_BYTES));
        let bytes = source.fetch(*at, wanted)?;
        file.write_all_at(&bytes, *at)
            .map_err(|error| cannot_write(path, source.len() - *at, error))?;
        *at += bytes.len() as u64;
        Shared::add(&shared.bytes_read, bytes.len() as u64);
    }
    Ok(())
}

/// Receives the bytes of one range, and writes them to the file.
#[cfg(feature = "object")]
struct Writer {
    file: Arc<File>,
    at: u64,
    failed: Option<std::io::Error>,
    shared: Arc<Shared>,
}

#[cfg(feature = "object")]
impl Receive for Writer {
    fn requested(&mut self, again: bool) {
        Shared::add(&self.shared.requests, 1);
        Shared::add(&self.shared.retries, u64::from(again));
    }

    fn bytes(&mut self, bytes: &[u8]) {
        if self.failed.is_some() {
            return;
        }
        match self.file.write_all_at(bytes, self.at) {
            Ok(()) => {
                self.at += bytes.len() as u64;
                Shared::add(&self.shared.bytes_read, bytes.len() as u64);
            }
            Err(error) => {
                self.failed = Some(error);
                // No further writes would succeed, so the copy ends, and this request with it.
                self.shared.stop.cancel();
            }
        }
    }
}

#[cfg(feature = "object")]
fn fetch_object(
    object: &ObjectSource,
    range: Range<u64>,
    file: &Arc<File>,
    path: &Path,
    shared: &Arc<Shared>,
) -> (u64, Result<()>) {
    let start = range.start;
    let mut writer = Writer {
        file: Arc::clone(file),
        at: start,
        failed: None,
        shared: Arc::clone(shared),
    };
    let (source, shared) = (object.clone(), Arc::clone(shared));
    let done = object.remote().run(None, async move {
        let retries = source.retries();
        let outcome = unless_stopped(&shared, source.read(range, retries, None, &mut writer)).await;
        Ok((writer.at, writer.failed, outcome))
    });
    match done {
        Ok((at, Some(error), _)) => {
            let missing = object.identity().len - at;
            (at, Err(cannot_write(path, missing, error)))
        }
        Ok((at, None, outcome)) => (at, outcome),
        Err(error) => (start, Err(error)),
    }
}
