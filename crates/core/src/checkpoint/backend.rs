//! File systems and object stores behind one interface: listing a directory, opening a shard.
//!
//! A checkpoint has the same rules wherever it is; only this file makes the distinction.

use std::sync::Arc;
#[cfg(feature = "object")]
use std::{path::PathBuf, sync::OnceLock, time::Instant};

use super::OpenOptions;
#[cfg(feature = "object")]
use super::open_options::Prefetch;
use super::opening::OpenedFiles;
#[cfg(feature = "object")]
use super::together::Passed;
use super::together::{Opening, Together};
use crate::error::{Error, Result};
use crate::format::{Precedence, SUFFIX};
#[cfg(feature = "object")]
use crate::options::HubId;
use crate::options::{Location, Protocol, StoreOptions};
#[cfg(feature = "object")]
use crate::storage::{self, ObjectSource, OpenedState, Remote, StoreClient, commit_in_cache};
use crate::storage::{ConfinedDir, FileSource, Source, cannot_open, is_network, path_of};
use crate::sync::detached::PendingOps;
use crate::sync::lock::Mutex;
use crate::sync::timeline::Timeline;

/// One opened shard.
#[derive(Clone, Debug)]
pub(crate) enum ShardSource {
    File(Arc<FileSource>),
    #[cfg(feature = "object")]
    Object(ObjectSource),
}

/// Result of looking up a location.
pub(super) enum Found {
    /// A file.
    File,
    /// A directory: the names of the files in it, and of the directories below it.
    Folder {
        names: Vec<String>,
        below: Vec<String>,
    },
    /// A directory that cannot be listed: only opening a file in it tells whether that file exists.
    #[cfg(feature = "object")]
    Unlisted,
}

/// Access to the locations of one checkpoint.
#[derive(Debug)]
pub(super) struct Backend {
    store: StoreOptions,
    /// Operations in progress, named in timeout errors.
    pub(super) pending: PendingOps,
    /// Phases of the opening.
    pub(super) timeline: Timeline,
    pub(super) follow_symlinks: bool,
    /// Notes on what listings left out, also those of another rank that opened.
    notes: Mutex<Vec<String>>,
    pub(super) precedence: Precedence,
    /// Deadline for opening.
    #[cfg(feature = "object")]
    deadline: Option<Instant>,
    #[cfg(feature = "object")]
    prefetch: Option<Prefetch>,
    #[cfg(feature = "object")]
    client: StoreClient,
    /// Locations that the caller opens.
    #[cfg(feature = "object")]
    roots: OnceLock<Vec<Location>>,
    /// Started when the first location in an object store is met.
    #[cfg(feature = "object")]
    remote: OnceLock<Result<Arc<Remote>, Arc<Error>>>,
    /// Keeps the opening for other ranks, if this one opens for any.
    #[cfg(feature = "object")]
    passed: Option<Passed>,
}

impl ShardSource {
    /// Returns whether both are the same file or object.
    pub(super) fn is(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::File(one), Self::File(other)) => one.identity() == other.identity(),
            #[cfg(feature = "object")]
            (Self::Object(one), Self::Object(other)) => one.location() == other.location(),
            #[cfg(feature = "object")]
            _ => false,
        }
    }

    /// Requires a validator that ties several responses to one state of the object; see
    /// [`ObjectSource::require_versioned`]. Files always have one.
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

    /// Requires that the path or key still leads to what was opened. A file that was removed
    /// passes.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Changed`], and errors of checking it.
    pub(crate) fn verify_in_place(&self) -> Result<()> {
        match self {
            Self::File(file) => file.verify_unchanged(),
            #[cfg(feature = "object")]
            Self::Object(object) => object.verify_in_place(),
        }
    }

    /// Returns the file, if it is one.
    #[cfg_attr(
        not(feature = "object"),
        expect(clippy::unnecessary_wraps, reason = "objects are no files")
    )]
    pub(crate) fn as_file(&self) -> Option<&Arc<FileSource>> {
        match self {
            Self::File(file) => Some(file),
            #[cfg(feature = "object")]
            Self::Object(_) => None,
        }
    }

    /// Returns the object, if it is one.
    #[cfg(feature = "object")]
    pub(crate) fn object(&self) -> Option<&ObjectSource> {
        match self {
            Self::File(_) => None,
            Self::Object(object) => Some(object),
        }
    }

    /// Makes the cache forget an object whose bytes turned out to be wrong. Returns whether the
    /// next read may return others.
    pub(crate) fn clear_cached(&self) -> bool {
        match self {
            Self::File(_) => false,
            #[cfg(feature = "object")]
            Self::Object(object) => object.clear_cached(),
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

    fn verify_unchanged(&self) -> Result<()> {
        self.inner().verify_unchanged()
    }
}

impl Backend {
    /// Returns whether opening a file takes a round trip.
    pub(super) fn is_far(&self, file: &Location) -> bool {
        if let Some(path) = file.as_path() {
            return is_network(path);
        }
        !self.is_known(file)
    }

    /// Creates access to `whole`, which is about to be opened.
    pub(super) fn new(options: OpenOptions, whole: &Location) -> Self {
        Self {
            #[cfg(feature = "object")]
            deadline: storage::open_deadline(&options.store),
            store: options.store,
            follow_symlinks: options.follow_symlinks,
            notes: Mutex::default(),
            pending: PendingOps::of(whole),
            precedence: options.precedence,
            timeline: Timeline::default(),
            #[cfg(feature = "object")]
            prefetch: options.prefetch,
            #[cfg(feature = "object")]
            client: options.client,
            #[cfg(feature = "object")]
            roots: OnceLock::new(),
            #[cfg(feature = "object")]
            remote: OnceLock::new(),
            #[cfg(feature = "object")]
            passed: None,
        }
    }

    /// Replaces locations on model hubs by their paths in a local cache, where they are in one.
    /// Replaces all locations of a repository or none: else some files might be of one commit and
    /// some of another.
    pub(super) fn nearest(&self, locations: &[Location]) -> Result<Vec<Location>> {
        #[cfg(feature = "object")]
        self.roots.get_or_init(|| locations.to_vec());
        if locations
            .iter()
            .all(|location| location.protocol() != Some(Protocol::Hub))
        {
            return Ok(locations.to_vec());
        }
        self.nearest_of_hubs(locations)
    }

    /// Returns notes on what listings have left out so far.
    pub(super) fn notes(&self) -> Vec<String> {
        self.notes.lock().clone()
    }

    /// Returns the options of object stores.
    pub(super) fn store(&self) -> &StoreOptions {
        &self.store
    }

    /// Returns whether symbolic links may lead out of a directory.
    pub(super) fn follows_in(&self, folder: &Location) -> bool {
        #[cfg(feature = "object")]
        let is_trusted =
            (folder.as_path()).is_some_and(|path| storage::is_in_snapshot(path, &self.store));
        #[cfg(not(feature = "object"))]
        let is_trusted = {
            let _ = folder;
            false
        };
        self.follow_symlinks || is_trusted
    }

    /// Returns the directory that files found in it must not leave; `None` if they may, or in an
    /// object store, which has no links.
    pub(super) fn root(&self, folder: &Location) -> Result<Option<ConfinedDir>> {
        if self.follows_in(folder) || folder.as_path().is_none() {
            return Ok(None);
        }
        ConfinedDir::open(folder).map(Some)
    }

    /// Opens a file or object, and returns its first bytes with it: up to `first` of them. A file
    /// must be inside `root`, if one is given.
    pub(super) fn open(
        &self,
        location: &Location,
        root: Option<&ConfinedDir>,
        first: usize,
    ) -> Result<(ShardSource, Vec<u8>)> {
        self.pending.during(location, "reading its header", || {
            self.open_now(location, root, first)
        })
    }

    fn open_now(
        &self,
        location: &Location,
        root: Option<&ConfinedDir>,
        first: usize,
    ) -> Result<(ShardSource, Vec<u8>)> {
        if location.as_path().is_some() {
            let file = FileSource::open_in(root, location, self.store.count("retries"))?;
            let bytes = file.fetch(0, first)?;
            return Ok((ShardSource::File(Arc::new(file)), bytes));
        }
        self.open_object(location, first)
    }

    /// Looks up whether `location` is a file or a directory, and lists a directory.
    pub(super) fn find(&self, location: &Location) -> Result<Found> {
        self.pending
            .during(location, "looking it up", || self.find_now(location))
    }

    /// Returns whether safetensors files are among the first entries of a local directory.
    pub(super) fn holds_weights(&self, location: &Location) -> bool {
        const ENTRIES_MAX: usize = 1024;
        let is_weights = |entry: std::fs::DirEntry| {
            let name = entry.file_name();
            name.to_str()
                .is_some_and(|name| !name.starts_with('.') && name.ends_with(SUFFIX))
        };
        self.pending.during(location, "listing it", || {
            let path = location.as_path();
            let entries = path
                .and_then(|path| std::fs::read_dir(path).ok())
                .into_iter()
                .flatten()
                .take(ENTRIES_MAX);
            entries.flatten().any(is_weights)
        })
    }

    fn find_now(&self, location: &Location) -> Result<Found> {
        if location.as_path().is_none() {
            return self.find_remote(location);
        }
        let path = path_of(location)?;
        let metadata = std::fs::metadata(path).map_err(|error| cannot_open(error, location))?;
        if metadata.is_dir() {
            let (names, below) = names_in(location, path)?;
            Ok(Found::Folder { names, below })
        } else {
            Ok(Found::File)
        }
    }
}

#[cfg(feature = "object")]
impl Backend {
    /// Creates access to a store that the caller opened: all locations are in `objects`.
    pub(super) fn custom(
        objects: Arc<dyn object_store::ObjectStore>,
        location: &Location,
        store: &StoreOptions,
    ) -> Self {
        let url = location.remote().expect("a location in a store");
        let remote = Remote::with_store(store, objects, url).map_err(Arc::new);
        Self {
            store: store.clone(),
            pending: PendingOps::of(location),
            timeline: Timeline::default(),
            follow_symlinks: false,
            notes: Mutex::default(),
            precedence: Precedence::default(),
            deadline: storage::open_deadline(store),
            prefetch: None,
            client: StoreClient::default(),
            roots: OnceLock::new(),
            remote: OnceLock::from(remote),
            passed: None,
        }
    }

    /// Keeps the opening if this rank passes it on.
    pub(super) fn passing_on(mut self, together: &Together) -> Self {
        self.passed = together.passed();
        self
    }

    /// Returns whether other ranks get the opening.
    pub(super) fn passes_on(&self) -> bool {
        self.passed.is_some()
    }

    /// Keeps the opening for other ranks, if there are any.
    pub(super) fn pass_on(&self, files: &OpenedFiles) {
        if let Some(passed) = &self.passed {
            let _ = passed.set(Opening::describe(files, self.notes()));
        }
    }

    /// Opens the same files as another rank, without reading them; `None` if that is not possible.
    pub(super) fn open_again(
        &self,
        opening: Opening,
        locations: &[Location],
    ) -> Result<Option<OpenedFiles>> {
        self.roots.get_or_init(|| locations.to_vec());
        opening.open(locations, self)
    }

    /// Opens an object in the state that another rank has found.
    pub(super) fn open_in_state(
        &self,
        base: &Location,
        state: OpenedState,
    ) -> Result<Option<ShardSource>> {
        let opened = ObjectSource::in_state(self.remote()?, base, state, self.deadline)?;
        Ok(opened.map(ShardSource::Object))
    }

    /// Keeps a note on the files of `location`, and logs it.
    pub(super) fn add_note(&self, location: &Location, note: String) {
        let mut notes = self.notes.lock();
        if !notes.contains(&note) {
            // As in `load/start.rs`: the report has it too.
            tracing::info!(target: "tload::notes", %location, "{note}");
            notes.push(note);
        }
    }

    fn is_known(&self, object: &Location) -> bool {
        (self.remote()).is_ok_and(|remote| ObjectSource::is_known(remote, object))
    }

    fn remote(&self) -> Result<&Arc<Remote>> {
        let started = self.remote.get_or_init(|| {
            let roots = self.roots.get().map_or(&[][..], Vec::as_slice);
            Remote::start_in(&self.client, &self.store, roots).map_err(Arc::new)
        });
        started.as_ref().map_err(|error| error.again())
    }

    fn nearest_of_hubs(&self, locations: &[Location]) -> Result<Vec<Location>> {
        let id_of = |location: &Location| {
            let url = location
                .remote()
                .filter(|url| url.protocol == Protocol::Hub)?;
            Some(HubId::from_authority(&url.authority))
        };
        let ids: Vec<_> = locations.iter().map(id_of).collect();
        let mut nearest = locations.to_vec();
        for (first, id) in ids.iter().enumerate() {
            if id.is_none() || ids[..first].contains(id) {
                continue;
            }
            let all: Vec<_> = (first..ids.len()).filter(|at| ids[*at] == *id).collect();
            let written: Vec<_> = all.iter().map(|at| &locations[*at]).collect();
            let mut places = self.cached_at_one_commit(&written)?;
            if let (None, Some(prefetch)) = (&places, self.prefetch) {
                places = prefetch(&written, &self.store, self.precedence, self.deadline)?;
            }
            for (at, place) in all.into_iter().zip(places.into_iter().flatten()) {
                nearest[at] = Location::from_path(place);
            }
        }
        Ok(nearest)
    }

    /// Returns the places of all locations of a repository in the hub's cache; `None` if one is
    /// not there, or if another program moved the revision meanwhile.
    fn cached_at_one_commit(&self, locations: &[&Location]) -> Result<Option<Vec<PathBuf>>> {
        let mut places = Vec::new();
        for url in locations.iter().filter_map(|location| location.remote()) {
            places.push(storage::cached(url, &self.store, self.precedence)?);
        }
        let places: Option<Vec<_>> = places.into_iter().collect();
        Ok(places.filter(|places| {
            let mut commits = places.iter().map(|place| commit_in_cache(place));
            let first = commits.next();
            commits.all(|commit| Some(commit) == first)
        }))
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
        let folder = storage::Folder::list(self.remote()?, location, self.deadline)?;
        if folder.names.is_empty() && folder.below.is_empty() && !location.file_name().is_empty() {
            // Any name may be a file, so open it to find out whether it exists.
            return Ok(Found::File);
        }
        let storage::Folder { names, below, note } = folder;
        if let Some(note) = note {
            self.add_note(location, note);
        }
        Ok(Found::Folder { names, below })
    }
}

#[cfg(not(feature = "object"))]
impl Backend {
    pub(super) fn passing_on(self, _together: &Together) -> Self {
        self
    }

    #[expect(clippy::unused_self, reason = "objects may be passed on")]
    pub(super) fn passes_on(&self) -> bool {
        false
    }

    #[expect(clippy::unused_self, reason = "objects may be passed on")]
    pub(super) fn pass_on(&self, _files: &OpenedFiles) {}

    #[expect(
        clippy::needless_pass_by_value,
        clippy::unused_self,
        reason = "objects may be passed on"
    )]
    pub(super) fn open_again(
        &self,
        opening: Opening,
        _locations: &[Location],
    ) -> Result<Option<OpenedFiles>> {
        match opening {}
    }

    #[expect(clippy::unused_self, reason = "objects may be in a cache")]
    fn is_known(&self, _object: &Location) -> bool {
        false
    }

    fn unsupported(&self, location: &Location) -> Error {
        let _ = &self.store;
        Error::unsupported("this build does not support object stores")
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

/// Returns the names of files, and of directories. A link counts as a file: opening it tells more.
fn names_in(location: &Location, folder: &std::path::Path) -> Result<(Vec<String>, Vec<String>)> {
    let unreadable =
        |error| Error::from_io("cannot list the directory", error).with_location(location);
    let (mut names, mut below) = (Vec::new(), Vec::new());
    for entry in std::fs::read_dir(folder).map_err(unreadable)? {
        let entry = entry.map_err(unreadable)?;
        let name = entry.file_name();
        // A name that is not UTF-8 has neither suffix that counts here, or cannot be decoded
        // without guessing.
        if let Some(name) = name.to_str().filter(|name| !name.starts_with('.')) {
            // A directory with the name of a shard or an index is an error of its own.
            let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
            let is_below = is_folder && ![SUFFIX, ".json"].iter().any(|end| name.ends_with(end));
            let list = if is_below { &mut below } else { &mut names };
            list.push(name.to_owned());
        }
    }
    names.sort();
    below.sort();
    Ok((names, below))
}
