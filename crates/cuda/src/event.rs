//! Events: marks in a stream that fire when all work before them is done.

#![expect(unsafe_code, reason = "records and queries events of the driver")]

use std::thread;
use std::time::Duration;

use cudarc::driver::result;
use cudarc::driver::sys::{CUevent, CUevent_flags, CUresult, CUstream, cuEventCreate};

use super::context::Context;
use super::stream::Stream;
use crate::error::{Error, Result};
use crate::sync::naps;

/// Pause of a waiting thread between the first two looks at an event. The system adds up to 50 µs;
/// the copy of a slot of 4 MiB takes 80 µs.
const POLL: Duration = Duration::from_micros(50);

/// Maximum of the pauses, which double.
const POLL_MAX: Duration = Duration::from_millis(1);

/// Event of the driver. An event that was never recorded counts as fired.
pub struct Event {
    raw: CUevent,
    context: Context,
}

// SAFETY: any thread may use an event.
unsafe impl Send for Event {}
// SAFETY: several threads at a time may use one, too: the driver locks.
unsafe impl Sync for Event {}

impl Event {
    /// Creates an event without timing, for which the GPU interrupts no processor: behind each copy
    /// of 4 MiB, events with either take 1 to 4 % of the bus's speed (H100, 2026-11,
    /// `benches/results/`).
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Device`](crate::error::ErrorKind::Device).
    pub fn new(context: &Context) -> Result<Self> {
        Self::with(context, CUevent_flags::CU_EVENT_DISABLE_TIMING)
    }

    /// Creates an event of `context` for [`Self::seconds_since`].
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Device`](crate::error::ErrorKind::Device).
    pub fn timed(context: &Context) -> Result<Self> {
        Self::with(context, CUevent_flags::CU_EVENT_DEFAULT)
    }

    fn with(context: &Context, flags: CUevent_flags) -> Result<Self> {
        let _bound = context.bind()?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: the pointer is to a local variable.
        unsafe { cuEventCreate(&raw mut raw, flags as u32) }
            .result()
            .map_err(|error| context.failure("cannot create an event", error))?;
        Ok(Self {
            raw,
            context: context.clone(),
        })
    }

    /// Records the event at the current end of `stream`, in place of any earlier record.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Device`](crate::error::ErrorKind::Device).
    pub fn record(&self, stream: &Stream) -> Result<()> {
        self.record_raw(stream.raw())
    }

    /// Records the event at the current end of a stream of another library: `0` or `1` is the
    /// default stream, `2` the calling thread's own.
    ///
    /// # Safety
    ///
    /// Above 2, `stream` must be the address of a live stream of this device.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Device`](crate::error::ErrorKind::Device).
    pub unsafe fn record_foreign(&self, stream: u64) -> Result<()> {
        let address = usize::try_from(stream).expect("addresses have 64 bits");
        self.record_raw(std::ptr::without_provenance_mut(address))
    }

    fn record_raw(&self, stream: CUstream) -> Result<()> {
        let _bound = self.context.bind()?;
        // SAFETY: the event lives as long as `self`, and the stream is live: either ours, or
        // promised by the caller of `record_foreign`.
        unsafe { result::event::record(self.raw, stream) }
            .map_err(|error| self.context.failure("cannot record an event", error))
    }

    /// Records the event at the current end of all streams of the context.
    pub(super) fn record_context(&self) -> Option<std::result::Result<(), Error>> {
        let record = self.context.driver().record_context()?;
        // SAFETY: context and event live as long as `self`.
        let recorded = unsafe { record(self.context.raw(), self.raw) };
        let failure = |error| self.context.failure("cannot record an event", error);
        Some(recorded.result().map_err(failure))
    }

    /// Returns whether all work before the event is done.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Device`](crate::error::ErrorKind::Device): that work failed, or the context is
    /// lost.
    pub fn has_fired(&self) -> Result<bool> {
        let _bound = self.context.bind()?;
        // SAFETY: the event lives as long as `self`.
        match unsafe { result::event::query(self.raw) } {
            Ok(()) => Ok(true),
            Err(error) if error.0 == CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            Err(error) => Err(self.context.failure("copying to the GPU failed", error)),
        }
    }

    /// Sleeps until all work before the event is done. The driver's own wait would take a whole
    /// core from the readers, or an interrupt for each event.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Device`](crate::error::ErrorKind::Device): that work failed, or the context is
    /// lost.
    pub fn wait(&self) -> Result<()> {
        self.wait_unless(|| false).map(drop)
    }

    /// As [`Self::wait`], but stops if `is_over` returns true. Returns whether the event has fired.
    #[expect(clippy::disallowed_methods, reason = "see `wait`")]
    pub(super) fn wait_unless(&self, is_over: impl Fn() -> bool) -> Result<bool> {
        let mut pause = POLL;
        while !self.has_fired()? {
            if is_over() {
                return Ok(false);
            }
            thread::sleep(naps::at_most(pause));
            pause = POLL_MAX.min(2 * pause);
        }
        Ok(true)
    }

    /// Returns the seconds between two fired and timed events of one stream; `None` if the driver
    /// cannot tell.
    pub fn seconds_since(&self, earlier: &Self) -> Option<f64> {
        let elapsed = self.context.driver().elapsed_time()?;
        let _bound = self.context.bind().ok()?;
        let mut milliseconds = 0.0_f32;
        // SAFETY: the events live as long as their owners, and the pointer is to a local variable.
        let asked = unsafe { elapsed(&raw mut milliseconds, earlier.raw, self.raw) };
        asked.result().ok()?;
        Some(f64::from(milliseconds) / 1e3)
    }

    pub(super) fn raw(&self) -> CUevent {
        self.raw
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        let _bound = self.context.bind();
        // SAFETY: this is the event's owner, and a stream that still waits for it keeps what it
        // needs.
        let _ = unsafe { result::event::destroy(self.raw) };
    }
}

impl std::fmt::Debug for Event {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Event(cuda:{})", self.context.ordinal())
    }
}
