//! Memory that a load has left behind: of reads that storage has not answered and nobody can take back.
//!
//! When a load is over, its lanes let go of what they can. A read that a dead mount does not answer stays with the kernel, and so
//! does its memory: it must not be freed under it, nor used for something else. The lane's thread keeps both, with its engine, which
//! only that thread may use, until the completions have been seen; then it frees everything and ends. Nobody waits for it. Here
//! is counted what such lanes hold.

use std::sync::{Arc, Weak};

use crate::engine;
use crate::per_process::PerProcess;
use crate::pipeline::Feed;

/// The loads that are over and were not done.
static LEFT: PerProcess<Vec<Weak<Feed>>> = PerProcess::new();

/// A load is over while its lanes still have something in flight.
pub(crate) fn leave(feed: &Arc<Feed>) {
    let mut left = LEFT.lock();
    // A good time to forget those that are done by now.
    left.retain(|feed| feed.upgrade().is_some_and(|feed| feed.waiting().reads > 0));
    left.push(Arc::downgrade(feed));
}

/// Bytes of memory that loads of this process have left to the kernel: they are over, and storage has not answered all their reads.
/// They are freed when it does; until then they are in no load's budget. Memory of a ring that failed with reads in flight is counted
/// too, and never freed.
pub fn parked_bytes() -> u64 {
    let left: Vec<_> = {
        let left = LEFT.lock();
        left.iter().filter_map(Weak::upgrade).collect()
    };
    // Without the lock: the last owner of a load's memory frees it.
    left.iter().map(|feed| feed.waiting().bytes).sum::<u64>() + engine::given_up_bytes()
}
