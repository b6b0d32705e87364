//! A loaded [`Tensor`]: owns its bytes together with its neighbours in its region. Knows nothing of
//! how they were read.

use std::borrow::Cow;
use std::fmt;
use std::ptr;

use crate::format::Dtype;
pub(crate) use crate::format::TensorInfo;
use crate::memory::{DeviceBytes, RegionBytes, Target};

/// A loaded tensor. Its bytes stay valid while any clone lives, whatever happens to the stream that
/// made it; bytes in caller-provided memory, as long as that memory does. All bytes have arrived,
/// also on a GPU: work on any CUDA stream may use them.
///
/// Small tensors that are neighbours in the file share memory: keeping one keeps at most about 1
/// MiB besides it.
///
/// # Examples
///
/// ```
/// # let model = tload_testing::ExampleModel::new(); let path = model.path();
/// use tload::{Checkpoint, Dtype, Selection};
///
/// let bias = Selection::names(["layer.0.bias"]);
/// let mut stream = Checkpoint::open(path)?.load().select(bias).stream()?;
/// let tensor = stream.next().expect("one tensor")?;
/// assert_eq!((tensor.name(), tensor.dtype()), ("layer.0.bias", Dtype::F32));
/// assert_eq!((tensor.shape(), tensor.byte_len()), (&[4][..], 16));
/// let (elements, []) = tensor.bytes().as_chunks::<4>() else {
///     unreachable!("4 bytes each");
/// };
/// let elements: Vec<f32> = elements.iter().map(|it| f32::from_le_bytes(*it)).collect();
/// assert_eq!(elements, [0.0, 1.0, 2.0, 3.0]);
/// # Ok::<(), tload::Error>(())
/// ```
#[derive(Clone)]
pub struct Tensor {
    info: TensorInfo,
    /// Element type, if it is not that of the checkpoint.
    converted: Option<Dtype>,
    bytes: TensorBytes,
}

/// Memory that holds the bytes of a tensor.
#[derive(Clone, Debug)]
pub(crate) enum TensorBytes {
    /// No bytes.
    Empty,
    /// Host memory of the load.
    Host(RegionBytes),
    /// GPU memory of the load.
    Device(DeviceBytes),
    /// Memory that the caller provided.
    Target(Target),
}

impl Tensor {
    pub(crate) fn new(info: TensorInfo, bytes: TensorBytes) -> Self {
        Self {
            info,
            converted: None,
            bytes,
        }
    }

    /// Declares the dtype that the bytes have been converted to, if they have been.
    pub(crate) fn converted(self, converted: Option<Dtype>) -> Self {
        Self { converted, ..self }
    }

    /// Marks the tensor as received by the caller: its bytes leave the budget when all its
    /// neighbours have been received.
    #[doc(hidden)]
    pub fn received(&self) {
        match &self.bytes {
            TensorBytes::Host(bytes) => bytes.region().tensor_received(),
            TensorBytes::Device(bytes) => bytes.region().tensor_received(),
            TensorBytes::Empty | TensorBytes::Target(_) => {}
        }
    }

    /// Returns the checkpoint's description of the tensor: its dtype is that of the file.
    pub fn info(&self) -> &TensorInfo {
        &self.info
    }

    /// Returns the tensor's name.
    pub fn name(&self) -> &str {
        self.info.name()
    }

    /// Returns the element type: that of the checkpoint, unless the load has converted the tensor
    /// ([`LoadOptions::dtype`](crate::LoadOptions::dtype)).
    pub fn dtype(&self) -> Dtype {
        self.converted.unwrap_or(self.info.dtype())
    }

    /// Returns the number of elements along each dimension, row-major; empty for a scalar.
    pub fn shape(&self) -> &[usize] {
        self.info.shape()
    }

    /// Returns the length in bytes.
    pub fn byte_len(&self) -> u64 {
        self.converted.map_or(self.info.byte_len(), |dtype| {
            self.info.element_count() * dtype.bits() as u64 / 8
        })
    }

    /// Returns the bytes: row-major, little endian, sub-byte elements packed.
    ///
    /// # Panics
    ///
    /// For a tensor in GPU memory ([`Self::device_bytes`]), and for one in caller-provided memory,
    /// which only the caller may read.
    #[expect(clippy::panic, reason = "documented; there is no slice to return")]
    pub fn bytes(&self) -> &[u8] {
        match &self.bytes {
            TensorBytes::Empty => &[],
            TensorBytes::Host(bytes) => bytes.as_slice(),
            TensorBytes::Device(_) => panic!("the bytes of {self:?} are in GPU memory"),
            TensorBytes::Target(_) => panic!("the bytes of {self:?} are in the caller's memory"),
        }
    }

    /// Returns the bytes in GPU memory: device, address, and the allocation's owner. `None` for a
    /// tensor in host memory, for one in caller-provided memory, and for one without bytes.
    pub fn device_bytes(&self) -> Option<&DeviceBytes> {
        match &self.bytes {
            TensorBytes::Device(bytes) => Some(bytes),
            TensorBytes::Empty | TensorBytes::Host(_) | TensorBytes::Target(_) => None,
        }
    }

    /// Returns the caller-provided memory that the tensor was loaded into, if it was.
    pub fn target(&self) -> Option<&Target> {
        match &self.bytes {
            TensorBytes::Target(target) => Some(target),
            TensorBytes::Empty | TensorBytes::Host(_) | TensorBytes::Device(_) => None,
        }
    }

    /// Returns the GPU that the tensor is on; `None` for host memory. A tensor without bytes is on
    /// no device.
    pub fn ordinal(&self) -> Option<usize> {
        match &self.bytes {
            TensorBytes::Device(bytes) => Some(bytes.ordinal()),
            TensorBytes::Target(target) => target.ordinal(),
            TensorBytes::Empty | TensorBytes::Host(_) => None,
        }
    }

    /// Returns whether the tensor may be written to. False only for a view of a file or of memory
    /// that ranks share, unless the caller asked for writable views.
    pub fn is_writable(&self) -> bool {
        match &self.bytes {
            TensorBytes::Host(bytes) => bytes.region().is_writable(),
            TensorBytes::Empty | TensorBytes::Device(_) | TensorBytes::Target(_) => true,
        }
    }

    /// Returns the address of the first byte, in host memory or on its GPU. It is a multiple of the
    /// dtype's alignment, also when the tensor has no bytes (then nothing may be read there). In
    /// caller-provided memory it is the address that the caller gave.
    pub fn as_ptr(&self) -> *const u8 {
        let foreign = |address: u64| {
            let address = usize::try_from(address).expect("addresses have 64 bits");
            ptr::with_exposed_provenance(address)
        };
        match &self.bytes {
            TensorBytes::Empty => ptr::without_provenance(self.dtype().alignment()),
            TensorBytes::Host(bytes) => bytes.as_ptr(),
            TensorBytes::Device(bytes) => foreign(bytes.address()),
            TensorBytes::Target(target) => foreign(target.address()),
        }
    }
}

/// Saves tensors in the host memory of a load, with the crate `safetensors`.
///
/// # Panics
///
/// [`safetensors::View::data`], as [`Tensor::bytes`].
///
/// # Examples
///
/// ```
/// # let model = tload_testing::ExampleModel::new(); let path = model.path();
/// let loaded: tload::Result<Vec<_>> = tload::Checkpoint::open(path)?.load().stream()?.collect();
/// let loaded = loaded?;
/// let named = loaded.iter().map(|tensor| (tensor.name(), tensor));
/// let file = safetensors::serialize(named, None).expect("three tensors");
/// assert_eq!(safetensors::SafeTensors::deserialize(&file).expect("a file").len(), 3);
/// # Ok::<(), tload::Error>(())
/// ```
impl safetensors::View for &Tensor {
    fn dtype(&self) -> safetensors::Dtype {
        Tensor::dtype(self).into()
    }

    fn shape(&self) -> &[usize] {
        Tensor::shape(self)
    }

    fn data(&self) -> Cow<'_, [u8]> {
        self.bytes().into()
    }

    fn data_len(&self) -> usize {
        usize::try_from(self.byte_len()).expect("the bytes are in memory")
    }
}

/// As for a reference to a tensor.
impl safetensors::View for Tensor {
    fn dtype(&self) -> safetensors::Dtype {
        self.dtype().into()
    }

    fn shape(&self) -> &[usize] {
        self.shape()
    }

    fn data(&self) -> Cow<'_, [u8]> {
        self.bytes().into()
    }

    fn data_len(&self) -> usize {
        (&self).data_len()
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Tensor({:?}, {}, {:?})",
            self.name(),
            self.dtype(),
            self.shape()
        )
    }
}
