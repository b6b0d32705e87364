//! Steps between which a write can be killed, for tests.

#[cfg(feature = "testing")]
mod counted {
    use std::sync::atomic::{AtomicU64, Ordering};

    static REACHED: AtomicU64 = AtomicU64::new(0);
    static LAST: AtomicU64 = AtomicU64::new(u64::MAX);

    /// Kills the process by SIGKILL when it has reached as many steps.
    pub fn kill_at(steps: u64) {
        LAST.store(steps, Ordering::SeqCst);
    }

    /// Returns the number of steps that this process has reached.
    pub fn steps() -> u64 {
        REACHED.load(Ordering::SeqCst)
    }

    pub(crate) fn reach() {
        if REACHED.fetch_add(1, Ordering::SeqCst) + 1 == LAST.load(Ordering::SeqCst) {
            let this = rustix::process::getpid();
            rustix::process::kill_process(this, rustix::process::Signal::KILL)
                .expect("a process may kill itself");
        }
    }
}

#[cfg(feature = "testing")]
pub(crate) use counted::reach;
#[cfg(feature = "testing")]
pub use counted::{kill_at, steps};

/// Marks a moment before or after a change of what is stored.
#[cfg(not(feature = "testing"))]
pub(crate) fn reach() {}
