//! Shares of one window, for several threads that fill it at the same time.
//!
//! ```text
//! Lease::split ─▶ Strip, Strip, … ─ a thread each ─▶ Strip::join ─ the last one ─▶ Lease
//! ```
//!
//! The strips of a window are disjoint, and the lease is out of reach while one of them is left: no
//! two threads can write to the same byte, and the window is free only when no thread writes to it.

#![expect(
    unsafe_code,
    reason = "hands out disjoint bytes of a window to one strip each"
)]

use std::ops::Range;
// Not loom's, which cannot be taken apart.
use std::sync::Arc;

use super::lease::Lease;

/// Exclusive right to some bytes of a window. All strips of the window share a `T`.
#[derive(Debug)]
pub struct Strip<T> {
    whole: Arc<(Lease, T)>,
    /// Bytes of the window.
    range: Range<usize>,
}

impl Lease {
    /// Divides the window into `count` strips of `bytes` bytes, except for the last one, which ends
    /// with the window. `shared` belongs to all of them.
    ///
    /// # Panics
    ///
    /// For a view, without strips, and if the window is too short for them.
    #[doc(hidden)]
    pub fn split<T>(
        self,
        bytes: usize,
        count: usize,
        shared: T,
    ) -> impl ExactSizeIterator<Item = Strip<T>> {
        assert!(!self.is_view(), "a load never writes to a view");
        let last = count.checked_sub(1).expect("a window has strips");
        let fits = last.checked_mul(bytes).is_some_and(|it| it <= self.len());
        assert!(fits, "strips outside of the window");
        let len = self.len();
        let whole = Arc::new((self, shared));
        (0..count).map(move |index| Strip {
            whole: Arc::clone(&whole),
            range: index * bytes..if index == last {
                len
            } else {
                (index + 1) * bytes
            },
        })
    }
}

impl<T> Strip<T> {
    /// Bytes of the window that this strip has.
    #[inline]
    pub fn range(&self) -> Range<usize> {
        self.range.clone()
    }

    /// Returns what the strips of the window share.
    #[inline]
    pub fn shared(&self) -> &T {
        &self.whole.1
    }

    /// Returns bytes of the strip, counted from its start, in the state of [`Lease::bytes_mut`].
    ///
    /// # Panics
    ///
    /// For bytes outside of the strip.
    #[inline]
    pub fn bytes_mut(&mut self, range: Range<usize>) -> &mut [u8] {
        assert!(
            range.start <= range.end && range.end <= self.range.len(),
            "bytes outside of the strip"
        );
        let start = self.whole.0.window().as_ptr();
        // SAFETY: `split` has checked that the strip is in the window, and the range is in it.
        let start = unsafe { start.add(self.range.start + range.start) };
        // SAFETY: windows lie in mappings, whose bytes the system has initialised. `split` has
        // taken their lease and given each byte to one strip; `&mut self` makes the access
        // exclusive.
        unsafe { std::slice::from_raw_parts_mut(start, range.len()) }
    }

    /// Gives the strip back. The last one of a window returns the lease.
    #[inline]
    pub fn join(self) -> Option<(Lease, T)> {
        Arc::into_inner(self.whole)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::Slab;

    fn slab(bytes: usize) -> Arc<Slab> {
        Slab::new(bytes, 1, Arc::default()).expect("maps")
    }

    #[test]
    #[expect(clippy::single_range_in_vec_init, reason = "one strip")]
    fn strips_cover_the_window_without_overlap() {
        // By length of the window and of strips, and number of strips: their ranges.
        let cases: [(usize, usize, &[Range<usize>]); 5] = [
            (10, 4, &[0..4, 4..8, 8..10]),
            (8, 4, &[0..4, 4..8]),
            (9, 4, &[0..4, 4..9]),
            (3, 4, &[0..3]),
            (4, 4, &[0..4, 4..4]),
        ];
        for (len, bytes, expected) in cases {
            let lease = slab(len).try_lease(len).expect("free");
            let strips = lease.split(bytes, expected.len(), ());
            let ranges: Vec<_> = strips.map(|strip| strip.range()).collect();
            assert_eq!(ranges, expected);
        }
    }

    #[test]
    fn threads_fill_one_window_and_the_last_one_gets_it() {
        const STRIPS: usize = 5;
        const BYTES: usize = 100;
        let slab = slab(BYTES * STRIPS);
        let lease = slab.try_lease(BYTES * STRIPS - 1).expect("free");
        let returned = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for (index, mut strip) in lease.split(BYTES, STRIPS, 7).enumerate() {
                let (slab, returned) = (&slab, &returned);
                scope.spawn(move || {
                    let len = strip.range().len();
                    let value = u8::try_from(index + 1).expect("small");
                    strip.bytes_mut(0..len / 2).fill(value);
                    strip.bytes_mut(len / 2..len).fill(value);
                    assert!(!slab.has_free_slot());
                    let Some((lease, shared)) = strip.join() else {
                        return;
                    };
                    returned.fetch_add(1, Ordering::Relaxed);
                    let len = lease.len();
                    let filled = lease.written(len);
                    let right = |(at, byte): (usize, &u8)| usize::from(*byte) == at / BYTES + 1;
                    assert!(shared == 7 && filled.bytes().iter().enumerate().all(right));
                });
            }
        });
        assert_eq!(returned.into_inner(), 1);
        assert!(slab.has_free_slot());
    }

    #[test]
    fn window_stays_taken_until_its_last_strip_is_dropped() {
        let slab = slab(64);
        let lease = slab.try_lease(64).expect("free");
        let mut strips: Vec<_> = lease.split(16, 4, ()).collect();
        drop(strips.remove(1));
        assert!(strips.remove(0).join().is_none() && !slab.has_free_slot());
        drop(strips.remove(0));
        assert!(!slab.has_free_slot());
        drop(strips);
        assert!(slab.has_free_slot());
    }

    #[test]
    #[should_panic(expected = "bytes outside of the strip")]
    fn strip_gives_out_no_bytes_of_its_neighbour() {
        let lease = slab(64).try_lease(64).expect("free");
        let mut first = lease.split(16, 4, ()).next().expect("four");
        first.bytes_mut(8..17);
    }

    #[test]
    #[should_panic(expected = "strips outside of the window")]
    fn strips_do_not_leave_the_window() {
        let lease = slab(64).try_lease(64).expect("free");
        drop(lease.split(16, 6, ()));
    }
}
