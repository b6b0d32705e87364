//! Cancellation flag of one load: set once; wakes threads that are blocked elsewhere.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};

use super::lock::Mutex;

type Callback = Box<dyn Fn() + Send>;

/// Flag that is set once, when the load must start nothing more.
#[derive(Default)]
pub struct CancelFlag {
    cancelled: AtomicBool,
    callbacks: Mutex<Vec<Callback>>,
}

impl CancelFlag {
    /// Sets the flag and calls every callback. Further calls do nothing.
    pub fn cancel(&self) {
        let callbacks = {
            let mut callbacks = self.callbacks.lock();
            self.cancelled.store(true, Ordering::SeqCst);
            std::mem::take(&mut *callbacks)
        };
        for callback in callbacks {
            callback();
        }
    }

    /// Returns whether the flag has been set.
    #[inline]
    pub fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::SeqCst)
    }

    /// Calls `callback` when the flag is set, or at once if it has been. Callbacks must not
    /// block.
    pub fn on_cancel(&self, callback: impl Fn() + Send + 'static) {
        let mut callbacks = self.callbacks.lock();
        if self.is_cancelled() {
            drop(callbacks);
            callback();
        } else {
            callbacks.push(Box::new(callback));
        }
    }
}

impl fmt::Debug for CancelFlag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CancelFlag")
            .field("cancelled", &self.is_cancelled())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicU32;

    use super::*;

    #[test]
    fn callbacks_run_once_before_or_after_cancel() {
        let cancel = CancelFlag::default();
        let heard = Arc::<AtomicU32>::default();
        let on_cancel = || {
            let heard = Arc::clone(&heard);
            cancel.on_cancel(move || {
                heard.fetch_add(1, Ordering::SeqCst);
            });
        };
        on_cancel();
        assert_eq!(heard.load(Ordering::SeqCst), 0);
        cancel.cancel();
        cancel.cancel();
        assert_eq!(heard.load(Ordering::SeqCst), 1);
        on_cancel();
        assert_eq!(heard.load(Ordering::SeqCst), 2);
    }
}
