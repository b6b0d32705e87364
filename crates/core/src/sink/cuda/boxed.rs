//! Copies of a filled slot to memory of the caller: contiguous, or boxes, whose rows share a copy.
//!
//! Tensors never do: a gap between them may hold other data, or the end of an allocation.

use super::joined::{Place, SlotCopy};
use super::places::TargetPlaces;
use crate::memory::Rows;
use crate::plan::Piece;

/// Returns the copies of these pieces.
pub(super) fn target_copies(pieces: &[Piece], places: &TargetPlaces) -> Vec<SlotCopy> {
    let mut copies = Vec::with_capacity(pieces.len());
    for piece in pieces {
        let target = places.target(piece.tensor);
        let Some(boxes) = target.as_boxes() else {
            copies.push(SlotCopy {
                from: Place::Window(piece.extent_offset..piece.extent_offset + piece.len),
                to: target.address() + piece.tensor_offset,
                rows: None,
            });
            continue;
        };
        let first = usize::try_from(piece.tensor_offset).expect("inside the target's memory");
        for it in boxes {
            it.rows(first, piece.len, |Rows { from, to, copy }| {
                let start = piece.extent_offset + from;
                copies.push(SlotCopy {
                    from: Place::Window(start..start + copy.source_span()),
                    to,
                    rows: (copy.count > 1).then_some(copy),
                });
            });
        }
    }
    copies
}
