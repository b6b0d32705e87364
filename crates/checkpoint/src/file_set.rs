//! The files that a checkpoint should have, whether they exist or not. Lets checks continue past a
//! bad one.

use super::OpenOptions;
use super::backend::{Backend, Found, OpenedSource};
use super::shards::ShardSet;
use crate::error::{Error, ErrorKind, Result};
use crate::options::Location;
use crate::storage::ConfinedDir;

/// Files of a checkpoint.
#[derive(Debug)]
pub struct FileSet {
    /// Directory that the paths of files are relative to.
    pub folder: Location,
    /// True if the location is a directory: then everything in it belongs together.
    pub is_folder: bool,
    /// Shards, in their order.
    pub shards: Vec<Location>,
    /// Index that names them.
    pub index: Option<Location>,
    /// Note on files of the directory that were left out or may not belong together.
    pub note: Option<String>,
    backend: Backend,
    /// Directory that files found in it must not leave.
    root: Option<ConfinedDir>,
}

impl FileSet {
    /// Finds the files of a location. If its shards cannot be determined, a manifest or a signature
    /// may still list them: then returns a file set without files, and the error.
    ///
    /// # Errors
    ///
    /// As for [`crate::OpenedCheckpoint::open_with`], except for errors about shards.
    pub fn find_or_empty(
        location: &Location,
        options: &OpenOptions,
    ) -> Result<(Self, Option<Error>)> {
        match Self::find(location, options) {
            Ok(file_set) => Ok((file_set, None)),
            Err(error)
                if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::InvalidFormat) =>
            {
                Ok((Self::from_folder(location, options)?, Some(error)))
            }
            Err(error) => Err(error),
        }
    }

    /// Finds the files of a location, as [`crate::OpenedCheckpoint::open_with`] does.
    fn find(location: &Location, options: &OpenOptions) -> Result<Self> {
        let backend = Backend::new(options.clone(), location);
        let nearest = backend.nearest(std::slice::from_ref(location))?;
        let at = nearest
            .into_iter()
            .next()
            .unwrap_or_else(|| location.clone());
        let set = ShardSet::named(&at, &backend)?;
        set.require_distinct()?;
        let index = set
            .index
            .map(|placement| placement.file.source.location().clone());
        let is_folder = index.as_ref() != Some(&at) && set.files != [at.clone()];
        let folder = if is_folder { at } else { at.parent() };
        Ok(Self {
            folder,
            is_folder,
            shards: set.files,
            index,
            note: set.note,
            backend,
            root: set.root,
        })
    }

    /// Creates the file set of a directory before its files are known.
    fn from_folder(location: &Location, options: &OpenOptions) -> Result<Self> {
        let backend = Backend::new(options.clone(), location);
        let nearest = backend
            .nearest(std::slice::from_ref(location))?
            .into_iter()
            .next();
        let folder = nearest.unwrap_or_else(|| location.clone());
        let root = backend.root(&folder)?;
        Ok(Self {
            folder,
            is_folder: true,
            shards: Vec::new(),
            index: None,
            note: None,
            backend,
            root,
        })
    }

    /// Lists the names directly below a directory of an object store, and those of the directories
    /// in it; `None` if it cannot be listed. Hidden names are left out.
    ///
    /// # Errors
    ///
    /// Errors of the store.
    pub fn list(&self, folder: &Location) -> Result<Option<(Vec<String>, Vec<String>)>> {
        Ok(match self.backend.find(folder)? {
            Found::Folder { names, below } => Some((names, below)),
            // The location is a prefix that has the name of a file.
            Found::File => Some((vec![String::new()], Vec::new())),
            Found::Unlisted => None,
        })
    }

    /// Returns notes on what listings have left out so far.
    pub fn listing_notes(&self) -> Vec<String> {
        self.backend.notes()
    }

    /// Returns whether symbolic links may lead out of the directory.
    pub fn follows_symlinks(&self) -> bool {
        self.backend.follows_in(&self.folder)
    }

    /// Returns whether its files are sealed.
    pub fn is_sealed(&self) -> bool {
        self.shards.iter().any(|file| self.backend.is_sealed(file))
    }

    /// Opens one of the files, or another one beside them, and returns its first bytes with it: up
    /// to `first` of them.
    ///
    /// # Errors
    ///
    /// The file does not exist, or may not be read.
    pub fn open(&self, file: &Location, first: usize) -> Result<OpenedSource> {
        self.backend.open(file, self.root.as_ref(), first)
    }
}
