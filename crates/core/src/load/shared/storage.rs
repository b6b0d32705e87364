//! Reads of shared regions by a rank itself, when the leader does not read them for it.

use std::sync::Arc;

use crate::checkpoint::Checkpoint;
use crate::engine::{OpenStorage, StorageEngines};
use crate::error::Result;
use crate::load::groups::Group;
use crate::load::prepare::{engine_for_files, engine_for_objects};
use crate::options::Options;
use crate::ranks::messages::RegionOrigin;
use crate::sync::cancel::CancelFlag;

/// Number of reads in flight of each engine.
const DEPTH: usize = 16;

/// Returns the function that opens the files of `regions` and the engines that read them.
pub(crate) fn open_storage(
    checkpoint: &Checkpoint,
    regions: &[RegionOrigin],
    options: &Options,
    cancel: &Arc<CancelFlag>,
) -> Box<OpenStorage> {
    let (checkpoint, options) = (checkpoint.clone(), options.clone());
    let (regions, cancel) = (regions.to_vec(), Arc::clone(cancel));
    Box::new(move || open(&checkpoint, &regions, &options, &cancel))
}

fn open(
    checkpoint: &Checkpoint,
    regions: &[RegionOrigin],
    options: &Options,
    cancel: &Arc<CancelFlag>,
) -> Result<StorageEngines> {
    let mut source_of = vec![None; checkpoint.shards().len()];
    let mut shards = Vec::new();
    for region in regions {
        let source = *source_of[region.shard].get_or_insert_with(|| {
            let source = checkpoint.shards()[region.shard].source();
            shards.push((source.clone(), Vec::new()));
            shards.len() - 1
        });
        let end = region.offset + region.len as u64;
        shards[source].1.push(region.offset..end);
    }
    let sources = super::super::groups::Sources::open(shards, options)?;
    let engines = sources.groups().iter().map(|group| match group {
        Group::Files(files) => engine_for_files(files, DEPTH, options),
        #[cfg(feature = "object")]
        Group::Objects(objects) => Ok(engine_for_objects(objects, DEPTH, options, cancel)),
        Group::Shared(_) => unreachable!("opened from files and objects"),
    });
    let engines = engines.collect::<Result<_>>()?;
    let place = |region: &RegionOrigin| {
        let source = source_of[region.shard].expect("opened above");
        let member = sources.members()[source];
        (member.group, member.index, region.offset)
    };
    Ok(StorageEngines {
        engines,
        places: regions.iter().map(place).collect(),
    })
}
