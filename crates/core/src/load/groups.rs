//! Opened sources of one load, in groups that share limits and engines: the files of one file
//! system, or the objects of one store.

mod ranks;

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;

use self::ranks::REMOTE_HINTS;
pub(crate) use self::ranks::{RemoteSources, SharedRegions};
use crate::checkpoint::ShardSource;
#[cfg(feature = "object")]
use crate::error::ErrorKind;
use crate::error::{Error, Result};
use crate::memory::FileView;
use crate::options::CacheMode;
#[cfg(feature = "object")]
use crate::options::Location;
use crate::options::Options;
use crate::report::{CacheReport, MirrorReport};
use crate::schedule::Member;
#[cfg(feature = "object")]
use crate::storage::object::cache::{Entry, TILE_BYTES};
#[cfg(feature = "object")]
use crate::storage::{FileSource, ObjectSource, unversioned_note};
use crate::storage::{FileSystem, ReadFile, ReadHints, RefusedDirect, Source, of_many};
use crate::sync::detached::{PendingOps, run_with_timeout};
use crate::sync::parallel::parallel_map;
use crate::sync::retry::Retries;
use crate::sync::retry_counter::RetryCounter;
use crate::sync::timeline::Span;
use crate::load::check::Blame;

/// Number of files opened at a time. On a network file system each takes one or two round trips.
const OPENED_AT_A_TIME: usize = 16;

/// Error message and hint for files that do not open in time.
const TOO_LONG: (&str, &str) = (
    "opening the file took longer than the load's timeout",
    "check its file system, or raise ‹timeout›",
);

/// Sources that one engine can read.
#[derive(Clone, Debug)]
pub(crate) enum Group {
    /// Files of one file system.
    Files(Arc<[ReadFile]>),
    /// Objects of one store.
    #[cfg(feature = "object")]
    Objects(Arc<[ObjectSource]>),
    /// Objects that the cache has most bytes of, and its files of them, on one file system.
    #[cfg(feature = "object")]
    Cached(Arc<[ReadFile]>, Arc<[ObjectSource]>),
    /// Regions that the leader of the node reads.
    Shared(Arc<SharedRegions>),
    /// Bytes that other nodes read.
    Remote(Arc<RemoteSources>),
}

/// All sources of a load.
#[derive(Debug)]
pub(crate) struct Sources {
    groups: Vec<Group>,
    /// By source, in the order given.
    members: Vec<Member>,
}

/// One opened source.
enum OpenedSource {
    File(ReadFile),
    #[cfg(feature = "object")]
    Object(ObjectSource),
    #[cfg(feature = "object")]
    Cached(ReadFile, ObjectSource),
}

impl Sources {
    /// Opens `shards` according to `options`, for reads of the ranges given with each. With
    /// `is_alone`, no other rank arranges the same bytes, and an engine for files reads objects
    /// of which the cache has most of these bytes, in whole tiles.
    ///
    /// # Errors
    ///
    /// Any error of opening a file for direct I/O or as a view; [`ErrorKind::Unsupported`] for
    /// views of objects.
    pub(crate) fn open(
        shards: Vec<(ShardSource, Vec<Range<u64>>)>,
        options: &Options,
        is_alone: bool,
    ) -> Result<Self> {
        let count = shards.len();
        let opened = {
            let pending = shards
                .first()
                .map_or_else(PendingOps::default, |(shard, _)| {
                    PendingOps::of(shard.location())
                });
            let options = options.clone();
            let waits = pending.clone();
            run_with_timeout(options.timeout, &pending, TOO_LONG, move || {
                let refused = RefusedDirect::default();
                Ok(parallel_map(
                    &shards,
                    OPENED_AT_A_TIME,
                    |(shard, wanted)| {
                        waits.during(shard.location(), "", || {
                            open(shard, wanted, &options, &refused, is_alone)
                        })
                    },
                ))
            })?
        };
        let mut sources = Self {
            groups: Vec::new(),
            members: Vec::with_capacity(count),
        };
        let mut by_group: Vec<Vec<OpenedSource>> = Vec::new();
        for source in opened {
            let source = source.map_err(|error| of_many(error, count))?;
            let of_group = |group: &Vec<OpenedSource>| group[0].is_beside(&source);
            let group = by_group.iter().position(of_group).unwrap_or_else(|| {
                by_group.push(Vec::new());
                by_group.len() - 1
            });
            let index = by_group[group].len();
            sources.members.push(Member { group, index });
            by_group[group].push(source);
        }
        sources.groups = by_group.into_iter().map(Group::new).collect();
        Ok(sources)
    }

    /// Adds shared regions, as the last sources.
    pub(crate) fn add_shared(&mut self, shared: SharedRegions) {
        let group = self.groups.len();
        let members = 0..shared.regions.len();
        self.members
            .extend(members.map(|index| Member { group, index }));
        self.groups.push(Group::Shared(Arc::new(shared)));
    }

    /// Adds bytes that other nodes read, as the last sources.
    pub(crate) fn add_remote(&mut self, remote: RemoteSources) {
        let group = self.groups.len();
        let members = 0..remote.sources.len();
        self.members
            .extend(members.map(|index| Member { group, index }));
        self.groups.push(Group::Remote(Arc::new(remote)));
    }

    /// Reorders the sources: source `i` becomes the old `order[i]`.
    pub(crate) fn arrange(&mut self, order: &[usize]) {
        self.members = order.iter().map(|source| self.members[*source]).collect();
    }

    /// Returns the shared regions, if there are any.
    pub(crate) fn shared(&self) -> Option<Arc<SharedRegions>> {
        self.groups.iter().find_map(|group| match group {
            Group::Shared(shared) => Some(Arc::clone(shared)),
            Group::Files(_) | Group::Remote(_) => None,
            #[cfg(feature = "object")]
            Group::Objects(_) | Group::Cached(..) => None,
        })
    }

    pub(crate) fn groups(&self) -> &[Group] {
        &self.groups
    }

    /// Returns the location of each source.
    pub(crate) fn names(&self) -> Vec<String> {
        let name = |member: &Member| self.groups[member.group].location(member.index);
        self.members.iter().map(name).collect()
    }

    /// Returns the group of each source, and its index in the group.
    pub(crate) fn members(&self) -> &[Member] {
        &self.members
    }

    /// Returns the read hints of a source.
    pub(crate) fn hints(&self, source: usize) -> ReadHints {
        let Member { group, index } = self.members[source];
        self.groups[group].hints(index)
    }

    /// Returns all files, also those of the cache.
    pub(crate) fn files(&self) -> impl Iterator<Item = &ReadFile> {
        self.groups.iter().flat_map(|group| group.files().iter())
    }

    /// Checks that every source is unchanged since it was opened, where reads have not checked
    /// that.
    ///
    /// # Errors
    ///
    /// [`crate::ErrorKind::Changed`], and any error of the check itself.
    pub(crate) fn verify_unchanged(&self) -> Result<()> {
        for group in &self.groups {
            match group {
                Group::Files(files) => files.iter().try_for_each(ReadFile::verify_unchanged)?,
                Group::Shared(shared) => shared.verify_unchanged()?,
                Group::Remote(_) => {}
                // Files of the cache are not compared, because other processes may write to them.
                // Each tile has been verified.
                #[cfg(feature = "object")]
                Group::Objects(_) | Group::Cached(..) => {}
            }
        }
        #[cfg(feature = "object")]
        {
            let objects: Vec<_> = self.objects().collect();
            let verify = |object: &&ObjectSource| object.verify_unchanged();
            let verified = parallel_map(&objects, OPENED_AT_A_TIME, verify);
            verified.into_iter().collect::<Result<()>>()?;
        }
        Ok(())
    }

    /// Returns notes on the sources for the user.
    pub(crate) fn notes(&self) -> Vec<String> {
        let refused = self.files().find(|file| file.is_refused());
        let refused = refused.map(|file| {
            format!(
                "the file system ({}) refused direct I/O, so files were read through the page cache",
                file.source().file_system().name
            )
        });
        #[cfg(feature = "object")]
        let unversioned = unversioned_note(self.objects());
        #[cfg(not(feature = "object"))]
        let unversioned = None;
        refused.into_iter().chain(unversioned).collect()
    }

    #[cfg(feature = "object")]
    fn objects(&self) -> impl Iterator<Item = &ObjectSource> {
        self.groups.iter().flat_map(|group| match group {
            Group::Objects(objects) | Group::Cached(_, objects) => &**objects,
            Group::Files(_) | Group::Shared(_) | Group::Remote(_) => &[],
        })
    }

    /// Returns the reports of cache and mirrors, which all objects of a checkpoint share.
    pub(crate) fn remote_reports(&self) -> (Option<CacheReport>, Vec<MirrorReport>) {
        #[cfg(feature = "object")]
        if let Some(remote) = self.objects().next().map(ObjectSource::remote) {
            let mirrors = remote.mirrors().map(|mirrors| mirrors.reports());
            let cache = remote.cache().map(|cache| cache.report());
            return (cache, mirrors.unwrap_or_default());
        }
        // Without objects there is neither a cache nor a mirror.
        let _ = self;
        (None, Vec::new())
    }

    /// Returns the number of retries outside of reads, and the reason of the last one.
    pub(crate) fn opening_retries(&self) -> (u64, Option<String>) {
        // Objects of one checkpoint share a counter.
        let mut seen = HashSet::new();
        let tallies = self.groups.iter().flat_map(Group::tallies);
        let tallies = tallies.filter(|retry_counter| seen.insert(retry_counter.address()));
        let (counts, reasons): (Vec<u64>, Vec<_>) = tallies.map(RetryCounter::so_far).unzip();
        (counts.iter().sum(), reasons.into_iter().flatten().last())
    }

    /// Returns the phases of the stores: clients, credentials, names, connections.
    #[cfg(feature = "object")]
    pub(crate) fn spans(&self) -> Vec<Span> {
        let mut seen = HashSet::new();
        let remotes = self.objects().map(ObjectSource::remote);
        let remotes = remotes.filter(|remote| seen.insert(Arc::as_ptr(remote)));
        remotes.flat_map(|it| it.timeline().spans()).collect()
    }

    /// Returns no phases: only stores have any.
    #[cfg(not(feature = "object"))]
    #[expect(clippy::unused_self, reason = "has phases with objects")]
    pub(crate) fn spans(&self) -> Vec<Span> {
        Vec::new()
    }

    /// Returns each file as memory, by source; none unless the load uses views.
    pub(crate) fn views(&self) -> Option<Vec<Arc<FileView>>> {
        let view = |member: &Member| self.groups[member.group].files().get(member.index)?.view();
        self.members
            .iter()
            .map(|member| view(member).cloned())
            .collect()
    }
}

impl Blame for Sources {
    fn blame(&self, mismatch: Error) -> Error {
        #[cfg(feature = "object")]
        if let (ErrorKind::Corrupt, Some(range)) = (mismatch.kind(), mismatch.range()) {
            // Without a range, an error is about the length of a file, or the list of files.
            let objects = self.objects();
            let wrong: Vec<_> = objects
                .filter(|it| mismatch.is_about(it.location()))
                .collect();
            let distrust = |error, object: &ObjectSource| object.distrust(&range, error);
            return wrong.into_iter().fold(mismatch, distrust);
        }
        mismatch
    }
}

impl OpenedSource {
    /// Returns whether both sources share limits.
    fn is_beside(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::File(one), Self::File(other)) => share_device(one, other),
            #[cfg(feature = "object")]
            (Self::Cached(one, _), Self::Cached(other, _)) => share_device(one, other),
            #[cfg(feature = "object")]
            (Self::Object(one), Self::Object(other)) => one.shares_store(other),
            #[cfg(feature = "object")]
            _ => false,
        }
    }
}

fn share_device(one: &ReadFile, other: &ReadFile) -> bool {
    one.source().identity().device == other.source().identity().device
}

impl Group {
    /// Creates a group of sources that share limits.
    fn new(sources: Vec<OpenedSource>) -> Self {
        let mut files = Vec::new();
        #[cfg(feature = "object")]
        let mut objects = Vec::new();
        for source in sources {
            match source {
                OpenedSource::File(file) => files.push(file),
                #[cfg(feature = "object")]
                OpenedSource::Object(object) => objects.push(object),
                #[cfg(feature = "object")]
                OpenedSource::Cached(file, object) => {
                    files.push(file);
                    objects.push(object);
                }
            }
        }
        #[cfg(feature = "object")]
        match (files.is_empty(), objects.is_empty()) {
            (_, true) => {}
            (true, false) => return Self::Objects(objects.into()),
            (false, false) => return Self::Cached(files.into(), objects.into()),
        }
        Self::Files(files.into())
    }

    fn hints(&self, index: usize) -> ReadHints {
        match self {
            Self::Files(files) => files[index].hints(),
            #[cfg(feature = "object")]
            Self::Objects(objects) => objects[index].hints(),
            #[cfg(feature = "object")]
            Self::Cached(files, _) => ReadHints {
                alignment: files[index].alignment().max(TILE_BYTES),
                ..files[index].hints()
            },
            Self::Shared(shared) => shared.hints,
            Self::Remote(_) => REMOTE_HINTS,
        }
    }

    fn location(&self, index: usize) -> String {
        match self {
            Self::Files(files) => files[index].source().location().to_string(),
            #[cfg(feature = "object")]
            Self::Objects(objects) | Self::Cached(_, objects) => {
                objects[index].location().to_string()
            }
            Self::Shared(shared) => shared.names[index].clone(),
            Self::Remote(remote) => remote.names[index].clone(),
        }
    }

    /// Returns the name of what they share: `ext4 (8:1)`, `s3`.
    pub(crate) fn name(&self) -> String {
        match self {
            Self::Files(files) => name_of(files),
            #[cfg(feature = "object")]
            Self::Cached(files, _) => format!("cache on {}", name_of(files)),
            #[cfg(feature = "object")]
            Self::Objects(objects) => {
                let url = objects
                    .first()
                    .and_then(|object| object.location().remote());
                url.map_or_else(String::new, |url| url.scheme.clone())
            }
            Self::Shared(_) => "shared memory".to_owned(),
            Self::Remote(_) => "other nodes".to_owned(),
        }
    }

    /// Returns each source's counter of retries outside of reads.
    fn tallies(&self) -> Vec<&RetryCounter> {
        match self {
            Self::Files(files) => files
                .iter()
                .map(|file| file.source().retry_counter())
                .collect(),
            #[cfg(feature = "object")]
            Self::Objects(objects) | Self::Cached(_, objects) => objects
                .iter()
                .map(|object| object.remote().retry_counter())
                .collect(),
            Self::Shared(_) | Self::Remote(_) => Vec::new(),
        }
    }

    /// Returns its sources, if they are files.
    pub(crate) fn files(&self) -> &[ReadFile] {
        match self {
            Self::Files(files) => files,
            #[cfg(feature = "object")]
            Self::Cached(files, _) => files,
            #[cfg(feature = "object")]
            Self::Objects(_) => &[],
            Self::Shared(_) | Self::Remote(_) => &[],
        }
    }
}

fn open(
    shard: &ShardSource,
    wanted: &[Range<u64>],
    options: &Options,
    refused: &RefusedDirect,
    is_alone: bool,
) -> Result<OpenedSource> {
    // Without objects there is no cache.
    let _ = is_alone;
    match shard {
        ShardSource::File(file) => {
            let retries = options
                .retries
                .map_or_else(|| file.retries(), Retries::up_to);
            let mut file =
                ReadFile::open_with(Arc::clone(file), options.cache, refused, retries, wanted)?;
            if options.cache == CacheMode::Map {
                file.map(options.writable)?;
            }
            Ok(OpenedSource::File(file))
        }
        #[cfg(feature = "object")]
        ShardSource::Object(object) if options.cache == CacheMode::Map => Err(Error::new(
            ErrorKind::Unsupported,
            "‹cache=map› maps files, and this is an object in a store",
        )
        .with_location(object.location())
        .with_hint("use ‹cache=auto›, or copy the checkpoint to a disk first")),
        #[cfg(feature = "object")]
        ShardSource::Object(object) => {
            let file = || object.entry().filter(|entry| entry.has_most_of(wanted));
            let file = is_alone.then(file).flatten();
            let open = |entry: &Arc<Entry>| {
                let location = Location::from_path(entry.path());
                let file = Arc::new(FileSource::open_with(&location, Some(0))?);
                if !entry.is_file(file.identity()) {
                    // The directory was replaced, so the bytes must come from the store.
                    return Err(Error::new(ErrorKind::Changed, "is another file"));
                }
                ReadFile::open_with(file, options.cache, refused, Retries::NONE, wanted)
            };
            Ok(match file.map(open) {
                Some(Ok(file)) => OpenedSource::Cached(file, object.for_load()),
                None | Some(Err(_)) => OpenedSource::Object(object.for_load()),
            })
        }
    }
}

/// Returns the name of the file system that files are on.
fn name_of(files: &[ReadFile]) -> String {
    files.first().map_or_else(String::new, |file| {
        let FileSystem { name, device, .. } = file.source().file_system();
        format!("{name} ({}:{})", device.0, device.1)
    })
}
