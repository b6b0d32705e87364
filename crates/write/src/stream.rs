//! Bytes of one file on their way into buffers.

use crate::error::Result;
use crate::target::{Buffer, Output};
use crate::transform::Transform;

/// Bytes that a transform takes at a time.
const PIECE_BYTES: usize = 1 << 20;

/// One file, whose bytes come in order. Its first bytes may come last.
pub(crate) struct Stream {
    output: Box<dyn Output>,
    transform: Option<Box<dyn Transform>>,
    /// Result of the transform.
    stored: Vec<u8>,
    buffer: Option<Buffer>,
    filled: usize,
    /// Offset of the buffer in the file.
    offset: u64,
    /// Bytes at the start of the file that come last.
    room: usize,
    /// First buffer with its bytes, if some of them come last.
    head: Option<(Buffer, usize)>,
}

impl Stream {
    /// Begins a file whose first `room` bytes come last.
    pub(crate) fn new(
        output: Box<dyn Output>,
        transform: Option<Box<dyn Transform>>,
        room: usize,
    ) -> Result<Self> {
        let mut stream = Self {
            output,
            transform,
            stored: Vec::new(),
            buffer: None,
            filled: 0,
            offset: 0,
            room,
            head: None,
        };
        if room > 0 {
            stream.buffer = Some(stream.output.buffer()?);
            stream.filled = room;
        }
        Ok(stream)
    }

    /// Takes the next bytes of the file.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> Result<()> {
        let Some(mut transform) = self.transform.take() else {
            return self.fill(bytes);
        };
        for piece in bytes.chunks(PIECE_BYTES) {
            let mut stored = std::mem::take(&mut self.stored);
            stored.clear();
            transform.push(piece, &mut stored)?;
            self.fill(&stored)?;
            self.stored = stored;
        }
        self.transform = Some(transform);
        Ok(())
    }

    fn fill(&mut self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            let mut buffer = match self.buffer.take() {
                Some(buffer) => buffer,
                None => self.output.buffer()?,
            };
            let free = &mut buffer.bytes_mut()[self.filled..];
            let len = free.len().min(bytes.len());
            free[..len].copy_from_slice(&bytes[..len]);
            let is_full = len == free.len();
            bytes = &bytes[len..];
            self.filled += len;
            self.buffer = Some(buffer);
            if is_full {
                self.put()?;
            }
        }
        Ok(())
    }

    fn put(&mut self) -> Result<()> {
        let Some(buffer) = self.buffer.take() else {
            return Ok(());
        };
        let (offset, len) = (self.offset, self.filled);
        self.offset += len as u64;
        self.filled = 0;
        if offset == 0 && self.room > 0 {
            self.head = Some((buffer, len));
            return Ok(());
        }
        self.output.put(offset, buffer, len)
    }

    /// Completes the file with its first bytes, if they come last, and returns its length.
    pub(crate) fn finish(mut self, head: &[u8]) -> Result<u64> {
        assert_eq!(head.len(), self.room, "as many bytes as there is room for");
        if let Some(mut transform) = self.transform.take() {
            let mut stored = std::mem::take(&mut self.stored);
            stored.clear();
            transform.finish(&mut stored)?;
            self.fill(&stored)?;
        }
        self.put()?;
        if let Some((mut buffer, len)) = self.head.take() {
            buffer.bytes_mut()[..head.len()].copy_from_slice(head);
            self.output.put(0, buffer, len)?;
        }
        self.output.finish(self.offset)?;
        Ok(self.offset)
    }
}
