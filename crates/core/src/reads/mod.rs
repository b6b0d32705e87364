//! Random reads: single tensors, rows or bytes of an open checkpoint, into memory of the caller,
//! again and again, as for the experts of a mixture that are loaded when they are needed.
//!
//! ```text
//! Reader::submit ─▶ Call ─ queue ─▶ lane ─ extents ─▶ engine ─▶ the caller's memory ─▶ Reading
//!                                                        └─ staging, where it is not aligned
//! ```
//!
//! A load plans once for many tensors; a [`Reader`] keeps files, engines and threads, and plans
//! nothing. `read_extents` of `tload-memory` splits a read (pure), `lane` is the thread that serves
//! one call at a time, [`Reading`] is what the caller waits for. The memory of a call belongs to
//! its lane from submission until the call has ended: nothing writes to it afterwards.

mod lane;
mod reading;

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;

use self::lane::Lanes;
pub use self::reading::Reading;
use crate::error::{Error, ErrorKind, Result};
use crate::groups::{self, Opened, WantedShard};
use crate::load::Checkpoint;
use crate::memory::Target;
use crate::memory::read_extents::{self, Place, ReadExtent};
use crate::options::{CacheMode, LoadOptions};
use crate::plan::{Selection, Slice};
use crate::storage::ReadFile;
use crate::sync::per_process::process_id;
use crate::tensor::TensorInfo;
use crate::verify::Verify;

/// Bytes that a [`Reader`] reads, and the memory that they go to, of the same length.
#[derive(Debug)]
pub struct ReadRequest {
    wanted: Wanted,
    target: Target,
}

#[derive(Debug)]
enum Wanted {
    Tensor { name: String, slice: Slice },
    Bytes { shard: usize, range: Range<u64> },
}

impl ReadRequest {
    /// Requests a whole tensor.
    pub fn tensor(name: impl Into<String>, target: Target) -> Self {
        Self::slice(name, Slice::default(), target)
    }

    /// Requests a slice of a tensor, whose bytes are beside each other in the file: rows.
    pub fn slice(name: impl Into<String>, slice: Slice, target: Target) -> Self {
        let name = name.into();
        let wanted = Wanted::Tensor { name, slice };
        Self { wanted, target }
    }

    /// Requests bytes of a file, by the number of its shard.
    pub fn bytes(shard: usize, range: Range<u64>, target: Target) -> Self {
        let wanted = Wanted::Bytes { shard, range };
        Self { wanted, target }
    }

    fn tensor_name(&self) -> Option<&str> {
        match &self.wanted {
            Wanted::Tensor { name, .. } => Some(name),
            Wanted::Bytes { .. } => None,
        }
    }
}

/// Reads tensors of one checkpoint into memory of the caller, from any number of threads.
///
/// It keeps the files open, and up to eight threads with an engine each, begun when they are
/// needed: one for each call at a time. The extents of all tensors of a call are in flight at once,
/// up to 16 for each store or file system, so one call for nine experts is faster than nine calls.
///
/// Where the caller's memory is aligned as direct I/O needs it, or a file is read through the page
/// cache, bytes go there without a copy. Otherwise they pass through at most 16 slots of staging
/// memory, which all calls share.
///
/// A file that has changed since the checkpoint was opened is an error of the call, which names the
/// tensor and the bytes. After an error the memory has any contents.
///
/// # Examples
///
/// ```
/// # let model = tload_testing::ExampleModel::new(); let path = model.path();
/// use tload::{Checkpoint, LoadOptions};
///
/// let checkpoint = Checkpoint::open(path)?;
/// let reader = checkpoint.reader(&LoadOptions::new())?;
/// let (mut bias, mut embed) = ([0; 16], vec![0; 64]);
/// reader.read([("layer.0.bias", &mut bias[..]), ("embed.weight", &mut embed)])?;
/// let loaded = checkpoint.read("layer.0.bias", &tload::Slice::default(), &LoadOptions::new())?;
/// assert_eq!(loaded.bytes(), bias);
/// # Ok::<(), tload::Error>(())
/// ```
#[derive(Debug)]
pub struct Reader {
    checkpoint: Checkpoint,
    opened: Arc<Opened>,
    extent_bytes: u64,
    lanes: Lanes,
    process: u32,
}

impl Checkpoint {
    /// Returns a reader of single tensors. Of the options, `engine`, `cache`, `retries`, `hedge`,
    /// `extent_bytes`, `depth` and `timeout` (of opening the files) count, and `memory_limit` for
    /// staging memory.
    ///
    /// # Errors
    ///
    /// Any error of opening the files; [`ErrorKind::InvalidRequest`] for `cache=map`, for digests
    /// to verify, and for a `memory_limit` below one extent.
    pub fn reader(&self, options: &LoadOptions) -> Result<Reader> {
        if options.cache == CacheMode::Map {
            let message = "‹cache=map› shows files, and a reader fills the caller's memory";
            return Err(Error::invalid_request(message).with_hint("use ‹cache=buffered›"));
        }
        if options.verify != Verify::Off {
            let message = "a reader cannot verify: digests are of whole tensors or files";
            let hint = "use ‹verify=off›, and verify the checkpoint before";
            return Err(Error::invalid_request(message).with_hint(hint));
        }
        let shards = self.shards().iter().map(|shard| WantedShard {
            source: Arc::clone(shard.source()),
            ranges: std::iter::once(0..shard.file_bytes()).collect(),
        });
        // The cache of objects answers below the engine, not in whole tiles.
        let opened = Arc::new(groups::open(shards.collect(), options, false)?);
        let extent_bytes = opened.extent_bytes(options);
        Ok(Reader {
            checkpoint: self.clone(),
            lanes: Lanes::new(Arc::clone(&opened), options, extent_bytes)?,
            opened,
            extent_bytes,
            process: process_id(),
        })
    }
}

impl Reader {
    /// Reads tensors, each by its name into memory of its length, and waits for them.
    ///
    /// # Errors
    ///
    /// As [`Self::submit`], and any error of a read.
    pub fn read<'a, 'm>(
        &self,
        tensors: impl IntoIterator<Item = (&'a str, &'m mut [u8])>,
    ) -> Result<()> {
        let tensors = tensors.into_iter();
        let requests = tensors.map(|(name, memory)| ReadRequest::tensor(name, lend(memory)));
        self.submit(requests.collect())?.wait()
    }

    /// Reads a slice of a tensor, which must be contiguous in its file, and waits for it.
    ///
    /// # Errors
    ///
    /// As [`Self::submit`], and any error of the read.
    pub fn read_slice(&self, name: &str, slice: Slice, memory: &mut [u8]) -> Result<()> {
        let request = ReadRequest::slice(name, slice, lend(memory));
        self.submit(vec![request])?.wait()
    }

    /// Reads bytes of a file, by the number of its shard, and waits for them.
    ///
    /// # Errors
    ///
    /// As [`Self::submit`], and any error of the read.
    pub fn read_bytes(&self, shard: usize, offset: u64, memory: &mut [u8]) -> Result<()> {
        let end = offset.saturating_add(memory.len() as u64);
        let request = ReadRequest::bytes(shard, offset..end, lend(memory));
        self.submit(vec![request])?.wait()
    }

    /// Begins to read. The memory of the targets belongs to the call until the [`Reading`] has been
    /// waited for or dropped.
    ///
    /// # Errors
    ///
    /// Before anything is read: [`ErrorKind::NoSuchTensor`]; [`ErrorKind::InvalidRequest`] for
    /// memory of another length, for memory that is not on the host, for slices with gaps, for
    /// bytes outside of a file, and in a process that was forked since; [`ErrorKind::OutOfMemory`]
    /// if no thread can be started.
    pub fn submit(&self, requests: Vec<ReadRequest>) -> Result<Reading> {
        if self.process != process_id() {
            let message = "the reader was made in another process, before a fork";
            return Err(Error::invalid_request(message).with_hint("make a reader in each process"));
        }
        let mut extents = Vec::new();
        let mut names = Vec::with_capacity(requests.len());
        for request in requests {
            let place = self.place(&request)?;
            names.push(request.tensor_name().map(str::to_owned));
            let number = names.len() - 1;
            read_extents::split(
                number,
                &place,
                &request.target,
                self.extent_bytes,
                &mut extents,
            );
        }
        self.lanes.submit(extents, names)
    }

    /// Returns where the bytes of a request are.
    fn place(&self, request: &ReadRequest) -> Result<Place> {
        let (shard, range) = match &request.wanted {
            Wanted::Tensor { name, slice } => {
                let info = self.info(name)?.sliced(slice)?;
                if info.strides().is_some() {
                    let message = "the slice is not contiguous in the file";
                    return Err(Error::invalid_request(message)
                        .with_tensor(name)
                        .with_hint("read whole rows, or load with slices"));
                }
                let start = info.file_range().start;
                (info.shard(), start..start + info.byte_len())
            }
            Wanted::Bytes { shard, range } => {
                let Some(file) = self.checkpoint.shards().get(*shard) else {
                    let shards = self.checkpoint.shards().len();
                    let message = format!("shard {shard} of {shards}, counted from 0");
                    return Err(Error::invalid_request(message));
                };
                if range.start > range.end || range.end > file.file_bytes() {
                    let message = format!("bytes outside of the file's {}", file.file_bytes());
                    return Err(Error::invalid_request(message)
                        .with_location(file.location())
                        .with_range(range.clone()));
                }
                (*shard, range.clone())
            }
        };
        let fault = if !request.target.is_host() {
            Some("the memory is not one piece on the host".to_owned())
        } else if request.target.len() as u64 != range.end - range.start {
            let (found, wanted) = (request.target.len(), range.end - range.start);
            Some(format!("the memory has {found} bytes, wanted {wanted}"))
        } else {
            None
        };
        if let Some(fault) = fault {
            let error = Error::new(ErrorKind::InvalidRequest, fault)
                .with_location(self.checkpoint.shards()[shard].location())
                .with_range(range);
            return Err(match request.tensor_name() {
                Some(name) => error.with_tensor(name),
                None => error,
            });
        }
        Ok(self.opened.place(shard, range))
    }

    fn info(&self, name: &str) -> Result<&TensorInfo> {
        self.checkpoint.get(name).ok_or_else(|| {
            let tensors = self.checkpoint.tensors().iter();
            let names: Vec<&str> = tensors.map(TensorInfo::name).collect();
            let missing = Selection::names([name]).resolve(&names).err();
            missing.unwrap_or_else(|| {
                Error::new(ErrorKind::NoSuchTensor, "the checkpoint has no such tensor")
            })
        })
    }
}

impl Opened {
    /// Returns the length of the longest extent.
    fn extent_bytes(&self, options: &LoadOptions) -> u64 {
        let groups = self.groups.iter();
        let hints = groups.flat_map(|it| (0..it.count()).map(|index| it.hints(index).extent_bytes));
        let known = options.extent_bytes.or_else(|| hints.max());
        known.unwrap_or(1).max(1)
    }

    /// Returns the place of bytes of a shard.
    fn place(&self, shard: usize, range: Range<u64>) -> Place {
        let member = self.members[shard];
        Place {
            group: member.group,
            source: member.index,
            alignment: self.alignment(member.group, member.index),
            range,
        }
    }

    /// Returns the alignment of reads of a source: 1, unless it is read with direct I/O.
    fn alignment(&self, group: usize, source: usize) -> u64 {
        let file = self.groups[group].files().get(source);
        file.filter(|file| file.reads_direct())
            .map_or(1, ReadFile::alignment)
    }

    /// Returns the greatest alignment.
    fn alignment_max(&self) -> u64 {
        let all = self.members.iter();
        all.map(|member| self.alignment(member.group, member.index))
            .max()
            .unwrap_or(1)
    }

    /// Checks that the sources of `extents` are unchanged since the checkpoint was opened.
    fn verify_unchanged(&self, extents: &[ReadExtent]) -> Result<()> {
        let mut sources: Vec<_> = extents.iter().map(|it| (it.group, it.source)).collect();
        sources.dedup();
        sources.sort_unstable();
        sources.dedup();
        // Requests for objects name the version themselves.
        sources.into_iter().try_for_each(|(group, source)| {
            let file = self.groups[group].files().get(source);
            file.map_or(Ok(()), ReadFile::verify_unchanged)
        })
    }
}

/// Returns a target over borrowed memory.
#[expect(
    unsafe_code,
    reason = "lends borrowed memory to a call that ends before the borrow"
)]
fn lend(memory: &mut [u8]) -> Target {
    let (start, len) = (NonNull::from(&mut *memory).cast(), memory.len());
    // SAFETY: the callers wait for the call while they hold the exclusive borrow, also if `submit`
    // fails; and a `Reading` that is dropped by a panic waits, too.
    unsafe { Target::host(start, len, None) }
}
