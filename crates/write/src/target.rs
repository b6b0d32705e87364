//! Seam to where files are written: a directory, or an object store.

use crate::disk::DiskTarget;
use crate::error::Result;
use crate::options::Location;
use crate::plan::Naming;
use crate::write_options::WriteOptions;

/// Bytes of a buffer: enough that the rest of a write costs nothing beside its bytes, and a part of
/// an upload as the clients of object stores send them.
pub(crate) const BUFFER_BYTES: usize = 8 << 20;

/// Alignment of buffers in memory and of offsets in files for direct I/O. No disk needs more.
pub(crate) const ALIGNMENT: usize = 4096;

/// Memory for bytes of a file, aligned for direct I/O.
#[derive(Debug)]
pub(crate) struct Buffer {
    memory: Vec<u8>,
    start: usize,
}

impl Buffer {
    /// Allocates a buffer of `len` bytes.
    pub(crate) fn new(len: usize) -> Self {
        let memory = vec![0; len + ALIGNMENT];
        let start = memory.as_ptr().align_offset(ALIGNMENT);
        Self { memory, start }
    }

    /// Returns the memory.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        let end = self.memory.len() - ALIGNMENT + self.start;
        &mut self.memory[self.start..end]
    }

    /// Returns the first `len` bytes.
    pub(crate) fn bytes(&self, len: usize) -> &[u8] {
        &self.memory[self.start..self.start + len]
    }
}

/// Destination of a write.
pub(crate) trait Target: Send {
    /// Returns the names of its files.
    fn naming(&self) -> &Naming;

    /// Begins a file. `len` is its length, if that is known.
    fn create(&mut self, name: &str, len: Option<u64>) -> Result<Box<dyn Output>>;

    /// Gives a finished file another name, and returns the name that it has then: some destinations
    /// cannot rename.
    fn rename(&mut self, name: String, wanted: String) -> Result<String>;

    /// Writes a small file beside those with tensors.
    fn write_small(&mut self, name: &str, text: &[u8]) -> Result<()>;

    /// Makes all that was written the checkpoint at the destination, with this index. Returns where
    /// the one is that was there before.
    fn commit(&mut self, index: Option<&[u8]>) -> Result<Option<String>>;

    /// Returns whether files were written with direct I/O.
    fn is_direct(&self) -> bool;
}

/// Opens the destination of a write.
pub(crate) fn open(location: &Location, options: &WriteOptions) -> Result<Box<dyn Target>> {
    if let Some(path) = location.as_path() {
        return Ok(Box::new(DiskTarget::open(path, options)?));
    }
    #[cfg(feature = "object")]
    {
        let target = crate::objects::ObjectTarget::open(location, options)?;
        Ok(Box::new(target))
    }
    #[cfg(not(feature = "object"))]
    {
        Err(without_stores(location))
    }
}

/// Returns the error for a build that has no object stores.
#[cfg(not(feature = "object"))]
pub(crate) fn without_stores(location: &Location) -> crate::error::Error {
    crate::error::Error::unsupported("this build of tload has no object stores")
        .with_location(location)
        .with_hint("enable the cargo feature \"object\"")
}

/// File that is being written. Dropping it leaves it unfinished.
pub(crate) trait Output: Send {
    /// Waits for a free buffer.
    ///
    /// # Errors
    ///
    /// The first error of an earlier [`Self::put`].
    fn buffer(&mut self) -> Result<Buffer>;

    /// Writes the first `len` bytes of `buffer` at `offset`, which is a multiple of the length of a
    /// buffer. Only the last bytes of the file do not fill their buffer.
    fn put(&mut self, offset: u64, buffer: Buffer, len: usize) -> Result<()>;

    /// Waits until the file is stored with `len` bytes.
    fn finish(self: Box<Self>, len: u64) -> Result<()>;
}
