//! Device memory for the regions of a load, within the budget of the device.
//!
//! A lane allocates the load's own memory when a region begins. Memory of the caller's allocator is
//! allocated on the caller's thread, ahead of the reads, whenever the budget has room, which is
//! when the caller has received something. An allocator such as PyTorch's belongs to the caller's
//! thread: its current stream, its memory pool, its interpreter lock.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::cuda::{Allocation, Context, Event, Stream, free_leftovers, wait_for_freed};
use crate::error::{Error, ErrorKind, Result};
use crate::memory::{DeviceBudget, DeviceCharge, DeviceRegion, ForeignMemory, KeepAlive};
use crate::options::format_bytes;
use crate::plan::Plan;
use crate::sync::lock::Mutex;
use crate::tensor::TensorInfo;

/// Regions of one load on one device.
#[derive(Debug)]
pub struct DeviceRegions {
    plan: Arc<Plan>,
    tensors: Arc<[TensorInfo]>,
    context: Context,
    budget: DeviceBudget,
    /// Stream that orders the load's own memory; `None` when the caller allocates.
    own: Option<Stream>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Memory of the caller's allocator, by region, for which no read has begun.
    given: HashMap<usize, OpenRegion>,
    /// Regions with missing extents, and the number of these.
    open: HashMap<usize, (Arc<OpenRegion>, usize)>,
    /// Regions still without memory of the caller's allocator, in the order in which they may
    /// begin.
    wanted: VecDeque<usize>,
    /// Number of regions that have begun.
    begun: usize,
    closed: bool,
}

/// Wait for memory that was dropped to be freed, which has ended.
#[derive(Clone, Copy, Debug)]
pub struct FreedWait {
    /// Regions that had begun before.
    begun: usize,
}

/// Memory of a region with missing extents.
#[derive(Debug)]
pub(super) struct OpenRegion {
    pub(super) memory: Arc<DeviceRegion>,
    /// Event that fires when the memory may be written to.
    usable: Event,
    /// The event was seen to have fired: it does so once, and the driver need not be asked for each
    /// extent.
    is_usable: AtomicBool,
}

impl OpenRegion {
    fn new(memory: DeviceRegion, usable: Event) -> Self {
        Self {
            memory: Arc::new(memory),
            usable,
            is_usable: AtomicBool::new(false),
        }
    }

    /// Makes the next work of `stream` begin when the memory may be written to.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Device`].
    pub(super) fn order(&self, stream: &Stream) -> Result<()> {
        if self.is_usable.load(Ordering::Acquire) {
            return Ok(());
        }
        if self.usable.has_fired()? {
            self.is_usable.store(true, Ordering::Release);
            return Ok(());
        }
        stream.wait(&self.usable)
    }
}

/// Outcome of an attempt to begin a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceStart {
    /// It has memory.
    Begun,
    /// The budget is used up, or the caller's allocator has not provided the memory yet.
    NotYet,
    /// The device is full, but may have room once it has
    /// [freed what was dropped](DeviceRegions::wait_for_freed).
    NoRoom,
}

/// Request to the caller's allocator.
#[derive(Debug)]
pub struct MemoryRequest {
    region: usize,
    bytes: usize,
    charge: DeviceCharge,
}

/// Memory returned by the caller's allocator.
pub struct DeviceMemory {
    memory: ForeignMemory,
    stream: u64,
}

impl MemoryRequest {
    /// Requested size in bytes, at least 1.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl DeviceMemory {
    /// Describes `len` bytes at `address` on the requested device, kept alive by `owner`. They may
    /// be written to behind the present work of `stream`: `0` or `1` is the default stream, `2` the
    /// calling thread's own, else its address.
    ///
    /// # Safety
    ///
    /// The memory must belong to the device, be valid as long as `owner` lives, and have no other
    /// user except work queued on `stream` before. `stream` must be live.
    #[expect(unsafe_code, reason = "the caller must vouch for the memory")]
    pub unsafe fn new(address: u64, len: usize, stream: u64, owner: KeepAlive) -> Self {
        let memory = ForeignMemory {
            address,
            len,
            owner,
        };
        Self { memory, stream }
    }
}

impl DeviceRegions {
    /// Creates the regions of `plan`, which was made of `tensors`, in memory that the load
    /// allocates.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Device`].
    pub fn own(
        plan: Arc<Plan>,
        tensors: Arc<[TensorInfo]>,
        context: Context,
        budget: DeviceBudget,
    ) -> Result<Self> {
        free_leftovers();
        let own = Some(Stream::new(&context)?);
        Ok(Self {
            plan,
            tensors,
            context,
            budget,
            own,
            state: Mutex::default(),
        })
    }

    /// Creates the regions of `plan` in memory of the caller's allocator, requested for `wanted`
    /// regions in this order.
    pub fn given(
        plan: Arc<Plan>,
        tensors: Arc<[TensorInfo]>,
        context: Context,
        budget: DeviceBudget,
        wanted: VecDeque<usize>,
    ) -> Self {
        let state = State {
            wanted,
            ..State::default()
        };
        Self {
            plan,
            tensors,
            context,
            budget,
            own: None,
            state: Mutex::new(state),
        }
    }

    /// Budget of the device.
    pub fn budget(&self) -> &DeviceBudget {
        &self.budget
    }

    /// Begins a region if there is memory for it. `waited` is the caller's last wait for memory of
    /// this device to be freed.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::OutOfMemory`] when the device has none and no other region has got what was
    /// freed, [`ErrorKind::Device`].
    pub fn try_begin(&self, region: usize, waited: Option<FreedWait>) -> Result<DeviceStart> {
        let Some(stream) = &self.own else {
            let given = self.state.lock().given.remove(&region);
            return Ok(given.map_or(DeviceStart::NotYet, |memory| self.begin(region, memory)));
        };
        let bytes = self.plan.regions[region].bytes;
        let Some(charge) = self.budget.try_charge(bytes as u64) else {
            return Ok(DeviceStart::NotYet);
        };
        match self.allocate(region, stream, charge)? {
            Some(memory) => Ok(self.begin(region, memory)),
            // Wait again only if another region has begun since the last wait: regions are finite,
            // so the waits end.
            None if waited.is_some_and(|waited| waited.begun == self.state.lock().begun) => {
                Err(self.no_room(region, bytes))
            }
            None => Ok(DeviceStart::NoRoom),
        }
    }

    /// Waits until the device has freed the memory that was dropped so far, or until `is_over`
    /// returns true.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Device`].
    pub fn wait_for_freed(&self, is_over: &dyn Fn() -> bool) -> Result<FreedWait> {
        let begun = self.state.lock().begun;
        wait_for_freed(&self.context, is_over)?;
        Ok(FreedWait { begun })
    }

    fn begin(&self, region: usize, memory: OpenRegion) -> DeviceStart {
        let extents = self.plan.regions[region].extents.len();
        let mut state = self.state.lock();
        state.begun += 1;
        if !state.closed {
            state.open.insert(region, (Arc::new(memory), extents));
        }
        DeviceStart::Begun
    }

    /// Allocates memory; returns `None` if the device has too little.
    fn allocate(
        &self,
        region: usize,
        stream: &Stream,
        charge: DeviceCharge,
    ) -> Result<Option<OpenRegion>> {
        let planned = &self.plan.regions[region];
        let Some(memory) = Allocation::new(&self.context, planned.bytes, stream)? else {
            return Ok(None);
        };
        let usable = Event::new(&self.context)?;
        usable.record(stream)?;
        let memory = DeviceRegion::own(memory, planned.tensors, charge);
        Ok(Some(OpenRegion::new(memory, usable)))
    }

    /// Returns whether there is a [request](Self::next_request) to the caller's allocator.
    pub fn has_request(&self) -> bool {
        let state = self.state.lock();
        let next = state.wanted.front().filter(|_| !state.closed);
        next.is_some_and(|region| {
            let bytes = self.plan.regions[*region].bytes;
            self.budget.has_room(bytes as u64)
        })
    }

    /// Returns the next request to the caller's allocator; `None` while the budget has no room, and
    /// when nothing is left to request.
    pub fn next_request(&self) -> Option<MemoryRequest> {
        let mut state = self.state.lock();
        if state.closed {
            return None;
        }
        let region = *state.wanted.front()?;
        let bytes = self.plan.regions[region].bytes;
        let charge = self.budget.try_charge(bytes as u64)?;
        state.wanted.pop_front();
        Some(MemoryRequest {
            region,
            bytes,
            charge,
        })
    }

    /// Takes memory of the caller's allocator. The caller must then notify the lanes' event count.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidRequest`] when it is less than requested, [`ErrorKind::Device`].
    pub fn give(&self, request: MemoryRequest, given: DeviceMemory) -> Result<()> {
        let MemoryRequest {
            region,
            bytes,
            charge,
        } = request;
        if given.memory.len < bytes {
            let len = given.memory.len;
            return Err(Error::invalid_request(format!(
                "the allocator returned {len} of {bytes} requested bytes"
            )));
        }
        let usable = crate::sink::cuda::record_foreign(&self.context, given.stream)?;
        let tensors = self.plan.regions[region].tensors;
        let memory = DeviceRegion::foreign(given.memory, tensors, charge);
        let open = OpenRegion::new(memory, usable);
        let mut state = self.state.lock();
        if state.closed {
            drop(state);
            drop(open);
        } else {
            state.given.insert(region, open);
        }
        Ok(())
    }

    /// Returns the error for a device without room for a request.
    pub fn no_room_for(&self, request: &MemoryRequest) -> Error {
        self.no_room(request.region, request.bytes)
    }

    fn no_room(&self, region: usize, bytes: usize) -> Error {
        let free = self
            .context
            .free_memory()
            .map_or_else(|_| "?".to_owned(), |memory| format_bytes(memory.free));
        let in_region = |tensor: &usize| {
            let place = self.plan.targets[*tensor].place;
            place.is_some_and(|(place, _)| place == region)
        };
        let tensor = (0..self.tensors.len()).find(in_region);
        let error = Error::new(
            ErrorKind::OutOfMemory,
            format!(
                "cuda:{} has no room for {} ({bytes} bytes): {free} are free",
                self.budget.ordinal(),
                format_bytes(bytes as u64)
            ),
        )
        .with_hint("free memory of the GPU, lower ‹device_memory_limit›, or load fewer tensors");
        match tensor {
            Some(tensor) => error.with_tensor(self.tensors[tensor].name()),
            None => error,
        }
    }

    /// Returns a region that has begun.
    pub(super) fn open(&self, region: usize) -> Arc<OpenRegion> {
        let state = self.state.lock();
        let open = state.open.get(&region);
        let (open, _) = open.expect("a region begins before its extents are read");
        Arc::clone(open)
    }

    /// Records that an extent of a region is on the device; after the last one, only its tensors
    /// keep the region.
    pub(super) fn copied(&self, region: usize) {
        let whole = {
            let mut state = self.state.lock();
            match state.open.get_mut(&region) {
                Some((_, missing)) if *missing > 1 => {
                    *missing -= 1;
                    None
                }
                Some(_) => state.open.remove(&region),
                None => None,
            }
        };
        drop(whole);
    }

    /// Ends the load: releases memory that no tensor uses. Copies in flight keep theirs.
    pub fn close(&self) {
        let left = {
            let mut state = self.state.lock();
            state.closed = true;
            state.wanted.clear();
            (
                std::mem::take(&mut state.given),
                std::mem::take(&mut state.open),
            )
        };
        // The lock is released first, because freeing can take a while.
        drop(left);
    }
}

impl std::fmt::Debug for DeviceMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?} of stream {:#x}", self.memory, self.stream)
    }
}
