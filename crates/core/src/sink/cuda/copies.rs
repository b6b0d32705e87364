//! Copies of an extent's bytes to device memory. Pieces that are as far apart there as in the
//! window share one. Small ones that are not are joined first, in room behind the window: a copy
//! takes some microseconds, however short it is.
//!
//! ```text
//!  window  [a][b ][c ][d  ][            e            ]   room  [a]··[b ]·[c ]·[d  ]
//!  device  [a]··[b ]·[c ]·[d  ]··[            e            ]
//!  copies   └─── 1, from the room ┘ └────── 2 ────────┘
//! ```

use std::ops::Range;

use crate::plan::{Extent, Piece, Plan};

/// Largest part that is joined with others, bytes: moving it takes less time than a copy of its
/// own. (A core moves 10 GB/s; a copy takes 2 to 5 µs, H100, 2026-11, `benches/results/`.)
const RUN_BYTES_MAX: usize = 16 << 10;

/// Minimum number of parts that are joined: fewer are not worth the memory.
const RUNS_MIN: usize = 4;

/// Largest gap on the device between parts that are joined, bytes: more than any alignment.
const GAP_BYTES_MAX: u64 = 256;

/// Maximum number of bytes of one extent that are joined.
const JOINED_BYTES_MAX: usize = 1 << 20;

/// One copy of an extent's bytes to device memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Copy {
    /// Its pieces, as indices into those of the extent.
    pub(super) pieces: Range<usize>,
    /// Address of its first byte.
    pub(super) to: u64,
    /// Length on the device, bytes.
    pub(super) len: usize,
    /// Offset of its first byte in the window, if the bytes lie there as on the device. Otherwise
    /// they must be joined first.
    pub(super) window_offset: Option<usize>,
}

impl Copy {
    fn end(&self) -> u64 {
        self.to + self.len as u64
    }
}

/// Returns the copies of an extent with these pieces, whose addresses `address` returns. There is
/// `room` for so many bytes that are joined.
pub(super) fn copies(pieces: &[Piece], room: usize, address: impl Fn(&Piece) -> u64) -> Vec<Copy> {
    let mut parts: Vec<Copy> = Vec::new();
    for (index, piece) in pieces.iter().enumerate() {
        let to = address(piece);
        if let Some(last) = parts.last_mut()
            && let Some(from) = last.window_offset
            && piece.extent_offset >= from
            && to == last.to + (piece.extent_offset - from) as u64
        {
            last.pieces.end = index + 1;
            last.len = piece.extent_offset - from + piece.len;
            continue;
        }
        parts.push(Copy {
            pieces: index..index + 1,
            to,
            len: piece.len,
            window_offset: Some(piece.extent_offset),
        });
    }
    if parts.len() < RUNS_MIN {
        return parts;
    }
    join(&parts, room.min(JOINED_BYTES_MAX))
}

/// Joins small parts that are neighbours on the device.
fn join(parts: &[Copy], mut room: usize) -> Vec<Copy> {
    let mut copies = Vec::new();
    let mut rest = parts;
    while let Some(first) = rest.first() {
        let (mut count, mut len, mut end) = (0, 0, first.to);
        for part in rest {
            let is_near = (part.to.checked_sub(end)).is_some_and(|gap| gap <= GAP_BYTES_MAX);
            let with = usize::try_from(part.end() - first.to.min(part.to)).unwrap_or(usize::MAX);
            if !is_near || part.len > RUN_BYTES_MAX || with > room {
                break;
            }
            (count, len, end) = (count + 1, with, part.end());
        }
        let taken = if count < RUNS_MIN {
            copies.extend_from_slice(&rest[..count.max(1)]);
            count.max(1)
        } else {
            room -= len;
            copies.push(Copy {
                pieces: first.pieces.start..rest[count - 1].pieces.end,
                to: first.to,
                len,
                window_offset: None,
            });
            count
        };
        rest = &rest[taken..];
    }
    copies
}

/// Returns the number of bytes that an extent of a destination in device memory joins at most: the
/// room that its slots should have behind the window.
pub fn joined_bytes_max(plan: &Plan, destination: usize) -> usize {
    let offset = |piece: &Piece| {
        let (_, offset) = plan.targets[piece.tensor].place.unwrap_or_default();
        offset as u64 + piece.tensor_offset
    };
    let joined = |extent: &Extent| -> usize {
        let pieces = &plan.pieces[extent.pieces.clone()];
        let copies = copies(pieces, JOINED_BYTES_MAX, offset).into_iter();
        let joined = copies.filter(|copy| copy.window_offset.is_none());
        joined.map(|copy| copy.len).sum()
    };
    let regions = plan.regions_of(destination);
    let extents = regions.flat_map(|region| &plan.extents[region.extents.clone()]);
    extents.map(joined).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns pieces of these lengths without gaps, and their addresses, aligned to 16.
    fn pieces(lens: &[usize]) -> (Vec<Piece>, Vec<u64>) {
        let (mut offset, mut address) = (0, 4096_u64);
        let mut pieces = Vec::new();
        let mut addresses = Vec::new();
        for (tensor, len) in lens.iter().enumerate() {
            pieces.push(Piece {
                tensor,
                extent_offset: offset,
                tensor_offset: 0,
                len: *len,
            });
            address = address.next_multiple_of(16);
            addresses.push(address);
            offset += len;
            address += *len as u64;
        }
        (pieces, addresses)
    }

    fn shapes(lens: &[usize], room: usize) -> Vec<(Range<usize>, Option<usize>)> {
        let (pieces, addresses) = pieces(lens);
        let copies = copies(&pieces, room, |piece| addresses[piece.tensor]);
        copies
            .into_iter()
            .map(|it| (it.pieces, it.window_offset))
            .collect()
    }

    #[test]
    fn equal_distances_share_a_copy_and_small_parts_are_joined() {
        const MIB: usize = 1 << 20;
        assert_eq!(shapes(&[176; 1000], MIB), [(0..1000, Some(0))]);
        assert_eq!(shapes(&[100; 50], MIB), [(0..50, None)]);
        // Few are not.
        assert_eq!(shapes(&[100; 3], MIB).len(), 3);
        // Large ones stay where they are.
        assert_eq!(
            shapes(&[4, 4, 100, 100, MIB + 4, 20, 20, 20, 20, MIB], MIB),
            [
                (0..4, None),
                (4..5, Some(208)),
                (5..9, None),
                (9..10, Some(MIB + 292)),
            ]
        );
        // Without room, each is a copy of its own.
        assert_eq!(shapes(&[100; 50], 0).len(), 50);
        assert_eq!(
            shapes(&[100; 50], 112 * 20)[..2],
            [(0..20, None), (20..21, Some(2000))]
        );
    }

    proptest! {
        /// Each piece is in one copy, at its place; copies neither overlap nor exceed the room.
        #[test]
        fn every_piece_is_copied_once(
            lens in prop::collection::vec(prop_oneof![1_usize..200, 1_usize..60_000], 1..80),
            room in prop::sample::select(vec![0_usize, 100, 5000, 1 << 20]),
        ) {
            let (pieces, addresses) = pieces(&lens);
            let copies = copies(&pieces, room, |piece| addresses[piece.tensor]);
            let mut next = 0;
            let mut end = 0;
            let mut joined = 0;
            for copy in &copies {
                prop_assert_eq!(copy.pieces.start, next);
                next = copy.pieces.end;
                prop_assert!(copy.to >= end);
                end = copy.end();
                for piece in &pieces[copy.pieces.clone()] {
                    let offset = addresses[piece.tensor] - copy.to;
                    prop_assert!(offset + piece.len as u64 <= copy.len as u64);
                    if let Some(from) = copy.window_offset {
                        prop_assert_eq!((piece.extent_offset - from) as u64, offset);
                    }
                }
                joined += if copy.window_offset.is_none() { copy.len } else { 0 };
            }
            prop_assert_eq!(next, pieces.len());
            prop_assert!(joined <= room);
        }
    }
}
