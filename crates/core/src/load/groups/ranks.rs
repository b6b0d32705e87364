//! Sources of a load that other ranks read: the leader of the node, or other nodes.

use rustix::param::page_size;

use super::OPENED_AT_A_TIME;
use crate::checkpoint::{Shard, ShardSource};
use crate::engine::RemoteSource;
use crate::error::Result;
use crate::storage::ReadHints;
use crate::sync::parallel::parallel_map;

/// Bytes of a leader's load that other nodes read, as sources.
#[derive(Debug)]
pub(crate) struct RemoteSources {
    /// By source of the group.
    pub(crate) sources: Vec<RemoteSource>,
    /// By source of the group: its name in messages.
    pub(super) names: Vec<String>,
}

impl RemoteSources {
    pub(crate) fn new(sources: Vec<RemoteSource>, shards: &[Shard]) -> Self {
        let name = |source: &RemoteSource| {
            let location = shards[source.shard].location();
            format!("{location} (read by another node)")
        };
        Self {
            names: sources.iter().map(name).collect(),
            sources,
        }
    }
}

/// Regions of a load that the leader of the node reads, as sources.
#[derive(Debug)]
pub(crate) struct SharedRegions {
    /// By source of the group.
    pub(crate) regions: Vec<usize>,
    /// Shards that the regions are of.
    pub(crate) shards: Vec<ShardSource>,
    /// By source of the group: its name in messages.
    pub(super) names: Vec<String>,
    pub(super) hints: ReadHints,
}

impl SharedRegions {
    /// Describes regions, each with its number and its shard. With `staged`, bytes pass through
    /// staging memory.
    pub(crate) fn new(regions: &[(usize, usize)], shards: &[Shard], staged: bool) -> Self {
        let mut numbers: Vec<usize> = regions.iter().map(|(_, shard)| *shard).collect();
        numbers.dedup();
        let name = |(_, shard): &(usize, usize)| {
            let location = shards[*shard].location();
            format!("{location} (read by another rank)")
        };
        Self {
            regions: regions.iter().map(|(region, _)| *region).collect(),
            names: regions.iter().map(name).collect(),
            hints: ReadHints {
                alignment: page_size() as u64,
                ..if staged { COPIED_HINTS } else { SHOWN_HINTS }
            },
            shards: (numbers.into_iter())
                .map(|shard| shards[shard].source().clone())
                .collect(),
        }
    }

    /// Checks that the files that they are of are unchanged.
    pub(super) fn verify_unchanged(&self) -> Result<()> {
        let verify = |shard: &ShardSource| match shard {
            ShardSource::File(file) => file.verify_unchanged(),
            #[cfg(feature = "object")]
            ShardSource::Object(object) => object.verify_unchanged(),
        };
        let verified = parallel_map(&self.shards, OPENED_AT_A_TIME, verify);
        verified.into_iter().collect()
    }
}

/// Hints on shared memory that tensors show: windows are whole pages, so that a rank can replace
/// single pages.
const SHOWN_HINTS: ReadHints = ReadHints {
    extent_bytes: 4 << 20,
    request_bytes: 4 << 20,
    alignment: 4096,
    gap_bytes: 16 << 10,
    depth: 64,
    in_flight_bytes: 128 << 20,
    in_flight_bytes_max: 128 << 20,
};

/// Hints on shared memory that is copied: slots wait for the leader, and each rank has its own, so
/// they are few and small.
const COPIED_HINTS: ReadHints = ReadHints {
    extent_bytes: 1 << 20,
    request_bytes: 1 << 20,
    depth: 16,
    in_flight_bytes: 16 << 20,
    in_flight_bytes_max: 16 << 20,
    ..SHOWN_HINTS
};

/// Hints on bytes from other nodes: windows are whole pages, so that the file can be read instead.
pub(super) const REMOTE_HINTS: ReadHints = ReadHints {
    gap_bytes: 0,
    ..SHOWN_HINTS
};
