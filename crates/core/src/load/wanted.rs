//! Inputs of a load's plan: tensors with their sources, and the layouts of these.

use std::ops::Range;

use rustix::param::page_size;

use super::destinations::Destinations;
use crate::error::{Error, ErrorKind, Result};
use crate::options::{LoadOptions, format_bytes};
use crate::plan::{Layout, Strides, Wanted};
use crate::storage::ReadHints;
use crate::tensor::TensorInfo;

/// Maximum number of reads of one load: the plan takes about 100 bytes for each, and 16 TiB in
/// default extents need this many (2026-11).
const EXTENTS_MAX: u64 = 1 << 22;

/// Place of a tensor in the sources of a load.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub(super) source: usize,
    pub(super) range: Range<u64>,
    /// Its bytes in that range; all if `None`.
    pub(super) strides: Option<Strides>,
}

/// Describes the tensors to load, with the place that `place` returns. Each comes with its index,
/// and with an alignment of at least `align` bytes.
pub(super) fn wanted(
    tensors: &[TensorInfo],
    destinations: &Destinations,
    align: Option<u64>,
    place: impl Fn(usize) -> Place,
) -> Vec<(usize, Wanted)> {
    let align = align.and_then(|it| usize::try_from(it.next_power_of_two()).ok());
    let wanted = |(index, tensor): (usize, &TensorInfo)| {
        let Place {
            source,
            range,
            strides,
        } = place(index);
        let wanted = Wanted {
            source,
            range,
            strides,
            alignment: tensor.dtype().alignment().max(align.unwrap_or(1)),
            destination: destinations.index_for(index),
        };
        (index, wanted)
    };
    tensors.iter().enumerate().map(wanted).collect()
}

/// Returns the layout of a source with these hints. With `staged`, its bytes pass through staging
/// memory.
pub(super) fn layout(hints: &ReadHints, options: &LoadOptions, staged: bool) -> Layout {
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
