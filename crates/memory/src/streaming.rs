//! Copies into memory that nothing reads soon. Streaming stores write past the processor's caches:
//! a plain store first reads the line that it overwrites, and evicts another one.
//!
//! Owns no memory. [`Filling`](super::Filling) is the only caller. Copies are plain on processors
//! other than x86-64, and under Miri, which does not know these instructions.

#![expect(
    unsafe_code,
    reason = "writes to slices by instructions of the processor that take pointers"
)]

use std::mem::MaybeUninit;
use std::ptr::NonNull;

/// Length of a cache line, bytes. Streaming stores that fill a line leave as one write.
const LINE_BYTES: usize = 64;

/// Length of a streaming store, bytes.
#[cfg(all(target_arch = "x86_64", not(miri)))]
const STORE_BYTES: usize = 16;

/// Least length of a copy that streams, bytes. From a source in the second-level cache, a GiB in
/// copies of 2 KiB takes 0.057 s of an AMD EPYC's core with plain stores and 0.086 s with streaming
/// ones, of 4 KiB 0.088 and 0.067, of 64 KiB 0.084 and 0.041 (2026-11-28).
const STREAMED_BYTES_MIN: usize = 4096;

/// Copies all of `source` to `target`, which has the same length. Memory that nothing reads soon
/// should be the target. Other threads see the bytes as they see those of a plain copy.
///
/// # Panics
///
/// When the lengths differ.
#[inline(never)] // Callers in crates that are not optimised would compile their own loops.
pub(super) fn copy_streaming(source: &[u8], target: &mut [MaybeUninit<u8>]) {
    assert_eq!(source.len(), target.len(), "copies have one length");
    if source.len() < STREAMED_BYTES_MIN {
        return copy(source, target);
    }
    let before = target.as_ptr().addr().wrapping_neg() % LINE_BYTES;
    let lines = (source.len() - before) / LINE_BYTES * LINE_BYTES;
    let (source_before, source) = source.split_at(before);
    let (target_before, target) = target.split_at_mut(before);
    let (source, source_after) = source.split_at(lines);
    let (target, target_after) = target.split_at_mut(lines);
    copy(source_before, target_before);
    copy_lines(source, target);
    copy(source_after, target_after);
}

/// Copies all of `source` to `target`, which has the same length.
///
/// # Panics
///
/// When the lengths differ.
#[inline]
pub(super) fn copy(source: &[u8], target: &mut [MaybeUninit<u8>]) {
    assert_eq!(source.len(), target.len(), "copies have one length");
    let (from, to) = (NonNull::from(source), NonNull::from(target));
    // SAFETY: both slices have this length, and one that can be written to shares no byte with
    // another one.
    unsafe {
        to.cast()
            .copy_from_nonoverlapping(from.cast::<u8>(), source.len());
    };
}

/// Copies whole lines to the beginning of a line.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline]
fn copy_lines(source: &[u8], target: &mut [MaybeUninit<u8>]) {
    use std::arch::x86_64::{_mm_loadu_si128, _mm_sfence, _mm_stream_si128};

    debug_assert!(target.as_ptr().addr().is_multiple_of(STORE_BYTES));
    let sources = source.chunks_exact(STORE_BYTES);
    for (from, to) in sources.zip(target.chunks_exact_mut(STORE_BYTES)) {
        // SAFETY: the slice has 16 bytes, which may lie at any address.
        let bytes = unsafe { _mm_loadu_si128(from.as_ptr().cast()) };
        // SAFETY: the slice has 16 bytes, and begins at a multiple of 16, as the first one does.
        // The fence below comes before any other access to them.
        unsafe { _mm_stream_si128(to.as_mut_ptr().cast(), bytes) };
    }
    // Streaming stores are not ordered with the stores that publish these bytes. This thread may
    // not be the one that publishes them, so the fence is here.
    // SAFETY: every x86-64 processor has SSE.
    unsafe { _mm_sfence() };
}

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
#[inline]
fn copy_lines(source: &[u8], target: &mut [MaybeUninit<u8>]) {
    copy(source, target);
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNTOUCHED: u8 = 0xEE;

    /// Returns the index of the byte with this distance from the first beginning of a line.
    fn at_distance(memory: &[u8], distance: usize) -> usize {
        memory.as_ptr().addr().wrapping_neg() % LINE_BYTES + distance
    }

    /// Copies `len` bytes, from and to addresses with these distances from a line's beginning.
    fn check(memory: &[u8], len: usize, from: usize, to: usize) {
        let source = &memory[at_distance(memory, from)..][..len];
        let mut found = vec![UNTOUCHED; len + 3 * LINE_BYTES];
        let to = at_distance(&found, to);
        let target = found[to..].as_mut_ptr().cast::<MaybeUninit<u8>>();
        // SAFETY: `found` has `len` bytes there. The copy writes bytes, so they stay initialised.
        let target = unsafe { std::slice::from_raw_parts_mut(target, len) };
        copy_streaming(source, target);
        assert!(found[to..to + len] == *source, "{len} bytes to {to}");
        let mut around = found[..to].iter().chain(&found[to + len..]);
        assert!(around.all(|byte| *byte == UNTOUCHED), "{len} bytes to {to}");
    }

    #[test]
    fn bytes_arrive_at_every_alignment_and_length() {
        let distances = || (0..LINE_BYTES).step_by(if cfg!(miri) { 31 } else { 1 });
        let around = |len: usize| len - 1..=len + 1;
        let memory: Vec<u8> = (0..=250).cycle().take(3 * STREAMED_BYTES_MIN).collect();
        for to in distances() {
            for len in (0..=2)
                .chain(around(LINE_BYTES))
                .chain(around(STREAMED_BYTES_MIN))
            {
                check(&memory, len, to / 2, to);
            }
            for from in distances() {
                check(&memory, STREAMED_BYTES_MIN + 100, from, to);
            }
        }
        for more in distances() {
            check(&memory, STREAMED_BYTES_MIN + more, 1, 3);
            check(&memory, 2 * STREAMED_BYTES_MIN + more, 3, LINE_BYTES - 1);
        }
    }

    #[test]
    fn other_threads_see_the_bytes() {
        const BYTES: usize = 2 * STREAMED_BYTES_MIN;
        let (sender, receiver) = std::sync::mpsc::channel::<(u8, Vec<MaybeUninit<u8>>)>();
        let reads = std::thread::spawn(move || {
            for (wanted, bytes) in receiver {
                // SAFETY: the copy initialised every byte.
                let found =
                    unsafe { std::slice::from_raw_parts(bytes.as_ptr().cast::<u8>(), BYTES) };
                assert!(found == [wanted; BYTES]);
            }
        });
        for byte in 0..if cfg!(miri) { 2 } else { 200 } {
            let mut target = vec![MaybeUninit::uninit(); BYTES];
            copy_streaming(&[byte; BYTES], &mut target);
            sender.send((byte, target)).expect("is received");
        }
        drop(sender);
        reads.join().expect("every byte is right");
    }

    #[test]
    #[should_panic(expected = "copies have one length")]
    fn lengths_that_differ_are_refused() {
        copy_streaming(&[0; 2], &mut [MaybeUninit::uninit(); 3]);
    }
}
