//! DLPack: hands a tensor's memory to another library without a copy.
//!
//! ```text
//! export ──▶ capsule "dltensor[_versioned]" ──▶ consumer renames it "used_…", owns the memory,
//!                │                               and calls `free` when done
//!                └── no consumer took it: the capsule's destructor calls `free`
//! ```
//!
//! An export owns a share of the tensor, so the bytes live as long as the last consumer. `free`
//! runs on any thread and without the interpreter: it touches no Python object, and GPU memory is
//! returned in stream order, after the work that the consumer submitted. Structures and codes:
//! `dlpack.h` 1.1, <https://github.com/dmlc/dlpack>.
//!
//! A view of a file, or of memory that ranks share, is exported as read-only unless it is writable.
//! Only the versioned structure can express that, and a consumer of the other one may write, which
//! would kill the process, so such an export is refused. numpy likewise refuses to export its
//! read-only arrays.
//!
//! All bytes of a tensor on a GPU have arrived when the core yields it: the host has seen the
//! copies complete. So the consumer's stream has nothing to wait for, and no event is recorded.

#![expect(
    unsafe_code,
    reason = "DLPack is a C ABI: foreign code reads our structures and calls our deleter"
)]

use std::ffi::{CStr, c_void};
use std::ptr::{self, NonNull};

use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyCapsule};
use tload::internal::process_id;
use tload::{Dtype, Tensor};

/// `kDLCPU`, device 0.
const CPU: (i32, i32) = (1, 0);

/// `kDLCUDA`.
const CUDA: i32 = 2;

/// Version of the structures below, and the first with codes for 8-bit, 6-bit and 4-bit floats.
const VERSION: (u32, u32) = (1, 1);

/// `DLPACK_FLAG_BITMASK_READ_ONLY`.
const FLAG_READ_ONLY: u64 = 1;

/// `DLPACK_FLAG_BITMASK_IS_COPIED`.
const FLAG_COPIED: u64 = 1 << 1;

/// Arguments of a consumer's call of `__dlpack__`.
#[derive(Debug)]
pub struct Request {
    /// `None`: the consumer knows only the structures from before version 1.
    pub max_version: Option<(u32, u32)>,
    /// Device that the consumer wants the memory on; `None`: where it is.
    pub dl_device: Option<(i32, i32)>,
    /// `true`: always copied. Otherwise never.
    pub copy: Option<bool>,
}

/// Checks the stream that a consumer names, in the array API's terms: none, `-1` (do not wait), the
/// default stream (1), the per-thread default stream (2), or the address of one.
///
/// # Errors
///
/// `BufferError` for anything else.
pub fn check_stream(device: (i32, i32), stream: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
    let Some(stream) = stream else {
        return Ok(());
    };
    if device == CPU {
        return Err(PyBufferError::new_err(
            "the tensor is in CPU memory, which has no streams; pass stream=None",
        ));
    }
    let is_bool = stream.is_instance_of::<PyBool>();
    // A stream's address may need all 64 bits.
    let number = stream.extract::<i128>().ok().filter(|_| !is_bool);
    match number {
        Some(-1 | 1..) => Ok(()),
        Some(0) => Err(PyBufferError::new_err(
            "stream=0 is ambiguous in CUDA; pass 1 for the default stream or 2 for the per-thread one",
        )),
        _ => Err(PyBufferError::new_err(format!(
            "stream={} is not a stream; pass None, -1, 1, 2, or the address of one",
            stream.repr()?
        ))),
    }
}

/// Returns the device in DLPack's encoding.
pub fn device(device: tload::Device) -> (i32, i32) {
    if let tload::Device::Cuda(ordinal) = device {
        (CUDA, i32::try_from(ordinal).expect("there are few GPUs"))
    } else {
        CPU
    }
}

/// Element type and shape in DLPack's encoding.
#[derive(Debug)]
pub struct Layout {
    dtype: DataType,
    shape: Vec<i64>,
}

impl Layout {
    /// Returns the layout of a row-major tensor.
    ///
    /// Two 4-bit floats make one element of two lanes, and the last dimension is halved, as in
    /// torch (`float4_e2m1fn_x2`); when that dimension is odd, the shape stays and the elements are
    /// packed. 6-bit floats keep their shape and are packed: four in three bytes.
    pub fn new(dtype: Dtype, shape: &[usize]) -> PyResult<Self> {
        let mut shape = shape
            .iter()
            .map(|&dim| i64::try_from(dim))
            .collect::<Result<Vec<i64>, _>>()
            .map_err(|_| PyBufferError::new_err("a dimension is too large for DLPack"))?;
        let (code, bits) = code_and_bits(dtype);
        let mut lanes = 1;
        if dtype == Dtype::F4
            && let Some(last) = shape.last_mut()
            && *last % 2 == 0
        {
            *last /= 2;
            lanes = 2;
        }
        Ok(Self {
            dtype: DataType { code, bits, lanes },
            shape,
        })
    }

    /// Returns the layout of a row of `len` bytes.
    pub fn for_bytes(len: u64) -> PyResult<Self> {
        let len = usize::try_from(len)
            .map_err(|_| PyBufferError::new_err("the tensor is too large for DLPack"))?;
        Self::new(Dtype::U8, &[len])
    }

    /// Returns the strides of the dimensions, in elements.
    fn strides(&self) -> Vec<i64> {
        let mut strides = vec![1_i64; self.shape.len()];
        for index in (1..self.shape.len()).rev() {
            // Saturating: only a tensor without elements can have such dimensions, and its strides
            // are irrelevant.
            strides[index - 1] = strides[index].saturating_mul(self.shape[index]);
        }
        strides
    }
}

/// Returns `DLDataTypeCode` and bits.
fn code_and_bits(dtype: Dtype) -> (u8, u8) {
    match dtype {
        Dtype::I8 => (0, 8),
        Dtype::I16 => (0, 16),
        Dtype::I32 => (0, 32),
        Dtype::I64 => (0, 64),
        Dtype::U8 => (1, 8),
        Dtype::U16 => (1, 16),
        Dtype::U32 => (1, 32),
        Dtype::U64 => (1, 64),
        Dtype::F16 => (2, 16),
        Dtype::F32 => (2, 32),
        Dtype::F64 => (2, 64),
        Dtype::Bf16 => (4, 16),
        Dtype::C64 => (5, 64),
        Dtype::Bool => (6, 8),
        Dtype::F8E4M3 => (10, 8),
        Dtype::F8E4M3Fnuz => (11, 8),
        Dtype::F8E5M2 => (12, 8),
        Dtype::F8E5M2Fnuz => (13, 8),
        Dtype::F8E8M0 => (14, 8),
        Dtype::F6E2M3 => (15, 6),
        Dtype::F6E3M2 => (16, 6),
        Dtype::F4 => (17, 4),
    }
}

/// Makes the capsule for `tensor`.
///
/// # Errors
///
/// `BufferError` if the tensor's memory does not meet the consumer's request.
pub fn export<'py>(
    py: Python<'py>,
    tensor: &Tensor,
    device: (i32, i32),
    layout: Layout,
    request: &Request,
) -> PyResult<Bound<'py, PyCapsule>> {
    let name = if device == CPU { "CPU" } else { "GPU" };
    if let Some(wanted) = request.dl_device.filter(|wanted| *wanted != device) {
        return Err(PyBufferError::new_err(format!(
            "the tensor is in {name} memory (DLPack device {device:?}) and cannot be exported to device {wanted:?}; \
             load it there with device=, or import it and let the importing library copy it"
        )));
    }
    let given = tensor
        .device_bytes()
        .is_some_and(|bytes| bytes.owner().is_some());
    if given || tensor.target().is_some() {
        return Err(PyBufferError::new_err(
            "the tensor is in the caller's memory: use that memory",
        ));
    }
    if device != CPU && request.copy == Some(true) {
        return Err(PyBufferError::new_err(
            "tload does not copy on a GPU; import the tensor without copy=True and let the importing library copy it",
        ));
    }
    let copied = request.copy == Some(true);
    let bytes = if copied {
        Bytes::Copied(py.detach(|| copy(tensor.bytes())))
    } else {
        Bytes::Loaded(tensor.clone())
    };
    match request.max_version {
        Some((1.., minor)) => {
            let version = Version {
                major: VERSION.0,
                minor: minor.min(VERSION.1),
            };
            let flags = match (copied, tensor.is_writable()) {
                (true, _) => FLAG_COPIED,
                (false, true) => 0,
                (false, false) => FLAG_READ_ONLY,
            };
            capsule(py, bytes, device, layout, |tensor, context| {
                ManagedVersioned {
                    version,
                    context,
                    deleter: free::<ManagedVersioned>,
                    flags,
                    tensor,
                }
            })
        }
        _ if !copied && !tensor.is_writable() => Err(PyBufferError::new_err(
            "the tensor is a read-only view of a file or of memory that ranks share, which DLPack before \
             version 1 cannot express; load with writable=True or private=True, or pass copy=True, or pass \
             max_version=(1, 0) and do not write to it",
        )),
        _ => capsule(py, bytes, device, layout, |tensor, context| Managed {
            tensor,
            context,
            deleter: free::<Managed>,
        }),
    }
}

/// `DLDevice`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Device {
    kind: i32,
    index: i32,
}

/// `DLDataType`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct DataType {
    code: u8,
    bits: u8,
    lanes: u16,
}

/// `DLTensor`.
#[repr(C)]
#[derive(Debug)]
struct TensorView {
    start: *mut c_void,
    device: Device,
    dimensions: i32,
    dtype: DataType,
    shape: *const i64,
    strides: *const i64,
    byte_offset: u64,
}

/// `DLPackVersion`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Version {
    major: u32,
    minor: u32,
}

/// `DLManagedTensor`: before version 1.
#[repr(C)]
#[derive(Debug)]
struct Managed {
    tensor: TensorView,
    context: *mut c_void,
    deleter: unsafe extern "C" fn(*mut Managed),
}

/// `DLManagedTensorVersioned`.
#[repr(C)]
#[derive(Debug)]
struct ManagedVersioned {
    version: Version,
    context: *mut c_void,
    deleter: unsafe extern "C" fn(*mut ManagedVersioned),
    flags: u64,
    tensor: TensorView,
}

/// One of the two structures that a capsule may hold.
trait Exported: Sized + 'static {
    const NAME: &'static CStr;
    fn context(&self) -> *mut c_void;
}

impl Exported for Managed {
    const NAME: &'static CStr = c"dltensor";
    fn context(&self) -> *mut c_void {
        self.context
    }
}

impl Exported for ManagedVersioned {
    const NAME: &'static CStr = c"dltensor_versioned";
    fn context(&self) -> *mut c_void {
        self.context
    }
}

/// All values that one export owns. `exported` points into the rest.
struct Export<M> {
    exported: M,
    _bytes: Bytes,
    _shape: Vec<i64>,
    _strides: Vec<i64>,
    process: u32,
}

enum Bytes {
    Loaded(Tensor),
    Copied(Box<[Line]>),
}

/// A cache line: copies are aligned well enough for every dtype.
#[repr(C, align(64))]
#[derive(Clone, Copy)]
struct Line([u8; 64]);

fn copy(bytes: &[u8]) -> Box<[Line]> {
    bytes
        .chunks(64)
        .map(|piece| {
            let mut line = Line([0; 64]);
            line.0[..piece.len()].copy_from_slice(piece);
            line
        })
        .collect()
}

impl Bytes {
    /// Returns the first byte; null if there are none, as DLPack requires.
    fn start(&self) -> *mut c_void {
        match self {
            Self::Loaded(tensor) if tensor.byte_len() > 0 => tensor.as_ptr().cast_mut().cast(),
            Self::Copied(lines) if !lines.is_empty() => lines.as_ptr().cast_mut().cast(),
            Self::Loaded(_) | Self::Copied(_) => ptr::null_mut(),
        }
    }
}

/// Puts an export into a capsule that frees it unless a consumer takes it over.
fn capsule<M: Exported>(
    py: Python<'_>,
    bytes: Bytes,
    device: (i32, i32),
    layout: Layout,
    exported: impl FnOnce(TensorView, *mut c_void) -> M,
) -> PyResult<Bound<'_, PyCapsule>> {
    let strides = layout.strides();
    let view = TensorView {
        start: bytes.start(),
        device: Device {
            kind: device.0,
            index: device.1,
        },
        dimensions: i32::try_from(layout.shape.len())
            .map_err(|_| PyBufferError::new_err("the tensor has too many dimensions for DLPack"))?,
        dtype: layout.dtype,
        shape: layout.shape.as_ptr(),
        strides: strides.as_ptr(),
        byte_offset: 0,
    };
    let memory = Box::<Export<M>>::new_uninit();
    let context: *mut Export<M> = Box::into_raw(memory).cast();
    let export = Export {
        exported: exported(view, context.cast()),
        _bytes: bytes,
        _shape: layout.shape,
        _strides: strides,
        process: process_id(),
    };
    // SAFETY: `context` was just allocated for exactly this type and holds nothing yet.
    unsafe { context.write(export) };
    // SAFETY: `context` came from `Box::into_raw` and is initialised, so its field has an address.
    let first = unsafe { &raw mut (*context).exported };
    let pointer = NonNull::new(first.cast()).expect("a box has an address");
    // SAFETY: `discard::<M>` expects a capsule named `M::NAME` around an `M` inside a boxed
    // `Export<M>`: `pointer` is one.
    let capsule = unsafe {
        PyCapsule::new_with_pointer_and_destructor(py, pointer, M::NAME, Some(discard::<M>))
    };
    if capsule.is_err() {
        // SAFETY: no capsule was made, so `first` is freed nowhere else.
        unsafe { free::<M>(first) };
    }
    capsule
}

/// Frees an export. The consumer's last call, on any thread, attached to the interpreter or not.
///
/// # Safety
///
/// `exported` points to an `M` that [`capsule`] made and that was not freed before.
unsafe extern "C" fn free<M: Exported>(exported: *mut M) {
    // SAFETY: the caller guarantees that `exported` points to a live `M`.
    let context = unsafe { (*exported).context() };
    // SAFETY: `capsule` stored the address of the `Export<M>` that it had boxed, and this is the
    // only call.
    let export = unsafe { Box::from_raw(context.cast::<Export<M>>()) };
    if export.process != process_id() {
        // In a forked process, a thread that does not exist there may hold a lock of the buffer
        // pool forever.
        let _left_alone = std::mem::ManuallyDrop::new(export);
    }
}

/// Destructor of the capsule: frees an export that no consumer took over.
///
/// # Safety
///
/// Only Python may call it, with a capsule that [`capsule`] made.
unsafe extern "C" fn discard<M: Exported>(capsule: *mut ffi::PyObject) {
    // A consumer renames the capsule when it takes over. SAFETY: Python passes the capsule that it
    // is about to free.
    if unsafe { ffi::PyCapsule_IsValid(capsule, M::NAME.as_ptr()) } == 0 {
        return;
    }
    // SAFETY: as above; the name was just checked, so this cannot fail.
    let exported = unsafe { ffi::PyCapsule_GetPointer(capsule, M::NAME.as_ptr()) };
    // SAFETY: `capsule` put an `M` in, and the unchanged name shows that no consumer took it out.
    unsafe { free::<M>(exported.cast()) };
}
