//! Which tensors share memory: large ones live alone, small neighbours together.
//!
//! A shared allocation is kept whole while any of its tensors lives, so it stays small; but thousands of small tensors must not
//! cost a read and a mapping each.

use std::ops::Range;

use super::Wanted;

/// A shared region holds at most this span of the file: what keeping one small tensor may keep beside it. One read of this
/// size still runs at the full speed of a disk (`benches/results/`).
pub(super) const SHARED_BYTES_MAX: u64 = 1 << 20;

/// Tensors that will share one region, as indices into the wanted list, and the span of the source that holds them.
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
/// `alignment_of` and `gap_of` give a source's read alignment and the gap worth reading, bytes; `in_place` says whether a
/// destination is read into.
pub(super) fn runs(
    wanted: &[Wanted],
    alignment_of: impl Fn(usize) -> u64,
    gap_of: impl Fn(usize) -> u64,
    in_place: impl Fn(usize) -> bool,
) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    // Whether the last run may take another tensor.
    let mut open = false;
    for (index, tensor) in wanted.iter().enumerate() {
        let Range { start, end } = tensor.range.clone();
        if start == end {
            continue;
        }
        // Reads put file offset `x` at an address that equals `x` modulo the read alignment (a power of two, page-aligned
        // regions), so an offset that is no multiple of the dtype's alignment lands on an address that is none.
        debug_assert!(alignment_of(tensor.source) >= tensor.alignment as u64);
        let has_gaps = tensor.strides.is_some();
        let realign =
            in_place(tensor.destination) && start % tensor.alignment as u64 != 0 && !has_gaps;
        let small = end - start < SHARED_BYTES_MAX && !realign && !has_gaps;
        match runs.last_mut() {
            Some(run)
                if open
                    && small
                    && run.source == tensor.source
                    && run.destination == tensor.destination
                    && start >= run.span.end
                    && start - run.span.end <= gap_of(tensor.source)
                    && end - run.span.start <= SHARED_BYTES_MAX =>
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
