//! Engine of a node's leader for bytes that other nodes read: a job is filled by receiving them.
//!
//! Jobs whose owner is lost, or has gone on without this node, are read from storage by the engines
//! of a load without a group.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use super::reread::{self, RereadSetup, Rereads, Waiting, fell_behind};
use super::{Done, Engine, Job, Wait, cancelled};
use crate::plan::Plan;
use crate::report::Transfer;
use crate::sync::cancel::CancelFlag;
use crate::sync::event_count::EventCount;
use tload_ranks::{Cluster, Fetch, Outcome, Received};

/// Bytes of one file that one other node reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RemoteSource {
    /// Rank that leads the node.
    pub(crate) owner: usize,
    /// Index of the source in the checkpoint.
    pub(crate) shard: usize,
    /// End of the last wanted range.
    pub(crate) end: u64,
}

/// Configuration of the engine.
pub(crate) struct RemoteSetup {
    /// Plan of the load: windows also hold bytes at their edges that are not asked for.
    pub(crate) plan: Arc<Plan>,
    pub(crate) cluster: Arc<Cluster>,
    /// Sources, in the order of [`Job::source`].
    pub(crate) sources: Vec<RemoteSource>,
    /// Number of jobs in flight that the engine must accept.
    pub(crate) depth: usize,
    pub(crate) reread: RereadSetup,
}

impl fmt::Debug for RemoteSetup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemoteSetup")
            .field("cluster", &self.cluster)
            .field("sources", &self.sources.len())
            .finish_non_exhaustive()
    }
}

/// Engine that waits for the leaders of other nodes.
pub(super) struct RemoteEngine {
    setup: Arc<RemoteSetup>,
    /// Number of fetches that have not ended.
    fetching: usize,
    received: Vec<Received>,
    rereads: Rereads,
}

impl RemoteEngine {
    pub(super) fn open(setup: &Arc<RemoteSetup>) -> Self {
        Self {
            setup: Arc::clone(setup),
            fetching: 0,
            received: Vec::new(),
            rereads: Rereads::default(),
        }
    }

    /// Reads a job from storage.
    fn read(&mut self, fetch: Fetch, done: &mut Vec<Done>) {
        if let Err(error) = self.rereads.open(&self.setup.reread) {
            done.push(Done::failed(fetch.extent, error));
            return;
        }
        let job = Job {
            extent: fetch.extent,
            source: fetch.number,
            offset: fetch.offset,
            needed: fetch.needed,
            lease: fetch.lease,
        };
        self.rereads.submit(job, fetch.number);
    }
}

impl Waiting for RemoteEngine {
    fn setup(&self) -> &RereadSetup {
        &self.setup.reread
    }

    fn rereads(&mut self) -> &mut Rereads {
        &mut self.rereads
    }

    fn events(&self) -> &EventCount {
        self.setup.cluster.events()
    }

    fn look(&mut self, done: &mut Vec<Done>) {
        let mut received = std::mem::take(&mut self.received);
        self.setup.cluster.take_received(&mut received);
        for Received { fetch, outcome } in received.drain(..) {
            self.fetching -= 1;
            let RereadSetup {
                is_verified,
                cancel,
                ..
            } = &self.setup.reread;
            match outcome {
                _ if cancel.is_cancelled() => {
                    done.push(Done::failed(fetch.extent, cancelled()));
                }
                Outcome::Filled => done.push(filled(fetch, true)),
                Outcome::Unneeded => done.push(filled(fetch, false)),
                Outcome::Cancelled => done.push(Done::failed(fetch.extent, cancelled())),
                Outcome::Gone if *is_verified => {
                    done.push(Done::failed(fetch.extent, fell_behind()));
                }
                Outcome::Gone => self.read(fetch, done),
                Outcome::Failed(error) => match self.setup.reread.failure(error) {
                    Some(error) => done.push(Done::failed(fetch.extent, error)),
                    None => self.read(fetch, done),
                },
            }
        }
        self.received = received;
    }
}

/// Returns the result of a fetch whose window is filled, or need not be.
fn filled(fetch: Fetch, is_received: bool) -> Done {
    let bytes = fetch.ranges.iter().map(|range| range.end - range.start);
    let transfer = Transfer {
        received_bytes: if is_received { bytes.sum() } else { 0 },
        ..Transfer::default()
    };
    Done {
        extent: fetch.extent,
        result: Ok(fetch.lease.written(fetch.needed)),
        window: None,
        transfer,
    }
}

/// Returns the ranges of its source that an extent is read for: each byte of a tensor is in one
/// extent only.
fn wanted(plan: &Plan, extent: usize) -> Vec<Range<u64>> {
    let extent = &plan.extents[extent];
    let mut ranges: Vec<Range<u64>> = Vec::new();
    for piece in &plan.pieces[extent.pieces.clone()] {
        let start = extent.offset + piece.extent_offset as u64;
        let end = start + piece.len as u64;
        match ranges.last_mut() {
            Some(last) if last.end == start => last.end = end,
            _ => ranges.push(start..end),
        }
    }
    ranges
}

impl Engine for RemoteEngine {
    fn depth(&self) -> usize {
        self.setup.depth
    }

    fn in_flight(&self) -> usize {
        self.fetching + self.rereads.in_flight()
    }

    fn submit(&mut self, job: Job) {
        let source = &self.setup.sources[job.source];
        self.fetching += 1;
        let fetch = Fetch {
            extent: job.extent,
            number: job.source,
            source: source.shard,
            offset: job.offset,
            needed: job.needed,
            ranges: wanted(&self.setup.plan, job.extent),
            lease: job.lease,
        };
        self.setup.cluster.fetch(source.owner, fetch);
    }

    fn reap(&mut self, wait: Wait, done: &mut Vec<Done>) {
        reread::reap(self, wait, done);
    }

    fn stop_when(&mut self, _cancel: &CancelFlag) {
        let cluster = Arc::downgrade(&self.setup.cluster);
        self.setup.reread.cancel.on_cancel(move || {
            if let Some(cluster) = cluster.upgrade() {
                cluster.cancel();
            }
        });
    }
}

impl Drop for RemoteEngine {
    fn drop(&mut self) {
        // Windows that are being received into stay with the thread that receives.
        self.setup.cluster.cancel();
    }
}

impl fmt::Debug for RemoteEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemoteEngine")
            .field("fetching", &self.fetching)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Arrangement, Layout, Wanted, build};

    /// Windows of neighbours meet in a page, which both of them hold.
    #[test]
    fn each_byte_is_fetched_for_one_extent() {
        let wanted_of = |range: Range<u64>| Wanted {
            source: 0,
            range,
            strides: None,
            alignment: 1,
            destination: 0,
        };
        let tensors = [wanted_of(100..3_000_000), wanted_of(3_000_000..5_000_000)];
        let layout = Layout {
            extent_bytes: 1 << 20,
            alignment: 4096,
            gap_bytes: 0,
        };
        let plan = build(&tensors, &[layout], &[Arrangement::InPlace]);
        let mut at = 100;
        for extent in 0..plan.extents.len() {
            for range in wanted(&plan, extent) {
                assert_eq!(range.start, at);
                at = range.end;
            }
        }
        assert_eq!(at, 5_000_000);
    }
}
