//! Name, dtype and shape of a tensor to write.

use crate::error::{Error, Result, shortened};
use crate::format::Dtype;

/// Key of a header that is no tensor.
const METADATA: &str = "__metadata__";

/// Name, dtype and shape of a tensor to write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorSpec {
    name: String,
    dtype: Dtype,
    shape: Vec<u64>,
    byte_len: u64,
}

impl TensorSpec {
    /// Creates the description of a tensor; without dimensions, it is a scalar.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidRequest`](crate::error::ErrorKind::InvalidRequest) for a name that the
    /// format reserves, and for a shape of more than 2⁶⁴ bytes or of a fraction of one.
    pub fn new(name: impl Into<String>, dtype: Dtype, shape: impl Into<Vec<u64>>) -> Result<Self> {
        let (name, shape) = (name.into(), shape.into());
        let failed = |message: String| Error::invalid_request(message).with_tensor(&*name);
        if name == METADATA {
            return Err(failed("the format reserves this name".to_owned()));
        }
        let product = |total: u64, &dim: &u64| total.checked_mul(dim);
        let bits = shape.iter().try_fold(dtype.bits() as u64, product);
        let bits = bits.ok_or_else(|| failed(format!("the shape {shape:?} is too large")))?;
        if bits % 8 != 0 {
            let message = format!("{bits} bits of {dtype} in shape {shape:?} are no whole bytes");
            return Err(failed(message));
        }
        Ok(Self {
            byte_len: bits / 8,
            name,
            dtype,
            shape,
        })
    }

    /// Returns the name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the type of the elements.
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// Returns the dimensions.
    pub fn shape(&self) -> &[u64] {
        &self.shape
    }

    /// Returns the length in bytes.
    pub fn byte_len(&self) -> u64 {
        self.byte_len
    }

    /// Returns the error for a tensor that comes twice.
    pub(crate) fn is_twice(&self) -> Error {
        let message = format!("the name {:?} comes twice", shortened(&self.name));
        Error::invalid_request(message).with_tensor(&*self.name)
    }
}
