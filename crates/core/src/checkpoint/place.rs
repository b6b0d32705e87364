//! File systems and object stores behind one face: listing a folder, opening a shard.
//!
//! What a checkpoint is does not depend on where it is; only this file asks.

use std::sync::Arc;
#[cfg(feature = "object")]
use std::{sync::OnceLock, time::Instant};

use super::OpenOptions;
use crate::error::{Error, ErrorKind, Result};
#[cfg(feature = "object")]
use crate::source::{self, HubId, ObjectSource, Remote};
use crate::source::{
    FileSource, Location, Protocol, Root, Source, StoreOptions, cannot_open, path_of,
};
use crate::within::Underway;

/// One opened shard.
#[derive(Clone, Debug)]
pub(crate) enum ShardSource {
    File(Arc<FileSource>),
    #[cfg(feature = "object")]
    Object(ObjectSource),
}

/// What a location turned out to be.
pub(super) enum Found {
    /// One file.
    File,
    /// A folder: the names of the files in it, and of folders in an object store below it.
    Folder {
        names: Vec<String>,
        below: Vec<String>,
    },
    /// A folder that cannot be listed: only asking for a name tells whether it is there.
    #[cfg(feature = "object")]
    Unlisted,
}

/// Where the locations of one checkpoint are.
#[derive(Debug)]
pub(super) struct Places {
    store: StoreOptions,
    /// What is being asked for.
    pub(super) underway: Underway,
    pub(super) follow_symlinks: bool,
    /// When opening takes too long.
    #[cfg(feature = "object")]
    deadline: Option<Instant>,
    /// Started when the first location in an object store is met.
    #[cfg(feature = "object")]
    remote: OnceLock<Result<Arc<Remote>, String>>,
}

impl ShardSource {
    /// Whether both are the same file or object.
    pub(super) fn is(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::File(one), Self::File(other)) => one.identity() == other.identity(),
            #[cfg(feature = "object")]
            (Self::Object(one), Self::Object(other)) => one.location() == other.location(),
            #[cfg(feature = "object")]
            _ => false,
        }
    }

    /// Requires that several answers can be known to be of one state; see
    /// [`ObjectSource::require_versioned`]. Files can.
    #[cfg_attr(
        not(feature = "object"),
        expect(clippy::unnecessary_wraps, reason = "objects may be refused")
    )]
    pub(super) fn require_versioned(&self) -> Result<()> {
        match self {
            Self::File(_) => Ok(()),
            #[cfg(feature = "object")]
            Self::Object(object) => object.require_versioned(),
        }
    }

    /// Requires that what is in its place is still what was opened. A file that was removed is whole.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Changed`], and what asking runs into.
    pub(crate) fn verify_in_place(&self) -> Result<()> {
        match self {
            Self::File(file) => file.verify_unchanged(),
            #[cfg(feature = "object")]
            Self::Object(object) => object.verify_in_place(),
        }
    }

    fn inner(&self) -> &dyn Source {
        match self {
            Self::File(file) => &**file,
            #[cfg(feature = "object")]
            Self::Object(object) => object,
        }
    }
}

impl Source for ShardSource {
    fn location(&self) -> &Location {
        self.inner().location()
    }

    fn len(&self) -> u64 {
        self.inner().len()
    }

    fn fetch(&self, offset: u64, len: usize) -> Result<Vec<u8>> {
        self.inner().fetch(offset, len)
    }
}

impl Places {
    pub(super) fn new(options: OpenOptions) -> Self {
        Self {
            #[cfg(feature = "object")]
            deadline: source::open_deadline(&options.store),
            store: options.store,
            follow_symlinks: options.follow_symlinks,
            underway: Underway::default(),
            #[cfg(feature = "object")]
            remote: OnceLock::new(),
        }
    }

    /// The same locations, but for those of model hubs that are in a cache on this machine: these are where the cache has them. Of
    /// one repository all or none: else some files might be of one commit and some of another.
    pub(super) fn nearest(&self, locations: &[Location]) -> Result<Vec<Location>> {
        if locations
            .iter()
            .all(|location| location.protocol() != Some(Protocol::Hub))
        {
            return Ok(locations.to_vec());
        }
        self.nearest_of_hubs(locations)
    }

    /// How object stores are reached.
    pub(super) fn store(&self) -> &StoreOptions {
        &self.store
    }

    /// The folder that files found in it must not leave; none if they may, or in an object store, which has no links.
    pub(super) fn root(&self, folder: &Location) -> Result<Option<Root>> {
        if self.follow_symlinks || folder.as_path().is_none() {
            return Ok(None);
        }
        Root::open(folder).map(Some)
    }

    /// Opens a file or object, and returns its first bytes with it: up to `first` of them. A file must be in `root`, if there is one.
    pub(super) fn open(
        &self,
        location: &Location,
        root: Option<&Root>,
        first: usize,
    ) -> Result<(ShardSource, Vec<u8>)> {
        self.underway
            .during(location, || self.open_now(location, root, first))
    }

    fn open_now(
        &self,
        location: &Location,
        root: Option<&Root>,
        first: usize,
    ) -> Result<(ShardSource, Vec<u8>)> {
        if location.as_path().is_some() {
            let file = FileSource::open_in(root, location, self.store.count("retries"))?;
            let bytes = file.fetch(0, first)?;
            return Ok((ShardSource::File(Arc::new(file)), bytes));
        }
        self.open_object(location, first)
    }

    /// Whether `location` is a file or a folder, and what is in it.
    pub(super) fn find(&self, location: &Location) -> Result<Found> {
        self.underway.during(location, || self.find_now(location))
    }

    fn find_now(&self, location: &Location) -> Result<Found> {
        if location.as_path().is_none() {
            return self.find_remote(location);
        }
        let path = path_of(location)?;
        let metadata = std::fs::metadata(path).map_err(|error| cannot_open(error, location))?;
        if metadata.is_dir() {
            let names = names_in(location, path)?;
            let below = Vec::new();
            Ok(Found::Folder { names, below })
        } else {
            Ok(Found::File)
        }
    }
}

#[cfg(feature = "object")]
impl Places {
    /// All locations are in `objects`.
    pub(super) fn custom(
        objects: Arc<dyn object_store::ObjectStore>,
        location: &Location,
        store: &StoreOptions,
    ) -> Self {
        let url = location.remote().expect("a location in a store");
        let remote = Remote::with_store(store, objects, url).map_err(|error| error.chain());
        Self {
            store: store.clone(),
            underway: Underway::default(),
            follow_symlinks: false,
            deadline: source::open_deadline(store),
            remote: OnceLock::from(remote),
        }
    }

    fn remote(&self) -> Result<&Arc<Remote>> {
        let started = self
            .remote
            .get_or_init(|| Remote::start(&self.store).map_err(|error| error.chain()));
        started
            .as_ref()
            .map_err(|reason| Error::new(ErrorKind::OutOfMemory, reason))
    }

    fn nearest_of_hubs(&self, locations: &[Location]) -> Result<Vec<Location>> {
        let mut nearest = locations.to_vec();
        let mut far = Vec::new();
        for location in &mut nearest {
            let url = location.remote();
            let Some(url) = url.filter(|url| url.protocol == Protocol::Hub) else {
                continue;
            };
            match source::cached(url, &self.store)? {
                Some(path) => *location = Location::from_path(path),
                None => far.push(HubId::of(&url.authority)),
            }
        }
        for (location, written) in nearest.iter_mut().zip(locations) {
            let id = written.remote().map(|url| HubId::of(&url.authority));
            if id.is_some_and(|id| far.contains(&id)) {
                *location = written.clone();
            }
        }
        Ok(nearest)
    }

    fn open_object(&self, location: &Location, first: usize) -> Result<(ShardSource, Vec<u8>)> {
        let (object, bytes) =
            ObjectSource::open(self.remote()?, location, first as u64, self.deadline)?;
        Ok((ShardSource::Object(object), bytes))
    }

    fn find_remote(&self, location: &Location) -> Result<Found> {
        if location.has_extension("safetensors") || location.has_extension("json") {
            return Ok(Found::File);
        }
        if location.protocol() == Some(Protocol::Http) {
            return Ok(Found::Unlisted);
        }
        let folder = source::Folder::list(self.remote()?, location, self.deadline)?;
        if folder.names.is_empty() && folder.below.is_empty() && !location.file_name().is_empty() {
            // A file may have any name; opening it says whether it is there.
            return Ok(Found::File);
        }
        let source::Folder { names, below } = folder;
        Ok(Found::Folder { names, below })
    }
}

#[cfg(not(feature = "object"))]
impl Places {
    fn unsupported(&self, location: &Location) -> Error {
        let _ = &self.store;
        Error::new(ErrorKind::Unsupported, "this build reads no object stores")
            .with_location(location)
            .with_hint("build with the feature `object`")
    }

    fn nearest_of_hubs(&self, locations: &[Location]) -> Result<Vec<Location>> {
        Err(self.unsupported(&locations[0]))
    }

    fn open_object(&self, location: &Location, _first: usize) -> Result<(ShardSource, Vec<u8>)> {
        Err(self.unsupported(location))
    }

    fn find_remote(&self, location: &Location) -> Result<Found> {
        Err(self.unsupported(location))
    }
}

fn names_in(location: &Location, folder: &std::path::Path) -> Result<Vec<String>> {
    let unreadable =
        |error| Error::from_io("cannot list the folder", error).with_location(location);
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(unreadable)? {
        let name = entry.map_err(unreadable)?.file_name();
        // A name that is not UTF-8 ends in neither suffix that counts here, or is not ours to guess.
        if let Some(name) = name.to_str().filter(|name| !name.starts_with('.')) {
            names.push(name.to_owned());
        }
    }
    names.sort();
    Ok(names)
}
