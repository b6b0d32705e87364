//! Reads in place of the leader of regions that hold columns only: the bytes between them are read
//! too, into slots, and left out.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::Arc;

use crate::engine::{Done, Engine, Job, Transfer, Wait};
use crate::error::{Error, ErrorKind, Result};
use crate::format::{Shown, Strides};
use crate::memory::{Filled, Slab};
use crate::sync::cancel::CancelFlag;

/// Maximum length of a slot, bytes: of a read, and of what is lost if the load ends.
const SLOT_BYTES: usize = 4 << 20;

/// Number of slots of an engine. They are not part of the budget, as the bytes beside it are not,
/// and allocated for the first read; few ranks lose their leader, or fall behind it.
const SLOTS: usize = 4;

/// Bytes of a source that a region holds, one behind the other.
#[derive(Clone, Debug)]
pub(super) struct PackedSource {
    /// Number of the source.
    pub(super) source: usize,
    /// Offset of the first of the bytes.
    pub(super) offset: u64,
    pub(super) strides: Strides,
    /// Alignment of reads, bytes.
    pub(super) alignment: u64,
}

/// Engine that also reads packed sources, by means of an engine for sources as they are.
pub(super) struct PackedEngine {
    inner: Box<dyn Engine>,
    /// Number of the first packed source; those before it are sources of `inner`.
    first: usize,
    packed: Vec<PackedSource>,
    /// Memory of reads, once there are any.
    slab: Option<Arc<Slab>>,
    /// Jobs of packed sources, by extent.
    tasks: HashMap<usize, Task>,
    /// Extents of which nothing is being read.
    waiting: VecDeque<usize>,
    /// Jobs that have failed before they were read.
    failed: Vec<Done>,
}

/// Job of a packed source.
struct Task {
    job: Job,
    /// Number of bytes that have been read.
    filled: usize,
    transfer: Transfer,
}

/// One read for a job of a packed source.
struct Read {
    offset: u64,
    needed: usize,
    window: usize,
    /// Bytes of the source in it.
    shown: Shown,
}

impl PackedEngine {
    /// Creates an engine that reads `packed` by means of `inner`. Their numbers begin with `first`.
    pub(super) fn new(inner: Box<dyn Engine>, first: usize, packed: Vec<PackedSource>) -> Self {
        Self {
            inner,
            first,
            packed,
            slab: None,
            tasks: HashMap::new(),
            waiting: VecDeque::new(),
            failed: Vec::new(),
        }
    }

    /// Returns the memory of reads, allocated for the first one: slots no longer than the longest
    /// read of any source.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::OutOfMemory`].
    fn slab(&mut self) -> Result<Arc<Slab>> {
        if let Some(slab) = &self.slab {
            return Ok(Arc::clone(slab));
        }
        let longest = self.packed.iter().map(PackedSource::window_bytes_max);
        let slot = longest.max().unwrap_or(SLOT_BYTES);
        let slab = Slab::new(slot, SLOTS.min(self.inner.depth()), Arc::default())?;
        Ok(Arc::clone(self.slab.insert(slab)))
    }

    /// Begins reads, as many as there are slots. Without memory for any slot, their jobs fail.
    fn begin(&mut self) {
        while self.inner.in_flight() < self.inner.depth()
            && let Some(extent) = self.waiting.front().copied()
        {
            let Task { job, filled, .. } = &self.tasks[&extent];
            let packed = &self.packed[job.source - self.first];
            let read = packed.read(job, *filled);
            let source = packed.source;
            let slab = match self.slab() {
                Ok(slab) => slab,
                Err(error) => {
                    self.waiting.pop_front();
                    self.tasks.remove(&extent);
                    self.failed.push(Done::failed(extent, error));
                    continue;
                }
            };
            let Some(lease) = slab.try_lease(read.window) else {
                return;
            };
            self.waiting.pop_front();
            self.inner.submit(Job {
                extent,
                source,
                offset: read.offset,
                needed: read.needed,
                lease,
            });
        }
    }

    /// Takes a completion of the engine below.
    fn take(&mut self, read: Done, done: &mut Vec<Done>) {
        let extent = read.extent;
        let Some(mut task) = self.tasks.remove(&extent) else {
            done.push(read);
            return;
        };
        task.transfer += read.transfer;
        let job = &mut task.job;
        let result = match read.result {
            Ok(filled) => {
                let packed = &self.packed[job.source - self.first];
                task.filled += packed.pack(job, task.filled, &filled);
                if task.filled < job.needed {
                    self.tasks.insert(extent, task);
                    self.waiting.push_back(extent);
                    return;
                }
                Ok(task.job.lease.written(task.filled))
            }
            Err(error) => Err(error),
        };
        done.push(Done {
            extent,
            result,
            window: None,
            transfer: task.transfer,
        });
    }
}

impl PackedSource {
    /// Returns the length of the longest read, bytes.
    fn window_bytes_max(&self) -> usize {
        let all = self.strides.span().saturating_add(2 * self.alignment);
        usize::try_from(all).map_or(SLOT_BYTES, |all| all.min(SLOT_BYTES))
    }

    /// Returns the next read for a job of which `filled` bytes have been read.
    fn read(&self, job: &Job, filled: usize) -> Read {
        let edges = 2 * self.alignment;
        let most = (SLOT_BYTES as u64).saturating_sub(edges);
        let end = job.offset + job.needed as u64;
        let range = self.strides.range_of(job.offset + filled as u64..end, most);
        let (_, first, len) = self.strides.found(range.clone()).expect("has bytes");
        let (start, end) = (self.offset + range.start, self.offset + range.end);
        let offset = start / self.alignment * self.alignment;
        let to_len = |bytes: u64| usize::try_from(bytes).expect("at most a slot");
        let signed = |offset: u64| i64::try_from(offset).expect("files are shorter");
        Read {
            offset,
            needed: to_len(end - offset),
            window: to_len(end.next_multiple_of(self.alignment) - offset),
            shown: Shown {
                offset: signed(offset) - signed(self.offset),
                first,
                len,
            },
        }
    }

    /// Packs the bytes of the read behind the `filled` ones of a job. Returns their number.
    fn pack(&self, job: &mut Job, filled: usize, read: &Filled) -> usize {
        let Read { shown, .. } = self.read(job, filled);
        let len = usize::try_from(shown.len).expect("at most a slot");
        let to = job.lease.bytes_mut(filled..filled + len);
        self.strides.pack(read.bytes(), to, shown);
        len
    }
}

impl Engine for PackedEngine {
    fn depth(&self) -> usize {
        self.inner.depth()
    }

    fn in_flight(&self) -> usize {
        // Each job of which something is being read has one read of the engine below.
        self.inner.in_flight() + self.waiting.len() + self.failed.len()
    }

    fn submit(&mut self, job: Job) {
        if job.source < self.first {
            self.inner.submit(job);
            return;
        }
        self.waiting.push_back(job.extent);
        let task = Task {
            job,
            filled: 0,
            transfer: Transfer::default(),
        };
        self.tasks.insert(task.job.extent, task);
        self.begin();
    }

    fn reap(&mut self, wait: Wait, done: &mut Vec<Done>) {
        let before = done.len();
        loop {
            done.append(&mut self.failed);
            let mut read = Vec::new();
            self.inner.reap(wait, &mut read);
            for read in read {
                self.take(read, done);
            }
            self.begin();
            done.append(&mut self.failed);
            if self.inner.in_flight() == 0 {
                // No slot came back: the engine below has given up the memory of its reads.
                for extent in self.waiting.drain(..) {
                    self.tasks.remove(&extent);
                    let error = Error::new(ErrorKind::Io, "no memory is left to read columns with");
                    done.push(Done::failed(extent, error));
                }
            }
            if wait == Wait::No || done.len() > before || self.in_flight() == 0 {
                return;
            }
        }
    }

    fn allow(&mut self, bytes: u64) {
        self.inner.allow(bytes);
    }

    fn stop_when(&mut self, cancel: &CancelFlag) {
        self.inner.stop_when(cancel);
    }
}

impl fmt::Debug for PackedEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PackedEngine")
            .field("tasks", &self.tasks.len())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::{Indices, Slice};

    const ROWS: usize = if cfg!(miri) { 40 } else { 12_000 };
    const COLUMNS: usize = 1000;
    const START: u64 = 777;

    /// Bytes of a job.
    const LEN: usize = if cfg!(miri) { 3_999 } else { 1_400_001 };

    fn byte(offset: u64) -> u8 {
        u8::try_from(offset % 251).expect("less")
    }

    /// Engine for one source, which ends its jobs from the last to the first. Reads from `failing`
    /// on fail.
    struct Backwards {
        jobs: Vec<Job>,
        failing: u64,
    }

    impl Engine for Backwards {
        fn depth(&self) -> usize {
            3
        }

        fn in_flight(&self) -> usize {
            self.jobs.len()
        }

        fn submit(&mut self, job: Job) {
            assert!(self.jobs.len() < self.depth(), "more jobs than its depth");
            assert_eq!((job.source, job.offset % 4096), (0, 0));
            self.jobs.push(job);
        }

        fn reap(&mut self, _wait: Wait, done: &mut Vec<Done>) {
            let Some(job) = self.jobs.pop() else { return };
            let end = job.offset + job.needed as u64;
            if end > self.failing {
                let error = Error::new(ErrorKind::Io, "the disk is gone");
                done.push(Done::failed(job.extent, error));
                return;
            }
            let bytes: Vec<u8> = (job.offset..end).map(byte).collect();
            done.push(Done {
                extent: job.extent,
                result: Ok(job.lease.fill_from(&bytes)),
                window: None,
                transfer: Transfer {
                    direct_bytes: job.needed as u64,
                    ..Transfer::default()
                },
            });
        }
    }

    /// Returns an engine for one source, and all its columns from 300 to 550, of which it has these
    /// bytes.
    fn engine(failing: u64) -> (PackedEngine, usize) {
        let slice = Slice::new([Indices::from(0..ROWS), Indices::from(300..550)]);
        let cut = slice.cut(&[ROWS, COLUMNS], 8).expect("inside");
        let packed = PackedSource {
            source: 0,
            offset: START + cut.range.start,
            strides: cut.strides.expect("has gaps"),
            alignment: 4096,
        };
        let all = usize::try_from(packed.strides.bytes()).expect("small");
        let inner = Box::new(Backwards {
            jobs: Vec::new(),
            failing,
        });
        (PackedEngine::new(inner, 1, vec![packed]), all)
    }

    /// Reads the first bytes of the source and all columns from 300 to 550, in jobs of `len` bytes.
    fn read(len: usize, failing: u64) -> HashMap<usize, Done> {
        let (mut engine, all) = engine(failing);
        let slab = Slab::new(len, all.div_ceil(len) + 1, Arc::default()).expect("memory");
        let as_it_is = (usize::MAX, 0, 0, 100);
        let jobs = (0..all).step_by(len).enumerate();
        let jobs = jobs.map(|(extent, at)| (extent, 1, at as u64, len.min(all - at)));
        let mut done = Vec::new();
        for (extent, source, offset, needed) in std::iter::once(as_it_is).chain(jobs) {
            while engine.in_flight() == engine.depth() {
                let before = done.len();
                engine.reap(Wait::ForOne, &mut done);
                assert!(done.len() > before, "waits for one");
            }
            let lease = slab.try_lease(needed).expect("one for each job");
            engine.submit(Job {
                extent,
                source,
                offset,
                needed,
                lease,
            });
        }
        while engine.in_flight() > 0 {
            engine.reap(Wait::ForOne, &mut done);
        }
        done.into_iter().map(|done| (done.extent, done)).collect()
    }

    #[test]
    fn columns_are_read_in_several_reads_and_packed() {
        let wanted: Vec<u8> = (0..ROWS)
            .flat_map(|row| (300..550).map(move |it| byte(START + (row * COLUMNS + it) as u64)))
            .collect();
        let done = read(LEN, u64::MAX);
        assert_eq!(done.len(), wanted.len().div_ceil(LEN) + 1);
        for (index, wanted) in wanted.chunks(LEN).enumerate() {
            let filled = done[&index].result.as_ref().expect("read");
            assert!(filled.bytes() == wanted, "job {index}");
        }
        let first = done[&usize::MAX].result.as_ref().expect("read");
        assert!(first.bytes().iter().copied().eq((0..100).map(byte)));
        // Bytes between the columns are also read.
        let read = done.values().map(|done| done.transfer.direct_bytes);
        assert!(read.sum::<u64>() > ((ROWS - 1) * COLUMNS) as u64);
    }

    /// Returns the bytes of the memory that reads pass through.
    fn staged_bytes(engine: &PackedEngine) -> usize {
        let slots = engine.slab.iter().flat_map(|slab| slab.registrations());
        slots.map(|(_, bytes)| bytes).sum()
    }

    /// Without a read of columns, nothing is staged; with one, no more than the longest read takes.
    #[test]
    fn memory_is_allocated_for_columns_that_are_read() {
        let (mut engine, _) = engine(u64::MAX);
        let slab = Slab::new(4096, 2, Arc::default()).expect("memory");
        for (source, expected) in [(0, 0), (1, 3 * SLOT_BYTES)] {
            let mut done = Vec::new();
            engine.submit(Job {
                extent: source,
                source,
                offset: 0,
                needed: 100,
                lease: slab.try_lease(100).expect("free"),
            });
            engine.reap(Wait::ForOne, &mut done);
            assert!(done.len() == 1 && done[0].result.is_ok());
            let expected = if cfg!(miri) {
                expected.min(staged_bytes(&engine))
            } else {
                expected
            };
            assert_eq!(staged_bytes(&engine), expected);
        }
        let short = &mut engine.packed[0];
        let slice = Slice::new([Indices::from(0..4), Indices::from(0..10)]);
        let cut = slice.cut(&[4, COLUMNS], 8).expect("inside");
        short.strides = cut.strides.expect("has gaps");
        engine.slab = None;
        let slab = engine.slab().expect("memory");
        assert_eq!(slab.registrations()[0].1, 3 * 4096);
    }

    #[test]
    fn failed_read_fails_its_job_only() {
        for (extent, done) in read(LEN, 100) {
            assert_eq!(done.result.is_ok(), extent == usize::MAX, "{extent}");
        }
    }
}
