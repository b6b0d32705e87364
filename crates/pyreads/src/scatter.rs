//! Reads runs of bytes of a checkpoint's local files straight into memory of the caller, on several
//! threads: for files in the page cache, of which each byte is then copied once.
//!
//! ```text
//! table ─ checked ─▶ runs, by file and offset ─ neighbours ─▶ reads ─▶ threads ─ preadv ─▶ memory
//! ```
//!
//! There are no retries, no direct I/O and no reports: whatever goes wrong ends the reads, and the
//! caller loads the same tensors with the core, which tries again and says what is wrong.
//!
//! Its caller is `python/tload/plans/straight.py`.

#![expect(
    unsafe_code,
    reason = "the kernel writes to memory that the caller vouches for"
)]

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::ptr::with_exposed_provenance_mut;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::thread::{self, available_parallelism};
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use tload::internal::storage::{FileSource, Source};
use tload::{Checkpoint, Error, Result};
use tload_base::sync::threads::Builder;
use tload_pymemory::error::exception;

/// Longest read.
const READ_BYTES_MAX: usize = 2 << 20;

/// Most pieces of memory of one read: an eighth of the kernel's limit.
const PLACES_MAX: usize = 128;

/// Most threads: a few saturate the memory.
const THREADS_MAX: usize = 16;

/// Longest time between two checks for signals: a quarter of the promised 0.2 s for Ctrl-C.
const SIGNAL_STEP: Duration = Duration::from_millis(50);

/// Address and length of a piece of memory.
pub type Memory = (usize, usize);

/// Reads the rows of a table into memory. Returns whether all bytes are there, from files that are
/// as they were when the checkpoint was opened: the memory otherwise has any contents. `attend`
/// checks for signals.
///
/// A row has five native numbers of 8 bytes: the numbers of a name and of a piece of memory, and in
/// bytes the offsets in tensor and memory and the length.
///
/// # Errors
///
/// An exception for a row that leaves its tensor or its memory, for a tensor that the checkpoint
/// does not have, for a file that has changed, and that of `attend`. No thread is left then.
///
/// # Safety
///
/// The memory must be there, and nothing else may use it meanwhile.
pub unsafe fn scatter(
    py: Python<'_>,
    checkpoint: &Checkpoint,
    names: &[String],
    memory: &[Memory],
    table: &[u8],
    attend: impl Fn(Python<'_>) -> PyResult<()>,
) -> PyResult<bool> {
    let failed = |error| exception(py, &error);
    let reads = py.detach(|| Reads::new(checkpoint, names, memory, table));
    let Some(reads) = reads.map_err(failed)? else {
        return Ok(false);
    };
    loop {
        // SAFETY: the caller vouches for the memory.
        let outcome = py.detach(|| unsafe { reads.run(SIGNAL_STEP) });
        attend(py)?;
        if let Some(is_filled) = outcome.map_err(failed)? {
            return Ok(is_filled);
        }
    }
}

/// Reads of one call, and how far they are.
#[derive(Debug)]
struct Reads {
    files: Vec<FileSource>,
    queue: Vec<Read>,
    places: Vec<Memory>,
    next: AtomicUsize,
    has_failed: AtomicBool,
}

/// Bytes of a file that go to several pieces of memory, one after another.
#[derive(Debug)]
struct Read {
    file: usize,
    offset: u64,
    len: usize,
    /// Indices of the places.
    places: Range<usize>,
}

/// A row, with the file in place of the tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Run {
    file: usize,
    offset: u64,
    address: usize,
    len: usize,
}

impl Reads {
    /// Prepares the reads of a table. Returns `None` if a tensor is not in a local file.
    fn new(
        checkpoint: &Checkpoint,
        names: &[String],
        memory: &[Memory],
        table: &[u8],
    ) -> Result<Option<Self>> {
        let shards = checkpoint.shards();
        let files = shards.iter().map(|shard| shard.source().as_file().cloned());
        let Some(files) = files.collect::<Option<Vec<_>>>() else {
            return Ok(None);
        };
        let tensors = names.iter().map(|name| {
            let info = checkpoint.get(name);
            let info = info.map(|info| (info.shard(), info.file_range()));
            info.ok_or_else(|| {
                Error::invalid_request("the checkpoint has no such tensor").with_tensor(name)
            })
        });
        let tensors = tensors.collect::<Result<Vec<_>>>()?;
        let numbers = table.chunks_exact(size_of::<i64>());
        let numbers: Vec<i64> = numbers
            .filter_map(|bytes| bytes.try_into().ok().map(i64::from_ne_bytes))
            .collect();
        let mut runs = Vec::with_capacity(numbers.len() / 5);
        for (number, row) in numbers.chunks(5).enumerate() {
            let run = run(row, &tensors, memory);
            runs.push(run.ok_or_else(|| {
                let message = format!("row {number}, {row:?}, leaves its tensor or its memory");
                Error::invalid_request(message)
            })?);
        }
        runs.sort_unstable();
        let (queue, places) = joined(&runs);
        Ok(Some(Self {
            files,
            queue,
            places,
            next: AtomicUsize::new(0),
            has_failed: AtomicBool::new(false),
        }))
    }

    /// Reads for at most about `longest`. Returns whether all was read, or `None` if there is more
    /// to read: then call it again. No thread is left when it returns.
    ///
    /// # Safety
    ///
    /// As for [`scatter`].
    unsafe fn run(&self, longest: Duration) -> Result<Option<bool>> {
        let began = Instant::now();
        let left = self.queue.len().saturating_sub(self.next.load(Relaxed));
        let threads = available_parallelism().map_or(1, usize::from);
        // SAFETY: the caller vouches for the memory.
        let work = || unsafe { self.work(began, longest) };
        thread::scope(|scope| {
            for _ in 1..threads.min(THREADS_MAX).min(left) {
                let thread = Builder::new().name("tload-scatter".to_owned());
                // Without it, the others do its work.
                let _ = thread.spawn_scoped(scope, work);
            }
            work();
        });
        if self.has_failed.load(Relaxed) {
            return Ok(Some(false));
        }
        if self.next.load(Relaxed) < self.queue.len() {
            return Ok(None);
        }
        let mut used: Vec<usize> = self.queue.iter().map(|read| read.file).collect();
        used.dedup();
        for file in used {
            self.files[file].verify_unchanged()?;
        }
        Ok(Some(true))
    }

    /// Reads until everything is read, a read fails, or time is up.
    ///
    /// # Safety
    ///
    /// As for [`scatter`].
    unsafe fn work(&self, began: Instant, longest: Duration) {
        while !self.has_failed.load(Relaxed) && began.elapsed() < longest {
            let Some(read) = self.queue.get(self.next.fetch_add(1, Relaxed)) else {
                self.next.store(self.queue.len(), Relaxed);
                return;
            };
            let places = &self.places[read.places.clone()];
            // SAFETY: the caller vouches for the memory, of which no other read has these places.
            if unsafe { fill(self.files[read.file].file(), read, places) }.is_err() {
                self.has_failed.store(true, Relaxed);
            }
        }
    }
}

/// Returns the run of a row, if it is within its tensor and its memory.
fn run(row: &[i64], tensors: &[(usize, Range<u64>)], memory: &[Memory]) -> Option<Run> {
    let &[tensor, number, start, place, len] = row else {
        return None;
    };
    let (file, range) = tensors.get(usize::try_from(tensor).ok()?)?;
    let (address, memory_len) = *memory.get(usize::try_from(number).ok()?)?;
    let (start, bytes) = (u64::try_from(start).ok()?, u64::try_from(len).ok()?);
    let (place, len) = (usize::try_from(place).ok()?, usize::try_from(len).ok()?);
    if start.checked_add(bytes)? > range.end - range.start || place.checked_add(len)? > memory_len {
        return None;
    }
    Some(Run {
        file: *file,
        offset: range.start.checked_add(start)?,
        address: address.checked_add(place)?,
        len,
    })
}

/// Divides long runs, and joins short ones that are beside each other in a file.
fn joined(runs: &[Run]) -> (Vec<Read>, Vec<Memory>) {
    let mut reads: Vec<Read> = Vec::new();
    let mut places = Vec::with_capacity(runs.len());
    for run in runs {
        let mut done = 0;
        while done < run.len {
            let offset = run.offset + done as u64;
            let len = (run.len - done).min(READ_BYTES_MAX);
            let last = reads.last_mut().filter(|last| {
                last.file == run.file
                    && last.offset + last.len as u64 == offset
                    && last.len + len <= READ_BYTES_MAX
                    && last.places.len() < PLACES_MAX
            });
            let index = places.len();
            places.push((run.address + done, len));
            if let Some(last) = last {
                last.len += len;
                last.places.end = index + 1;
            } else {
                reads.push(Read {
                    file: run.file,
                    offset,
                    len,
                    places: index..index + 1,
                });
            }
            done += len;
        }
    }
    (reads, places)
}

/// Reads bytes of a file into all places. An error if the file ends before.
///
/// # Safety
///
/// The places must be memory that nothing else uses meanwhile.
unsafe fn fill(file: &File, read: &Read, places: &[Memory]) -> io::Result<()> {
    let (mut offset, mut left, mut skipped) = (read.offset, read.len, 0);
    let mut vectors: Vec<libc::iovec> = places.iter().map(|place| vector(*place)).collect();
    while left > 0 {
        let rest = &vectors[skipped..];
        let count = libc::c_int::try_from(rest.len()).map_err(io::Error::other)?;
        let at = libc::off_t::try_from(offset).map_err(io::Error::other)?;
        // SAFETY: each vector is a place of the caller, or the rest of one.
        let result = unsafe { libc::preadv(file.as_raw_fd(), rest.as_ptr(), count, at) };
        let filled = match usize::try_from(result) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(filled) => filled,
            Err(_) => {
                let error = io::Error::last_os_error();
                if error.kind() == io::ErrorKind::Interrupted {
                    continue;
                }
                return Err(error);
            }
        };
        (offset, left) = (offset + filled as u64, left - filled);
        skipped += advance(&mut vectors[skipped..], filled);
    }
    Ok(())
}

fn vector((address, len): Memory) -> libc::iovec {
    libc::iovec {
        iov_base: with_exposed_provenance_mut(address),
        iov_len: len,
    }
}

/// Takes filled bytes from the front of vectors. Returns the number of vectors that are full.
fn advance(vectors: &mut [libc::iovec], mut filled: usize) -> usize {
    let mut full = 0;
    for vector in vectors {
        if filled < vector.iov_len {
            let rest = (vector.iov_base.addr() + filled, vector.iov_len - filled);
            *vector = self::vector(rest);
            break;
        }
        filled -= vector.iov_len;
        full += 1;
    }
    full
}
