//! Seam for what changes the bytes of a file on their way: encryption.

use crate::error::Result;

/// Changes the bytes of one file, from its first to its last.
///
/// The stored file has what [`Self::push`] and [`Self::finish`] append, in that order.
pub trait Transform: Send {
    /// Takes the next bytes of the file, and appends to `stored` what can be stored so far.
    ///
    /// # Errors
    ///
    /// Those of the transform; the write fails with them.
    fn push(&mut self, bytes: &[u8], stored: &mut Vec<u8>) -> Result<()>;

    /// Appends the rest to `stored`, after the last byte.
    ///
    /// # Errors
    ///
    /// Those of the transform; the write fails with them.
    fn finish(&mut self, stored: &mut Vec<u8>) -> Result<()>;

    /// Returns the length of the stored file for a file of `bytes`.
    fn stored_len(&self, bytes: u64) -> u64;
}
