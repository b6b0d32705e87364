//! Streams: ordered copies that run concurrently with the device's other work.

#![expect(unsafe_code, reason = "gives work to streams of the driver")]

use cudarc::driver::result::stream::StreamKind;
use cudarc::driver::sys::CUstream;
use cudarc::driver::{DriverError, result};

use super::context::{Bound, Context};
use super::event::Event;
use crate::error::{Error, Result};

/// Non-blocking stream: neither it nor the default stream waits for the other. Its work goes on
/// after a drop.
pub struct Stream {
    raw: CUstream,
    ordinal: usize,
    /// Keeps the context alive; `None` for a stream that the context itself owns.
    context: Option<Context>,
}

// SAFETY: any thread may use a stream.
unsafe impl Send for Stream {}
// SAFETY: several threads at a time may use one, too: the driver locks.
unsafe impl Sync for Stream {}

impl Stream {
    /// Creates a stream of `context`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Device`](crate::error::ErrorKind::Device).
    pub fn new(context: &Context) -> Result<Self> {
        let mut stream = Self::unowned(context)?;
        stream.context = Some(context.clone());
        Ok(stream)
    }

    /// Creates a stream that does not keep its context alive.
    pub(super) fn unowned(context: &Context) -> Result<Self> {
        let _bound = context.bind()?;
        // The raw call is used because the first stream of cudarc's safe layer waits for the whole
        // context.
        let raw = result::stream::create(StreamKind::NonBlocking)
            .map_err(|error| context.failure("cannot create a stream", error))?;
        Ok(Self {
            raw,
            ordinal: context.ordinal(),
            context: None,
        })
    }

    /// Queues a copy of `bytes` to device memory at `to`, behind all earlier work of the stream.
    ///
    /// # Safety
    ///
    /// The stream's context must be current on this thread. `bytes` must stay unchanged until the
    /// copy has run (an event recorded behind it has fired). `to` must have room for them, which
    /// nothing else uses meanwhile.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Device`](crate::error::ErrorKind::Device); nothing was queued.
    pub unsafe fn copy_in(&self, to: u64, bytes: &[u8]) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { result::memcpy_htod_async(to, bytes, self.raw) }.map_err(|error| {
            self.failure(
                &format!("cannot copy {} bytes to the GPU", bytes.len()),
                error,
            )
        })
    }

    /// Makes later work of the stream wait until `event` has fired.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Device`](crate::error::ErrorKind::Device).
    pub fn wait(&self, event: &Event) -> Result<()> {
        let flags = cudarc::driver::sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        let _bound = self.bind()?;
        // SAFETY: stream and event live as long as their owners.
        unsafe { result::stream::wait_event(self.raw, event.raw(), flags) }
            .map_err(|error| self.failure("cannot make a stream wait", error))
    }

    /// Waits until all work of the stream is done.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Device`](crate::error::ErrorKind::Device), also for work that failed.
    pub fn synchronize(&self) -> Result<()> {
        let _bound = self.bind()?;
        // SAFETY: the stream lives as long as `self`.
        unsafe { result::stream::synchronize(self.raw) }
            .map_err(|error| self.failure("copying to the GPU failed", error))
    }

    /// Binds the context. A stream that the context owns is only used where the context is already
    /// bound.
    fn bind(&self) -> Result<Option<Bound>> {
        self.context.as_ref().map(Context::bind).transpose()
    }

    pub(super) fn raw(&self) -> CUstream {
        self.raw
    }

    pub(super) fn failure(&self, what: &str, error: DriverError) -> Error {
        crate::cuda::driver::failure(format!("cuda:{}: {what}", self.ordinal), error)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let _bound = self.context.as_ref().map(Context::bind);
        // SAFETY: this is the stream's owner, and the driver lets its work finish. A stream owned
        // by the context is dropped where that is bound.
        let _ = unsafe { result::stream::destroy(self.raw) };
    }
}

impl std::fmt::Debug for Stream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Stream(cuda:{})", self.ordinal)
    }
}
