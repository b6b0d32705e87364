//! Streams of our own: copies in order, beside everything else that the device does.

#![expect(unsafe_code, reason = "gives work to streams of the driver")]

use cudarc::driver::result::stream::StreamKind;
use cudarc::driver::sys::CUstream;
use cudarc::driver::{DriverError, result};

use super::context::{Bound, Context};
use super::event::Event;
use crate::error::{Error, Result};

/// A stream that does not wait for the default stream, nor that for it. Dropping it lets its work finish.
pub struct Stream {
    raw: CUstream,
    ordinal: usize,
    /// Keeps the context; none for a stream that the context itself owns.
    context: Option<Context>,
}

// SAFETY: streams may be used by any thread.
unsafe impl Send for Stream {}
// SAFETY: by several at a time, too: the driver has locks.
unsafe impl Sync for Stream {}

impl Stream {
    /// A new stream of `context`.
    ///
    /// # Errors
    ///
    /// [`crate::ErrorKind::Device`].
    pub fn new(context: &Context) -> Result<Self> {
        let mut stream = Self::unowned(context)?;
        stream.context = Some(context.clone());
        Ok(stream)
    }

    /// A stream that does not keep its context.
    pub(super) fn unowned(context: &Context) -> Result<Self> {
        let _bound = context.bind()?;
        // Not through cudarc's safe layer: its first new stream waits for the whole context.
        let raw = result::stream::create(StreamKind::NonBlocking)
            .map_err(|error| context.failure("cannot make a stream", error))?;
        Ok(Self {
            raw,
            ordinal: context.ordinal(),
            context: None,
        })
    }

    /// Copies `bytes` to device memory at `to`, after all that the stream was given before. Returns when that is queued.
    ///
    /// # Safety
    ///
    /// The stream's context must be current on this thread; `bytes` must stay as they are until the copy has run (an event recorded behind it has fired), and `to` must have room for
    /// them that nobody uses meanwhile.
    ///
    /// # Errors
    ///
    /// [`crate::ErrorKind::Device`]; nothing was queued.
    pub unsafe fn copy_in(&self, to: u64, bytes: &[u8]) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { result::memcpy_htod_async(to, bytes, self.raw) }.map_err(|error| {
            self.failure(
                &format!("cannot copy {} bytes to the GPU", bytes.len()),
                error,
            )
        })
    }

    /// What the stream is given from here on begins when `event` has fired.
    ///
    /// # Errors
    ///
    /// [`crate::ErrorKind::Device`].
    pub fn wait(&self, event: &Event) -> Result<()> {
        let flags = cudarc::driver::sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        let _bound = self.bind()?;
        // SAFETY: stream and event live as long as their owners.
        unsafe { result::stream::wait_event(self.raw, event.raw(), flags) }
            .map_err(|error| self.failure("cannot make a stream wait", error))
    }

    /// Waits until all that the stream was given is done.
    ///
    /// # Errors
    ///
    /// [`crate::ErrorKind::Device`], also for work that failed.
    pub fn synchronize(&self) -> Result<()> {
        let _bound = self.bind()?;
        // SAFETY: the stream lives as long as `self`.
        unsafe { result::stream::synchronize(self.raw) }
            .map_err(|error| self.failure("copying to the GPU failed", error))
    }

    /// The stream that a context owns is used where the context is bound already.
    fn bind(&self) -> Result<Option<Bound>> {
        self.context.as_ref().map(Context::bind).transpose()
    }

    pub(super) fn raw(&self) -> CUstream {
        self.raw
    }

    fn failure(&self, what: &str, error: DriverError) -> Error {
        super::driver::failure(format!("cuda:{}: {what}", self.ordinal), error)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let _bound = self.context.as_ref().map(Context::bind);
        // SAFETY: the stream is ours, and the driver lets its work finish. One that the context owns goes where that is bound.
        let _ = unsafe { result::stream::destroy(self.raw) };
    }
}

impl std::fmt::Debug for Stream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Stream(cuda:{})", self.ordinal)
    }
}
