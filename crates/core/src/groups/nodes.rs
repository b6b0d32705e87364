//! Bytes that other nodes read for a leader, and reads in their place.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use super::leader::SHOWN_HINTS;
use super::limits::Limits;
use super::reread::reread;
use super::{GroupLanes, LaneContext, LimitsRequest, OpenEngine, SourceGroup};
use crate::checkpoint::OpenedCheckpoint;
use crate::engine::{self, OpenedEngine, RemoteSetup, RemoteSource};
use crate::error::Result;
use crate::options::LoadOptions;
use crate::schedule::LaneCount;
use crate::storage::ReadHints;
use crate::tensor::TensorInfo;
use tload_ranks::Cluster;
use tload_ranks::RegionOrigin;

/// Hints on bytes from other nodes: windows are whole pages, so that the file can be read instead.
const HINTS: ReadHints = ReadHints {
    gap_bytes: 0,
    ..SHOWN_HINTS
};

/// Part of a leader's reads that other nodes make.
pub(crate) struct NodeShares {
    pub(crate) cluster: Arc<Cluster>,
    /// By tensor: the rank that leads the node which reads it; `None` if this node reads it.
    pub(crate) owners: Vec<Option<usize>>,
    /// Bytes that are read in place of other nodes.
    pub(crate) reread_bytes: Arc<AtomicU64>,
    pub(crate) checkpoint: OpenedCheckpoint,
}

/// Bytes of a leader's load that other nodes read.
#[derive(Debug)]
pub(crate) struct NodeGroup {
    cluster: Arc<Cluster>,
    sources: Vec<RemoteSource>,
    /// By source: its name in messages.
    names: Vec<String>,
    reread_bytes: Arc<AtomicU64>,
    checkpoint: OpenedCheckpoint,
}

impl NodeGroup {
    /// Returns the group of all bytes of `tensors` that other nodes read, and the source of each
    /// tensor.
    pub(crate) fn new(shares: NodeShares, tensors: &[TensorInfo]) -> (Self, Vec<Option<usize>>) {
        let mut sources: Vec<RemoteSource> = Vec::new();
        let mut numbers = HashMap::new();
        let source = |(tensor, owner): (&TensorInfo, &Option<usize>)| {
            let owner = (*owner)?;
            let shard = tensor.shard();
            let number = *numbers.entry((owner, shard)).or_insert_with(|| {
                sources.push(RemoteSource {
                    owner,
                    shard,
                    end: 0,
                });
                sources.len() - 1
            });
            let source = &mut sources[number];
            source.end = source.end.max(tensor.file_range().end);
            Some(number)
        };
        let by_tensor = tensors.iter().zip(&shares.owners).map(source).collect();
        let name = |source: &RemoteSource| {
            let location = shares.checkpoint.shards()[source.shard].location();
            format!("{location} (read by another node)")
        };
        let group = Self {
            names: sources.iter().map(name).collect(),
            cluster: shares.cluster,
            sources,
            reread_bytes: shares.reread_bytes,
            checkpoint: shares.checkpoint,
        };
        (group, by_tensor)
    }
}

impl SourceGroup for NodeGroup {
    fn name(&self) -> String {
        "other nodes".to_owned()
    }

    fn count(&self) -> usize {
        self.sources.len()
    }

    fn location(&self, index: usize) -> String {
        self.names[index].clone()
    }

    fn hints(&self, _index: usize) -> ReadHints {
        HINTS
    }

    fn limits(&self, request: &LimitsRequest<'_>) -> Limits {
        Limits::for_files(&LoadOptions::default(), &HINTS, request.window)
    }

    fn lanes(&self, context: &LaneContext<'_>, _needed_bytes: u64) -> GroupLanes {
        let origin = |source: &RemoteSource| RegionOrigin {
            shard: source.shard,
            offset: 0,
            strides: None,
            len: usize::try_from(source.end).unwrap_or(usize::MAX),
            filled_bytes: 0,
        };
        let origins: Vec<_> = self.sources.iter().map(origin).collect();
        let setup = RemoteSetup {
            plan: Arc::clone(context.plan),
            cluster: Arc::clone(&self.cluster),
            sources: self.sources.clone(),
            depth: context.depth(),
            reread: reread(
                &self.checkpoint,
                &origins,
                &self.reread_bytes,
                context.options,
                context.cancel,
            ),
        };
        GroupLanes {
            engine: Arc::new(NodeEngine(Arc::new(setup))),
            // One lane is enough, because another thread receives the bytes.
            count: LaneCount::fixed(1),
        }
    }

    fn is_received(&self) -> bool {
        true
    }
}

/// Engine that waits for other nodes.
#[derive(Debug)]
struct NodeEngine(Arc<RemoteSetup>);

impl OpenEngine for NodeEngine {
    fn open(&self, _lanes: usize) -> Result<OpenedEngine> {
        Ok(engine::open_remote(&self.0))
    }

    fn reason(&self) -> String {
        "other nodes read for this one".to_owned()
    }
}
