//! Primary context of a device, and the device's properties.

#![expect(
    unsafe_code,
    reason = "retains, binds and releases contexts of the driver"
)]
#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "the driver has a hundred error codes"
)]

use std::marker::PhantomData;
use std::path::Path;
use std::ptr;
use std::sync::{Arc, OnceLock, Weak};

use cudarc::driver::sys::{
    CUcontext, CUdevice, CUdevice_attribute, CUmemPool_attribute, CUresult, CUstreamCaptureMode,
    cuCtxPopCurrent_v2, cuCtxPushCurrent_v2, cuDeviceGetPCIBusId, cuDevicePrimaryCtxGetState,
    cuThreadExchangeStreamCaptureMode,
};
use cudarc::driver::{DriverError, result};

use super::driver::{self, Driver, failure};
use super::facts::{DeviceFacts, FreeMemory};
use super::kind::{self, MemoryAttributes, MemoryKind};
use super::stream::Stream;
use crate::error::{Error, ErrorKind, Result};
use crate::sync::per_process::{PerProcess, process_id};

/// Primary context of one device. Clones share it; the last one releases it.
#[derive(Clone)]
pub struct Context(Arc<Inner>);

struct Inner {
    ordinal: usize,
    device: CUdevice,
    raw: CUcontext,
    driver: &'static Driver,
    /// The device has memory pools, so that allocations can be ordered with streams.
    has_pools: bool,
    memory: MemoryAttributes,
    /// Stream that frees memory after all work that the context was given before.
    freeing: OnceLock<Stream>,
    /// Process that retained the context.
    process: u32,
}

// SAFETY: any thread may bind a context, several threads at a time; the rest is plain data.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

/// Contexts in use by loads of this process.
static KNOWN: PerProcess<Vec<Weak<Inner>>> = PerProcess::new();

/// Guard that keeps a context current on this thread; on drop, the previous context is current
/// again.
#[derive(Debug)]
pub struct Bound {
    pushed: bool,
    /// Capture mode of the thread before.
    mode: Option<CUstreamCaptureMode>,
    /// The current context belongs to a thread, so the guard must stay on it.
    _thread: PhantomData<*const ()>,
}

/// Sets the thread's mode of stream capture, and returns the previous one.
///
/// In the default mode, calls such as querying an event would fail while another thread captures a
/// graph, and would invalidate that capture. The relaxed mode is for calls that, like these, have
/// nothing to do with any capture.
fn capture_mode(mode: CUstreamCaptureMode) -> Option<CUstreamCaptureMode> {
    let mut mode = mode;
    // SAFETY: the pointer is to a local variable.
    let exchanged = unsafe { cuThreadExchangeStreamCaptureMode(&raw mut mode) };
    exchanged.result().ok().map(|()| mode)
}

impl Drop for Bound {
    fn drop(&mut self) {
        if let Some(mode) = self.mode {
            capture_mode(mode);
        }
        if self.pushed {
            let mut popped = ptr::null_mut();
            // SAFETY: the pointer is to a local variable; the popped context is the one that `bind`
            // pushed, on this thread.
            let _ = unsafe { cuCtxPopCurrent_v2(&raw mut popped) };
        }
    }
}

impl Context {
    /// Opens the primary context of device `ordinal`, creating it if it does not exist.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`] without a driver, [`ErrorKind::InvalidRequest`] for a device that
    /// does not exist, [`ErrorKind::Device`] when the driver cannot make a context.
    pub fn open(ordinal: usize) -> Result<Self> {
        let driver = driver::open()?;
        // Loads of one device share a context, and with it the stream that memory is freed on.
        let mut known = KNOWN.lock();
        let of_device = |inner: &Arc<Inner>| inner.ordinal == ordinal;
        if let Some(inner) = known.iter().filter_map(Weak::upgrade).find(of_device) {
            return Ok(Self(inner));
        }
        let device = device(ordinal)?;
        // SAFETY: the device comes from the driver.
        let raw = unsafe { result::primary_ctx::retain(device) }
            .map_err(|error| failure(format!("cannot use GPU cuda:{ordinal}"), error))?;
        let has = |name| attribute(device, name).is_some_and(|supported| supported != 0);
        let has_pools = has(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED);
        let memory = MemoryAttributes {
            is_integrated: has(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_INTEGRATED),
            reads_pageable: has(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS),
            uses_host_page_tables: has(
                CUdevice_attribute::CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES,
            ),
        };
        let context = Self(Arc::new(Inner {
            ordinal,
            device,
            raw,
            driver,
            has_pools,
            memory,
            freeing: OnceLock::new(),
            process: process_id(),
        }));
        known.retain(|known| known.strong_count() > 0);
        known.push(Arc::downgrade(&context.0));
        Ok(context)
    }

    /// Ordinal of the device in this process.
    pub fn ordinal(&self) -> usize {
        self.0.ordinal
    }

    /// Returns the properties of the device.
    pub fn facts(&self) -> DeviceFacts {
        DeviceFacts {
            ordinal: self.ordinal(),
            name: result::device::get_name(self.0.device).unwrap_or_else(|_| "GPU".to_owned()),
            total_bytes: self.free_memory().map_or(0, |memory| memory.total),
            numa_node: self.numa_node(),
            memory: self.memory(),
        }
    }

    /// Returns the attributes that tell the device's memory from the host's.
    pub fn memory(&self) -> MemoryAttributes {
        self.0.memory
    }

    /// Returns whether it was made in this process: a forked child cannot use it.
    pub(super) fn is_here(&self) -> bool {
        self.0.process == process_id()
    }

    /// Returns the device's free and total memory.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Device`].
    pub fn free_memory(&self) -> Result<FreeMemory> {
        let _bound = self.bind()?;
        let (free, total) = result::mem_get_info()
            .map_err(|error| self.failure("cannot query the free memory", error))?;
        let (free, total) = (free as u64, total as u64);
        let kind = self.0.memory.kind();
        let meminfo = (kind == MemoryKind::Shared)
            .then(|| std::fs::read_to_string("/proc/meminfo").ok())
            .flatten();
        let available = meminfo.as_deref().and_then(kind::available);
        Ok(FreeMemory {
            free: kind.free_bytes(free, total, available),
            total,
        })
    }

    /// Returns whether the GPU has stopped, and so no longer uses any memory: either `error`
    /// reports it, or the context fails even a trivial query.
    pub fn is_lost(&self, error: &Error) -> bool {
        driver::is_lost_context(error) || self.free_memory().is_err()
    }

    /// Returns how many bytes a load without an allocator of the caller could get: the device's
    /// free memory, and freed memory that the device's pool keeps.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Device`].
    pub fn available_memory(&self) -> Result<u64> {
        crate::memory::free_leftovers();
        let _bound = self.bind()?;
        if let Some(freeing) = self.0.freeing.get() {
            // Memory that was just released becomes free when the GPU is done with it.
            freeing.synchronize()?;
        }
        let idle = if self.0.has_pools {
            self.idle_in_pool().unwrap_or(0)
        } else {
            0
        };
        Ok(self.free_memory()?.free + idle)
    }

    fn idle_in_pool(&self) -> Option<u64> {
        let attribute = |name| {
            // SAFETY: the device comes from the driver.
            let pool = unsafe { result::device::get_default_mem_pool(self.0.device) }.ok()?;
            let mut bytes = 0_u64;
            let value: *mut u64 = &raw mut bytes;
            // SAFETY: the pool is the device's, and both attributes are 64-bit numbers.
            unsafe { result::mem_pool::get_attribute(pool, name, value.cast()) }.ok()?;
            Some(bytes)
        };
        let reserved = attribute(CUmemPool_attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT)?;
        let used = attribute(CUmemPool_attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT)?;
        reserved.checked_sub(used)
    }

    /// Returns whether the device can read memory of this process that can only be read, once it is
    /// registered as such.
    pub fn registers_read_only(&self) -> bool {
        let name = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED;
        attribute(self.0.device, name).is_some_and(|supported| supported != 0)
    }

    /// Returns the PCI address of the device, as the system's files name it.
    pub fn pci_address(&self) -> Option<String> {
        let mut name = [0; 32];
        let len = i32::try_from(name.len()).expect("32");
        // SAFETY: the length passed is the buffer's.
        let asked = unsafe { cuDeviceGetPCIBusId(name.as_mut_ptr(), len, self.0.device) };
        asked.result().ok()?;
        let bytes: Vec<u8> = name
            .iter()
            .map(|byte| byte.to_ne_bytes()[0])
            .take_while(|byte| *byte != 0)
            .collect();
        Some(String::from_utf8(bytes).ok()?.to_lowercase())
    }

    /// Returns the NUMA node of host memory closest to the device; `None` where the system has one
    /// node or does not report it.
    pub fn numa_node(&self) -> Option<u32> {
        let file = Path::new("/sys/bus/pci/devices")
            .join(self.pci_address()?)
            .join("numa_node");
        // The value is -1 if the firmware does not report it.
        std::fs::read_to_string(file).ok()?.trim().parse().ok()
    }

    /// Waits until all work of the context is done.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Device`].
    pub fn synchronize(&self) -> Result<()> {
        let _bound = self.bind()?;
        result::ctx::synchronize().map_err(|error| self.failure("cannot wait for the GPU", error))
    }

    /// Makes the context current on this thread, whatever was current before.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Device`].
    pub fn bind(&self) -> Result<Bound> {
        let bound = |pushed| Bound {
            pushed,
            mode: capture_mode(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED),
            _thread: PhantomData,
        };
        let current = result::ctx::get_current()
            .map_err(|error| self.failure("cannot use a context", error))?;
        if current == Some(self.0.raw) {
            return Ok(bound(false));
        }
        // SAFETY: the context is retained as long as `self` lives; `Bound` pops it.
        unsafe { cuCtxPushCurrent_v2(self.0.raw) }
            .result()
            .map_err(|error| self.failure("cannot make a context current", error))?;
        Ok(bound(true))
    }

    pub(super) fn raw(&self) -> CUcontext {
        self.0.raw
    }

    pub(super) fn driver(&self) -> &'static Driver {
        self.0.driver
    }

    pub(super) fn has_pools(&self) -> bool {
        self.0.has_pools
    }

    /// Returns the primary contexts of other devices in use in this process, by any library: they
    /// may copy from the memory of this one. The driver does not list contexts that are not
    /// primary.
    pub(super) fn others(&self) -> Vec<Self> {
        let devices = driver::driver().map_or(0, |facts| facts.devices);
        let others =
            (0..devices).filter(|ordinal| *ordinal != self.ordinal() && is_in_use(*ordinal));
        // A context that cannot be retained is lost and copies nothing any more.
        others
            .filter_map(|ordinal| Self::open(ordinal).ok())
            .collect()
    }

    /// Stream that memory is freed on.
    pub(super) fn freeing(&self) -> Result<&Stream> {
        if let Some(stream) = self.0.freeing.get() {
            return Ok(stream);
        }
        // The callback has no reference to the context, which would otherwise keep itself alive.
        let made = Stream::unowned(self)?;
        Ok(self.0.freeing.get_or_init(|| made))
    }

    pub(super) fn failure(&self, what: &str, error: DriverError) -> Error {
        failure(format!("cuda:{}: {what}", self.ordinal()), error)
    }
}

impl std::fmt::Debug for Context {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Context(cuda:{})", self.ordinal())
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Some(freeing) = self.freeing.take() {
            // SAFETY: the context is retained until below; `Bound` pops it.
            let pushed = unsafe { cuCtxPushCurrent_v2(self.raw) };
            let _bound = Bound {
                pushed: pushed.result().is_ok(),
                mode: None,
                _thread: PhantomData,
            };
            drop(freeing);
        }
        // SAFETY: retained once in `open`. When no other owner is left, the driver destroys the
        // context with all that is in it.
        let _ = unsafe { result::primary_ctx::release(self.device) };
    }
}

/// Returns whether anything in this process uses the primary context of device `ordinal`.
fn is_in_use(ordinal: usize) -> bool {
    let Ok(device) = device(ordinal) else {
        return false;
    };
    let (mut flags, mut active) = (0, 0);
    // SAFETY: the device comes from the driver, and both pointers are to local variables.
    let asked = unsafe { cuDevicePrimaryCtxGetState(device, &raw mut flags, &raw mut active) };
    asked.result().is_ok() && active != 0
}

fn device(ordinal: usize) -> Result<CUdevice> {
    let count = driver::driver()?.devices;
    let number = i32::try_from(ordinal).unwrap_or(i32::MAX);
    result::device::get(number).map_err(|error| match error.0 {
        CUresult::CUDA_ERROR_INVALID_DEVICE | CUresult::CUDA_ERROR_INVALID_VALUE => {
            let seen = match count {
                1 => "one GPU, cuda:0".to_owned(),
                count => format!("{count} GPUs, cuda:0 to cuda:{}", count.saturating_sub(1)),
            };
            Error::new(
                ErrorKind::InvalidRequest,
                format!("there is no cuda:{ordinal}: this process sees {seen}"),
            )
            .with_hint("CUDA_VISIBLE_DEVICES selects the GPUs that a process sees, numbered from 0")
        }
        _ => failure(format!("cannot use GPU cuda:{ordinal}"), error),
    })
}

fn attribute(device: CUdevice, name: CUdevice_attribute) -> Option<i32> {
    // SAFETY: the device comes from the driver.
    unsafe { result::device::get_attribute(device, name) }.ok()
}
