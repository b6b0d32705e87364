//! Loading the driver, and its failures as errors.

#![expect(
    unsafe_code,
    reason = "loads a library and asks the driver for its version"
)]
#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "the driver has a hundred error codes"
)]

use std::sync::OnceLock;

use cudarc::driver::sys::{CUcontext, CUevent, CUresult, cuDriverGetVersion};
use cudarc::driver::{DriverError, result};
use libloading::Library;

use super::batch::BatchCopy;
use super::facts::DriverFacts;
use crate::error::{Error, ErrorKind, Result};

/// File names of the driver, in the order in which the bindings try them.
const NAMES: [&str; 2] = ["libcuda.so", "libcuda.so.1"];

/// Oldest driver with every function used here: memory pools came with 11.2, and this is the oldest
/// version tested.
const VERSION_MIN: i32 = 11_040;

/// First driver version with `cuCtxRecordEvent`.
const RECORD_CONTEXT_SINCE: i32 = 12_050;

/// First driver versions with `cuMemcpyBatchAsync`, and with the version of it that lacks the
/// argument for the index of a failed copy.
const BATCH_SINCE: i32 = 12_080;
const BATCH_WITHOUT_INDEX_SINCE: i32 = 13_000;

/// Signature of `cuCtxRecordEvent`, which drivers have since 12.5.
type RecordContext = unsafe extern "C" fn(CUcontext, CUevent) -> CUresult;

/// Signature of `cuEventElapsedTime`: the bindings for CUDA 13 call a newer function, which older
/// drivers lack.
type ElapsedTime = unsafe extern "C" fn(*mut f32, CUevent, CUevent) -> CUresult;

/// Initialised driver.
pub(super) struct Driver {
    library: Library,
    version: i32,
}

/// Returns the driver, loaded and initialised once per process. A failure is not cached: the next
/// load tries again.
pub(super) fn open() -> Result<&'static Driver> {
    static DRIVER: OnceLock<Driver> = OnceLock::new();
    if let Some(driver) = DRIVER.get() {
        return Ok(driver);
    }
    if cfg!(all(target_os = "linux", target_feature = "crt-static")) {
        return Err(Error::unsupported(
            "this build of tload is linked statically, so it cannot load the CUDA driver",
        )
        .with_hint("install the Python package or the command for glibc, or use ‹device=cpu›"));
    }
    // The bindings panic when there is none, so the driver must be loaded before their first call.
    let mut tries = NAMES.iter().map(|name| {
        // SAFETY: loading the vendor's driver runs its initialisers, which is what every CUDA
        // program does.
        unsafe { Library::new(*name) }
    });
    let Some(library) = tries.find_map(std::result::Result::ok) else {
        return Err(
            Error::unsupported("no CUDA driver was found (libcuda.so, libcuda.so.1)").with_hint(
                "install the NVIDIA driver, expose the GPU to this container, or use ‹device=cpu›",
            ),
        );
    };
    result::init().map_err(refused)?;
    let mut version = 0;
    // SAFETY: the pointer is to a local variable.
    let asked = unsafe { cuDriverGetVersion(&raw mut version) };
    asked
        .result()
        .map_err(|error| failure("cannot query the version of the CUDA driver", error))?;
    if version < VERSION_MIN {
        return Err(Error::unsupported(format!(
            "the CUDA driver supports CUDA {}; {} or newer is needed",
            dotted(version),
            dotted(VERSION_MIN)
        ))
        .with_hint("install a newer NVIDIA driver"));
    }
    Ok(DRIVER.get_or_init(|| Driver { library, version }))
}

/// Returns the properties of the driver.
///
/// # Errors
///
/// [`ErrorKind::Unsupported`] without a usable driver.
pub fn driver() -> Result<DriverFacts> {
    let version = open()?.version;
    let devices = result::device::get_count()
        .map_err(|error| failure("cannot query the devices of the CUDA driver", error))?;
    Ok(DriverFacts {
        version,
        devices: usize::try_from(devices).unwrap_or(0),
    })
}

impl Driver {
    /// Looks up the function that records an event behind all work of a context.
    pub(super) fn record_context(&self) -> Option<RecordContext> {
        if self.version < RECORD_CONTEXT_SINCE {
            return None;
        }
        // SAFETY: the type is the one in the CUDA manual for this name.
        let found = unsafe { self.library.get::<RecordContext>(b"cuCtxRecordEvent\0") };
        found.ok().map(|symbol| *symbol)
    }
}

impl Driver {
    /// Looks up the function that returns the milliseconds between two events.
    pub(super) fn elapsed_time(&self) -> Option<ElapsedTime> {
        // SAFETY: the type is the one in the CUDA manual for this name.
        let found = unsafe { self.library.get::<ElapsedTime>(b"cuEventElapsedTime\0") };
        found.ok().map(|symbol| *symbol)
    }
}

impl Driver {
    /// Looks up the function that queues several copies at once.
    pub(super) fn batch_copy(&self) -> Option<BatchCopy> {
        if self.version >= BATCH_WITHOUT_INDEX_SINCE {
            // SAFETY: the type is the one of `cuda.h` of CUDA 13.0 for this name.
            let found = unsafe { self.library.get(b"cuMemcpyBatchAsync_v2\0") };
            if let Ok(function) = found {
                return Some(BatchCopy::WithoutIndex(*function));
            }
        }
        if self.version < BATCH_SINCE {
            return None;
        }
        // SAFETY: the type is the one of `cuda.h` of CUDA 12.8 for this name.
        let found = unsafe { self.library.get(b"cuMemcpyBatchAsync\0") };
        found.ok().map(|function| BatchCopy::WithIndex(*function))
    }
}

fn dotted(version: i32) -> String {
    format!("{}.{}", version / 1000, version % 1000 / 10)
}

/// Returns the error for a driver that was found and fails to initialise.
fn refused(error: DriverError) -> Error {
    let (message, hint) = match error.0 {
        CUresult::CUDA_ERROR_STUB_LIBRARY => (
            "the CUDA driver found is the toolkit's stub library, which is only for linking",
            "remove the toolkit's `stubs` directory from LD_LIBRARY_PATH, or install the NVIDIA driver",
        ),
        CUresult::CUDA_ERROR_NO_DEVICE => (
            "the CUDA driver finds no GPU",
            "check CUDA_VISIBLE_DEVICES, expose the GPU to this container, or use ‹device=cpu›",
        ),
        CUresult::CUDA_ERROR_NOT_INITIALIZED => (
            "the CUDA driver cannot be used in a process forked after CUDA was initialised",
            "start the process with multiprocessing's start method \"spawn\"",
        ),
        _ => (
            "the CUDA driver cannot be initialised",
            "check whether `nvidia-smi` works and what the kernel log says about the NVIDIA driver",
        ),
    };
    Error::unsupported(message)
        .with_hint(hint)
        .with_source(Cause::new(error))
}

/// Returns the error for a call of the driver that failed; `what` names the operation.
pub(super) fn failure(what: impl Into<String>, error: DriverError) -> Error {
    let hint = match error.0 {
        CUresult::CUDA_ERROR_NOT_INITIALIZED | CUresult::CUDA_ERROR_DEINITIALIZED => {
            "CUDA cannot be used in a process forked after CUDA was initialised, nor while a process exits"
        }
        CUresult::CUDA_ERROR_OUT_OF_MEMORY => {
            "free memory of the GPU: `nvidia-smi` shows which processes use it"
        }
        CUresult::CUDA_ERROR_DEVICE_UNAVAILABLE => {
            "another process uses the GPU in exclusive compute mode, or the GPU is gone"
        }
        code if is_lost(code) => {
            "this or an earlier failure has lost the GPU's context: start a new process; the kernel log (dmesg, Xid) may show \
             why"
        }
        _ => {
            "check whether `nvidia-smi` works and what the kernel log says about the NVIDIA driver"
        }
    };
    let kind = match error.0 {
        CUresult::CUDA_ERROR_OUT_OF_MEMORY => ErrorKind::OutOfMemory,
        _ => ErrorKind::Device,
    };
    Error::new(kind, what)
        .with_hint(hint)
        .with_source(Cause::new(error))
}

/// Returns whether an error of this module means that the GPU has stopped, and so no longer uses
/// any memory.
pub(super) fn is_lost_context(error: &Error) -> bool {
    let cause = std::error::Error::source(error).and_then(|source| source.downcast_ref::<Cause>());
    cause.is_some_and(|cause| {
        is_lost(cause.code) || cause.code == CUresult::CUDA_ERROR_DEINITIALIZED
    })
}

/// Returns whether a context that returns `code` fails every later call (CUDA driver API, "Error
/// handling": the process must be terminated and relaunched).
fn is_lost(code: CUresult) -> bool {
    matches!(
        code,
        CUresult::CUDA_ERROR_ILLEGAL_ADDRESS
            | CUresult::CUDA_ERROR_LAUNCH_FAILED
            | CUresult::CUDA_ERROR_LAUNCH_TIMEOUT
            | CUresult::CUDA_ERROR_HARDWARE_STACK_ERROR
            | CUresult::CUDA_ERROR_ILLEGAL_INSTRUCTION
            | CUresult::CUDA_ERROR_MISALIGNED_ADDRESS
            | CUresult::CUDA_ERROR_INVALID_ADDRESS_SPACE
            | CUresult::CUDA_ERROR_INVALID_PC
            | CUresult::CUDA_ERROR_ASSERT
            | CUresult::CUDA_ERROR_ECC_UNCORRECTABLE
            | CUresult::CUDA_ERROR_NVLINK_UNCORRECTABLE
            | CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED
            | CUresult::CUDA_ERROR_DEVICE_UNAVAILABLE
            | CUresult::CUDA_ERROR_EXTERNAL_DEVICE
    )
}

/// Error of the driver: `CUDA_ERROR_ILLEGAL_ADDRESS (700): an illegal memory access was
/// encountered`.
#[derive(Debug)]
struct Cause {
    code: CUresult,
    text: String,
}

impl Cause {
    fn new(error: DriverError) -> Self {
        let text = |found: std::result::Result<&std::ffi::CStr, DriverError>| {
            found.map_or("?".to_owned(), |text| text.to_string_lossy().into_owned())
        };
        let (name, string) = (text(error.error_name()), text(error.error_string()));
        Self {
            code: error.0,
            text: format!("{name} ({}): {string}", error.0 as u32),
        }
    }
}

impl std::fmt::Display for Cause {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for Cause {}
