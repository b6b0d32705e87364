//! Receivers of reads: bytes, in order, and the events of the requests that bring them.

use tokio::sync::Semaphore;

use crate::error::Error;

/// Place that received bytes came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Provenance {
    /// The location itself.
    Origin,
    /// A mirror of it.
    Mirror,
    /// The cache on this machine.
    Cache,
}

/// Receiver of the bytes of a read.
pub trait Receive: Send {
    /// Receives the next bytes of the range, which came `from` there.
    fn bytes(&mut self, bytes: &[u8], from: Provenance);

    /// Receiver of the events: for receivers that pass bytes on, that of the next one.
    fn events(&mut self) -> &mut dyn Events;

    /// Returns the limit of requests at a time, if there is one. Reads of cached bytes, and those
    /// that wait for the requests of others, do not count.
    fn turns(&self) -> Option<&'static Semaphore> {
        None
    }
}

/// Receiver of the events of a read.
pub trait Events {
    /// Called when a request was sent; `again` if the one before it failed.
    fn requested(&mut self, _again: bool) {}

    /// Called when a request failed and will be retried for the missing part of the range.
    fn failed(&mut self, _error: &Error) {}

    /// Called when a request takes much longer than others; `hedged` if a second one was sent for
    /// the missing part.
    fn stalled(&mut self, _hedged: bool) {}

    /// Called when the second request delivers the bytes from here on.
    fn hedge_won(&mut self) {}

    /// Called when bytes outside of the range came, which are for the cache.
    fn surplus(&mut self, _bytes: u64) {}
}
