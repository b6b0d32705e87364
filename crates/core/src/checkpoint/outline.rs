//! Which files a checkpoint has, before any of them is opened and whether they are there or not: for who looks at one after the other
//! and goes on when one is bad.

use super::OpenOptions;
use super::place::{Found, Places, ShardSource};
use super::shards::ShardSet;
use crate::error::Result;
use crate::source::{Location, Root, Source};

/// The files of a checkpoint.
#[derive(Debug)]
pub(crate) struct Outline {
    /// The folder that files are called by their paths below.
    pub(crate) folder: Location,
    /// Whether the location is a folder: then all that is in it belongs together.
    pub(crate) is_folder: bool,
    /// The shards, in their order.
    pub(crate) shards: Vec<Location>,
    /// The index that names them.
    pub(crate) index: Option<Location>,
    places: Places,
    /// What files found in the folder must not leave.
    root: Option<Root>,
}

impl Outline {
    /// Finds the files of a location, as [`super::Checkpoint::open_with`] does.
    ///
    /// # Errors
    ///
    /// As there, but for what is wrong with shards.
    pub(crate) fn find(location: &Location, options: &OpenOptions) -> Result<Self> {
        let places = Places::new(options.clone());
        let nearest = places.nearest(std::slice::from_ref(location))?;
        let at = nearest
            .into_iter()
            .next()
            .unwrap_or_else(|| location.clone());
        let set = ShardSet::named(&at, &places)?;
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
            places,
            root: set.root,
        })
    }

    /// A folder of which nothing is known yet.
    pub(crate) fn of_folder(location: &Location, options: &OpenOptions) -> Result<Self> {
        let places = Places::new(options.clone());
        let nearest = places.nearest(std::slice::from_ref(location))?;
        let nearest = nearest.into_iter().next();
        let folder = nearest.unwrap_or_else(|| location.clone());
        let root = places.root(&folder)?;
        Ok(Self {
            folder,
            is_folder: true,
            shards: Vec::new(),
            index: None,
            places,
            root,
        })
    }

    /// The names directly below a folder of an object store, and those of the folders in it; none if it cannot be listed. Hidden ones
    /// are left out.
    ///
    /// # Errors
    ///
    /// Whatever the store answers.
    pub(crate) fn list(&self, folder: &Location) -> Result<Option<(Vec<String>, Vec<String>)>> {
        Ok(match self.places.find(folder)? {
            Found::Folder { names, below } => Some((names, below)),
            // A prefix that is called as a file is.
            Found::File => Some((vec![String::new()], Vec::new())),
            #[cfg(feature = "object")]
            Found::Unlisted => None,
        })
    }

    /// Whether links may lead out of the folder.
    pub(crate) fn follows_symlinks(&self) -> bool {
        self.places.follow_symlinks
    }

    /// Opens one of them, or another file beside them, and returns its first bytes with it: up to `first` of them.
    ///
    /// # Errors
    ///
    /// It is not there, or may not be read.
    pub(crate) fn open(&self, file: &Location, first: usize) -> Result<(ShardSource, Vec<u8>)> {
        self.places.open(file, self.root.as_ref(), first)
    }
}
