//! File systems and object stores behind one interface: listing a directory, opening a shard.
//!
//! A checkpoint has the same rules wherever it is; only this file tells `files` and `objects`
//! apart.

mod files;
mod objects;

use std::sync::Arc;

use self::objects::Objects;
use super::OpenOptions;
use super::opening::OpenedFiles;
use super::together::{Opening, Passed, Together};
use crate::error::{Error, Result};
use crate::format::Precedence;
use crate::options::{Location, StoreOptions};
use crate::sealed::Seals;
use crate::storage::{ConfinedDir, OpenedState, Remote, Source, is_in_snapshot, is_network};
use crate::sync::detached::PendingOps;
use crate::sync::lock::Mutex;
use crate::sync::timeline::Timeline;

/// Opened file or object, and its first bytes.
pub(super) type OpenedSource = (Arc<dyn Source>, Vec<u8>);

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
    Unlisted,
}

/// Access to the locations of one checkpoint.
#[derive(Debug)]
pub(super) struct Backend {
    store: StoreOptions,
    objects: Objects,
    /// Operations in progress, named in timeout errors.
    pub(super) pending: PendingOps,
    /// Phases of the opening.
    pub(super) timeline: Timeline,
    pub(super) follow_symlinks: bool,
    /// Notes on what listings left out, also those of another rank that opened.
    notes: Mutex<Vec<String>>,
    pub(super) precedence: Precedence,
    seals: Seals,
    /// Keeps the opening for other ranks, if this one opens for any.
    passed: Option<Passed>,
}

impl Backend {
    /// Creates access to `whole`, which is about to be opened.
    pub(super) fn new(options: OpenOptions, whole: &Location) -> Self {
        Self {
            objects: Objects::new(&options),
            seals: Seals::new(options.key),
            store: options.store,
            pending: PendingOps::of(whole),
            timeline: Timeline::default(),
            follow_symlinks: options.follow_symlinks,
            notes: Mutex::default(),
            precedence: options.precedence,
            passed: None,
        }
    }

    /// Like [`Self::new`], for a store that the caller opened: all objects are in it.
    pub(super) fn on(remote: Arc<Remote>, whole: &Location, store: &StoreOptions) -> Self {
        let mut backend = Self::new(store.into(), whole);
        backend.objects.use_remote(remote);
        backend
    }

    /// Returns whether some files may be of another time than others: the cache knew only their
    /// states.
    pub(super) fn mixes_states(&self) -> bool {
        self.objects.mixes_states()
    }

    /// Returns access to the same locations, in the states that they have now.
    pub(super) fn asking(&self, mut options: OpenOptions, whole: &Location) -> Self {
        let store = &mut options.store;
        store.set("cache_check", "always").expect("a value of it");
        Self {
            pending: self.pending.clone(),
            passed: self.passed.clone(),
            ..Self::new(options, whole)
        }
    }

    /// Returns whether opening a file takes a round trip.
    pub(super) fn is_far(&self, file: &Location) -> bool {
        let is_far_object = || !self.objects.is_known(file);
        file.as_path().map_or_else(is_far_object, is_network)
    }

    /// Replaces locations on model hubs by their paths in a local cache, where they are in one.
    /// Replaces all locations of a repository or none: else some files might be of one commit and
    /// some of another.
    pub(super) fn nearest(&self, locations: &[Location]) -> Result<Vec<Location>> {
        self.objects.begin(locations);
        self.objects.nearest(locations)
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
        let is_trusted = |path| is_in_snapshot(path, &self.store);
        self.follow_symlinks || folder.as_path().is_some_and(is_trusted)
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
    ) -> Result<OpenedSource> {
        self.pending.during(location, "reading its header", || {
            let open = |location: &_, first| self.open_stored(location, root, first);
            self.seals.open(location, first, &open)
        })
    }

    /// Returns whether a file has to be one of a sealed checkpoint.
    pub(super) fn is_sealed(&self, location: &Location) -> bool {
        self.seals.is_sealed(location)
    }

    /// Opens a file or object as it is stored.
    fn open_stored(
        &self,
        location: &Location,
        root: Option<&ConfinedDir>,
        first: usize,
    ) -> Result<OpenedSource> {
        if location.as_path().is_some() {
            return files::open(location, root, first, self.store.count("retries"));
        }
        self.objects.open(location, first)
    }

    /// Requires that a directory with these files can be opened with the key that was given, or
    /// without one.
    pub(super) fn require_unsealed(
        &self,
        folder: &Location,
        names: &[String],
        root: Option<&ConfinedDir>,
    ) -> Result<()> {
        let open = |location: &_, first| self.open_stored(location, root, first);
        self.seals.require(folder, names, &open)
    }

    /// Explains the error of a header that begins with `first`, if the file may be sealed.
    pub(super) fn explain(&self, error: Error, location: &Location, first: Option<u8>) -> Error {
        let open = |location: &_, first| self.open_stored(location, None, first);
        self.seals.explain(error, location, first, &open)
    }

    /// Looks up whether `location` is a file or a directory, and lists a directory.
    pub(super) fn find(&self, location: &Location) -> Result<Found> {
        self.pending.during(location, "looking it up", || {
            if location.as_path().is_some() {
                return files::find(location);
            }
            let (found, note) = self.objects.find(location)?;
            if let Some(note) = note {
                self.add_note(location, note);
            }
            Ok(found)
        })
    }

    /// Adds a near name to the error that nothing is at `location`, if its store lists one. Names
    /// of files have a suggestion already.
    pub(super) fn suggest_near(&self, error: Error, location: &Location) -> Error {
        let suggest = || self.objects.suggest_near(error, location);
        self.pending
            .during(location, "looking for a near name", suggest)
    }

    /// Returns whether safetensors files are among the first entries of a local directory.
    pub(super) fn holds_weights(&self, location: &Location) -> bool {
        let holds = || location.as_path().is_some_and(files::holds_weights);
        self.pending.during(location, "listing it", holds)
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
        if let (Some(passed), false) = (&self.passed, self.mixes_states()) {
            let _ = passed.set(Opening::describe(files, self.notes()));
        }
    }

    /// Opens the same files as another rank, without reading them; `None` if that is not possible.
    pub(super) fn open_again(
        &self,
        opening: Opening,
        locations: &[Location],
    ) -> Result<Option<OpenedFiles>> {
        self.objects.begin(locations);
        opening.open(locations, self)
    }

    /// Opens an object in the state that another rank has found.
    pub(super) fn open_in_state(
        &self,
        base: &Location,
        state: OpenedState,
    ) -> Result<Option<Arc<dyn Source>>> {
        self.objects.open_in_state(base, state)
    }
}
