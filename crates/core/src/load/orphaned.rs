//! Accounting of orphaned memory: that of reads which storage has not completed and which cannot be
//! cancelled.
//!
//! When a load ends, its lanes cancel what they can. A read on a dead mount stays with the kernel,
//! and so does its memory, which must be neither freed nor reused until the kernel lets go. The
//! lane's thread keeps both, with its engine, which only that thread may use, until it has seen the
//! completions; then it frees everything and ends. No thread waits for it. This module counts the
//! memory that such lanes hold.

use std::sync::{Arc, Weak};

use super::pipeline::Feed;
use crate::engine;
use crate::sync::per_process::PerProcess;

/// Loads that have ended with reads in flight.
static LEFT: PerProcess<Vec<Weak<Feed>>> = PerProcess::new();

/// Registers a load that has ended while its lanes still have reads in flight.
pub(crate) fn register(feed: &Arc<Feed>) {
    // This variable is dropped after the lock, because its drop may free a load's memory.
    let mut feeds = Vec::new();
    let mut left = LEFT.lock();
    // Drop the entries of loads that have no reads in flight by now.
    left.retain(|feed| {
        let feed = feed.upgrade();
        let is_reading = feed.as_ref().is_some_and(|feed| feed.waiting().reads > 0);
        feeds.extend(feed);
        is_reading
    });
    left.push(Arc::downgrade(feed));
}

/// Returns the bytes of orphaned memory: ended loads of this process have left it to the kernel,
/// because storage has not completed all their reads. It is freed when storage does; until then it
/// belongs to no load's budget. Memory of a ring that failed with reads in flight is counted too,
/// and never freed.
///
/// # Examples
///
/// ```
/// assert_eq!(tload::orphaned_bytes(), 0);
/// ```
pub fn orphaned_bytes() -> u64 {
    let left: Vec<_> = {
        let left = LEFT.lock();
        left.iter().filter_map(Weak::upgrade).collect()
    };
    // The lock is released first, because dropping the last owner frees a load's memory.
    left.iter().map(|feed| feed.waiting().bytes).sum::<u64>() + engine::given_up_bytes()
}
