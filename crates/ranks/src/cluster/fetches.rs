//! Bytes that a leader fetches of another node, how a fetch ends, and what else its reads are told
//! of.

use std::ops::Range;

use crate::error::Error;
use crate::memory::Lease;

/// Bytes that a leader wants of another node, and the memory for them.
#[derive(Debug)]
pub struct Fetch {
    /// Number of the extent, which identifies the fetch.
    pub extent: usize,
    /// Index of the source in the engine.
    pub number: usize,
    /// Index of the source in the checkpoint.
    pub source: usize,
    /// Offset in the source at which the window begins.
    pub offset: u64,
    /// Number of bytes that must arrive, from there.
    pub needed: usize,
    /// Window for the bytes.
    pub lease: Lease,
    /// Wanted ranges of the source, inside the window.
    pub ranges: Vec<Range<u64>>,
}

/// End of a fetch.
#[derive(Debug)]
pub struct Received {
    /// The fetch.
    pub fetch: Fetch,
    /// Outcome of the fetch.
    pub outcome: Outcome,
}

/// Outcome of a fetch.
#[derive(Debug)]
pub enum Outcome {
    /// The window holds the bytes.
    Filled,
    /// The owner went on without this node.
    Gone,
    /// The owner has failed or is lost.
    Failed(Error),
    /// No rank of this node needs it any more.
    Unneeded,
    /// This load is over.
    Cancelled,
}

/// Change that the leader's reads are told of.
#[derive(Debug)]
pub enum ClusterEvent<'a> {
    /// Another leader has failed or is lost, from which something is still needed.
    Failed(&'a Error),
    /// Every other leader has read and verified what it reads for this node.
    Whole,
}
