//! Waiting for the cache's disk, so that openings that read an object at the same time do not each
//! request what another one leaves out.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::TOTALS;
use super::claims::{announce, is_waited_for};
use super::entry::{Entry, PATIENCE};
use crate::memory::Lease;

/// Time for which an object counts as read by several openings after one has waited for another.
const CONTENDED: Duration = Duration::from_secs(1);

impl Entry {
    /// Returns memory for bytes that will be passed to [`Self::keep`]; `None` if there is none now,
    /// or if nothing is written.
    pub(super) fn buffer(&self) -> Option<Lease> {
        let writes = &self.shared.disk.supplies.writes;
        self.is_written().then(|| writes.take())?
    }

    /// Returns memory as [`Self::buffer`] does, as soon as there is some, or nothing if the disk
    /// stands still: requests would stay open for as long, and a server has few of them.
    pub(super) fn wait_for_buffer(&self) -> Option<Lease> {
        self.buffer_within(PATIENCE)
    }

    fn buffer_within(&self, patience: Duration) -> Option<Lease> {
        let (started, disk) = (Instant::now(), &self.shared.disk);
        let buffer = disk.supplies.writes.wait(patience);
        TOTALS.lock().disk_wait += started.elapsed();
        if buffer.is_none() {
            disk.set_stalled();
        }
        buffer
    }

    /// Returns whether the load waits for the cache's disk: on request, and if several openings
    /// read the object at the same time. Each would request what another one leaves out.
    pub(super) fn waits(&self) -> bool {
        self.is_written()
            && !self.shared.disk.is_stalled()
            && (self.shared.waits || self.is_contended())
    }

    /// Returns whether a read of this opening waits for what another one requests, or one of
    /// another opening waits, or did a moment ago.
    fn is_contended(&self) -> bool {
        let is_waited_for = || self.claims.as_deref().is_some_and(is_waited_for);
        let waits = *self.waiting.lock() > 0 || is_waited_for();
        let mut contended = self.contended.lock();
        if waits {
            *contended = Some(Instant::now());
        }
        contended.is_some_and(|last| last.elapsed() < CONTENDED)
    }

    /// Announces a read that waits for tiles that other openings have claimed.
    pub(super) fn announce(self: &Arc<Self>) -> Announcement {
        let mut waiting = self.waiting.lock();
        *waiting += 1;
        if *waiting == 1
            && let Some(file) = &self.claims
        {
            announce(file, true);
        }
        Announcement(Arc::clone(self))
    }

    /// Counts bytes that are not written because the disk is too slow.
    pub(super) fn leave_out(&self, bytes: u64) {
        if self.is_written() {
            self.shared.count_dropped(bytes);
        }
    }

    pub(super) fn is_written(&self) -> bool {
        self.is_writable && !self.shared.is_stopped() && !self.is_cleared()
    }
}

/// Read that waits for other openings, until it is dropped: they wait for their disk meanwhile.
#[derive(Debug)]
pub(super) struct Announcement(Arc<Entry>);

impl Drop for Announcement {
    fn drop(&mut self) {
        let mut waiting = self.0.waiting.lock();
        *waiting -= 1;
        if *waiting == 0
            && let Some(file) = &self.0.claims
        {
            announce(file, false);
        }
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::super::tests::{open, opened, opened_with};
    use super::*;

    const LEN: u64 = 1 << 20;

    #[test]
    fn bytes_that_others_wait_for_are_not_left_out() {
        let folder = tempfile::tempdir().expect("a folder");
        let (cache, one) = opened(folder.path(), LEN);
        let open = || open(&cache, LEN);
        let other = open();
        let writes = &cache.shared.disk.supplies.writes;
        let mut held: Vec<_> = std::iter::from_fn(|| writes.take()).collect();
        assert!(!one.waits() && one.buffer().is_none());
        let waiting = [other.announce(), other.announce()];
        assert!(one.waits() && other.waits());
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| one.wait_for_buffer());
            drop(held.pop());
            held.extend(waits.join().expect("ends"));
        });
        assert!(one.buffer_within(Duration::ZERO).is_none());
        assert!(!one.waits(), "the disk stands still");
        cache.shared.count_written(1);
        assert!(one.waits());
        let [first, second] = waiting;
        drop(first);
        assert!(open().waits(), "the second one waits");
        drop(second);
        assert!(!open().waits());
        *one.contended.lock() = Instant::now().checked_add(Duration::from_secs(3600));
        assert!(one.waits(), "one has waited a moment ago");
        *one.contended.lock() = None;
        assert!(!one.waits());
    }

    /// Each opening would wait anew, and a server opens the cache every second.
    #[test]
    fn disk_that_stands_still_is_waited_for_once() {
        let folder = tempfile::tempdir().expect("a folder");
        let open = || opened_with(folder.path(), LEN, &[("cache_wait", "true")]);
        let (cache, entry) = open();
        let writes = &cache.shared.disk.supplies.writes;
        let held: Vec<_> = std::iter::from_fn(|| writes.take()).collect();
        assert!(entry.waits());
        assert!(entry.buffer_within(Duration::ZERO).is_none());
        let (next, other) = open();
        // More directories than have disks of their own share one.
        let is_own = Arc::ptr_eq(&cache.shared.disk, &next.shared.disk);
        assert!(!entry.waits() && other.waits() != is_own);
        cache.shared.count_written(1);
        assert!(entry.waits() && other.waits());
        drop(held);
    }
}
