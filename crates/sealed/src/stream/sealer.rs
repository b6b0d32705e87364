//! Sealing of one file, from its first byte to its last.

use super::layout::PLACES;
use super::{FileKey, Header, LengthError, TAG_BYTES};

/// Seals one file as its bytes come.
///
/// The sealed file has what [`Self::push`] and [`Self::finish`] append, in that order.
#[derive(Debug)]
pub struct Sealer {
    key: FileKey,
    header: Header,
    /// Bytes of the file so far.
    len: u64,
    /// Number of the segment that is not sealed yet. It may be the last one although it is full.
    number: u32,
    held: Vec<u8>,
}

impl Sealer {
    /// Begins a file with this header, whose key the header was used to derive.
    #[must_use]
    pub fn new(key: FileKey, header: Header) -> Self {
        Self {
            key,
            header,
            len: 0,
            number: 0,
            held: Vec::new(),
        }
    }

    /// Returns the header.
    #[must_use]
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Takes the next bytes of the file, and appends the segments that they complete to `sealed`.
    ///
    /// # Errors
    ///
    /// [`LengthError::TooLong`] once the file has more segments than can be numbered.
    pub fn push(&mut self, mut bytes: &[u8], sealed: &mut Vec<u8>) -> Result<(), LengthError> {
        self.len += bytes.len() as u64;
        while !bytes.is_empty() {
            if self.held.len() == self.capacity() {
                self.seal_held(false, sealed);
                let next = self.number.checked_add(1);
                self.number = next.ok_or(LengthError::TooLong { found: self.len })?;
            }
            let free = self.capacity() - self.held.len();
            let (taken, rest) = bytes.split_at(free.min(bytes.len()));
            self.held.extend_from_slice(taken);
            bytes = rest;
        }
        Ok(())
    }

    /// Appends the last segment to `sealed`.
    pub fn finish(mut self, sealed: &mut Vec<u8>) {
        self.seal_held(true, sealed);
    }

    /// Returns how many bytes the segment that is not sealed yet can hold.
    fn capacity(&self) -> usize {
        let places = usize::try_from(PLACES).expect("less than 1 MiB");
        match self.number {
            0 => places - self.header.as_bytes().len(),
            _ => places,
        }
    }

    fn seal_held(&mut self, is_last: bool, sealed: &mut Vec<u8>) {
        if self.number == 0 {
            sealed.extend_from_slice(self.header.as_bytes());
        }
        let start = sealed.len();
        sealed.reserve(self.held.len() + TAG_BYTES);
        sealed.append(&mut self.held);
        let tag = self
            .key
            .seal_in_place(self.number, is_last, &mut sealed[start..]);
        sealed.extend_from_slice(&tag);
    }
}
