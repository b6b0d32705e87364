//! Inputs of a load's plan: tensors with their sources, and the layouts of these.

use std::ops::Range;

use rustix::param::page_size;

use super::destinations::Destinations;
use super::groups::{Group, Sources};
use super::shares::Shares;
use crate::checkpoint::{Checkpoint, ShardSource};
use crate::error::{Error, ErrorKind, Result};
use crate::options::{Options, format_bytes};
use crate::plan::{Layout, Wanted};
use crate::storage::ReadHints;
use crate::tensor::TensorInfo;

/// Maximum number of reads of one load: the plan takes about 100 bytes for each, and 16 TiB in
/// default extents need this many (2026-11).
const EXTENTS_MAX: u64 = 1 << 22;

/// Describes the tensors to load, with the source and the range in it that `position` returns. Each
/// comes with its index, and with an alignment of at least `align` bytes.
pub(super) fn wanted(
    tensors: &[TensorInfo],
    destinations: &Destinations,
    align: Option<u64>,
    position: impl Fn(usize, &TensorInfo) -> (usize, Range<u64>),
) -> Vec<(usize, Wanted)> {
    let align = align.and_then(|it| usize::try_from(it.next_power_of_two()).ok());
    let wanted = |(index, tensor): (usize, &TensorInfo)| {
        let (source, range) = position(index, tensor);
        let wanted = Wanted {
            source,
            range,
            strides: tensor.strides().cloned(),
            alignment: tensor.dtype().alignment().max(align.unwrap_or(1)),
            destination: destinations.index_for(index),
        };
        (index, wanted)
    };
    tensors.iter().enumerate().map(wanted).collect()
}

/// Returns the layout of each source. `shared_from` is the first source that is a shared region, in
/// a load whose ranks share.
pub(super) fn layouts(
    sources: &Sources,
    shared_from: Option<usize>,
    options: &Options,
    staged: bool,
) -> Vec<Layout> {
    let layout = |source: usize| {
        let mut hints = sources.hints(source);
        if shared_from.is_some_and(|first| source < first) {
            // Other ranks may read the bytes between.
            hints.gap_bytes = 0;
        }
        let mut layout = layout(&hints, options, staged);
        let group = &sources.groups()[sources.members()[source].group];
        if matches!(group, Group::Shared(_) | Group::Remote(_)) {
            // These sources are not files. An extent is one message from another node, whose length
            // is limited, or a slot of each rank.
            layout.extent_bytes = layout.extent_bytes.min(hints.extent_bytes);
        }
        layout
    };
    (0..sources.members().len()).map(layout).collect()
}

/// Returns, by tensor, the region that the leader of the node reads it into and its offset there;
/// none for a tensor that this rank reads itself.
pub(super) fn places(tensors: &[TensorInfo], shares: Option<&Shares>) -> Vec<Option<(usize, u64)>> {
    let known = shares.map_or(&[][..], |shares| &shares.plan.tensors);
    let places = known.iter().copied().chain(std::iter::repeat(None));
    places.take(tensors.len()).collect()
}

/// Numbers the sources of `wanted` anew, so that tensors are in the order of their files although
/// several sources have bytes of one. Returns the old numbers.
pub(super) fn in_file_order(wanted: &mut [(usize, Wanted)], tensors: &[TensorInfo]) -> Vec<usize> {
    wanted.sort_by_key(|(index, wanted)| (tensors[*index].shard(), wanted.range.start));
    let mut order: Vec<usize> = Vec::new();
    for (_, wanted) in wanted {
        if order.last() != Some(&wanted.source) {
            order.push(wanted.source);
        }
        wanted.source = order.len() - 1;
    }
    order
}

/// Shards that a load reads itself, each with the ranges that it wants of it; and the position of
/// each shard among them.
pub(super) type OwnShards = (Vec<(ShardSource, Vec<Range<u64>>)>, Vec<Option<usize>>);

pub(super) fn own_shards(
    checkpoint: &Checkpoint,
    tensors: &[TensorInfo],
    is_own: impl Fn(usize) -> bool,
) -> OwnShards {
    let mut source_of = vec![None; checkpoint.shards().len()];
    let mut shards: Vec<(ShardSource, Vec<Range<u64>>)> = Vec::new();
    let own = tensors.iter().enumerate();
    let own = own.filter(|(index, tensor)| is_own(*index) && tensor.byte_len() > 0);
    for (_, tensor) in own {
        let source = *source_of[tensor.shard()].get_or_insert_with(|| {
            let source = checkpoint.shards()[tensor.shard()].source();
            shards.push((source.clone(), Vec::new()));
            shards.len() - 1
        });
        shards[source].1.push(tensor.file_range());
    }
    (shards, source_of)
}

pub(super) fn layout(hints: &ReadHints, options: &Options, staged: bool) -> Layout {
    let extent_bytes = match options.extent_bytes {
        // No tensor is too large for staging memory: it passes through in smaller reads, at least
        // two at a time.
        None if staged && options.memory_limit.is_some() => {
            let room = options.memory_limit.unwrap_or(u64::MAX) / 2;
            let edges = 2 * hints.alignment;
            let most = room.saturating_sub(edges) / hints.alignment * hints.alignment;
            // Slots are whole pages, including the edges, even for short reads.
            let page = (page_size() as u64).saturating_sub(2 * hints.alignment.max(64));
            let least = page.max(hints.alignment);
            hints.extent_bytes.min(most.max(least))
        }
        // The option sets the length of requests, which span several extents.
        Some(bytes) if hints.request_bytes > hints.extent_bytes => bytes.min(hints.extent_bytes),
        Some(bytes) => bytes,
        None => hints.extent_bytes,
    };
    Layout {
        extent_bytes: extent_bytes.next_multiple_of(hints.alignment),
        alignment: hints.alignment,
        gap_bytes: hints.gap_bytes,
    }
}

/// Rejects plans with too many reads. A sparse file may claim a tensor of petabytes: planning its
/// reads would take more memory than any budget.
pub(super) fn refuse_too_many_reads(wanted: &[Wanted], layouts: &[Layout]) -> Result<()> {
    let slices = wanted.iter().filter_map(|wanted| {
        let strides = wanted.strides.as_ref()?;
        let Layout {
            gap_bytes,
            alignment,
            ..
        } = layouts[wanted.source];
        Some(strides.spans_of(gap_bytes.max(2 * alignment)))
    });
    let spans = slices.fold(0, u64::saturating_add);
    if spans > EXTENTS_MAX {
        return Err(Error::new(
            ErrorKind::InvalidRequest,
            format!("the slices have {spans} separate ranges, more than the maximum of {EXTENTS_MAX} reads"),
        )
        .with_hint("select fewer tensors, or load them whole and slice them in memory"));
    }
    let lengths = wanted
        .iter()
        .map(|wanted| wanted.range.end - wanted.range.start);
    let bytes = lengths.fold(0, u64::saturating_add);
    let smallest = layouts
        .iter()
        .map(|layout| layout.extent_bytes)
        .min()
        .unwrap_or(1);
    if bytes / smallest > EXTENTS_MAX {
        return Err(Error::new(
            ErrorKind::InvalidRequest,
            format!(
                "{} in reads of {} would take more than {EXTENTS_MAX} reads",
                format_bytes(bytes),
                format_bytes(smallest)
            ),
        )
        .with_hint("raise ‹extent_bytes›, or select fewer tensors"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::RemoteSource;
    use crate::format::Dtype;
    use crate::load::groups::{RemoteSources, SharedRegions};
    use crate::options::Location;
    use crate::testing::fixtures::FileBuilder;

    #[test]
    fn longest_extents_apply_to_files_only() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let file = FileBuilder::new().tensor("w", Dtype::U8, &[4], b"good");
        std::fs::write(folder.path().join("model.safetensors"), file.build()).expect("room");
        let location = Location::from_path(folder.path());
        let checkpoint = Checkpoint::open(&location).expect("opens");
        let options = Options {
            extent_bytes: Some(1 << 30),
            ..Options::default()
        };
        let (own, _) = own_shards(&checkpoint, checkpoint.tensors(), |_| true);
        let mut sources = Sources::open(own, &options, false).expect("opens");
        sources.add_shared(SharedRegions::new(&[(0, 0)], checkpoint.shards(), false));
        let remote = RemoteSource {
            owner: 1,
            shard: 0,
            end: 4,
        };
        sources.add_remote(RemoteSources::new(vec![remote], checkpoint.shards()));
        let layouts = layouts(&sources, None, &options, false).into_iter();
        let lengths: Vec<_> = layouts.map(|layout| layout.extent_bytes).collect();
        assert_eq!(lengths, [1 << 30, 4 << 20, 4 << 20]);
    }
}
