//! Progress of a patch that is made or applied, and its cancellation.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use tload::{Error, ErrorKind, Result};
use tload_base::error::counted;

/// Watches and cancels [`diff`](crate::diff), [`apply`](crate::apply) and
/// [`Patch::apply_in_place`](crate::Patch::apply_in_place). Clones belong to the same call.
#[derive(Clone, Debug, Default)]
pub struct Control(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    done: AtomicU64,
    total: AtomicU64,
    is_cancelled: AtomicBool,
}

impl Control {
    /// Ends the call soon, with [`ErrorKind::Cancelled`].
    pub fn cancel(&self) {
        self.0.is_cancelled.store(true, Relaxed);
    }

    /// Bytes that have been compared, written or checked.
    pub fn bytes_done(&self) -> u64 {
        self.0.done.load(Relaxed)
    }

    /// Bytes in all; 0 until they are known.
    pub fn bytes_total(&self) -> u64 {
        self.0.total.load(Relaxed)
    }

    /// Returns the error for a call that did not end within `timeout`.
    pub fn timed_out(&self, timeout: Duration) -> Error {
        let (done, total) = (self.bytes_done(), counted(self.bytes_total(), "byte"));
        let message = format!("took longer than its timeout of {timeout:?}: at {done} of {total}");
        let hint = "raise ‹timeout›, or check the storage: tload doctor LOCATION";
        Error::new(ErrorKind::TimedOut, message).with_hint(hint)
    }

    pub(crate) fn expect(&self, bytes: u64) {
        self.0.total.fetch_add(bytes, Relaxed);
    }

    /// Counts bytes that are done. Fails once the call is cancelled.
    pub(crate) fn advance(&self, bytes: usize) -> Result<()> {
        self.0.done.fetch_add(bytes as u64, Relaxed);
        self.check()
    }

    /// Fails once the call is cancelled.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Cancelled`].
    pub fn check(&self) -> Result<()> {
        if self.0.is_cancelled.load(Relaxed) {
            return Err(Error::new(ErrorKind::Cancelled, "the patch was cancelled"));
        }
        Ok(())
    }
}
