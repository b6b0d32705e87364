//! Runs the runtime without waiting for storage.
//!
//! `tokio-uring` submits queued reads to the kernel when its thread is about to park, and at no
//! other time; a future that keeps itself awake never parks. The runtime is therefore made to park
//! with a wake-up already pending: a doorbell, which is an eventfd that was written to before.
//! Tokio's own count shows that it has parked.

#![expect(unsafe_code, reason = "gives tokio a descriptor to watch")]

use std::cell::Cell;
use std::io;
use std::os::fd::OwnedFd;

use rustix::event::EventfdFlags;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::runtime::{Handle, RuntimeMetrics};

/// State of what has been submitted to the kernel, and the means to submit more.
pub(crate) struct Turns {
    doorbell: AsyncFd<OwnedFd>,
    metrics: RuntimeMetrics,
    /// Number of parks of the thread when something was last queued.
    queued_at: Cell<Option<u64>>,
}

impl Turns {
    /// Creates the state for the current runtime.
    pub(crate) fn new() -> io::Result<Self> {
        let eventfd = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        // SAFETY: the descriptor is an exclusively owned `OwnedFd`, so it stays open, and the same,
        // until tokio drops it.
        let doorbell = unsafe { AsyncFd::register_with_interest(eventfd, Interest::READABLE) }?;
        Ok(Self {
            doorbell,
            metrics: Handle::current().metrics(),
            queued_at: Cell::new(None),
        })
    }

    fn parks(&self) -> u64 {
        self.metrics.worker_park_count(0)
    }

    /// Records that something is queued, or about to be.
    pub(crate) fn queued(&self) {
        self.queued_at.set(Some(self.parks()));
    }

    /// Returns whether the kernel may not have received everything that was queued.
    pub(crate) fn has_queued(&self) -> bool {
        self.queued_at.get() == Some(self.parks())
    }

    /// Runs all tasks that can run, submits what they have queued, and checks for events.
    pub(crate) async fn turn(&self) {
        let parks = self.parks();
        while self.parks() == parks {
            // The counter never comes near its maximum, so a write fails only if the descriptor is
            // bad. The wait then ends with the next completed read.
            let _ = rustix::io::write(self.doorbell.get_ref(), &1_u64.to_ne_bytes());
            if let Ok(mut heard) = self.doorbell.readable().await {
                heard.clear_ready();
            }
        }
    }
}
