//! Engine over memory that has the worst behaviour that storage can have, determined by a seed.
//!
//! Reads end in any order, after any delay (counted in reaps: no clock), in any number of short
//! parts that the engine finishes itself; some fail, permanently or temporarily. While a read is in
//! flight its window holds garbage, which exposes memory that has a second owner.

use std::collections::BTreeSet;
use std::fmt;
use std::mem::MaybeUninit;
use std::sync::Arc;

use super::fixtures::Rng;
use tload::internal::engine::{Done, Engine, Job, Transfer, Wait};
use tload_base::error::{Error, ErrorKind};
use tload_base::sync::retry::{Retries, Transient};
use tload_memory::Prefixes;
use tload_storage::{MemorySource, Source};

/// Behaviour of a [`SimEngine`].
#[derive(Clone, Debug)]
pub struct SimConfig {
    /// Seed of all random decisions.
    pub seed: u64,
    /// Maximum number of jobs in flight.
    pub depth: usize,
    /// Maximum number of reaps until a read, or a part of it, ends.
    pub delay_max: u64,
    /// One read in this many arrives in parts; 0 for none.
    pub short_once_in: u64,
    /// One read in this many fails; 0 for none.
    pub fault_once_in: u64,
    /// Extents that always fail.
    pub faults: BTreeSet<usize>,
    /// One attempt in this many fails with a transient error; 0 for none.
    pub passing_once_in: u64,
    /// Retry policy for such reads.
    pub retries: Retries,
    /// Called for every read that begins and every read that ends.
    pub moments: Moments,
}

/// Hook that runs on the lane's thread whenever a read begins or ends. Does nothing by default.
#[derive(Clone, Default)]
pub struct Moments(Option<Arc<dyn Fn() + Send + Sync>>);

impl Moments {
    /// Creates a hook that calls `tell`.
    pub fn new(tell: impl Fn() + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(tell)))
    }

    fn tell(&self) {
        if let Some(tell) = &self.0 {
            tell();
        }
    }
}

impl fmt::Debug for Moments {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Moments").field(&self.0.is_some()).finish()
    }
}

impl SimConfig {
    /// Returns a configuration with random order and short reads, without faults.
    pub fn new(seed: u64, depth: usize) -> Self {
        Self {
            seed,
            depth,
            delay_max: 5,
            short_once_in: 3,
            fault_once_in: 0,
            faults: BTreeSet::new(),
            passing_once_in: 0,
            retries: Retries::NONE,
            moments: Moments::default(),
        }
    }
}

/// Message of every injected error.
pub const INJECTED: &str = "injected fault";

/// Simulated engine over [`MemorySource`]s.
#[derive(Debug)]
pub struct SimEngine {
    sources: Vec<MemorySource>,
    config: SimConfig,
    rng: Rng,
    pending: Vec<Pending>,
}

#[derive(Debug)]
struct Pending {
    job: Job,
    /// Bytes that have arrived.
    arrived: usize,
    /// Reaps until the next part arrives.
    delay: u64,
    /// Consecutive failed attempts.
    failed: u32,
    /// True after too many of them.
    given_up: bool,
    transfer: Transfer,
}

impl SimEngine {
    /// Creates an engine that reads `sources`.
    pub fn new(sources: Vec<MemorySource>, config: SimConfig) -> Self {
        Self {
            sources,
            rng: Rng::new(config.seed),
            config,
            pending: Vec::new(),
        }
    }

    fn delay(&mut self) -> u64 {
        self.rng.below(self.config.delay_max + 1)
    }

    /// Simulates one step of time: moves the reads that have ended into `done`, in random order.
    fn step(&mut self, done: &mut Vec<Done>) {
        let mut order: Vec<usize> = (0..self.pending.len()).collect();
        self.rng.shuffle(&mut order);
        let mut ended = BTreeSet::new();
        for &index in &order {
            if self.pending[index].delay > 0 {
                self.pending[index].delay -= 1;
            } else if self.advance(index) && !self.tries_again(index) {
                ended.insert(index);
            }
        }
        let mut leaving = Vec::new();
        for &index in ended.iter().rev() {
            leaving.push(self.pending.swap_remove(index));
        }
        self.rng.shuffle(&mut leaving);
        done.extend(leaving.into_iter().map(|pending| self.end(pending)));
    }

    /// Delivers a part of a read. Returns whether it was the last part.
    fn advance(&mut self, index: usize) -> bool {
        let available = available(&self.sources, &self.pending[index].job);
        let needed = self.pending[index].job.needed;
        let in_parts = self.config.short_once_in > 0 && self.rng.once_in(self.config.short_once_in);
        let delay = self.delay();
        let pending = &mut self.pending[index];
        let left = available - pending.arrived;
        if in_parts && left > 1 && pending.arrived < needed {
            pending.arrived += 1 + self.rng.index(left - 1);
            if pending.arrived < needed {
                pending.transfer.short_reads += 1;
                pending.delay = delay;
                return false;
            }
        } else {
            pending.arrived = available;
        }
        true
    }

    /// Returns whether a read that would end fails, and is retried instead.
    fn tries_again(&mut self, index: usize) -> bool {
        let fails =
            self.config.passing_once_in > 0 && self.rng.once_in(self.config.passing_once_in);
        if !fails {
            return false;
        }
        let delay = self.delay();
        let pending = &mut self.pending[index];
        pending.failed += 1;
        let retries = self.config.retries;
        let random = u32::try_from(delay).unwrap_or(u32::MAX);
        if retries
            .wait(Transient::Broken, pending.failed, None, random)
            .is_none()
        {
            pending.given_up = true;
            return false;
        }
        pending.transfer.retries += 1;
        pending.transfer.read_retries += 1;
        pending.transfer.last_retry = Some(INJECTED.into());
        pending.delay = delay;
        true
    }

    fn end(&mut self, pending: Pending) -> Done {
        let Pending {
            job,
            arrived,
            mut transfer,
            given_up,
            ..
        } = pending;
        transfer.direct_bytes = arrived as u64;
        self.config.moments.tell();
        let fails = given_up || self.fails(job.extent);
        let source = &self.sources[job.source];
        let failure = if fails {
            Some(Error::new(ErrorKind::Io, INJECTED))
        } else if arrived < job.needed {
            let message = format!("the file ends at byte {}", source.len());
            Some(Error::new(ErrorKind::Changed, message))
        } else {
            None
        };
        let range = job.offset..job.offset + job.needed as u64;
        let result = if let Some(error) = failure {
            Err(error.with_location(source.location()).with_range(range))
        } else {
            let bytes = tail(source, job.offset, arrived);
            let crc = job.lease.wanted_crc().filter(|_| self.rng.once_in(2));
            let prefixes = crc.map(|crc| {
                let mut prefixes = Prefixes::new(crc, arrived);
                prefixes.extend(&bytes[..self.rng.index(arrived + 1)]);
                prefixes
            });
            Ok(job.lease.fill_from(bytes).with_prefixes(prefixes))
        };
        Done {
            extent: job.extent,
            result,
            window: None,
            transfer,
        }
    }

    fn fails(&mut self, extent: usize) -> bool {
        let random = self.config.fault_once_in > 0 && self.rng.once_in(self.config.fault_once_in);
        random || self.config.faults.contains(&extent)
    }
}

/// Returns the number of bytes that a source has for a job.
fn available(sources: &[MemorySource], job: &Job) -> usize {
    let left = sources[job.source].len().saturating_sub(job.offset);
    usize::try_from(left)
        .expect("sources in memory")
        .min(job.lease.len())
}

fn tail(source: &MemorySource, offset: u64, len: usize) -> &[u8] {
    let start = usize::try_from(offset).expect("sources in memory");
    source.bytes().get(start..start + len).unwrap_or_default()
}

impl Engine for SimEngine {
    fn depth(&self) -> usize {
        self.config.depth
    }

    fn in_flight(&self) -> usize {
        self.pending.len()
    }

    fn submit(&mut self, mut job: Job) {
        assert!(
            self.pending.len() < self.config.depth,
            "more jobs than the depth of {}",
            self.config.depth
        );
        assert!(job.needed <= job.lease.len(), "needs more than its window");
        job.lease.as_uninit().fill(MaybeUninit::new(0xA5));
        self.config.moments.tell();
        let delay = self.delay();
        self.pending.push(Pending {
            job,
            arrived: 0,
            delay,
            failed: 0,
            given_up: false,
            transfer: Transfer::default(),
        });
    }

    fn reap(&mut self, wait: Wait, done: &mut Vec<Done>) {
        let before = done.len();
        loop {
            self.step(done);
            let waiting = wait == Wait::ForOne && done.len() == before;
            if !waiting || self.pending.is_empty() {
                return;
            }
        }
    }
}
