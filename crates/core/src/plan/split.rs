//! Decides which tensors share memory: large ones get a region of their own, small neighbours share
//! one.
//!
//! A shared allocation stays alive as long as any of its tensors, so it is kept small; but
//! thousands of small tensors must not cost a read and a mapping each.

use std::ops::Range;

use super::Wanted;

/// Largest span of the file that a shared region holds, and so the most that one small tensor may
/// keep alive. One read of this size still runs at the full speed of a disk (`benches/results/`).
pub(super) const SHARED_BYTES_MAX: u64 = 1 << 20;

/// Number of published regions above which more tensors share one: each rank maps every region
/// that it keeps, and Linux limits a process to 65,530 mappings (`vm.max_map_count`).
const PUBLISHED_REGIONS: u64 = 16_384;

/// Returns the largest span of a region that other processes map, of tensors of `total_bytes`.
pub(super) fn published_bytes_max(total_bytes: u64) -> u64 {
    SHARED_BYTES_MAX.max(total_bytes.div_ceil(PUBLISHED_REGIONS))
}

/// Tensors that share one region, as indices into the wanted list, and the span of the source that
/// holds them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) source: usize,
    pub(super) destination: usize,
    pub(super) span: Range<u64>,
    pub(super) tensors: Vec<usize>,
    pub(super) realign: bool,
}

/// Groups the tensors, which must come in file order, into runs. Tensors without bytes are in none.
///
/// `alignment_of` and `gap_of` return a source's read alignment and the largest gap worth reading,
/// bytes; `in_place` and `shared_bytes_max` return whether a destination is read into, and the
/// largest span that its tensors share a region for.
pub(super) fn runs(
    wanted: &[Wanted],
    alignment_of: impl Fn(usize) -> u64,
    gap_of: impl Fn(usize) -> u64,
    in_place: impl Fn(usize) -> bool,
    shared_bytes_max: impl Fn(usize) -> u64,
) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    // True while the last run may take another tensor.
    let mut open = false;
    for (index, tensor) in wanted.iter().enumerate() {
        let Range { start, end } = tensor.range.clone();
        if start == end {
            continue;
        }
        // Reads put file offset `x` at an address that is congruent to `x` modulo the read
        // alignment (a power of two, page-aligned regions), so an offset that is not a multiple of
        // the dtype's alignment leads to a misaligned address.
        debug_assert!(alignment_of(tensor.source) >= tensor.alignment as u64);
        let has_gaps = tensor.strides.is_some();
        let realign =
            in_place(tensor.destination) && start % tensor.alignment as u64 != 0 && !has_gaps;
        let shared_bytes_max = shared_bytes_max(tensor.destination);
        let small = end - start < shared_bytes_max && !realign && !has_gaps;
        match runs.last_mut() {
            Some(run)
                if open
                    && small
                    && run.source == tensor.source
                    && run.destination == tensor.destination
                    && start >= run.span.end
                    && start - run.span.end <= gap_of(tensor.source)
                    && end - run.span.start <= shared_bytes_max =>
            {
                run.span.end = end;
                run.tensors.push(index);
            }
            _ => {
                runs.push(Run {
                    source: tensor.source,
                    destination: tensor.destination,
                    span: start..end,
                    tensors: vec![index],
                    realign,
                });
                open = small;
            }
        }
    }
    runs
}
