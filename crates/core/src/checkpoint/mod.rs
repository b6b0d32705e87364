//! A checkpoint: the sources of one model and the merged list of their tensors.
//!
//! Finds the shards of a location, reads their headers (many at a time, one read each where it is
//! long enough), and checks that together they form one model. No tensor is read here.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sha2::{Digest as _, Sha256};

use crate::crc::Crcs;
use crate::error::{Error, ErrorKind, Result, shortened};
use crate::format::{self, Header, Index};
use crate::options::Location;
#[cfg(feature = "object")]
use crate::options::StoreOptions;
use crate::storage::{Source, is_network, of_many};
use crate::sync::detached::run_with_timeout;
use crate::sync::parallel::parallel_map;
use crate::sync::timeline::Timeline;
use crate::tensor::TensorInfo;

mod backend;
mod file_set;
mod no_weights;
mod open_options;
mod shards;
mod state;

use backend::Backend;
pub(crate) use backend::ShardSource;
pub(crate) use file_set::FileSet;
pub use open_options::OpenOptions;
use shards::ShardSet;

/// First read of a shard, bytes: holds the header of most files (a shard of a dense 70B model has
/// about 10 KiB of it, one of a mixture of experts with 20,000 tensors about 2 MiB and needs a
/// second read).
const FIRST_READ_BYTES: usize = 256 << 10;

/// First read of a shard on a network file system, bytes: the kernel requests 128 KiB at a time
/// there, one after another, and most headers fit into half.
const MOUNT_READ_BYTES: usize = 64 << 10;

/// Message and hint when opening exceeds its timeout.
const TOO_LONG: (&str, &str) = (
    "opening took longer than its timeout",
    "check the file system, or the endpoint and the network; or raise the shorter one of ‹timeout› and open_timeout",
);

/// Grace period beyond the timeout of requests, so that their own errors are reported first.
const LAST_WORDS: Duration = Duration::from_millis(100);

/// Headers read at a time from a local disk: more threads than this slow down opening.
const HEADER_THREADS_MAX: usize = 16;

/// Headers read at a time where each costs a round trip of milliseconds: on a network file system
/// or in an object store, unless the cache has them.
const FAR_HEADERS_MAX: usize = 64;

/// Headers of one model, read and checked. Cheap to clone; the files stay open while a clone lives.
#[derive(Clone, Debug)]
pub struct Checkpoint(Arc<Opened>);

#[derive(Debug)]
struct Opened {
    location: Location,
    /// Index that decides which tensors exist, if there is one.
    index: Option<IndexFile>,
    /// True for all of a directory or an index, false for files that the caller listed.
    is_whole: bool,
    /// Notes on the choice of files.
    notes: Vec<String>,
    /// Files of other models in the directory.
    left_out: Vec<Location>,
    /// Value of the option when opened: also applies to files found beside the checkpoint later.
    follow_symlinks: bool,
    shards: Vec<Shard>,
    /// Sorted by shard, then by offset.
    tensors: Vec<TensorInfo>,
    by_name: HashMap<String, usize>,
    metadata: BTreeMap<String, String>,
    /// When the opening began.
    since: Instant,
    open_time: Duration,
    /// Phases of the opening.
    timeline: Timeline,
}

/// Index file that a checkpoint was opened by, as it was read then: it is compared with a manifest
/// without being read again, since another file could be there by then.
#[derive(Clone)]
pub(crate) struct IndexFile {
    source: ShardSource,
    bytes: Arc<Vec<u8>>,
}

/// Digests of an index file.
pub(crate) struct IndexDigests {
    pub(crate) crcs: Crcs,
    pub(crate) sha256: [u8; 32],
}

impl IndexFile {
    fn new(source: ShardSource, mut bytes: Vec<u8>) -> Self {
        bytes.shrink_to_fit();
        Self {
            source,
            bytes: Arc::new(bytes),
        }
    }

    /// Computes the digests. They are not kept: few loads compare them, and a process that is
    /// forked meanwhile would inherit the lock around them.
    pub(crate) fn digests(&self) -> IndexDigests {
        IndexDigests {
            crcs: Crcs::new(&[&self.bytes]),
            sha256: Sha256::digest(self.bytes.as_slice()).into(),
        }
    }

    pub(crate) fn location(&self) -> &Location {
        self.source.location()
    }

    pub(crate) fn len(&self) -> u64 {
        self.source.len()
    }
}

impl fmt::Debug for IndexFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IndexFile")
            .field("source", &self.source)
            .finish_non_exhaustive()
    }
}

/// One file of a checkpoint.
#[derive(Debug)]
pub struct Shard {
    source: ShardSource,
    header_bytes: u64,
    header_crcs: Crcs,
    tensors: Range<usize>,
    metadata: BTreeMap<String, String>,
}

impl Shard {
    /// Returns the shard's location.
    pub fn location(&self) -> &Location {
        self.source.location()
    }

    /// Returns the file's length, bytes.
    pub fn file_bytes(&self) -> u64 {
        self.source.len()
    }

    /// Returns the length of the header with its length field, bytes: the offset of the first
    /// tensor.
    pub fn header_bytes(&self) -> u64 {
        self.header_bytes
    }

    /// Returns how many tensors of the checkpoint the shard holds.
    pub fn tensor_count(&self) -> usize {
        self.tensors.len()
    }

    /// Returns the shard's `__metadata__`.
    pub fn metadata(&self) -> &BTreeMap<String, String> {
        &self.metadata
    }

    pub(crate) fn source(&self) -> &ShardSource {
        &self.source
    }

    /// Returns the CRCs of the header with its length field, as they were read.
    pub(crate) fn header_crcs(&self) -> Crcs {
        self.header_crcs
    }

    /// Returns the indices of the checkpoint's tensors that the shard holds.
    pub(crate) fn tensors(&self) -> Range<usize> {
        self.tensors.clone()
    }
}

impl Checkpoint {
    /// Opens a file, a directory or an index file, on a file system or in an object store.
    ///
    /// A directory (or the prefix of objects that stands for one) is read by its
    /// `model.safetensors.index.json`, or else by its only `*.safetensors.index.json`. An index
    /// decides which shards are opened and which of their tensors exist. Without an index, its
    /// `*.safetensors` are read in natural order: `model.safetensors` alone if it exists, else the
    /// shards `model-*-of-*`, else those of `diffusion_pytorch_model`, else all files but
    /// `consolidated*` and `adapter_model*`, else `consolidated*`, else `adapter_model*`; see
    /// [`Self::notes`]. Over HTTP, which has no listing, a directory is read by its
    /// `model.safetensors.index.json` or else its `model.safetensors`.
    ///
    /// A model on a hub (`hf://org/name`) is read from the cache of the hub's own tools, if its
    /// weights are complete there: then no request goes to the hub, not even to check whether a
    /// branch has moved on. Else the revision is resolved to a commit, and only that commit is read
    /// from the hub.
    ///
    /// Files of a directory, and those that an index names, must resolve to paths inside the
    /// directory: see [`OpenOptions::follow_symlinks`].
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotFound`] and [`ErrorKind::PermissionDenied`] for locations (the latter also
    /// for links that lead out of the directory), [`ErrorKind::InvalidFormat`] for headers, indexes
    /// and shards that do not fit together, [`ErrorKind::Remote`] and [`ErrorKind::TimedOut`] for
    /// stores that do not respond.
    pub fn open(location: &Location) -> Result<Self> {
        Self::open_with(location, OpenOptions::default())
    }

    /// Like [`Self::open`], with [`OpenOptions`], or with [`StoreOptions`](crate::StoreOptions)
    /// alone.
    pub fn open_with(location: &Location, options: impl Into<OpenOptions>) -> Result<Self> {
        let location = location.clone();
        Self::run_with_timeout(Backend::new(options.into()), move |backend, started| {
            let set = backend.timeline.time("list", || {
                let nearest = backend.nearest(std::slice::from_ref(&location))?;
                ShardSet::find(nearest.first().unwrap_or(&location), backend)
            })?;
            Self::new(location, &set, backend, started)
        })
    }

    /// Calls `open` with the timeout that the store options give.
    fn run_with_timeout(
        backend: Backend,
        open: impl FnOnce(&Backend, Instant) -> Result<Self> + Send + 'static,
    ) -> Result<Self> {
        let started = Instant::now();
        let pending = backend.pending.clone();
        // Requests have the same limit, and their own errors are more detailed.
        let limit = backend
            .store()
            .seconds("open_timeout")
            .map(|limit| limit + LAST_WORDS);
        run_with_timeout(limit, &pending, TOO_LONG, move || open(&backend, started))
    }

    /// Opens a list of files as one checkpoint, in this order. Some may be on file systems and some
    /// in object stores.
    ///
    /// # Errors
    ///
    /// As [`Self::open`]; [`ErrorKind::InvalidRequest`] for an empty list.
    pub fn open_all(locations: &[Location]) -> Result<Self> {
        Self::open_all_with(locations, OpenOptions::default())
    }

    /// Like [`Self::open_all`], with [`OpenOptions`], or with [`StoreOptions`](crate::StoreOptions)
    /// alone. Listed files may be symbolic links.
    pub fn open_all_with(locations: &[Location], options: impl Into<OpenOptions>) -> Result<Self> {
        let [first, rest @ ..] = locations else {
            return Err(Error::invalid_request("the list of files is empty"));
        };
        let shown = if rest.is_empty() {
            first.clone()
        } else {
            Location::shown_as(format!("{first} and {} more", rest.len()))
        };
        let locations = locations.to_vec();
        Self::run_with_timeout(Backend::new(options.into()), move |backend, started| {
            let set = ShardSet::from_files(backend.nearest(&locations)?);
            Self::new(shown, &set, backend, started)
        })
    }

    /// Opens a checkpoint in a store that the caller opened: an object, an index, or the prefix of
    /// a directory. Of the options in `store`, those for retries, `open_timeout`, `read_timeout`
    /// and `allow_unversioned` (whether objects may lack a validator) apply; those that configure a
    /// connection do not.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use tload::{Checkpoint, StoreOptions};
    ///
    /// let store = Arc::new(object_store::memory::InMemory::new());
    /// let options = StoreOptions::default();
    /// let error = Checkpoint::open_in(store, "models/none", &options).unwrap_err();
    /// assert_eq!(error.kind(), tload::ErrorKind::NotFound);
    /// ```
    ///
    /// # Errors
    ///
    /// As [`Self::open`]; [`ErrorKind::InvalidRequest`] for a path with empty components, `.` or
    /// `..`.
    #[cfg(feature = "object")]
    pub fn open_in(
        objects: Arc<dyn object_store::ObjectStore>,
        path: &str,
        store: &StoreOptions,
    ) -> Result<Self> {
        let location = Location::custom(&objects.to_string(), path);
        let backend = Backend::custom(objects, &location, store);
        Self::run_with_timeout(backend, move |backend, started| {
            let list = || ShardSet::find(&location, backend);
            let set = backend.timeline.time("list", list)?;
            Self::new(location, &set, backend, started)
        })
    }

    fn new(
        location: Location,
        set: &ShardSet,
        backend: &Backend,
        started: Instant,
    ) -> Result<Self> {
        let opened = backend
            .timeline
            .time("headers", || open_shards(set, backend))?;
        let mut shards = Vec::with_capacity(opened.len());
        let mut tensors = Vec::new();
        let mut metadata = BTreeMap::new();
        for (index, (source, header, header_crcs)) in opened.into_iter().enumerate() {
            for (key, value) in &header.metadata {
                metadata.entry(key.clone()).or_insert_with(|| value.clone());
            }
            let first = tensors.len();
            let entries = header.tensors.into_iter().filter(|entry| {
                set.index
                    .as_ref()
                    .is_none_or(|placement| placement.backend(&entry.name, index))
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
            index: set.index.as_ref().map(|index| index.file.clone()),
            is_whole: set.is_whole,
            notes: set.note.iter().cloned().collect(),
            left_out: set.left_out.clone(),
            follow_symlinks: backend.follow_symlinks,
            shards,
            tensors,
            by_name,
            metadata,
            since: started,
            open_time,
            timeline: backend.timeline.clone(),
        })))
    }

    /// Returns the location that it was opened from.
    pub fn location(&self) -> &Location {
        &self.0.location
    }

    /// Returns `error` about this checkpoint. Nothing lists the names of several files at once.
    pub(crate) fn located(&self, error: Error) -> Error {
        let lists_names = error
            .marked_hint()
            .is_some_and(|hint| hint.contains("‹list_names›"));
        let error = error.with_location(self.location());
        if lists_names && self.location().is_shown_only() {
            error.with_hint("list the names of each of these files")
        } else {
            error
        }
    }

    /// Returns all tensors: by shard, then by offset in the shard.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.0.tensors
    }

    /// Returns the tensor of this name.
    pub fn get(&self, name: &str) -> Option<&TensorInfo> {
        self.0
            .by_name
            .get(name)
            .map(|&index| &self.0.tensors[index])
    }

    /// Returns the shards, in the order in which tensors are numbered.
    pub fn shards(&self) -> &[Shard] {
        &self.0.shards
    }

    /// Returns the merged `__metadata__` of all shards; where two differ, the first shard's value.
    pub fn metadata(&self) -> &BTreeMap<String, String> {
        &self.0.metadata
    }

    /// Returns the total size of all tensors, bytes.
    pub fn total_bytes(&self) -> u64 {
        self.0.tensors.iter().map(TensorInfo::byte_len).sum()
    }

    /// Returns notes on the choice of files in a directory without an index: names of files that
    /// were left out, since they are of another model, or that may not belong together.
    pub fn notes(&self) -> &[String] {
        &self.0.notes
    }

    /// Returns the files of other models in the directory, which were left out.
    pub(crate) fn left_out(&self) -> &[Location] {
        &self.0.left_out
    }

    /// Returns the directory that paths of the checkpoint's files are relative to: that of the
    /// index, or else that of the shard.
    pub(crate) fn folder_of(&self, shard: &Shard) -> Location {
        let index = self.0.index.as_ref().map(|index| &index.source);
        index.unwrap_or(&shard.source).location().parent()
    }

    /// Returns the index that it was opened by.
    pub(crate) fn index(&self) -> Option<&IndexFile> {
        self.0.index.as_ref()
    }

    /// Returns whether it is all of a directory or an index, and not a list of files.
    pub(crate) fn is_whole(&self) -> bool {
        self.0.is_whole
    }

    /// Requires that the index is still the one that was read: shards may have been replaced
    /// together with it before they were opened.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Changed`], and errors of checking it.
    pub(crate) fn verify_index(&self) -> Result<()> {
        let index = self.0.index.as_ref();
        index.map_or(Ok(()), |index| index.source.verify_in_place())
    }

    /// Returns whether symbolic links may lead out of its directories.
    pub(crate) fn follows_symlinks(&self) -> bool {
        self.0.follow_symlinks
    }

    pub(crate) fn open_time(&self) -> Duration {
        self.0.open_time
    }

    /// Returns when the opening began, and its phases.
    pub(crate) fn opening(&self) -> (Instant, &Timeline) {
        (self.0.since, &self.0.timeline)
    }
}

/// Indexes the tensors by name. A name that is in two shards is an error: without an index nothing
/// decides between them.
fn merge(tensors: &[TensorInfo], shards: &[Shard]) -> Result<HashMap<String, usize>> {
    let mut by_name: HashMap<String, usize> = HashMap::with_capacity(tensors.len());
    for (index, tensor) in tensors.iter().enumerate() {
        if let Some(first) = by_name.insert(tensor.name().to_owned(), index) {
            let (first, second) = (&shards[tensors[first].shard()], &shards[tensor.shard()]);
            if first.source.is(&second.source) {
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

/// Opens all files and reads their headers, many at a time, so that none waits for the ones before
/// it. Returns the first error in the order of the files.
fn open_shards(set: &ShardSet, backend: &Backend) -> Result<Vec<(ShardSource, Header, Crcs)>> {
    // If the first one is near, the others probably are too.
    let first = set.files.first();
    let threads = if first.is_some_and(|file| backend.is_far(file)) {
        FAR_HEADERS_MAX
    } else {
        HEADER_THREADS_MAX
    };
    let opened = parallel_map(&set.files, threads, |file| open_shard(file, set, backend));
    let each = set.files.iter().zip(opened);
    each.map(|(file, opened)| {
        let opened = opened.map_err(|error| set.missing(file, error));
        opened.map_err(|error| of_many(error, set.files.len()))
    })
    .collect()
}

fn open_shard(
    location: &Location,
    set: &ShardSet,
    backend: &Backend,
) -> Result<(ShardSource, Header, Crcs)> {
    let is_mount = location.as_path().is_some_and(is_network);
    let first_bytes = if is_mount {
        MOUNT_READ_BYTES
    } else {
        FIRST_READ_BYTES
    };
    let (source, first) = backend.open(location, set.root.as_ref(), first_bytes)?;
    source.require_versioned()?;
    let (header, crcs) = read_header(&source, first)?;
    Ok((source, header, crcs))
}

/// Reads and checks the header, given the file's first bytes `first`: without a further read if it
/// fits into them, else with one. Also returns the CRCs of the bytes read, which are not kept.
pub(crate) fn read_header(source: &impl Source, first: Vec<u8>) -> Result<(Header, Crcs)> {
    const LENGTH: usize = 8;
    let invalid = |error: format::HeaderError| error.into_error(source.location());
    let len = format::header_len(&first, source.len()).map_err(invalid)?;
    let length_field = len.to_le_bytes();
    let len = usize::try_from(len).expect("at most 100 MB");
    let mut bytes = first;
    bytes.drain(..LENGTH);
    if bytes.len() < len {
        bytes.extend(source.fetch(format::LENGTH_BYTES + bytes.len() as u64, len - bytes.len())?);
    }
    let header = format::parse(&bytes[..len], source.len()).map_err(invalid)?;
    Ok((header, Crcs::new(&[&length_field, &bytes[..len]])))
}

/// Placement of tensors in shards, according to an index.
#[derive(Debug)]
struct Placement {
    file: IndexFile,
    /// In the order in which they are opened.
    shards: Vec<String>,
    shard_of: HashMap<String, String>,
}

impl Placement {
    /// Creates the placement of an index that was parsed from `bytes`.
    fn new(source: ShardSource, index: Index, bytes: Vec<u8>) -> Self {
        Self {
            file: IndexFile::new(source, bytes),
            shards: index.shards,
            shard_of: index.weight_map.into_iter().collect(),
        }
    }

    /// Returns whether the index places `tensor` in this shard.
    fn backend(&self, tensor: &str, shard: usize) -> bool {
        self.shard_of.get(tensor) == Some(&self.shards[shard])
    }

    /// Requires every tensor of the index to be in its shard.
    fn require_all(&self, found: &HashMap<String, usize>) -> Result<()> {
        let missing: HashSet<_> = self
            .shard_of
            .keys()
            .filter(|name| !found.contains_key(*name))
            .collect();
        // Deterministic, whatever the map's order.
        let Some(first) = missing.iter().min() else {
            return Ok(());
        };
        let shard = &self.shard_of[*first];
        let others = missing.len() - 1;
        let rest = if others > 0 {
            format!(" (and {others} more)")
        } else {
            String::new()
        };
        Err(Error::new(
            ErrorKind::InvalidFormat,
            format!(
                "the index places it in {:?}, which does not contain it{rest}",
                shortened(shard)
            ),
        )
        .with_location(self.file.source.location())
        .with_tensor(*first)
        .with_hint(
            "the index and the shards are of different versions; download the checkpoint again",
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::MemorySource;

    #[derive(Debug)]
    struct Counted {
        source: MemorySource,
        fetches: std::sync::atomic::AtomicUsize,
    }

    impl Source for Counted {
        fn location(&self) -> &Location {
            self.source.location()
        }

        fn len(&self) -> u64 {
            self.source.len()
        }

        fn fetch(&self, offset: u64, len: usize) -> Result<Vec<u8>> {
            self.fetches
                .fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            self.source.fetch(offset, len)
        }
    }

    /// Returns how many fetches a header of `len` bytes takes.
    fn fetches(len: usize) -> usize {
        let mut bytes = (len as u64).to_le_bytes().to_vec();
        bytes.extend(b"{}");
        bytes.resize(8 + len, b' ');
        let source = Counted {
            source: MemorySource::new("memory", bytes),
            fetches: 0.into(),
        };
        let first = source.fetch(0, FIRST_READ_BYTES).expect("in memory");
        read_header(&source, first).expect("an empty header with spaces is valid");
        source.fetches.into_inner()
    }

    #[test]
    fn header_takes_second_read_only_beyond_first_read() {
        assert_eq!(fetches(2), 1);
        assert_eq!(fetches(FIRST_READ_BYTES - 8), 1);
        assert_eq!(fetches(FIRST_READ_BYTES - 7), 2);
        assert_eq!(fetches(3 * FIRST_READ_BYTES), 2);
    }

    #[test]
    fn index_is_hashed_as_it_was_read() {
        let folder = tempfile::tempdir().expect("a folder");
        let header = r#"{"t":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}"#;
        let mut file = (header.len() as u64).to_le_bytes().to_vec();
        file.extend(header.bytes().chain([7]));
        let index = r#"{"weight_map":{"t":"m.safetensors"}}"#;
        let path = folder.path().join("model.safetensors.index.json");
        std::fs::write(folder.path().join("m.safetensors"), file).expect("writes");
        std::fs::write(&path, index).expect("writes");
        let checkpoint = Checkpoint::open(&Location::from_path(folder.path())).expect("opens");
        let opened = checkpoint.index().expect("an index");
        std::fs::write(&path, "another").expect("writes");
        let wanted: [u8; 32] = Sha256::digest(index).into();
        assert_eq!(opened.digests().sha256, wanted);
        assert_eq!(opened.digests().crcs, Crcs::new(&[index.as_bytes()]));
    }
}
