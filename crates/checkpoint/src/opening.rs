//! Opening of a checkpoint, within a timeout: from a location, a list of files or a store to the
//! merged list of tensors.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::backend::Backend;
use super::copies::StaleCopies;
use super::headers::{OpenedShard, open_shards};
use super::shards::ShardSet;
use super::together::Together;
use super::{OpenOptions, Opened, OpenedCheckpoint, Shard};
use crate::error::{Error, ErrorKind, Result};
use crate::format::TensorInfo;
use crate::options::{Location, StoreOptions};
use crate::storage::Remote;
use crate::sync::descriptors::reserve_descriptors;
use crate::sync::detached::{TooLong, run_with_timeout};

/// Message and hint when opening exceeds its timeout.
const TOO_LONG: TooLong = TooLong {
    message: "opening took longer than its timeout",
    hint: "check the file system, or the endpoint and the network; or raise the shorter one of ‹timeout› and open_timeout",
};

/// Grace period beyond the timeout of requests, so that their own errors are reported first.
const LAST_WORDS: Duration = Duration::from_millis(100);

/// Opened files of a checkpoint, before their headers are merged.
pub(super) struct OpenedFiles {
    pub(super) set: ShardSet,
    pub(super) shards: Vec<OpenedShard>,
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
            })?;
            Self::new(location, set, backend, started)
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
        let limit = backend
            .store()
            .seconds("open_timeout")
            .map(|limit| limit + LAST_WORDS);
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
        let shown = if rest.is_empty() {
            first.clone()
        } else {
            Location::shown_as(format!("{first} and {} more", rest.len()))
        };
        let (whole, locations) = (shown.clone(), locations.to_vec());
        Self::open_as_rank(
            shown,
            locations.clone(),
            options.into(),
            move |backend, started| {
                let set = ShardSet::from_files(backend.nearest(&locations)?);
                Self::new(whole, set, backend, started)
            },
        )
    }

    /// Calls `open`, unless another rank of the group that the options name opens for this one.
    fn open_as_rank(
        shown: Location,
        locations: Vec<Location>,
        options: OpenOptions,
        open: impl FnOnce(&Backend, Instant) -> Result<Self> + Send + 'static,
    ) -> Result<Self> {
        let (together, opening) = Together::find(&locations, &options)?.receive()?;
        let backend = Backend::new(options, &shown).passing_on(&together);
        let opened = Self::run_with_timeout(backend, move |backend, started| {
            if let Some(opening) = opening
                && let Some(files) = backend.open_again(opening, &locations)?
            {
                return Self::assemble(shown, files, backend, started);
            }
            open(backend, started)
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
            let set = backend.timeline.time("list", list)?;
            Self::new(location, set, backend, started)
        })
    }

    fn new(location: Location, set: ShardSet, backend: &Backend, started: Instant) -> Result<Self> {
        let open = || open_shards(&set, backend);
        let shards = backend.timeline.time("headers", open)?;
        let stale = StaleCopies::find(&set, &shards, backend)?;
        let files = OpenedFiles { set, shards, stale };
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
            stale,
        } = files;
        let mut shards = Vec::with_capacity(opened.len());
        let mut tensors = Vec::new();
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
            let entries = header.tensors.into_iter().filter(|entry| {
                let placement = set.index.as_ref();
                placement.is_none_or(|placement| placement.places(&entry.name, index))
                    && !(stale.as_ref()).is_some_and(|stale| stale.contains(&entry.name, index))
            });
            tensors.extend(entries.map(|entry| TensorInfo::new(entry, index)));
            shards.push(Shard {
                source,
                header_bytes: header.bytes,
                header_crcs,
                tensors: first..tensors.len(),
                metadata: header.metadata,
            });
        }
        let by_name = merge(&tensors, &shards)?;
        if let Some(index) = &set.index {
            index.require_all(&by_name)?;
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
            by_name,
            metadata,
            since: started,
            open_time,
            timeline: backend.timeline.clone(),
        })))
    }
}

/// Indexes the tensors by name. A name that is in two shards is an error: without an index nothing
/// decides between them.
fn merge(tensors: &[TensorInfo], shards: &[Shard]) -> Result<HashMap<String, usize>> {
    let mut by_name: HashMap<String, usize> = HashMap::with_capacity(tensors.len());
    for (index, tensor) in tensors.iter().enumerate() {
        if let Some(first) = by_name.insert(tensor.name().to_owned(), index) {
            let (first, second) = (&shards[tensors[first].shard()], &shards[tensor.shard()]);
            if first.source.is(&*second.source) {
                return Err(Error::invalid_request("the file is listed twice")
                    .with_location(second.location())
                    .with_hint("list every file once"));
            }
            let first = first.location();
            return Err(Error::new(
                ErrorKind::InvalidFormat,
                format!("is also in {first}, and no index says which one to load"),
            )
            .with_location(shards[tensor.shard()].location())
            .with_tensor(tensor.name())
            .with_hint(
                "load one set of shards by its index file, or pass the files that belong together",
            ));
        }
    }
    Ok(by_name)
}
