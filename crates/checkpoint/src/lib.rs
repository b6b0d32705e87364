//! A checkpoint: the sources of one model and the merged list of their tensors.
//!
//! Programs depend on the crate `tload`, which re-exports what they need of this one. The crates
//! are released together, and anything else here may change in any release.
//!
//! `opening.rs` finds the shards of a location and checks that together they form one model,
//! `headers.rs` reads their headers, `tensorizer.rs` those of Tensorizer's files, `names.rs` merges
//! them with the index. No tensor is read here.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::crc::Crcs;
use crate::error::{Error, Result};
use crate::format::TensorInfo;
use crate::options::Location;
use crate::storage::Source;
use crate::sync::timeline::Timeline;

mod backend;
mod copies;
mod file_set;
mod headers;
mod index;
mod names;
mod open_options;
mod opening;
#[cfg(not(feature = "sealed"))]
#[path = "no_sealed.rs"]
mod sealed;
mod shards;
mod state;
mod tensorizer;
mod together;

// Paths of modules that are in crates below.
pub(crate) use tload_base::{crc, error, options, sync};
pub(crate) use {tload_format as format, tload_storage as storage};

#[cfg(feature = "sealed")]
pub use tload_sealed as sealed;

pub use file_set::FileSet;
pub use headers::read_header;
pub use index::{IndexDigests, IndexFile};
pub use open_options::OpenOptions;
pub use sealed::Key;

use names::Names;

/// Headers of one model, read and checked. Cheap to clone; the files stay open while a clone lives.
#[derive(Clone, Debug)]
pub struct OpenedCheckpoint(Arc<Opened>);

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
    names: Names,
    metadata: BTreeMap<String, String>,
    /// When the opening began.
    since: Instant,
    open_time: Duration,
    /// Phases of the opening.
    timeline: Timeline,
}

/// One file of a checkpoint.
#[derive(Debug)]
pub struct Shard {
    source: Arc<dyn Source>,
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

    /// Returns the opened file or object.
    #[doc(hidden)]
    pub fn source(&self) -> &Arc<dyn Source> {
        &self.source
    }

    /// Returns the CRCs of the header with its length field, as they were read.
    #[doc(hidden)]
    pub fn header_crcs(&self) -> Crcs {
        self.header_crcs
    }

    /// Returns the indices of the checkpoint's tensors that the shard holds.
    #[doc(hidden)]
    pub fn tensors(&self) -> Range<usize> {
        self.tensors.clone()
    }
}

impl OpenedCheckpoint {
    /// Returns the location that it was opened from.
    pub fn location(&self) -> &Location {
        &self.0.location
    }

    /// Returns `error` about this checkpoint. Nothing lists the names of several files at once.
    pub fn located(&self, error: Error) -> Error {
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
        self.0.names.get(name).map(|index| &self.0.tensors[index])
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

    /// Returns notes on the choice of files in a directory: names of files that were left out,
    /// since they are of another model, or that may not belong together.
    pub fn notes(&self) -> &[String] {
        &self.0.notes
    }

    /// Returns the files of other models in the directory, which were left out.
    pub fn left_out(&self) -> &[Location] {
        &self.0.left_out
    }

    /// Returns the directory that paths of the checkpoint's files are relative to: that of the
    /// index, or else that of the shard.
    pub fn folder_of(&self, shard: &Shard) -> Location {
        let index = self.0.index.as_ref().map(|index| &index.source);
        index.unwrap_or(&shard.source).location().parent()
    }

    /// Returns the index that it was opened by.
    pub fn index(&self) -> Option<&IndexFile> {
        self.0.index.as_ref()
    }

    /// Returns whether it is all of a directory or an index, and not a list of files.
    pub fn is_whole(&self) -> bool {
        self.0.is_whole
    }

    /// Requires that the index is still the one that was read: shards may have been replaced
    /// together with it before they were opened.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Changed`](crate::error::ErrorKind::Changed), and errors of checking it.
    pub fn verify_index(&self) -> Result<()> {
        let index = self.0.index.as_ref();
        index.map_or(Ok(()), |index| index.source.verify_in_place())
    }

    /// Returns whether symbolic links may lead out of its directories.
    pub fn follows_symlinks(&self) -> bool {
        self.0.follow_symlinks
    }

    /// Returns how long the opening took.
    pub fn open_time(&self) -> Duration {
        self.0.open_time
    }

    /// Returns when the opening began, and its phases.
    pub fn opening(&self) -> (Instant, &Timeline) {
        (self.0.since, &self.0.timeline)
    }
}
