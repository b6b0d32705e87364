//! The end of a load's right to write into memory of the caller's.
//!
//! A load that was cancelled tells its caller so at once, while reads are still in flight. What they bring must not be written to
//! memory that the caller may be using again by then. So whoever writes there enters the gate first, and closing it waits for those
//! who are inside: for a copy, never for storage.

use std::fmt;
use std::sync::PoisonError;

use crate::sync::{Mutex, RwLock, RwLockReadGuard};

/// Open while the load may write into memory of the caller's.
#[derive(Default)]
pub struct Gate {
    closed: RwLock<bool>,
    /// Wait for what was only queued inside.
    drains: Mutex<Vec<Drain>>,
}

type Drain = Box<dyn Fn() + Send + Sync>;

/// The right to write, until it is dropped.
#[derive(Debug)]
pub struct Inside<'a> {
    _open: RwLockReadGuard<'a, bool>,
}

impl Gate {
    /// The right to write; none when the gate is closed.
    pub fn enter(&self) -> Option<Inside<'_>> {
        let open = self.closed.read().unwrap_or_else(PoisonError::into_inner);
        (!*open).then_some(Inside { _open: open })
    }

    /// `drain` is to wait, when the gate is closed, for writes that have only been queued.
    pub fn on_close(&self, drain: impl Fn() + Send + Sync + 'static) {
        self.drains
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(Box::new(drain));
    }

    /// Lets nobody in any more, and returns when nobody writes: also where somebody else is closing it already.
    pub fn close(&self) {
        *self.closed.write().unwrap_or_else(PoisonError::into_inner) = true;
        // Under the lock to the last one: who comes second must not return before the first has drained.
        let mut drains = self.drains.lock().unwrap_or_else(PoisonError::into_inner);
        for drain in drains.drain(..) {
            drain();
        }
    }
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gate")
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
    fn closing_waits_for_who_is_inside_and_for_what_they_queued() {
        let gate = Gate::default();
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
