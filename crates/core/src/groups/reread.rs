//! Reads in place of other ranks: of regions that the leader does not keep for a rank, and of bytes
//! that are lost with another rank.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use rustix::param::page_size;

use super::packed::{PackedEngine, PackedSource};
use super::{StorageGroup, WantedShard, open};
use crate::checkpoint::OpenedCheckpoint;
use crate::engine::{Engine, RereadSetup, StorageEngines};
use crate::error::Result;
use crate::format::Strides;
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
        let len = (region.strides.as_ref()).map_or(region.len as u64, Strides::span);
        shards[source]
            .ranges
            .push(region.offset..region.offset + len);
    }
    let opened = open(shards, options, false)?;
    // Regions that hold columns only are sources behind those of their group.
    let mut packed: Vec<Vec<PackedSource>> = opened.groups.iter().map(|_| Vec::new()).collect();
    let mut places = Vec::with_capacity(regions.len());
    for region in regions {
        let source = source_of[region.shard].expect("opened above");
        let member = opened.members[source];
        let Some(strides) = region.strides.clone() else {
            places.push((member.group, member.index, region.offset));
            continue;
        };
        let group = &opened.groups[member.group];
        let packed = &mut packed[member.group];
        places.push((member.group, group.count() + packed.len(), 0));
        packed.push(PackedSource {
            source: member.index,
            offset: region.offset,
            strides,
            alignment: group.hints(member.index).alignment.max(page_size() as u64),
        });
    }
    let engine = |(group, packed): (&Arc<dyn StorageGroup>, Vec<PackedSource>)| {
        let engine = group.open_engine(options, cancel)?;
        if packed.is_empty() {
            return Ok(engine);
        }
        let engine = PackedEngine::new(engine, group.count(), packed);
        Ok(Box::new(engine) as Box<dyn Engine>)
    };
    let engines = opened.groups.iter().zip(packed).map(engine);
    Ok(StorageEngines {
        engines: engines.collect::<Result<_>>()?,
        places,
    })
}
