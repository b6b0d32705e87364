//! Reads small files beside a checkpoint, from a file system or a store.

use std::sync::Arc;

use crate::error::{Error, ErrorKind, Result};
use crate::options::{Location, Protocol, StoreOptions, format_bytes};
use crate::storage::{ConfinedDir, FileSource, ObjectSource, Remote, Source};
use crate::sync::detached::PendingOps;

/// Length of the first read of an object, bytes: holds most manifests.
const FIRST_BYTES: u64 = 1 << 20;

/// Access to files beside a checkpoint.
#[derive(Debug)]
pub(crate) struct Sidecars<'a> {
    store: &'a StoreOptions,
    /// True if links in a directory may lead out of it.
    follow_symlinks: bool,
    pending: PendingOps,
    /// Threads and stores of the checkpoint itself.
    remote: Option<Arc<Remote>>,
}

impl<'a> Sidecars<'a> {
    /// Reaches files the way the sources are reached, and files elsewhere as `store` says.
    pub(crate) fn new<'s>(
        sources: impl IntoIterator<Item = &'s Arc<dyn Source>>,
        store: &'a StoreOptions,
    ) -> Self {
        let mut sources = sources.into_iter();
        let object = sources.find_map(|source| source.as_object());
        Self {
            store,
            follow_symlinks: false,
            pending: PendingOps::default(),
            remote: object.map(|object| Arc::clone(object.remote())),
        }
    }

    /// Sets whether links in directories may lead out of them, as when the checkpoint was opened.
    pub(crate) fn following(mut self, follow_symlinks: bool) -> Self {
        self.follow_symlinks = follow_symlinks;
        self
    }

    /// Sets where the operations in progress are recorded.
    pub(super) fn telling(mut self, pending: &PendingOps) -> Self {
        self.pending = pending.clone();
        self
    }

    /// Returns the record of operations in progress.
    pub(super) fn pending(&self) -> &PendingOps {
        &self.pending
    }

    /// Reads all of a file that the caller did not name, if it exists in `folder`. If it is a link,
    /// its target must be in the directory as well: directories are untrusted, and errors and
    /// reports quote what is read. A 403 of a server counts as a missing file, since servers that
    /// forbid listing answer so for missing files.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::PermissionDenied`] for a link that leads out of the directory; other errors of
    /// reading.
    pub(crate) fn read_in(
        &self,
        folder: &Location,
        location: &Location,
        bytes_max: u64,
    ) -> Result<Option<Vec<u8>>> {
        let root = || match location.as_path() {
            Some(_) if !self.follow_symlinks => ConfinedDir::open(folder).map(Some),
            _ => Ok(None),
        };
        let found = self.pending.during(location, "reading it", || {
            self.read_now(root()?.as_ref(), location, bytes_max)
        });
        match if_there(found) {
            Err(error)
                if error.kind() == ErrorKind::PermissionDenied && location.as_path().is_none() =>
            {
                Ok(None)
            }
            // Some sites serve a page for every path.
            Ok(Some(text)) if location.protocol() == Some(Protocol::Http) && !is_object(&text) => {
                Ok(None)
            }
            found => found,
        }
    }

    /// Reads all of a file; `None` if it does not exist.
    pub(crate) fn read(&self, location: &Location, bytes_max: u64) -> Result<Option<Vec<u8>>> {
        let read = || self.read_now(None, location, bytes_max);
        if_there(self.pending.during(location, "reading it", read))
    }

    fn read_now(
        &self,
        root: Option<&ConfinedDir>,
        location: &Location,
        bytes_max: u64,
    ) -> Result<Vec<u8>> {
        if location.as_path().is_none() {
            return self.read_object(location, bytes_max);
        }
        let file = FileSource::open_in(root, location, None)?;
        whole(&file, Vec::new(), bytes_max)
    }

    fn read_object(&self, location: &Location, bytes_max: u64) -> Result<Vec<u8>> {
        let remote = match &self.remote {
            Some(remote) => Arc::clone(remote),
            None => Remote::start(self.store).map_err(|error| error.or_location(location))?,
        };
        let (object, first) = ObjectSource::open(&remote, location, FIRST_BYTES, None)?;
        let came = first.len() as u64;
        let text = whole(&object, first, bytes_max)?;
        if came < object.len() {
            object.verify_unchanged()?;
        }
        Ok(text)
    }
}

fn if_there(found: Result<Vec<u8>>) -> Result<Option<Vec<u8>>> {
    match found {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        found => found.map(Some),
    }
}

/// Returns all bytes of a source, of which `first` have been read already.
fn whole(source: &dyn Source, mut first: Vec<u8>, bytes_max: u64) -> Result<Vec<u8>> {
    let too_long = || {
        let (found, most) = (format_bytes(source.len()), format_bytes(bytes_max));
        Error::new(
            ErrorKind::InvalidFormat,
            format!("has {found}, and at most {most} are read"),
        )
        .with_location(source.location())
    };
    if source.len() > bytes_max {
        return Err(too_long());
    }
    let len = usize::try_from(source.len()).map_err(|_| too_long())?;
    if first.len() < len {
        first.extend(source.fetch(first.len() as u64, len - first.len())?);
    }
    Ok(first)
}

/// Returns whether the text looks like a JSON object.
fn is_object(text: &[u8]) -> bool {
    text.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'{')
}
