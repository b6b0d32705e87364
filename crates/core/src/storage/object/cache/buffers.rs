//! Memory between the network and the cache's files: aligned for direct I/O, reused, bounded.

use std::fmt;
use std::sync::Arc;

use super::stamp::TILE_BYTES;
use crate::sync::lock::{Condvar, Mutex};

/// Length of a buffer, bytes: one read or write of the cache.
pub(super) const BUFFER_BYTES: usize = 1 << 20;

/// Tiles in a buffer.
pub(super) const BUFFER_TILES: usize = BUFFER_BYTES >> 16;

const _: () = assert!(BUFFER_TILES as u64 * TILE_BYTES == BUFFER_BYTES as u64);

/// Alignment of memory, offset and length that direct I/O accepts on every device with sectors of
/// up to 4 KiB.
pub(super) const ALIGNMENT: usize = 4096;

/// A supply of buffers, of which at most a fixed number exist.
pub(super) struct Buffers {
    max: usize,
    state: Mutex<State>,
    returned: Condvar,
}

#[derive(Default)]
struct State {
    free: Vec<Vec<u8>>,
    made: usize,
}

/// Memory for one read or write, returned to its supply on drop.
pub(super) struct Buffer {
    memory: Vec<u8>,
    /// Offset of the first aligned byte.
    start: usize,
    len: usize,
    home: Arc<Buffers>,
}

impl State {
    /// Takes the memory of a buffer: `Some(None)` if it has to be allocated, `None` if all of
    /// `max` are in use.
    #[expect(clippy::option_option, reason = "two questions")]
    fn take(&mut self, max: usize) -> Option<Option<Vec<u8>>> {
        let free = self.free.pop();
        if free.is_none() {
            if self.made == max {
                return None;
            }
            self.made += 1;
        }
        Some(free)
    }
}

impl Buffers {
    pub(super) fn new(max: usize) -> Arc<Self> {
        Arc::new(Self {
            max,
            state: Mutex::default(),
            returned: Condvar::default(),
        })
    }

    /// Returns an empty buffer; `None` if all are in use.
    pub(super) fn take(self: &Arc<Self>) -> Option<Buffer> {
        let free = self.state.lock().take(self.max)?;
        Some(self.buffer(free))
    }

    /// Returns an empty buffer, as soon as there is one.
    pub(super) fn wait(self: &Arc<Self>) -> Buffer {
        let mut state = self.state.lock();
        let free = loop {
            match state.take(self.max) {
                Some(free) => break free,
                None => state = self.returned.wait(state),
            }
        };
        drop(state);
        self.buffer(free)
    }

    fn buffer(self: &Arc<Self>, free: Option<Vec<u8>>) -> Buffer {
        let memory = free.unwrap_or_else(|| vec![0; BUFFER_BYTES + ALIGNMENT]);
        Buffer {
            start: memory.as_ptr().align_offset(ALIGNMENT).min(ALIGNMENT),
            memory,
            len: 0,
            home: Arc::clone(self),
        }
    }
}

impl Buffer {
    /// Bytes that have been put into it.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.memory[self.start..self.start + self.len]
    }

    /// Returns its whole memory, to be read into; [`Self::set_len`] says how much was.
    pub(super) fn memory(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + BUFFER_BYTES]
    }

    /// Declares the first `len` bytes to be its contents.
    pub(super) fn set_len(&mut self, len: usize) {
        self.len = len.min(BUFFER_BYTES);
    }

    /// Appends bytes, for which there must be room.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        let at = self.start + self.len;
        self.memory[at..at + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let memory = std::mem::take(&mut self.memory);
        self.home.state.lock().free.push(memory);
        self.home.returned.notify_one();
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffer")
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Buffers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffers")
            .field("max", &self.max)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_aligned_bounded_and_reused() {
        let buffers = Buffers::new(2);
        let mut one = buffers.take().expect("the first");
        let two = buffers.take().expect("the second");
        assert!(buffers.take().is_none());
        one.push(b"abc");
        one.push(b"d");
        assert_eq!(one.bytes(), b"abcd");
        assert_eq!(one.bytes().as_ptr().addr() % ALIGNMENT, 0);
        assert_eq!(one.memory().len(), BUFFER_BYTES);
        drop(two);
        let again = buffers.take().expect("returned");
        assert!(again.bytes().is_empty());
        // A thread that waits gets the next one that is returned.
        let waits = {
            let buffers = Arc::clone(&buffers);
            std::thread::spawn(move || buffers.wait().bytes().len())
        };
        drop(again);
        assert_eq!(waits.join().expect("ends"), 0);
        assert_eq!(buffers.state.lock().made, 2);
    }
}
