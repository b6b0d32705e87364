//! Lets the runtime work without waiting for storage.
//!
//! `tokio-uring` hands queued reads to the kernel when its thread is about to park, and at no other time; a future that keeps
//! itself awake never parks. So the runtime is made to park with a wake-up on its way already: a doorbell, which is an eventfd
//! that was rung before. That it has parked is seen from tokio's own count.

#![expect(unsafe_code, reason = "gives tokio a descriptor to watch")]

use std::cell::Cell;
use std::io;
use std::os::fd::OwnedFd;

use rustix::event::EventfdFlags;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::runtime::{Handle, RuntimeMetrics};

/// What has been handed to the kernel, and the way to hand it more.
pub(super) struct Turns {
    doorbell: AsyncFd<OwnedFd>,
    metrics: RuntimeMetrics,
    /// How often the thread had parked when something was last queued.
    queued_at: Cell<Option<u64>>,
}

impl Turns {
    /// Of the runtime that this is called in.
    pub(super) fn new() -> io::Result<Self> {
        let eventfd = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        // SAFETY: the descriptor is an `OwnedFd` of nobody else's, so it stays open, and the same, until tokio drops it.
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

    /// Something is queued, or about to be.
    pub(super) fn queued(&self) {
        self.queued_at.set(Some(self.parks()));
    }

    /// Whether the kernel may not have been told of it yet.
    pub(super) fn has_queued(&self) -> bool {
        self.queued_at.get() == Some(self.parks())
    }

    /// Lets all tasks run that can, tells the kernel what they have queued, and looks for events.
    pub(super) async fn turn(&self) {
        let parks = self.parks();
        while self.parks() == parks {
            // Each write is an event of its own, and the count is far from its end after any number of them; so a failure could
            // only be one of the descriptor. Then the wait below ends all the same, with the next read.
            let _ = rustix::io::write(self.doorbell.get_ref(), &1_u64.to_ne_bytes());
            if let Ok(mut heard) = self.doorbell.readable().await {
                heard.clear_ready();
            }
        }
    }
}
