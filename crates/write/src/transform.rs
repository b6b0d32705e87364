//! Seam for what changes the bytes of files on their way: encryption.

use std::fmt;

use crate::error::Result;

/// Name of a small file, and its content.
pub type SmallFile = (String, Vec<u8>);

/// Changes the files of one checkpoint, and adds to them.
pub trait Sealing: fmt::Debug + Send + Sync {
    /// Returns what changes the bytes of the file of this name.
    fn file(&self, name: &str) -> Box<dyn Transform>;

    /// Returns a small file as it is stored.
    ///
    /// # Errors
    ///
    /// Those of the transform; the write fails with them.
    fn small_file(&self, name: &str, content: &[u8]) -> Result<Vec<u8>>;

    /// Returns the files that complete the checkpoint, once all others have been written.
    ///
    /// # Errors
    ///
    /// Those of making them; the write fails with them.
    fn complete(&self) -> Result<Vec<SmallFile>>;
}

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
