//! Sealed checkpoints of one opening: which files are opened with a key, and what is missing
//! without one.

use std::sync::Arc;

use tload_base::error::{Error, ErrorKind, Result};
use tload_base::options::Location;
use tload_base::sync::lock::Mutex;

use crate::key::Key;
use crate::key_file::KEY_FILE_NAME;
use crate::opened::{OpenStored, OpenedSource, SealedCheckpoint};

/// First bytes of sealed files: the length of their header.
const FIRST: [u8; 2] = [40, 24];

/// Extensions that files of Tensorizer do not have. Others are looked at before they are opened.
const OTHERS: [&str; 2] = ["safetensors", "json"];

/// Sealed checkpoints of one opening: that of its location, or those of the listed files.
#[derive(Debug, Default)]
pub struct Seals {
    key: Option<Key>,
    opened: Mutex<Vec<Arc<SealedCheckpoint>>>,
}

impl Seals {
    /// Creates them for a key, if there is one.
    #[must_use]
    pub fn new(key: Option<Key>) -> Self {
        Self {
            key,
            opened: Mutex::default(),
        }
    }

    /// Returns whether a file has to be one of a sealed checkpoint: there is a key, and it is not
    /// for a file of Tensorizer.
    pub fn is_sealed(&self, location: &Location) -> bool {
        let is_other = OTHERS.iter().any(|name| location.has_extension(name));
        self.key.is_some() && is_other
    }

    /// Opens a file, which must be of a sealed checkpoint if there is a key, or an encrypted one of
    /// Tensorizer.
    ///
    /// # Errors
    ///
    /// Those of opening the checkpoint and the file.
    pub fn open(
        &self,
        location: &Location,
        first: usize,
        open: &OpenStored<'_>,
    ) -> Result<OpenedSource> {
        match &self.key {
            Some(key) => {
                if !self.is_sealed(location) {
                    let (source, bytes) = open(location, first)?;
                    if tload_boxed::begins(&bytes) {
                        return tload_boxed::open(source, bytes, &|| key.bytes());
                    }
                }
                let folder = location.parent();
                let sealed = self.checkpoint(key, location, &folder, open)?;
                sealed.open_file(location, first, open)
            }
            None => open(location, first),
        }
    }

    /// Checks a directory that is about to be opened, given the names of its files.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::PermissionDenied`] without a key; those of opening the sealed checkpoint;
    /// [`ErrorKind::NotFound`] if a file of it is missing.
    pub fn require(
        &self,
        folder: &Location,
        names: &[String],
        open: &OpenStored<'_>,
    ) -> Result<()> {
        match &self.key {
            Some(key) => {
                let within = folder.join(KEY_FILE_NAME);
                let sealed = self.checkpoint(key, &within, folder, open)?;
                sealed.require_files(names)
            }
            None if names.iter().any(|name| name == KEY_FILE_NAME) => Err(missing_key(folder)),
            None => Ok(()),
        }
    }

    /// Explains the error of a file that begins with `first`, if it may be a sealed one.
    #[must_use]
    pub fn explain(
        &self,
        error: Error,
        location: &Location,
        first: Option<u8>,
        open: &OpenStored<'_>,
    ) -> Error {
        let may_be = error.kind() == ErrorKind::InvalidFormat
            && self.key.is_none()
            && first.is_some_and(|first| FIRST.contains(&first));
        if may_be && open(&location.parent().join(KEY_FILE_NAME), 1).is_ok() {
            return missing_key(location);
        }
        error
    }

    /// Returns the checkpoint that a file is in, which is that of `folder` if none is open.
    fn checkpoint(
        &self,
        key: &Key,
        location: &Location,
        folder: &Location,
        open: &OpenStored<'_>,
    ) -> Result<Arc<SealedCheckpoint>> {
        let mut opened = self.opened.lock();
        let holds = |sealed: &&Arc<SealedCheckpoint>| location.below(sealed.folder()).is_some();
        if let Some(sealed) = opened.iter().find(holds) {
            return Ok(Arc::clone(sealed));
        }
        let sealed = Arc::new(SealedCheckpoint::open(key, folder, open)?);
        opened.push(Arc::clone(&sealed));
        Ok(sealed)
    }
}

fn missing_key(location: &Location) -> Error {
    let message = "missing key: the checkpoint is sealed, and no key was given";
    Error::new(ErrorKind::PermissionDenied, message)
        .with_location(location)
        .with_hint("pass key= (in the command --key-file or --key-command), or set TLOAD_KEY, TLOAD_KEY_FILE or TLOAD_KEY_COMMAND")
}
