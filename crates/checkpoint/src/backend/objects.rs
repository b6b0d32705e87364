//! Objects of stores, and models of hubs, which may be in a local cache.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use super::{Found, OpenedSource};
use crate::OpenOptions;
use crate::error::{Error, Result};
use crate::format::Precedence;
use crate::options::{HubId, Location, Protocol, StoreOptions};
use crate::storage::{
    Folder, ObjectSource, OpenedState, Remote, Source, StoreClient, cached, commit_in_cache,
    open_deadline,
};

/// Access to the objects of one checkpoint.
#[derive(Debug)]
pub(super) struct Objects {
    store: StoreOptions,
    precedence: Precedence,
    client: StoreClient,
    /// Deadline for opening.
    deadline: Option<Instant>,
    /// Locations that the caller opens.
    roots: OnceLock<Vec<Location>>,
    /// Started when the first location in an object store is met.
    remote: OnceLock<Result<Arc<Remote>, Arc<Error>>>,
}

impl Objects {
    pub(super) fn new(options: &OpenOptions) -> Self {
        Self {
            store: options.store.clone(),
            precedence: options.precedence,
            client: options.client.clone(),
            deadline: open_deadline(&options.store),
            roots: OnceLock::new(),
            remote: OnceLock::new(),
        }
    }

    /// Sends requests by `remote`.
    pub(super) fn use_remote(&mut self, remote: Arc<Remote>) {
        self.remote = OnceLock::from(Ok(remote));
    }

    /// Sets the locations that the caller opens.
    pub(super) fn begin(&self, locations: &[Location]) {
        self.roots.get_or_init(|| locations.to_vec());
    }

    /// Returns whether an object can be opened without a request.
    pub(super) fn is_known(&self, object: &Location) -> bool {
        (self.remote()).is_ok_and(|remote| ObjectSource::is_known(remote, object))
    }

    /// Returns whether only some states of objects come from the cache.
    pub(super) fn mixes_states(&self) -> bool {
        matches!(self.remote.get(), Some(Ok(remote)) if remote.mixes_states())
    }

    fn remote(&self) -> Result<&Arc<Remote>> {
        let started = self.remote.get_or_init(|| {
            let roots = self.roots.get().map_or(&[][..], Vec::as_slice);
            Remote::start_in(&self.client, &self.store, roots).map_err(Arc::new)
        });
        started.as_ref().map_err(|error| error.again())
    }

    /// Replaces locations on model hubs by their paths in a local cache: all of a repository, or
    /// none.
    pub(super) fn nearest(&self, locations: &[Location]) -> Result<Vec<Location>> {
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
            let places = self.cached_at_one_commit(&written)?;
            #[cfg(feature = "object")]
            let places = match places {
                None => tload_copy::fill_all(
                    &written,
                    &self.store,
                    &self.client,
                    self.precedence,
                    self.deadline,
                )?,
                places => places,
            };
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
            places.push(cached(url, &self.store, self.precedence)?);
        }
        let places: Option<Vec<_>> = places.into_iter().collect();
        Ok(places.filter(|places| {
            let mut commits = places.iter().map(|place| commit_in_cache(place));
            let first = commits.next();
            commits.all(|commit| Some(commit) == first)
        }))
    }

    /// Opens an object, and returns its first bytes with it: up to `first` of them.
    pub(super) fn open(&self, location: &Location, first: usize) -> Result<OpenedSource> {
        let remote = self.remote()?;
        let (object, bytes) = ObjectSource::open(remote, location, first as u64, self.deadline)?;
        Ok((Arc::new(object), bytes))
    }

    /// Opens an object in the state that another rank has found.
    pub(super) fn open_in_state(
        &self,
        base: &Location,
        state: OpenedState,
    ) -> Result<Option<Arc<dyn Source>>> {
        let opened = ObjectSource::in_state(self.remote()?, base, state, self.deadline)?;
        Ok(opened.map(|object| -> Arc<dyn Source> { Arc::new(object) }))
    }

    /// Adds a near name to the error that nothing is at `location`, if its store lists one.
    #[cfg_attr(
        not(feature = "object"),
        expect(clippy::unused_self, reason = "there is no store to ask")
    )]
    pub(super) fn suggest_near(&self, error: Error, location: &Location) -> Error {
        #[cfg(feature = "object")]
        let error = tload_copy::suggest_near(error, location, || self.remote().cloned());
        error.or_location(location)
    }

    /// Looks up whether `location` is an object or a prefix, and lists a prefix. Returns a note on
    /// what the list leaves out.
    pub(super) fn find(&self, location: &Location) -> Result<(Found, Option<String>)> {
        let of_files = ["safetensors", "json", "tensors"];
        if of_files.iter().any(|it| location.has_extension(it)) {
            return Ok((Found::File, None));
        }
        if location.protocol() == Some(Protocol::Http) {
            return Ok((Found::Unlisted, None));
        }
        let Folder { names, below, note } = Folder::list(self.remote()?, location, self.deadline)?;
        if names.is_empty() && below.is_empty() && !location.file_name().is_empty() {
            // Any name may be a file, so open it to find out whether it exists.
            return Ok((Found::File, None));
        }
        Ok((Found::Folder { names, below }, note))
    }
}
