//! Cancellation flag of one load: set once; wakes threads that are blocked elsewhere.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

type Listener = Box<dyn Fn() + Send>;

/// Flag that is raised once, when the load must start nothing more.
#[derive(Default)]
pub struct Over {
    raised: AtomicBool,
    listeners: Mutex<Vec<Listener>>,
}

impl Over {
    /// Raises the flag and calls every listener. Further calls do nothing.
    pub(crate) fn raise(&self) {
        let listeners = {
            let mut listeners = self
                .listeners
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            self.raised.store(true, Ordering::SeqCst);
            std::mem::take(&mut *listeners)
        };
        for listener in listeners {
            listener();
        }
    }

    /// Returns whether the flag has been raised.
    pub fn is_raised(&self) -> bool {
        self.raised.load(Ordering::SeqCst)
    }

    /// Calls `listener` when the flag is raised, or at once if it has been. Listeners must not
    /// block.
    pub fn listen(&self, listener: impl Fn() + Send + 'static) {
        let mut listeners = self
            .listeners
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if self.is_raised() {
            drop(listeners);
            listener();
        } else {
            listeners.push(Box::new(listener));
        }
    }
}

impl fmt::Debug for Over {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Over")
            .field("raised", &self.is_raised())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicU32;

    use super::*;

    #[test]
    fn listeners_are_called_once_before_or_after_raise() {
        let over = Over::default();
        let heard = Arc::<AtomicU32>::default();
        let listen = || {
            let heard = Arc::clone(&heard);
            over.listen(move || {
                heard.fetch_add(1, Ordering::SeqCst);
            });
        };
        listen();
        assert_eq!(heard.load(Ordering::SeqCst), 0);
        over.raise();
        over.raise();
        assert_eq!(heard.load(Ordering::SeqCst), 1);
        listen();
        assert_eq!(heard.load(Ordering::SeqCst), 2);
    }
}
