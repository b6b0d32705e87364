//! Reads in place of other ranks: of regions that the leader does not keep for a rank, and of bytes
//! that are lost with another rank.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use super::{WantedShard, open};
use crate::checkpoint::OpenedCheckpoint;
use crate::engine::{RereadSetup, StorageEngines};
use crate::error::Result;
use crate::options::LoadOptions;
use crate::sync::cancel::CancelFlag;
use crate::verify::Verify;
use tload_ranks::RegionOrigin;

/// Returns the configuration of reads of `regions` in place of the ranks that read them, counted in
/// `bytes`.
pub(super) fn reread(
    checkpoint: &OpenedCheckpoint,
    regions: &[RegionOrigin],
    bytes: &Arc<AtomicU64>,
    options: &LoadOptions,
    cancel: &Arc<CancelFlag>,
) -> RereadSetup {
    let (checkpoint, regions) = (checkpoint.clone(), regions.to_vec());
    let (its_options, its_cancel) = (options.clone(), Arc::clone(cancel));
    RereadSetup {
        on_peer_loss: options.on_peer_loss,
        is_verified: options.verify != Verify::Off,
        bytes: Arc::clone(bytes),
        open: Box::new(move || open_engines(&checkpoint, &regions, &its_options, &its_cancel)),
        cancel: Arc::clone(cancel),
    }
}

fn open_engines(
    checkpoint: &OpenedCheckpoint,
    regions: &[RegionOrigin],
    options: &LoadOptions,
    cancel: &Arc<CancelFlag>,
) -> Result<StorageEngines> {
    let mut source_of = vec![None; checkpoint.shards().len()];
    let mut shards: Vec<WantedShard> = Vec::new();
    for region in regions {
        let source = *source_of[region.shard].get_or_insert_with(|| {
            shards.push(WantedShard {
                source: Arc::clone(checkpoint.shards()[region.shard].source()),
                ranges: Vec::new(),
            });
            shards.len() - 1
        });
        let end = region.offset + region.len as u64;
        shards[source].ranges.push(region.offset..end);
    }
    let opened = open(shards, options, false)?;
    let engines = opened
        .groups
        .iter()
        .map(|group| group.open_engine(options, cancel));
    let place = |region: &RegionOrigin| {
        let source = source_of[region.shard].expect("opened above");
        let member = opened.members[source];
        (member.group, member.index, region.offset)
    };
    Ok(StorageEngines {
        engines: engines.collect::<Result<_>>()?,
        places: regions.iter().map(place).collect(),
    })
}
