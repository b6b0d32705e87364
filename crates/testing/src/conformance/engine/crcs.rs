//! Checks of the CRCs that engines compute of what they read: they are those of the right bytes.

use super::{Bench, Open, SLOT_BYTES, SLOTS, random};
use tload::internal::engine::Done;
use tload_base::crc::Polynomial;

/// Returns the CRC that a job asks for: two jobs of three ask for one.
pub(super) fn wanted(extent: usize) -> Option<Polynomial> {
    [Some(Polynomial::Crc64Nvme), Some(Polynomial::Crc32c), None][extent % 3]
}

/// Compares the CRC of a range of the bytes that were read with that of the right ones.
pub(super) fn compare(done: &Done, right: &[u8]) {
    let (Some(crc), Ok(filled)) = (wanted(done.extent), &done.result) else {
        return;
    };
    let (len, is_even) = (right.len(), done.extent.is_multiple_of(2));
    let range = if is_even {
        0..len
    } else {
        len / 9..len - len / 7
    };
    let found = filled.remainder(crc, range.clone());
    let right = crc.remainder(0, &right[range.clone()]);
    assert_eq!(found, right, "{crc:?} of {range:?}, extent {}", done.extent);
}

/// Windows that engines may read in several steps, all in flight.
pub(super) fn large_windows(open: Open<'_>) {
    let contents = vec![random(12, 2 * SLOT_BYTES + 12_345)];
    let mut bench = Bench::open(open, contents, SLOTS);
    let (step, len) = (bench.up(4096), bench.contents[0].len());
    let job = |bench: &Bench, index: usize| {
        let (offset, window) = (index * 19 * step, bench.up(SLOT_BYTES - index * 9 * 4096));
        (offset, window, window.min(len - offset) - index % 3 * 777)
    };
    for index in 0..SLOTS {
        let (offset, window, needed) = job(&bench, index);
        bench.submit(index, 0, offset, window, needed);
    }
    for done in bench.reap_all() {
        let (offset, _, needed) = job(&bench, done.extent);
        bench.compare(&done, 0, offset, needed);
    }
}
