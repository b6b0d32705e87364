//! Memory between the network and the cache's files: in huge pages, reused, bounded. Direct I/O
//! takes it as it is.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use super::stamp::TILE_BYTES;
use crate::memory::{EventCount, Lease, Slab};

/// Length of a buffer, bytes: one read or write of the cache.
pub(super) const BUFFER_BYTES: usize = 1 << 20;

/// Tiles in a buffer.
pub(super) const BUFFER_TILES: usize = BUFFER_BYTES >> 16;

const _: () = assert!(BUFFER_TILES as u64 * TILE_BYTES == BUFFER_BYTES as u64);

/// Alignment of memory, offset and length that direct I/O accepts on every device with sectors of
/// up to 4 KiB.
pub(super) const ALIGNMENT: usize = 4096;

/// Most memory that holds bytes on their way to a directory, in buffers: 64 MiB. A load
/// of 1 GB/s fills them within 60 ms of a disk that does not write.
const WRITE_BUFFERS: usize = 64;

/// Most reads of cached bytes at a time: as many as there are requests.
const READ_BUFFERS: usize = 64;

/// Buffers of all caches in a directory. Small checkpoints take no memory each.
#[derive(Debug)]
pub(super) struct Supplies {
    pub(super) writes: Buffers,
    reads: Buffers,
    /// For reads of single tiles, such as headers: the first use of a huge page clears 2 MiB.
    tiles: Buffers,
}

impl Supplies {
    /// Returns the supply for a read of so many tiles.
    pub(super) fn for_read(&self, tiles: usize) -> &Buffers {
        if tiles == 1 { &self.tiles } else { &self.reads }
    }
}

impl Default for Supplies {
    fn default() -> Self {
        Self {
            writes: Buffers::new(BUFFER_BYTES, WRITE_BUFFERS),
            reads: Buffers::new(BUFFER_BYTES, READ_BUFFERS),
            tiles: Buffers::new(BUFFER_BYTES / BUFFER_TILES, READ_BUFFERS),
        }
    }
}

/// A supply of a fixed number of buffers.
pub(super) struct Buffers {
    /// Length of each, bytes.
    each: usize,
    count: usize,
    /// Mapped for the first buffer; `None` if the system refuses.
    slab: OnceLock<Option<Arc<Slab>>>,
    /// A buffer came back.
    returned: Arc<EventCount>,
}

impl Buffers {
    fn new(each: usize, count: usize) -> Self {
        Self {
            each,
            count,
            slab: OnceLock::new(),
            returned: Arc::default(),
        }
    }

    /// Returns a buffer; `None` if all are in use, or if there is no memory for any.
    pub(super) fn take(&self) -> Option<Lease> {
        self.slab()?.try_lease(self.each)
    }

    /// Returns a buffer, as soon as there is one; `None` if there is no memory for any, or if for
    /// `patience` none comes back that this thread or another one could take.
    pub(super) fn wait(&self, patience: Duration) -> Option<Lease> {
        let slab = self.slab()?;
        loop {
            let before = self.returned.count();
            if let Some(buffer) = slab.try_lease(self.each) {
                return Some(buffer);
            }
            if !self.returned.wait_past_for(before, patience) {
                return None;
            }
        }
    }

    /// Returns whether at least a quarter of the buffers is free, so that full ones may wait for
    /// others to be written with.
    pub(super) fn has_many(&self) -> bool {
        self.slab()
            .is_some_and(|slab| slab.free_slots() * 4 >= self.count)
    }

    fn slab(&self) -> Option<&Arc<Slab>> {
        let map = || {
            let slab = Slab::new(self.each, self.count, Arc::clone(&self.returned));
            let noted = slab.inspect_err(|error| tracing::warn!(%error, "no memory for the cache"));
            noted.ok()
        };
        self.slab.get_or_init(map).as_ref()
    }
}

impl fmt::Debug for Buffers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffers")
            .field("each", &self.each)
            .field("count", &self.count)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn read_of_one_tile_takes_small_buffer() {
        let supplies = Supplies::default();
        for (tiles, wanted) in [(1, BUFFER_BYTES / BUFFER_TILES), (2, BUFFER_BYTES)] {
            let buffer = supplies.for_read(tiles).wait(Duration::MAX);
            assert_eq!(buffer.expect("a buffer").len(), wanted);
        }
    }

    #[test]
    fn buffers_are_aligned_bounded_and_reused() {
        let buffers = Arc::new(Buffers::new(BUFFER_BYTES, 2));
        let one = buffers.take().expect("the first");
        assert!(buffers.has_many());
        let two = buffers.take().expect("the second");
        assert!(buffers.take().is_none() && !buffers.has_many());
        assert_eq!(one.start() % ALIGNMENT, 0);
        assert_eq!(one.len(), BUFFER_BYTES);
        let place = two.start();
        drop(two);
        let again = buffers.take().expect("returned");
        assert_eq!(again.start(), place);
        // A thread that waits gets the next one that is returned.
        let waits = {
            let buffers = Arc::clone(&buffers);
            std::thread::spawn(move || buffers.wait(Duration::MAX).expect("mapped").start())
        };
        drop(again);
        assert_eq!(waits.join().expect("ends"), place);
        let last = buffers.wait(Duration::ZERO);
        assert!(last.is_some() && buffers.wait(Duration::from_millis(1)).is_none());
    }
}
