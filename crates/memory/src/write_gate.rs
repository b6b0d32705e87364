//! Write gate: ends a load's right to write into the caller's memory.
//!
//! A cancelled load returns to its caller at once, while reads are still in flight. Their bytes
//! must not be written to memory that the caller may be using again by then. Every writer therefore
//! enters the gate first, and closing the gate waits for the writers inside: for a copy, never for
//! storage.

use std::fmt;
use std::sync::PoisonError;

use crate::sync::lock::Mutex;
use crate::sync::primitives::{RwLock, RwLockReadGuard};

/// Write gate: open while the load may write into the caller's memory.
#[derive(Default)]
pub struct WriteGate {
    closed: RwLock<bool>,
    /// Callbacks that wait for writes queued inside the gate.
    drains: Mutex<Vec<Drain>>,
}

type Drain = Box<dyn Fn() + Send + Sync>;

/// Permission to write, until it is dropped.
#[derive(Debug)]
pub struct WritePermit<'a> {
    _open: RwLockReadGuard<'a, bool>,
}

impl WriteGate {
    /// Enters the gate; returns `None` once it is closed.
    #[inline]
    pub fn enter(&self) -> Option<WritePermit<'_>> {
        let open = self.closed.read().unwrap_or_else(PoisonError::into_inner);
        (!*open).then_some(WritePermit { _open: open })
    }

    /// Registers `drain`, which waits for queued writes when the gate is closed.
    pub fn on_close(&self, drain: impl Fn() + Send + Sync + 'static) {
        self.drains.lock().push(Box::new(drain));
    }

    /// Admits no more writers, and returns when the last one has finished, also when another thread
    /// has begun to close the gate.
    pub fn close(&self) {
        *self.closed.write().unwrap_or_else(PoisonError::into_inner) = true;
        // The lock is held to the end, because a second caller must not return before the first one
        // has drained the writes.
        let mut drains = self.drains.lock();
        for drain in drains.drain(..) {
            drain();
        }
    }
}

impl fmt::Debug for WriteGate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WriteGate")
            .field("closed", &self.closed)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn gate_close_waits_for_writers_and_drains() {
        let gate = WriteGate::default();
        let (written, drained) = (AtomicBool::new(false), Arc::new(AtomicBool::new(false)));
        let seen = Arc::clone(&drained);
        gate.on_close(move || seen.store(true, Ordering::SeqCst));
        std::thread::scope(|scope| {
            let inside = gate.enter().expect("open");
            let closing = scope.spawn(|| {
                gate.close();
                assert!(written.load(Ordering::SeqCst) && drained.load(Ordering::SeqCst));
            });
            written.store(true, Ordering::SeqCst);
            drop(inside);
            closing.join().expect("closes");
        });
        assert!(gate.enter().is_none());
    }
}
