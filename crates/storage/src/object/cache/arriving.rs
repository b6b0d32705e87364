//! Bytes on their way to the disk, with the checksum of each tile: it is computed as the bytes
//! arrive, while they are still in the processor's cache.

use super::buffers::{BUFFER_BYTES, BUFFER_TILES};
use super::stamp::continued;
use crate::memory::{Filled, Filling, Lease};

/// Length of a tile, as the length of a slice.
pub(super) const TILE: usize = BUFFER_BYTES / BUFFER_TILES;

/// Buffer that is being filled, from the beginning of a tile.
#[derive(Debug)]
pub(super) struct Arriving {
    start: u64,
    filling: Filling,
    checksums: Vec<u32>,
}

/// Bytes from the beginning of a tile to the end of one, and the checksum of each.
#[derive(Debug)]
pub(super) struct Arrived {
    pub(super) start: u64,
    bytes: Filled,
    pub(super) checksums: Vec<u32>,
}

impl Arriving {
    /// Starts with the tile at `start`, an offset in the object.
    pub(super) fn new(start: u64, buffer: Lease) -> Self {
        Self {
            start,
            // The disk reads them, not the processor.
            filling: buffer.filling().streaming(),
            checksums: Vec::with_capacity(BUFFER_TILES),
        }
    }

    /// Appends bytes. The checksum is that of `bytes`, not of the copy: the copy, the disk and the
    /// way back are what it guards.
    pub(super) fn push(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let begun = self.filling.len() % TILE;
            let (now, later) = bytes.split_at(bytes.len().min(TILE - begun));
            let before = (begun > 0).then(|| self.checksums.pop()).flatten();
            self.checksums.push(continued(before.unwrap_or(0), now));
            self.filling.push(now);
            bytes = later;
        }
    }

    /// Returns the bytes, which end with a tile.
    pub(super) fn finish(self) -> Arrived {
        Arrived {
            start: self.start,
            bytes: self.filling.finish(),
            checksums: self.checksums,
        }
    }
}

impl Arrived {
    pub(super) fn bytes(&self) -> &[u8] {
        self.bytes.bytes()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::buffers::Supplies;
    use super::super::stamp::checksum;
    use super::*;

    #[test]
    fn checksums_are_of_tiles_however_the_bytes_arrive() {
        let all: Vec<u8> = (0..=250).cycle().take(2 * TILE + 100).collect();
        let wanted: Vec<u32> = all.chunks(TILE).map(checksum).collect();
        let supplies = Supplies::default();
        for each in [10_000, TILE - 1, TILE, TILE + 1, all.len()] {
            let buffer = supplies.for_read(2).wait(Duration::MAX).expect("a buffer");
            let mut arriving = Arriving::new(0, buffer);
            all.chunks(each).for_each(|piece| arriving.push(piece));
            let arrived = arriving.finish();
            assert_eq!(arrived.checksums, wanted, "{each} bytes at a time");
            assert!(arrived.bytes() == all);
        }
    }
}
