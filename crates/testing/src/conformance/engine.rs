//! Contract of engines: all bytes or an error, exactly the window, never early, never more than the
//! depth.

mod crcs;
mod endings;

use std::any::Any;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crcs::large_windows;
use endings::{drop_in_flight, memory_comes_back, stopped};

use super::run_all;
use crate::fixtures::Rng;
use tload::internal::engine::{Done, Engine, Job, Wait};
use tload_base::error::ErrorKind;
use tload_base::sync::event_count::EventCount;
use tload_memory::{Lease, Pool, Slab};

/// Time limit for storage before a check fails.
const PATIENCE: Duration = Duration::from_secs(60);

/// Number of slots of the suite's slab, and their length in bytes.
const SLOTS: usize = 16;
const SLOT_BYTES: usize = 1 << 20;

/// Request of a check for an engine.
#[derive(Debug)]
pub struct EngineRequest<'a> {
    /// Bytes of each source.
    pub contents: &'a [Vec<u8>],
    /// Source that loses bytes after the engine was opened.
    pub shrink: Option<Shrink>,
    /// Number of jobs in flight.
    pub depth: usize,
    /// Memory that most leases come from: an engine that can register memory should register it.
    pub slab: Arc<Slab>,
}

/// Truncation of a source while it is in use.
#[derive(Clone, Copy, Debug)]
pub struct Shrink {
    /// Index of the source.
    pub source: usize,
    /// New length, bytes.
    pub len: usize,
}

/// Engine over the sources of an [`EngineRequest`].
pub struct EngineUnderTest {
    /// Engine to test.
    pub engine: Box<dyn Engine>,
    /// Required alignment of offsets and windows, bytes.
    pub alignment: usize,
    /// True if the engine reads an object store: adjacent jobs share a request, and nothing is read
    /// from a source that shrank, not even the remaining bytes, because it is another version.
    pub remote: bool,
    /// Value that is dropped after the engine, such as a directory to remove.
    pub keep: Box<dyn Any>,
}

impl fmt::Debug for EngineUnderTest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EngineUnderTest")
            .field("alignment", &self.alignment)
            .finish_non_exhaustive()
    }
}

type Open<'a> = &'a dyn Fn(&EngineRequest<'_>) -> EngineUnderTest;

/// A check and its name.
type Check = (&'static str, fn(Open<'_>));

/// Checks of jobs within their sources.
const WITHIN_SOURCES: [Check; 13] = [
    ("nothing in flight", nothing_in_flight),
    ("empty extents", empty_extents),
    ("odd lengths", odd_lengths),
    ("every window size", every_window_size),
    ("writes nothing outside its window", neighbours),
    ("final memory", final_memory),
    ("depth", depth),
    ("reap without waiting", reap_without_waiting),
    ("results belong to their jobs", many_sources),
    ("random jobs", random_jobs),
    ("large windows in turns", large_windows),
    ("drop with jobs in flight", drop_in_flight),
    ("stopped when the load is over", stopped),
];

/// Checks of jobs that request more than their source has.
const BEYOND_SOURCES: [Check; 3] = [
    ("end of source", end_of_source),
    ("shrunk source", shrunk_source),
    ("memory comes back", memory_comes_back),
];

/// Runs all checks on engines made by `open`.
pub fn engine_suite(name: &str, open: Open<'_>) {
    run(name, open, &[&WITHIN_SOURCES[..], &BEYOND_SOURCES].concat());
}

/// Runs the checks whose jobs request no more than their source has on engines made by `open`: for
/// an engine that receives what another process reads, which is the one to notice that a source is
/// shorter than planned.
pub fn engine_suite_within_sources(name: &str, open: Open<'_>) {
    run(name, open, &WITHIN_SOURCES);
}

fn run(name: &str, open: Open<'_>, checks: &[Check]) {
    let bound: Vec<_> = checks
        .iter()
        .map(|(_, check)| move || check(open))
        .collect();
    let names = checks.iter().map(|(name, _)| *name);
    let checks = names.zip(bound.iter().map(|check| check as &dyn Fn()));
    run_all(name, &checks.collect::<Vec<_>>());
}

/// Engine, its memory and its contents.
pub(super) struct Bench {
    contents: Vec<Vec<u8>>,
    slab: Arc<Slab>,
    under_test: EngineUnderTest,
}

impl Bench {
    pub(super) fn open(open: Open<'_>, contents: Vec<Vec<u8>>, depth: usize) -> Self {
        Self::shrunk(open, contents, depth, None)
    }

    fn shrunk(
        open: Open<'_>,
        contents: Vec<Vec<u8>>,
        depth: usize,
        shrink: Option<Shrink>,
    ) -> Self {
        let slab =
            Slab::new(SLOT_BYTES, SLOTS, Arc::<EventCount>::default()).expect("16 MiB are there");
        let under_test = open(&EngineRequest {
            contents: &contents,
            shrink,
            depth,
            slab: Arc::clone(&slab),
        });
        Self {
            contents,
            slab,
            under_test,
        }
    }

    pub(super) fn is_remote(&self) -> bool {
        self.under_test.remote
    }

    fn engine(&mut self) -> &mut dyn Engine {
        &mut *self.under_test.engine
    }

    fn up(&self, bytes: usize) -> usize {
        bytes.next_multiple_of(self.under_test.alignment)
    }

    fn lease(&self, window: usize) -> Lease {
        self.slab.try_lease(window).expect("a slot is free")
    }

    pub(super) fn submit(
        &mut self,
        extent: usize,
        source: usize,
        offset: usize,
        window: usize,
        needed: usize,
    ) {
        let lease = self.lease(window);
        self.submit_into(lease, extent, source, offset, needed);
    }

    fn submit_into(
        &mut self,
        mut lease: Lease,
        extent: usize,
        source: usize,
        offset: usize,
        needed: usize,
    ) {
        lease.want_crc(crcs::wanted(extent));
        let before = self.engine().in_flight();
        self.engine().submit(Job {
            extent,
            source,
            offset: offset as u64,
            needed,
            lease,
        });
        assert_eq!(self.engine().in_flight(), before + 1, "after a submit");
    }

    pub(super) fn reap_all(&mut self) -> Vec<Done> {
        let mut done = Vec::new();
        while self.engine().in_flight() > 0 {
            let (before, flying) = (done.len(), self.engine().in_flight());
            self.engine().reap(Wait::ForOne, &mut done);
            assert!(
                done.len() > before,
                "a waiting reap returns at least one job"
            );
            assert_eq!(
                self.engine().in_flight() + done.len() - before,
                flying,
                "reaped jobs are no longer in flight"
            );
        }
        done
    }

    /// Reads one extent and compares the needed bytes.
    fn read(&mut self, source: usize, offset: usize, window: usize, needed: usize) {
        self.submit(7, source, offset, window, needed);
        let done = self.reap_all();
        assert_eq!(done.len(), 1, "one job, one result");
        assert_eq!(done[0].extent, 7, "the mark is returned");
        self.compare(&done[0], source, offset, needed);
    }

    pub(super) fn compare(&self, done: &Done, source: usize, offset: usize, needed: usize) {
        let filled = match &done.result {
            Ok(filled) => filled.bytes(),
            Err(error) => read_failed(error),
        };
        assert!(
            filled.len() >= needed,
            "{} of {needed} bytes arrived",
            filled.len()
        );
        let wanted = &self.contents[source][offset..][..needed];
        // Compared as a whole first: byte by byte takes most of the time of these tests.
        if filled[..needed] != *wanted {
            let wrong = wanted.iter().zip(filled).position(|(a, b)| a != b);
            assert_eq!(wrong, None, "first wrong byte of {needed} at {offset}");
        }
        crcs::compare(done, wanted);
        let transfer = &done.transfer;
        let moved = transfer.direct_bytes + transfer.buffered_bytes + transfer.received_bytes;
        // Jobs that share a request are counted with the first of them.
        if !self.under_test.remote {
            assert!(moved >= needed as u64, "{moved} bytes counted for {needed}");
        }
    }

    pub(super) fn assert_all_slots_free(&self) {
        let leases: Vec<_> = (0..SLOTS).map_while(|_| self.slab.try_lease(1)).collect();
        assert_eq!(leases.len(), SLOTS, "slots that are free again");
    }
}

#[expect(clippy::panic, reason = "a failed check")]
fn read_failed(error: &tload_base::error::Error) -> ! {
    panic!("a good read failed: {}", error.chain())
}

fn random(seed: u64, len: usize) -> Vec<u8> {
    Rng::new(seed).bytes(len)
}

fn nothing_in_flight(open: Open<'_>) {
    let mut bench = Bench::open(open, vec![random(1, 5000)], 4);
    assert!(bench.engine().depth() >= 4, "the requested depth");
    let mut done = Vec::new();
    bench.engine().reap(Wait::No, &mut done);
    bench.engine().reap(Wait::ForOne, &mut done);
    assert!(done.is_empty());
}

fn empty_extents(open: Open<'_>) {
    let mut bench = Bench::open(open, vec![random(1, 5000), Vec::new()], 4);
    bench.read(0, 0, 0, 0);
    let window = bench.up(1);
    bench.read(0, 0, window, 0);
    // After the last byte, and in an empty source.
    let end = bench.up(5000);
    bench.submit(1, 0, end, window, 0);
    bench.submit(2, 1, 0, window, 0);
    for done in bench.reap_all() {
        assert!(done.result.is_ok(), "no byte was needed: {:?}", done.result);
    }
}

fn odd_lengths(open: Open<'_>) {
    for len in [
        1,
        2,
        7,
        511,
        512,
        513,
        4095,
        4096,
        4097,
        8191,
        8193,
        100_003,
        SLOT_BYTES - 1,
        SLOT_BYTES,
    ] {
        let mut bench = Bench::open(open, vec![random(len as u64, len)], 2);
        let window = bench.up(len);
        bench.read(0, 0, window, len);
    }
}

/// Reads windows of one to nine alignments at every offset of a source whose length is not a
/// multiple of the alignment.
fn every_window_size(open: Open<'_>) {
    let mut bench = Bench::open(open, vec![random(3, 8 * 4096 + 777)], 3);
    let step = bench.up(4096);
    let len = bench.contents[0].len();
    for offset in (0..len).step_by(step) {
        for window in (1..=9).map(|steps| steps * step) {
            let available = window.min(len - offset);
            bench.read(0, offset, window, available);
            bench.read(0, offset, window, 1);
            bench.read(0, offset, window, available / 2 + 1);
        }
    }
    if bench.under_test.alignment == 1 {
        for window in (1..600).chain([4095, 4097]) {
            bench.read(0, window % 777, window, window);
        }
    }
}

/// Fills a lease between two others of the same region, which must not change.
fn neighbours(open: Open<'_>) {
    let mut bench = Bench::open(open, vec![random(4, 3 * 4096 + 5)], 2);
    let step = bench.up(4096);
    let pool = Pool::new(1 << 20, Arc::default());
    let region = pool.try_region(3 * step, 1).expect("maps").expect("fits");
    let mut writer = region;
    let [first, second, third] = [(); 3].map(|()| writer.carve(step));
    let first = first.fill_from(&vec![1; step]);
    let third = third.fill_from(&vec![3; step]);
    bench.submit_into(second, 7, 0, step, step);
    let done = bench.reap_all();
    bench.compare(&done[0], 0, step, step);
    assert!(first.bytes().iter().all(|&byte| byte == 1), "in front");
    assert!(third.bytes().iter().all(|&byte| byte == 3), "behind");
}

/// Alternates leases of regions and of the slab.
fn final_memory(open: Open<'_>) {
    let contents = vec![random(5, 64 * 4096)];
    let mut bench = Bench::open(open, contents, 8);
    let step = bench.up(4096);
    let pool = Pool::new(1 << 20, Arc::default());
    let mut writer = pool.try_region(8 * step, 1).expect("maps").expect("fits");
    for index in 0..8 {
        let lease = if index % 2 == 0 {
            writer.carve(step)
        } else {
            bench.lease(step)
        };
        bench.submit_into(lease, index, 0, index * step, step);
    }
    for done in bench.reap_all() {
        bench.compare(&done, 0, done.extent * step, step);
    }
}

fn depth(open: Open<'_>) {
    for depth in [1, 3, SLOTS] {
        let mut bench = Bench::open(open, vec![random(6, 1 << 20)], depth);
        assert!(bench.engine().depth() >= depth, "depth {depth}");
        let step = bench.up(4096);
        for _ in 0..3 {
            for index in 0..depth {
                bench.submit(index, 0, index * step, step, step);
            }
            assert_eq!(bench.engine().in_flight(), depth, "all of them");
            let mut marks: Vec<_> = bench.reap_all().iter().map(|done| done.extent).collect();
            marks.sort_unstable();
            assert_eq!(marks, (0..depth).collect::<Vec<_>>(), "each once");
        }
    }
}

/// Polling alone completes everything, appends, and never waits: the duration depends on storage
/// only.
fn reap_without_waiting(open: Open<'_>) {
    let mut bench = Bench::open(open, vec![random(7, 1 << 20)], 8);
    let step = bench.up(4096);
    for index in 0..8 {
        bench.submit(index, 0, index * step, step, step);
    }
    let mut done = Vec::new();
    let started = Instant::now();
    while bench.engine().in_flight() > 0 {
        let before = done.len();
        bench.engine().reap(Wait::No, &mut done);
        assert!(done.len() >= before, "results are added, not replaced");
        assert!(started.elapsed() < PATIENCE, "polling returned nothing");
        std::thread::yield_now();
    }
    assert_eq!(done.len(), 8);
    for done in &done {
        bench.compare(done, 0, done.extent * step, step);
    }
}

fn many_sources(open: Open<'_>) {
    let contents: Vec<_> = (0..64)
        .map(|seed| random(seed, 9000 + usize::try_from(seed).expect("small")))
        .collect();
    let mut bench = Bench::open(open, contents, SLOTS);
    for first in (0..64).step_by(SLOTS) {
        for source in (first..first + SLOTS).rev() {
            let (len, window) = (bench.contents[source].len(), bench.up(9100));
            bench.submit(source, source, 0, window, len);
        }
        for done in bench.reap_all() {
            let len = bench.contents[done.extent].len();
            bench.compare(&done, done.extent, 0, len);
        }
    }
}

/// Submits two thousand jobs over five sources whenever there is room.
fn random_jobs(open: Open<'_>) {
    let mut rng = Rng::new(8);
    let contents: Vec<_> = (0..5)
        .map(|seed| random(seed, 1 + rng.index(1 << 20)))
        .collect();
    let mut bench = Bench::open(open, contents, 11);
    let mut expected: BTreeMap<usize, (usize, Range<usize>)> = BTreeMap::new();
    let mut done = Vec::new();
    let mut submitted = 0;
    while submitted < 2000 || bench.engine().in_flight() > 0 {
        while submitted < 2000 && bench.engine().in_flight() < 11 && !rng.once_in(5) {
            let source = rng.index(5);
            let len = bench.contents[source].len();
            let offset = rng.index(len) / bench.up(1) * bench.up(1);
            let window = bench.up(1 + rng.index(100_000));
            let needed = rng.index(window.min(len - offset) + 1);
            bench.submit(submitted, source, offset, window, needed);
            expected.insert(submitted, (source, offset..offset + needed));
            submitted += 1;
        }
        let wait = rng.pick(&[Wait::No, Wait::ForOne]);
        bench.engine().reap(wait, &mut done);
        for done in done.drain(..) {
            let (source, range) = expected.remove(&done.extent).expect("each job ends once");
            bench.compare(&done, source, range.start, range.len());
        }
    }
    assert!(expected.is_empty(), "jobs without a result: {expected:?}");
}

/// Jobs that request more than there is fail with the location and do not affect others.
fn end_of_source(open: Open<'_>) {
    let mut bench = Bench::open(open, vec![random(9, 5 * 4096 + 100)], 8);
    let step = bench.up(4096);
    let len = bench.contents[0].len();
    let last = len / step * step;
    for round in 0..20 {
        // Odd marks request bytes that the source does not have: one too many, or all of them.
        bench.submit(0, 0, 0, step, step);
        bench.submit(1, 0, last, step, len - last + 1);
        bench.submit(2, 0, last, step, len - last);
        bench.submit(3, 0, last + step * (1 + round), step, step);
        for done in bench.reap_all() {
            match done.extent {
                0 => bench.compare(&done, 0, 0, step),
                2 => bench.compare(&done, 0, last, len - last),
                1 => expect_changed(&done, last..len + 1),
                _ => {
                    let start = last + step * (1 + round);
                    expect_changed(&done, start..start + step);
                }
            }
        }
    }
    bench.assert_all_slots_free();
}

fn expect_changed(done: &Done, range: Range<usize>) {
    let error = done.result.as_ref().expect_err("the bytes are not there");
    assert_eq!(error.kind(), ErrorKind::Changed, "{}", error.chain());
    assert_eq!(
        error.range(),
        Some(range.start as u64..range.end as u64),
        "{error}"
    );
    assert!(error.location().is_some(), "{error} names no location");
}

/// Truncates the source at an odd offset after the engine was opened: missing bytes are `Changed`,
/// the rest can be read.
fn shrunk_source(open: Open<'_>) {
    for len in [0, 1, 4096, 10_000] {
        let shrink = Some(Shrink { source: 1, len });
        let contents = vec![random(10, 6 * 4096), random(11, 6 * 4096)];
        let mut bench = Bench::shrunk(open, contents, 8, shrink);
        let step = bench.up(4096);
        for index in 0..6 {
            bench.submit(index, 1, index * step, step, step);
        }
        bench.submit(6, 0, 0, step, step);
        for done in bench.reap_all() {
            if done.extent == 6 {
                bench.compare(&done, 0, 0, step);
            } else if (done.extent + 1) * step <= len && !bench.under_test.remote {
                bench.compare(&done, 1, done.extent * step, step);
            } else {
                expect_changed(&done, done.extent * step..(done.extent + 1) * step);
            }
        }
        bench.assert_all_slots_free();
    }
}
