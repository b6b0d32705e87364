//! Bytes that are computed from stored ones on their way from an engine to a sink: the interface.

use std::fmt::Debug;
use std::ops::Range;

use crate::error::Result;

/// Computes the bytes of a source from those that are stored, in units that each are computed on
/// their own.
pub trait Transform: Debug + Send + Sync {
    /// Returns the units that bytes of `range` are in. An empty range has none.
    fn units(&self, range: &Range<u64>) -> Range<u32>;

    /// Returns the unit of this number, which must exist. Units follow each other, in both forms.
    fn unit(&self, number: u32) -> Unit;

    /// Returns the stored length of the longest unit, bytes.
    fn unit_bytes_max(&self) -> u64;

    /// Returns whether headers are stored as they are, and only the tensors in another form.
    fn keeps_headers(&self) -> bool {
        false
    }

    /// Writes the bytes of a unit, all of them, to `to`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Corrupt`](crate::error::ErrorKind::Corrupt) if the stored bytes are not those
    /// that were written; `to` then has no byte that depends on them.
    fn apply(&self, number: u32, stored: &[u8], to: &mut [u8]) -> Result<()>;

    /// Returns the SHA-256 in hexadecimal of all bytes, if an authority has stated it.
    fn sha256(&self) -> Option<&str> {
        None
    }

    /// Computes the bytes of a unit in place, and returns them.
    ///
    /// # Errors
    ///
    /// As [`Self::apply`]; `stored` is then cleared.
    fn apply_in_place<'a>(&self, number: u32, stored: &'a mut [u8]) -> Result<&'a [u8]>;
}

/// Bytes that are computed together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unit {
    /// Bytes of the source.
    pub bytes: Range<u64>,
    /// Bytes that they are computed from, as they are stored.
    pub stored: Range<u64>,
}
