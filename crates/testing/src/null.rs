//! Engine that reads nothing: windows keep the zeros that the system gave them.
//!
//! A load over it costs what the core costs without the reads: plan, schedule, hand-over.

use tload::internal::engine::{Done, Engine, Job, Transfer, Wait};

/// Engine whose jobs end at once.
#[derive(Debug)]
pub struct NullEngine {
    depth: usize,
    ended: Vec<Done>,
}

impl NullEngine {
    /// Creates an engine for this many jobs in flight.
    pub fn new(depth: usize) -> Self {
        Self {
            depth,
            ended: Vec::with_capacity(depth),
        }
    }
}

impl Engine for NullEngine {
    fn depth(&self) -> usize {
        self.depth
    }

    fn in_flight(&self) -> usize {
        self.ended.len()
    }

    fn submit(&mut self, job: Job) {
        self.ended.push(Done {
            extent: job.extent,
            result: Ok(job.lease.written(job.needed)),
            window: None,
            transfer: Transfer {
                direct_bytes: job.needed as u64,
                ..Transfer::default()
            },
        });
    }

    fn reap(&mut self, _: Wait, done: &mut Vec<Done>) {
        done.append(&mut self.ended);
    }
}
