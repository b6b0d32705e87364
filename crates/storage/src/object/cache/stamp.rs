//! Stamps: fixed records, one for each tile of an entry, that say that the tile was written, and
//! its checksum. Pure.
//!
//! A tile counts as present if its stamp is valid and the checksum of its bytes is the stamp's.
//! So nothing has to reach the disk in a particular order: a process or machine that stops between
//! the two writes leaves a stamp that is zero, torn or for other bytes, and the tile is absent.
//!
//! ```text
//!  bytes 0..4   CRC-32C of the tile, little endian
//!  bytes 4..8   CRC-32C of the entry's seed, the tile's number and the four bytes before, or 1 if
//!               that is 0
//! ```

use std::ops::Range;

use tload_base::crc::Polynomial;

/// Length of a tile, bytes; the last one of an object may be shorter. Small enough that a slice
/// brings in few bytes around it, large enough that stamps take less than 1/8000 of the disk.
pub const TILE_BYTES: u64 = 64 << 10;

/// Length of a stamp, bytes.
pub(super) const STAMP_BYTES: usize = 8;

/// Polynomial of checksums.
pub const TILE_CRC: Polynomial = Polynomial::Crc32c;

/// Computes the CRC-32C of bytes.
pub(super) fn checksum(bytes: &[u8]) -> u32 {
    continued(0, bytes)
}

/// Returns the CRC-32C of bytes with the CRC-32C `before`, which is 0 for none, and `bytes`. It is
/// the inverted remainder of all bytes behind initial ones.
pub(super) fn continued(before: u32, bytes: &[u8]) -> u32 {
    let remainder = TILE_CRC.remainder(u64::from(!before), bytes);
    !u32::try_from(remainder).expect("a CRC of 32 bits")
}

/// Returns the stamp of a tile with this checksum, in the entry with this seed.
pub(super) fn stamp(seed: u64, tile: u64, crc: u32) -> [u8; STAMP_BYTES] {
    let crc = crc.to_le_bytes();
    let mut marked = [0; 20];
    marked[..8].copy_from_slice(&seed.to_le_bytes());
    marked[8..16].copy_from_slice(&tile.to_le_bytes());
    marked[16..].copy_from_slice(&crc);
    let mark = checksum(&marked).max(1);
    let mut stamp = [0; STAMP_BYTES];
    stamp[..4].copy_from_slice(&crc);
    stamp[4..].copy_from_slice(&mark.to_le_bytes());
    stamp
}

/// Returns the checksum in the stamp of a tile; `None` for anything but a valid stamp.
pub(super) fn stamped(seed: u64, tile: u64, found: &[u8]) -> Option<u32> {
    let (crc, mark) = found.split_first_chunk()?;
    if mark == [0; 4] {
        // A mark is never 0, so zeros mean a tile that was not written. This is the usual case.
        return None;
    }
    let crc = u32::from_le_bytes(*crc);
    (stamp(seed, tile, crc) == found).then_some(crc)
}

/// Returns the tiles that overlap a range of bytes.
pub(super) fn tiles(range: &Range<u64>) -> Range<u64> {
    range.start / TILE_BYTES..range.end.div_ceil(TILE_BYTES)
}

/// Returns the bytes of tiles, in an object of `len` bytes.
pub(super) fn bytes_of(tiles: &Range<u64>, len: u64) -> Range<u64> {
    tiles.start * TILE_BYTES..(tiles.end * TILE_BYTES).min(len)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamp_is_valid_for_its_entry_tile_and_checksum_only() {
        let good = stamp(7, 3, 0xABCD);
        assert_eq!(stamped(7, 3, &good), Some(0xABCD));
        assert_eq!(stamped(8, 3, &good), None);
        assert_eq!(stamped(7, 4, &good), None);
        for bit in 0..STAMP_BYTES * 8 {
            let mut bad = good;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(stamped(7, 3, &bad), None, "bit {bit}");
        }
        for len in 0..STAMP_BYTES {
            assert_eq!(stamped(7, 3, &good[..len]), None, "{len} bytes");
        }
    }

    #[test]
    fn zeros_are_no_stamp() {
        for tile in 0..100_000 {
            assert_eq!(stamped(0, tile, &[0; STAMP_BYTES]), None);
        }
    }

    #[test]
    fn tiles_cover_ranges() {
        // 200,000 bytes are 3 tiles of 65,536 bytes and one of 3,392.
        assert_eq!(tiles(&(0..200_000)), 0..4);
        assert_eq!(tiles(&(65_535..65_537)), 0..2);
        assert_eq!(tiles(&(65_536..131_072)), 1..2);
        assert_eq!(bytes_of(&(3..4), 200_000), 196_608..200_000);
        assert_eq!(bytes_of(&(1..3), 200_000), 65_536..196_608);
    }
}
