//! Memory by address: mappings followed by a page that traps, and copies between addresses.
//!
//! Knows nothing of devices and streams: `memory.rs`, `host.rs` and `copy.rs` track ownership, and
//! keep the ranges mapped.

#![expect(
    unsafe_code,
    reason = "memory by address: mmap, and copies between ranges that the caller has checked"
)]

use std::ptr;

/// Byte that fills fresh memory, so that it is not mistaken for zeros.
const POISON: u8 = 0xDB;

/// Private mapping with one inaccessible page behind it.
#[derive(Debug)]
pub(crate) struct Mapping {
    start: usize,
    /// Length in whole pages, with the last one.
    len: usize,
}

impl Mapping {
    /// Maps at least `len` bytes, poisoned. `None` when the system has no more.
    pub(crate) fn new(len: usize) -> Option<Self> {
        let page = page_size();
        let inside = len.checked_next_multiple_of(page)?;
        let whole = inside.checked_add(page)?;
        let private = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping at an address of the kernel's choice replaces nothing.
        let start = unsafe { libc::mmap(ptr::null_mut(), whole, libc::PROT_NONE, private, -1, 0) };
        if start == libc::MAP_FAILED {
            return None;
        }
        let mapping = Self {
            start: start.expose_provenance(),
            len: whole,
        };
        // SAFETY: the range is all but the last page of the mapping just made.
        let opened = unsafe { libc::mprotect(start, inside, libc::PROT_READ | libc::PROT_WRITE) };
        if opened != 0 {
            return None;
        }
        fill(mapping.start, inside, POISON);
        Some(mapping)
    }

    pub(crate) fn start(&self) -> usize {
        self.start
    }

    /// Frees the memory and makes every access trap, but keeps the addresses reserved.
    pub(crate) fn seal(&self) {
        let start = ptr::with_exposed_provenance_mut::<libc::c_void>(self.start);
        // SAFETY: the range is this mapping; its owner has just given it up.
        let sealed = unsafe { libc::mprotect(start, self.len, libc::PROT_NONE) };
        assert_eq!(sealed, 0, "an owned mapping can be sealed");
        // SAFETY: as above. Whether the kernel frees the pages now does not matter.
        unsafe { libc::madvise(start, self.len, libc::MADV_DONTNEED) };
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        let start = ptr::with_exposed_provenance_mut::<libc::c_void>(self.start);
        // SAFETY: the range is this mapping, and nothing refers to it any more.
        unsafe { libc::munmap(start, self.len) };
    }
}

fn page_size() -> usize {
    // SAFETY: has no precondition.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(size).expect("a page has a size")
}

/// Returns whether a byte of the range is in a mapping of this process that cannot be written to.
pub(crate) fn is_read_only(start: usize, len: usize) -> bool {
    let mappings = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    // For example `7f12a000-7f12b000 rw-s 00000000 …`.
    mappings.lines().any(|line| {
        let mut fields = line.split(['-', ' ']);
        let mut next = || fields.next().unwrap_or_default();
        let [from, to] = [next(), next()].map(|it| usize::from_str_radix(it, 16).unwrap_or(0));
        from < start + len && start < to && !next().contains('w')
    })
}

/// Copies as a device would: the bytes at this moment. Ranges may overlap.
pub(crate) fn copy(from: usize, to: usize, len: usize) {
    let from = ptr::with_exposed_provenance::<u8>(from);
    let to = ptr::with_exposed_provenance_mut::<u8>(to);
    // SAFETY: both ranges are mapped while this runs: device memory is marked as in use, pinned
    // memory is not released while it has work, and other host memory is copied before the call
    // that named it returns.
    unsafe { ptr::copy(from, to, len) };
}

pub(crate) fn fill(to: usize, len: usize, byte: u8) {
    let to = ptr::with_exposed_provenance_mut::<u8>(to);
    // SAFETY: the range is mapped while this runs, as in `copy`.
    unsafe { ptr::write_bytes(to, byte, len) };
}

/// Returns a copy of host memory.
pub(crate) fn snapshot(from: usize, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    copy(from, bytes.as_mut_ptr().expose_provenance(), len);
    bytes
}

/// Returns a checksum that detects changes of a range; not for adversaries.
pub(crate) fn checksum(from: usize, len: usize) -> u64 {
    const LANES: usize = 4;
    const WORD: usize = size_of::<u64>();
    let words = len / WORD;
    let mut lanes = [0x9E37_79B9_7F4A_7C15_u64, 1, 2, 3];
    let mut index = 0;
    while index < words {
        let lane = &mut lanes[index % LANES];
        *lane = (*lane ^ word(from + index * WORD))
            .wrapping_mul(0xFF51_AFD7_ED55_8CCD)
            .rotate_left(29);
        index += 1;
    }
    let mut tail = 0;
    for offset in words * WORD..len {
        tail = tail << 8 | u64::from(byte(from + offset));
    }
    lanes.into_iter().fold(tail, |sum, lane| {
        (sum ^ lane)
            .wrapping_mul(0xC4CE_B9FE_1A85_EC53)
            .rotate_left(31)
    })
}

fn word(from: usize) -> u64 {
    let from = ptr::with_exposed_provenance::<u64>(from);
    // SAFETY: inside a range that is mapped while this runs, as in `copy`. The caller may be
    // writing there: that is what the checksum detects.
    unsafe { from.read_unaligned() }
}

fn byte(from: usize) -> u8 {
    let from = ptr::with_exposed_provenance::<u8>(from);
    // SAFETY: as in `word`.
    unsafe { from.read() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fresh_memory_is_poisoned() {
        let mapping = Mapping::new(5000).unwrap();
        assert!(
            snapshot(mapping.start(), 5000)
                .iter()
                .all(|byte| *byte == POISON)
        );
    }

    #[test]
    fn any_changed_byte_changes_the_checksum() {
        let mut bytes: Vec<u8> = (0..77).collect();
        let sum = |bytes: &Vec<u8>| checksum(bytes.as_ptr().expose_provenance(), bytes.len());
        let before = sum(&bytes);
        for index in 0..bytes.len() {
            bytes[index] ^= 0x40;
            assert_ne!(sum(&bytes), before, "byte {index}");
            bytes[index] ^= 0x40;
        }
        assert_eq!(sum(&bytes), before);
    }
}
