//! Tensors of checkpoints, read in pieces, and their digests.

use std::fmt::Write as _;

use sha2::{Digest, Sha256};
use tload::{Checkpoint, Error, LoadOptions, Reader, Result, TensorInfo};

use crate::Control;

/// Longest piece, bytes: four extents of a file, which are read at once. A multiple of the bytes of
/// every element.
pub(crate) const PIECE_BYTES: usize = 16 << 20;

/// A checkpoint whose tensors are read in pieces.
#[derive(Debug)]
pub(crate) struct Pieces {
    checkpoint: Checkpoint,
    reader: Reader,
}

impl Pieces {
    pub(crate) fn new(checkpoint: &Checkpoint) -> Result<Self> {
        Ok(Self {
            reader: checkpoint.reader(&LoadOptions::new())?,
            checkpoint: checkpoint.clone(),
        })
    }

    pub(crate) fn checkpoint(&self) -> &Checkpoint {
        &self.checkpoint
    }

    /// Reads bytes of a tensor, `offset` bytes after its first, into all of `memory`.
    pub(crate) fn read(&self, tensor: &TensorInfo, offset: u64, memory: &mut [u8]) -> Result<()> {
        let start = tensor.file_range().start + offset;
        let read = self.reader.read_bytes(tensor.shard(), start, memory);
        read.map_err(|error| error.with_tensor(tensor.name()))
    }

    /// Passes all bytes of a tensor to `take`, with their offset, in pieces of whole elements, and
    /// counts them.
    pub(crate) fn each(
        &self,
        tensor: &TensorInfo,
        control: &Control,
        mut take: impl FnMut(u64, &mut [u8]) -> Result<()>,
    ) -> Result<()> {
        let len = tensor.byte_len();
        let mut memory = vec![0; piece(len)];
        let mut offset = 0;
        while offset < len {
            let bytes = &mut memory[..piece(len - offset)];
            control.check()?;
            self.read(tensor, offset, bytes)?;
            take(offset, bytes)?;
            control.advance(bytes.len())?;
            offset += bytes.len() as u64;
        }
        Ok(())
    }

    /// Reads tensors by name, all at once, each into memory of its length.
    pub(crate) fn read_all<'a, 'm>(
        &self,
        tensors: impl IntoIterator<Item = (&'a str, &'m mut [u8])>,
    ) -> Result<()> {
        self.reader.read(tensors)
    }

    /// Reads all of a tensor, which must have at most `bytes_max` bytes.
    pub(crate) fn whole(&self, tensor: &TensorInfo, bytes_max: u64) -> Result<Vec<u8>> {
        let len = tensor.byte_len();
        let fits = usize::try_from(len).ok().filter(|_| len <= bytes_max);
        let fits = fits.ok_or_else(|| {
            Error::unsupported(format!("has {len} bytes, of {bytes_max} at most"))
                .with_tensor(tensor.name())
        });
        let mut bytes = vec![0; fits?];
        self.read(tensor, 0, &mut bytes)?;
        Ok(bytes)
    }
}

/// Returns the length of the next piece of `left` bytes.
pub(crate) fn piece(left: u64) -> usize {
    usize::try_from(left).unwrap_or(usize::MAX).min(PIECE_BYTES)
}

/// Returns the bytes of one element, if it has whole bytes.
pub(crate) fn element_bytes(tensor: &TensorInfo) -> Option<usize> {
    let bits = tensor.dtype().bits();
    bits.is_multiple_of(8).then_some(bits / 8)
}

/// Digest in progress.
#[derive(Default)]
pub(crate) struct Sum(Sha256);

impl Sum {
    pub(crate) fn add(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// Returns the digest in hexadecimal digits.
    pub(crate) fn finish(self) -> String {
        let mut text = String::with_capacity(64);
        for byte in self.0.finalize() {
            write!(text, "{byte:02x}").expect("writing to a string succeeds");
        }
        text
    }
}
