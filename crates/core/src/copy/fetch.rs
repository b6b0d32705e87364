//! Opens sources, and copies byte ranges of them into a file. Never buffers more of a range than
//! one read or one response delivers.

#[cfg(feature = "object")]
mod object;

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
#[cfg(feature = "object")]
use std::sync::OnceLock;

#[cfg(feature = "object")]
use super::cancel::ask_unless_stopped;
use super::journal::Origin;
use super::target::cannot_write;
use super::{Shared, cancelled};
#[cfg(not(feature = "object"))]
use crate::error::Error;
use crate::error::Result;
use crate::options::{Location, StoreOptions};
use crate::storage::{FileSource, Source, cannot_open};
#[cfg(feature = "object")]
use crate::storage::{ObjectSource, Remote};

/// Length of one read of a local file, bytes.
const READ_BYTES: usize = 1 << 20;

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

    pub(super) fn open(&self, location: &Location, shared: &Arc<Shared>) -> Result<Opened> {
        if location.as_path().is_some() {
            return FileSource::open(location).map(Box::new).map(Opened::File);
        }
        self.open_object(location, shared)
    }

    #[cfg(not(feature = "object"))]
    fn open_object(&self, location: &Location, _shared: &Arc<Shared>) -> Result<Opened> {
        let _ = &self.store;
        Err(unsupported(location))
    }
}

#[cfg(not(feature = "object"))]
pub(super) fn unsupported(location: &Location) -> Error {
    Error::unsupported("this build does not support object stores")
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
                Origin::from_metadata(
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
            Self::Object(object, _) => object::fetch_object(object, range, file, path, shared),
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
