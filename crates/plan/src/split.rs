//! Decides which tensors share memory: large tensors get separate regions, small neighbours share
//! one.
//!
//! A shared allocation stays alive as long as any of its tensors, so it is kept small; but
//! thousands of small tensors must not cost a read and a mapping each. Packed regions have the size
//! that their destination asks for, since device memory is expensive to allocate.

use std::ops::Range;

use super::pack::Packed;
use super::place::ALIGNMENT_MIN;
use super::{Arrangement, Layout, Wanted};

/// Largest span of the file that a shared region holds, unless it is packed, and so the most that
/// one small tensor may keep alive. One read of this size still runs at the full speed of a disk
/// (`benches/results/`).
pub(super) const SHARED_BYTES_MAX: u64 = 1 << 20;

/// Number of published regions above which more tensors share one, and above which ranks get no
/// regions of their own columns: each rank maps every region
/// that it keeps, and Linux limits a process to 65,530 mappings (`vm.max_map_count`).
pub(super) const PUBLISHED_REGIONS: usize = 16_384;

/// Tensors that share one region, as indices into the wanted list, and the span of the source that
/// holds them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) source: usize,
    pub(super) destination: usize,
    pub(super) span: Range<u64>,
    pub(super) tensors: Vec<usize>,
    pub(super) realign: bool,
    /// Positions of the tensors in memory, if they are packed.
    pub(super) packed: Option<Packed>,
}

impl Run {
    fn new(index: usize, tensor: &Wanted, arrangement: Arrangement, realign: bool) -> Self {
        let mut run = Self {
            source: tensor.source,
            destination: tensor.destination,
            span: tensor.range.start..tensor.range.start,
            tensors: Vec::new(),
            realign,
            packed: arrangement.packing().map(Packed::new),
        };
        run.add(index, tensor);
        run
    }

    /// Returns whether `tensor` may share the region, which holds at most `bytes_max`.
    fn takes(&self, tensor: &Wanted, gap_bytes: u64, bytes_max: u64) -> bool {
        let Range { start, end } = tensor.range;
        self.source == tensor.source
            && self.destination == tensor.destination
            && start >= self.span.end
            && start - self.span.end <= gap_bytes
            && end - self.span.start <= bytes_max
            && (self.packed.as_ref()).is_none_or(|packed| packed.end_with(tensor) <= bytes_max)
    }

    fn add(&mut self, index: usize, tensor: &Wanted) {
        self.span.end = tensor.range.end;
        self.tensors.push(index);
        if let Some(packed) = &mut self.packed {
            packed.add(tensor);
        }
    }
}

/// Returns the length from which on each of the published tensors, `total_bytes` together, has a
/// separate region.
pub(super) fn published_bytes_max(total_bytes: u64) -> u64 {
    SHARED_BYTES_MAX.max(u64::div_ceil(total_bytes, PUBLISHED_REGIONS as u64))
}

/// Groups the tensors, which must come in file order, into runs. Tensors without bytes are in none.
///
/// Sources have `layouts`, destinations have `arrangements`. Tensors that are `rewritten` are
/// alone.
pub(super) fn runs(
    wanted: &[Wanted],
    layouts: &[Layout],
    arrangements: &[Arrangement],
    rewritten: &dyn Fn(usize) -> Option<u64>,
) -> Vec<Run> {
    let total_bytes = wanted.iter().map(|it| it.range.end - it.range.start).sum();
    let published_bytes_max = published_bytes_max(total_bytes);
    let mut runs: Vec<Run> = Vec::new();
    // True while the last run may take another tensor.
    let mut open = false;
    for (index, tensor) in wanted.iter().enumerate() {
        let Range { start, end } = tensor.range.clone();
        if start == end {
            continue;
        }
        // Reads of several tensors put file offset `x` at an address that is congruent to `x`
        // modulo the read alignment (a power of two, page-aligned regions), so an offset that is
        // not a multiple of the tensor's alignment leads to a misaligned address.
        let (layout, arrangement) = (&layouts[tensor.source], arrangements[tensor.destination]);
        debug_assert!(layout.alignment.max(ALIGNMENT_MIN) >= tensor.alignment as u64);
        let has_gaps = tensor.strides.is_some();
        let is_misaligned = start % tensor.alignment as u64 != 0;
        let is_rewritten = rewritten(index).is_some();
        let is_alone = arrangement.is_in_place() && (is_misaligned || is_rewritten) && !has_gaps;
        let realign = is_alone && (is_rewritten || !layout.reads_anywhere());
        let shared_bytes_max = match arrangement {
            Arrangement::Published => published_bytes_max,
            Arrangement::Packed(packing) => packing.region_bytes,
            Arrangement::InPlace | Arrangement::Scattered => SHARED_BYTES_MAX,
        };
        let small = end - start < shared_bytes_max && !is_alone && !has_gaps;
        match runs.last_mut() {
            Some(run) if open && small && run.takes(tensor, layout.gap_bytes, shared_bytes_max) => {
                run.add(index, tensor);
            }
            _ => {
                runs.push(Run::new(index, tensor, arrangement, realign));
                open = small;
            }
        }
    }
    runs
}
