//! Opening of a checkpoint, within a timeout: from a location, a list of files or a store to the
//! merged list of tensors.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::backend::Backend;
use super::copies::StaleCopies;
use super::headers::{OpenedShard, open_shards};
use super::index::Placement;
use super::names::{Added, Names};
use super::shards::ShardSet;
use super::together::Together;
use super::{OpenOptions, Opened, OpenedCheckpoint, Shard};
use crate::error::{Error, ErrorKind, Result};
use crate::format::TensorInfo;
use crate::options::{Location, StoreOptions};
use crate::storage::{Remote, Source};
use crate::sync::descriptors::reserve_descriptors;
use crate::sync::detached::{TooLong, run_with_timeout};
use crate::sync::lock::Mutex;
use crate::sync::threads::Builder;

/// Message and hint when opening exceeds its timeout.
const TOO_LONG: TooLong = TooLong {
    message: "opening took longer than its timeout",
    hint: "check the file system, or the endpoint and the network; or raise the shorter one of ‹timeout› and open_timeout",
};

/// Grace period beyond the timeout of requests, so that their own errors are reported first.
const LAST_WORDS: Duration = Duration::from_millis(100);

/// Minimum number of tensors in an index whose names become a map on a thread of its own: fewer
/// take less time than starting one. (An estimate of 2026-11.)
const LISTED_BESIDE_MIN: usize = 1000;

/// Opened files of a checkpoint, before their headers are merged.
pub(super) struct OpenedFiles {
    pub(super) set: ShardSet,
    pub(super) shards: Vec<OpenedShard>,
    /// Names that the index lists, if there is one.
    pub(super) names: Option<Names>,
    /// Copies of tensors in several listed files.
    pub(super) stale: Option<StaleCopies>,
}

impl OpenedCheckpoint {
    /// Opens a file, a directory or an index file, on a file system or in an object store, with
    /// [`OpenOptions`], or with [`StoreOptions`] alone.
    ///
    /// # Errors
    ///
    /// Those of the interface's function of the same name.
    pub fn open_with(location: &Location, options: impl Into<OpenOptions>) -> Result<Self> {
        let location = location.clone();
        let shown = location.clone();
        let locations = vec![location.clone()];
        Self::open_as_rank(shown, locations, options.into(), move |backend, started| {
            let set = backend.timeline.time("list", || {
                let nearest = backend.nearest(std::slice::from_ref(&location))?;
                ShardSet::find(nearest.first().unwrap_or(&location), backend)
            });
            let opened = set.and_then(|set| Self::new(location.clone(), set, backend, started));
            opened.map_err(|error| backend.suggest_near(error, &location))
        })
    }

    /// Calls `open` with the timeout that the store options give.
    fn run_with_timeout(
        backend: Backend,
        open: impl FnOnce(&Backend, Instant) -> Result<Self> + Send + 'static,
    ) -> Result<Self> {
        let started = Instant::now();
        reserve_descriptors();
        let pending = backend.pending.clone();
        // Requests have the same limit, and their own errors are more detailed.
        let limit = backend.store().seconds("open_timeout");
        let limit = limit.map(|limit| limit + LAST_WORDS);
        run_with_timeout(limit, &pending, TOO_LONG, move || open(&backend, started))
    }

    /// Opens a list of files as one checkpoint, in this order, with [`OpenOptions`], or with
    /// [`StoreOptions`] alone. Listed files may be symbolic links.
    ///
    /// # Errors
    ///
    /// As [`Self::open_with`]; [`ErrorKind::InvalidRequest`] for an empty list.
    pub fn open_all_with(locations: &[Location], options: impl Into<OpenOptions>) -> Result<Self> {
        let [first, rest @ ..] = locations else {
            return Err(Error::invalid_request("the list of files is empty"));
        };
        let shown = match rest.len() {
            0 => first.clone(),
            more => Location::shown_as(format!("{first} and {more} more")),
        };
        let (whole, locations) = (shown.clone(), locations.to_vec());
        let (given, options) = (locations.clone(), options.into());
        Self::open_as_rank(shown, given, options, move |backend, started| {
            let set = ShardSet::from_files(backend.nearest(&locations)?);
            Self::new(whole.clone(), set, backend, started)
        })
    }

    /// Calls `open`, unless another rank of the group that the options name opens for this one.
    fn open_as_rank(
        shown: Location,
        locations: Vec<Location>,
        options: OpenOptions,
        open: impl Fn(&Backend, Instant) -> Result<Self> + Send + 'static,
    ) -> Result<Self> {
        let (together, opening) = Together::find(&locations, &options)?.receive()?;
        let backend = Backend::new(options.clone(), &shown).passing_on(&together);
        let opened = Self::run_with_timeout(backend, move |backend, started| {
            if let Some(opening) = opening
                && let Some(files) = backend.open_again(opening, &locations)?
            {
                return Self::assemble(shown, files, backend, started);
            }
            match open(backend, started) {
                _ if backend.mixes_states() => open(&backend.asking(options, &shown), started),
                opened => opened,
            }
        });
        together.finish(opened)
    }

    /// Opens a checkpoint in a store that the caller opened, and that `remote` has: an object, an
    /// index, or the prefix of a directory.
    ///
    /// # Errors
    ///
    /// As [`Self::open_with`]; [`ErrorKind::InvalidRequest`] for a path with empty components, `.`
    /// or `..`.
    pub fn open_on(remote: Arc<Remote>, location: Location, store: &StoreOptions) -> Result<Self> {
        let backend = Backend::on(remote, &location, store);
        Self::run_with_timeout(backend, move |backend, started| {
            let list = || ShardSet::find(&location, backend);
            let set = backend.timeline.time("list", list);
            let opened = set.and_then(|set| Self::new(location.clone(), set, backend, started));
            opened.map_err(|error| backend.suggest_near(error, &location))
        })
    }

    fn new(
        location: Location,
        mut set: ShardSet,
        backend: &Backend,
        started: Instant,
    ) -> Result<Self> {
        let listed = set.index.as_mut().map(Placement::take_tensors);
        let open = || open_beside(&set, listed, backend);
        let (names, shards) = backend.timeline.time("headers", open)?;
        let stale = StaleCopies::find(&set, &shards, backend)?;
        let files = OpenedFiles {
            set,
            shards,
            names,
            stale,
        };
        backend.pass_on(&files);
        Self::assemble(location, files, backend, started)
    }

    /// Merges the headers of opened files.
    fn assemble(
        location: Location,
        files: OpenedFiles,
        backend: &Backend,
        started: Instant,
    ) -> Result<Self> {
        let OpenedFiles {
            set,
            shards: opened,
            names,
            stale,
        } = files;
        let count = opened.iter().map(|shard| shard.header.tensors.len()).sum();
        let mut names = names.unwrap_or_else(|| Names::new(count));
        let mut shards: Vec<Shard> = Vec::with_capacity(opened.len());
        let mut tensors: Vec<TensorInfo> = Vec::with_capacity(count);
        let mut metadata = BTreeMap::new();
        for (index, shard) in opened.into_iter().enumerate() {
            let OpenedShard {
                source,
                header,
                crcs: header_crcs,
                ..
            } = shard;
            for (key, value) in &header.metadata {
                metadata.entry(key.clone()).or_insert_with(|| value.clone());
            }
            let first = tensors.len();
            for entry in header.tensors {
                if (stale.as_ref()).is_some_and(|stale| stale.contains(&entry.name, index)) {
                    continue;
                }
                match names.add(&entry.name, index, tensors.len()) {
                    Added::Kept => tensors.push(TensorInfo::new(entry, index)),
                    Added::LeftOut => {}
                    Added::Twice(other) => {
                        let other = &*shards[tensors[other].shard()].source;
                        return Err(held_twice(&entry.name, other, &*source));
                    }
                }
            }
            shards.push(Shard {
                source,
                header_bytes: header.bytes,
                header_crcs,
                tensors: first..tensors.len(),
                metadata: header.metadata,
            });
        }
        if let Some(index) = &set.index {
            names.require_all(index)?;
        }
        let open_time = started.elapsed();
        Ok(Self(Arc::new(Opened {
            location,
            index: match &set.index {
                Some(index) => Some(index.file.clone()),
                None => stale.map(|stale| stale.index),
            },
            is_whole: set.is_whole,
            notes: set.note.into_iter().chain(backend.notes()).collect(),
            left_out: set.left_out,
            follow_symlinks: (set.files.first()).map_or(backend.follow_symlinks, |file| {
                backend.follows_in(&file.parent())
            }),
            shards,
            tensors,
            names,
            metadata,
            since: started,
            open_time,
            timeline: backend.timeline.clone(),
        })))
    }
}

/// Opens the shards of a set and reads their headers. Meanwhile the names that its index lists
/// become a map, on a thread of their own if there are many. An error of the index comes before
/// those of shards.
fn open_beside(
    set: &ShardSet,
    listed: Option<Vec<(String, usize)>>,
    backend: &Backend,
) -> Result<(Option<Names>, Vec<OpenedShard>)> {
    let Some((placement, listed)) = set.index.as_ref().zip(listed) else {
        return Ok((None, open_shards(set, backend)?));
    };
    let is_large = listed.len() >= LISTED_BESIDE_MIN;
    let listed = Mutex::new(listed);
    let names = || {
        let listed = std::mem::take(&mut *listed.lock());
        Names::indexed(listed).map_err(|error| error.with_location(placement.file.location()))
    };
    std::thread::scope(|scope| {
        let thread = is_large.then(|| Builder::new().spawn_scoped(scope, names).ok());
        if let Some(thread) = thread.flatten() {
            let shards = open_shards(set, backend);
            let names = thread.join();
            let names = names.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            return Ok((Some(names), shards?));
        }
        Ok((Some(names()?), open_shards(set, backend)?))
    })
}

/// Returns the error of a tensor that two shards hold: without an index nothing decides between
/// them.
fn held_twice(tensor: &str, first: &dyn Source, second: &dyn Source) -> Error {
    if first.is(second) {
        return Error::invalid_request("the file is listed twice")
            .with_location(second.location())
            .with_hint("list every file once");
    }
    Error::new(
        ErrorKind::InvalidFormat,
        format!(
            "is also in {}, and no index says which one to load",
            first.location()
        ),
    )
    .with_location(second.location())
    .with_tensor(tensor)
    .with_hint("load one set of shards by its index file, or pass the files that belong together")
}
