//! Tensors in GPU memory: filled slots are copied there while later ones are being read.
//!
//! Each lane and device has one sink with its own stream. The sink owns a slot until the
//! copy's event has fired: until then the GPU reads from it. A tensor is handed on when the events
//! of all its copies have fired, so it may be used on any stream, and no load waits for the device
//! as a whole.
//!
//! ```text
//!  submit: join small tensors ─▶ wait for the region's memory ─▶ copy (copy …) ─▶ event ─▶ copying
//!  reap:   the oldest event has fired ─▶ slot back, pieces counted ─▶ tensors that are whole
//! ```

#![expect(
    unsafe_code,
    reason = "queues copies from slots that it keeps until they have run"
)]

mod boxed;
mod copies;
mod joined;
mod places;
mod regions;

use std::collections::VecDeque;
use std::mem::ManuallyDrop;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

pub use copies::joined_bytes_max;
use joined::SlotCopy;
pub use places::{CudaPlaces, TargetPlaces};
use regions::OpenRegion;
pub use regions::{DeviceMemory, DeviceRegions, DeviceStart, FreedWait, MemoryRequest};

use super::Sink;
use crate::cuda::{Batch, Context, Event, Stream};
use crate::engine::Wait;
use crate::error::Result;
use crate::memory::{DeviceRegion, Filled, WriteGate};
use crate::plan::{Extent, Piece, Plan};
use crate::tensor::{Tensor, TensorInfo};

/// State shared by the sinks of one load and one device.
#[derive(Debug)]
pub struct CudaLoad {
    plan: Arc<Plan>,
    tensors: Arc<[TensorInfo]>,
    context: Context,
    places: CudaPlaces,
    batches: bool,
    /// Pieces not yet arrived, by tensor.
    missing: Box<[AtomicU32]>,
    copies: AtomicU64,
    copied_bytes: AtomicU64,
    /// Bytes of the slots whose copies were timed.
    timed_bytes: AtomicU64,
    timed_nanos: AtomicU64,
}

/// Statistics of the copies to a device.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CudaUsage {
    /// Number of copies.
    pub copies: u64,
    /// Bytes copied.
    pub bytes: u64,
    /// Seconds in which a copy was running or queued for the device's copy engine, summed over the
    /// lanes: extrapolated, by bytes, from the slots that were timed.
    pub seconds: f64,
}

impl CudaLoad {
    /// Creates the shared state for `plan`, which was made of `tensors` in this order; tensors go
    /// to `places`. With `batches`, one call of the driver queues all copies of a slot, if the
    /// driver has such a function.
    pub fn new(
        plan: Arc<Plan>,
        tensors: Arc<[TensorInfo]>,
        context: Context,
        places: CudaPlaces,
        batches: bool,
    ) -> Arc<Self> {
        let missing = plan.targets.iter();
        Arc::new(Self {
            missing: missing
                .map(|target| AtomicU32::new(target.pieces))
                .collect(),
            plan,
            tensors,
            context,
            places,
            batches,
            copies: AtomicU64::new(0),
            copied_bytes: AtomicU64::new(0),
            timed_bytes: AtomicU64::new(0),
            timed_nanos: AtomicU64::new(0),
        })
    }

    /// Destinations of its tensors.
    pub fn places(&self) -> &CudaPlaces {
        &self.places
    }

    /// Ordinal of the GPU.
    pub fn ordinal(&self) -> usize {
        self.context.ordinal()
    }

    /// Statistics of the copies so far.
    pub fn usage(&self) -> CudaUsage {
        let bytes = self.copied_bytes.load(Ordering::Relaxed);
        let timed = Duration::from_nanos(self.timed_nanos.load(Ordering::Relaxed)).as_secs_f64();
        let timed_bytes = self.timed_bytes.load(Ordering::Relaxed).max(1);
        #[expect(clippy::cast_precision_loss, reason = "an estimate")]
        let share = bytes as f64 / timed_bytes as f64;
        CudaUsage {
            copies: self.copies.load(Ordering::Relaxed),
            bytes,
            seconds: timed * share,
        }
    }

    /// Address of a piece on the device.
    fn address(&self, region: Option<&DeviceRegion>, piece: &Piece) -> u64 {
        self.places.start(&self.plan, region, piece.tensor) + piece.tensor_offset
    }
}

/// Sink that copies filled slots of one lane to one device.
#[derive(Debug)]
pub struct CudaSink {
    // Declared before the stream and the events, whose drop would not wait.
    copying: VecDeque<Copying>,
    stream: Arc<Stream>,
    /// Queues the copies of a slot by one call; `None` when each is a call of its own.
    batch: Option<Batch>,
    /// Events to reuse.
    spare: Vec<Marks>,
    /// Timed events, unless a slot has them. Only one slot of the queue is timed: events that
    /// record the time slow copies down.
    timer: Option<Marks>,
    ready: Vec<(usize, Tensor)>,
    load: Arc<CudaLoad>,
}

/// Slot being copied to the device.
#[derive(Debug)]
struct Copying {
    marks: Marks,
    /// The event behind these copies was recorded; before that, it may hold an earlier record.
    queued: bool,
    /// The GPU reads from it until the event has fired.
    filled: Filled,
    copies: Vec<SlotCopy>,
    pieces: Range<usize>,
    region: usize,
    /// The GPU writes to it until the event has fired.
    open: Option<Arc<OpenRegion>>,
}

/// Events before the copies of one slot, if it is timed, and behind them.
#[derive(Debug)]
struct Marks {
    began: Option<Event>,
    ended: Event,
}

impl CudaSink {
    /// Creates a sink for the calling thread's lane.
    ///
    /// # Errors
    ///
    /// [`crate::ErrorKind::Device`].
    pub fn new(load: Arc<CudaLoad>) -> Result<Self> {
        let stream = Arc::new(Stream::new(&load.context)?);
        load.places.order(&stream)?;
        let timer = Marks {
            began: Some(Event::timed(&load.context)?),
            ended: Event::timed(&load.context)?,
        };
        Ok(Self {
            copying: VecDeque::new(),
            stream,
            batch: load.batches.then(|| Batch::new(&load.context)).flatten(),
            spare: Vec::new(),
            timer: Some(timer),
            ready: Vec::new(),
            load,
        })
    }

    fn marks(&mut self) -> Result<Marks> {
        if let Some(marks) = self.timer.take().or_else(|| self.spare.pop()) {
            return Ok(marks);
        }
        Ok(Marks {
            began: None,
            ended: Event::new(&self.load.context)?,
        })
    }

    /// Queues the copies of the newest slot and the event behind them. After an error, some of the
    /// copies may be queued.
    fn queue_newest(&mut self) -> Result<()> {
        let Self {
            copying,
            stream,
            batch,
            load,
            ..
        } = self;
        let Copying {
            marks,
            filled,
            copies,
            open,
            ..
        } = copying.back().expect("just pushed");
        let open = open.as_deref();
        let _bound = load.context.bind()?;
        if let Some(open) = open {
            open.order(stream)?;
        }
        if let Some(began) = &marks.began {
            began.record(stream)?;
        }
        // Copies of rows are calls of their own.
        let parts = || {
            let copies = copies.iter().filter(|it| it.rows.is_none());
            copies.map(|it| (it.to, it.from.bytes(filled)))
        };
        let mut count = 0;
        if let Some(several) = batch
            && parts().nth(1).is_some()
        {
            // SAFETY: the context is bound. `filled` is kept in `copying` until the event behind
            // the copies has fired, or until the stream has been waited for, which is what happens
            // if this fails and has queued some of them; the plan gives each byte of the memory to
            // one piece, no element is in two boxes, and so each has one copy; and the memory is
            // kept with `filled`.
            count = unsafe { several.queue(stream, parts()) }?;
            if count == 0 {
                *batch = None;
            }
        }
        if count == 0 {
            for (to, bytes) in parts() {
                // SAFETY: as above. If an unsupported batch has queued this copy, it runs twice, in
                // order.
                unsafe { stream.copy_in(to, bytes) }?;
                count += 1;
            }
        }
        for it in copies {
            if let Some(rows) = &it.rows {
                // SAFETY: as above, for rows of one piece.
                count += unsafe { stream.copy_rows_in(it.to, it.from.bytes(filled), rows) }?;
            }
        }
        load.copies.fetch_add(count, Ordering::Relaxed);
        marks.ended.record(stream)
    }

    /// Counts the pieces of the oldest slot, with which the GPU is done, and releases it.
    fn finish(&mut self, copying: Copying) {
        let load = &*self.load;
        let Copying {
            marks,
            filled,
            pieces,
            region,
            open,
            ..
        } = copying;
        // Release the slot before tensors are completed, so that the next read can begin.
        drop(filled);
        let bytes = |piece: &Piece| piece.len as u64;
        if let Some(began) = &marks.began {
            if let Some(seconds) = marks.ended.seconds_since(began) {
                let nanos = Duration::try_from_secs_f64(seconds).unwrap_or_default();
                let nanos = u64::try_from(nanos.as_nanos()).unwrap_or(0);
                load.timed_nanos.fetch_add(nanos, Ordering::Relaxed);
                let timed = load.plan.pieces[pieces.clone()].iter().map(bytes).sum();
                load.timed_bytes.fetch_add(timed, Ordering::Relaxed);
            }
            self.timer = Some(marks);
        } else {
            self.spare.push(marks);
        }
        let memory = open.as_ref().map(|open| &open.memory);
        for piece in &load.plan.pieces[pieces] {
            load.copied_bytes.fetch_add(bytes(piece), Ordering::Relaxed);
            // Acquire and release: the lane that completes the tensor sees that the other lanes'
            // copies have run.
            if load.missing[piece.tensor].fetch_sub(1, Ordering::AcqRel) > 1 {
                continue;
            }
            let info = load.tensors[piece.tensor].clone();
            let bytes = load
                .places
                .complete(&load.plan, memory, piece.tensor, &info);
            self.ready.push((piece.tensor, Tensor::new(info, bytes)));
        }
        load.places.copied(region);
    }

    fn poll(&mut self, wait: Wait) -> Result<()> {
        if wait == Wait::ForOne
            && let Some(oldest) = self.copying.front()
        {
            oldest.marks.ended.wait()?;
        }
        while let Some(oldest) = self.copying.front()
            && oldest.marks.ended.has_fired()?
        {
            let oldest = self.copying.pop_front().expect("just looked at");
            self.finish(oldest);
        }
        Ok(())
    }

    /// Waits until the GPU is done with all slots, failed or not, and releases them. A slot that
    /// the GPU may still use is leaked.
    fn abandon(&mut self) {
        let load = Arc::clone(&self.load);
        let is_over = |waited: Result<()>| match waited {
            Ok(()) => true,
            Err(error) => load.context.is_lost(&error),
        };
        let all = is_over(self.stream.synchronize());
        for copying in self.copying.drain(..) {
            let done = all || (copying.queued && is_over(copying.marks.ended.wait()));
            if !done {
                tracing::warn!("cannot tell whether the GPU is done with a slot, leaking the slot");
                let _in_use = ManuallyDrop::new(copying);
            }
        }
    }
}

impl Sink for CudaSink {
    type Tensor = (usize, Tensor);

    fn in_flight(&self) -> usize {
        self.copying.len()
    }

    fn submit(&mut self, extent: &Extent, filled: Filled) -> Result<()> {
        assert!(
            filled.bytes().len() >= extent.needed,
            "engines fill whole extents"
        );
        let open = self.load.places.open(extent.region);
        let load = Arc::clone(&self.load);
        let inside = load.places.gate().map(WriteGate::enter);
        if matches!(inside, Some(None)) {
            // The gate is closed: the load is over, and the memory belongs to the caller again.
            return Ok(());
        }
        let marks = self.marks()?;
        let mut filled = filled;
        let pieces = &load.plan.pieces[extent.pieces.clone()];
        let memory = open.as_deref().map(|open| &*open.memory);
        let copies = match &load.places {
            CudaPlaces::Regions(_) => {
                let address = |piece: &Piece| load.address(memory, piece);
                joined::slot_copies(pieces, &mut filled, address)
            }
            CudaPlaces::Targets(places) => boxed::target_copies(pieces, places),
        };
        // The slot enters the queue before its first copy starts, because from then on only the
        // queue may release it.
        self.copying.push_back(Copying {
            marks,
            queued: false,
            filled,
            copies,
            pieces: extent.pieces.clone(),
            region: extent.region,
            open,
        });
        let queued = self.queue_newest();
        drop(inside);
        match self.copying.back_mut() {
            Some(newest) if queued.is_ok() => newest.queued = true,
            // Some copies of this slot may have been queued, so the GPU may still read from it.
            _ => self.abandon(),
        }
        queued
    }

    fn reap(&mut self, wait: Wait, ready: &mut Vec<Self::Tensor>) -> Result<()> {
        let polled = self.poll(wait);
        if polled.is_err() {
            self.abandon();
        }
        ready.append(&mut self.ready);
        polled
    }
}

impl Drop for CudaSink {
    fn drop(&mut self) {
        if !self.copying.is_empty() {
            self.abandon();
        }
    }
}

/// Returns an event recorded behind the present work of a stream of another library.
fn record_foreign(context: &Context, stream: u64) -> Result<Event> {
    let event = Event::new(context)?;
    // SAFETY: the caller of `Target::cuda` or `DeviceMemory::new` promised that the stream is live.
    unsafe { event.record_foreign(stream) }?;
    Ok(event)
}
