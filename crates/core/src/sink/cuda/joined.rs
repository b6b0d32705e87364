//! Copies of a filled slot: small tensors that are not as far apart on the device as in the file
//! are joined behind the window first.

use std::ops::Range;

use super::copies::{Copy, copies};
use crate::cuda::RowCopy;
use crate::memory::Filled;
use crate::plan::Piece;

/// Bytes of a slot that one copy moves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SlotCopy {
    pub(super) from: Place,
    /// Address on the device.
    pub(super) to: u64,
    /// Rows in these bytes, if not all of them are copied.
    pub(super) rows: Option<RowCopy>,
}

/// Place of bytes in a slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// In the window, as they were read.
    Window(Range<usize>),
    /// In the room behind it.
    Room(Range<usize>),
}

impl Place {
    pub(super) fn bytes<'s>(&self, slot: &'s Filled) -> &'s [u8] {
        match self {
            Self::Window(range) => &slot.bytes()[range.clone()],
            Self::Room(range) => &slot.room()[range.clone()],
        }
    }
}

/// Returns the copies of `filled`, whose pieces go to the addresses that `address` returns, and
/// joins small tensors for them.
pub(super) fn slot_copies(
    pieces: &[Piece],
    filled: &mut Filled,
    address: impl Fn(&Piece) -> u64,
) -> Vec<SlotCopy> {
    let (read, room) = filled.with_room();
    let copies = copies(pieces, room.len(), &address);
    let mut used = 0;
    let slot_copy = |copy: Copy| {
        let from = if let Some(offset) = copy.window_offset {
            Place::Window(offset..offset + copy.len)
        } else {
            let joined = used..used + copy.len;
            used = joined.end;
            let to = &mut room[joined.clone()];
            for piece in &pieces[copy.pieces] {
                let offset = usize::try_from(address(piece) - copy.to).expect("in the copy");
                let bytes = &read[piece.extent_offset..piece.extent_offset + piece.len];
                to[offset..offset + piece.len].copy_from_slice(bytes);
            }
            Place::Room(joined)
        };
        SlotCopy {
            from,
            to: copy.to,
            rows: None,
        }
    };
    copies.into_iter().map(slot_copy).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::memory::Slab;

    #[test]
    fn joined_tensors_have_distances_of_device() {
        let slab = Slab::new(4096, 1, Arc::default()).expect("maps");
        let bytes: Vec<u8> = (0..200).collect();
        let mut filled = slab.try_lease(1000).expect("free").fill_from(&bytes);
        let pieces: Vec<Piece> = (0..20)
            .map(|index| Piece {
                tensor: index,
                extent_offset: index * 10,
                tensor_offset: 0,
                len: 10,
            })
            .collect();
        let address = |piece: &Piece| 5000 + piece.tensor as u64 * 16;
        let copies = slot_copies(&pieces, &mut filled, address);
        let [SlotCopy { from, to: 5000, .. }] = &copies[..] else {
            panic!("{copies:?}");
        };
        let joined = from.bytes(&filled);
        assert_eq!(joined.len(), 19 * 16 + 10);
        for piece in &pieces {
            let at = piece.tensor * 16;
            assert_eq!(joined[at..at + 10], bytes[piece.extent_offset..][..10]);
        }
    }
}
