//! Takes numbers and texts from the front of some bytes of a file, with their places.

use std::ops::Range;

use crate::error::FormatError;

/// Bytes of a file, from a position on.
#[derive(Clone, Debug)]
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
    /// Position of the rest in the file.
    at: u64,
    /// Name of the structure that the bytes are of.
    within: &'static str,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8], at: u64, within: &'static str) -> Self {
        Self {
            rest: bytes,
            at,
            within,
        }
    }

    /// Returns the position in the file of the next byte.
    pub(crate) fn at(&self) -> u64 {
        self.at
    }

    /// Returns how many bytes are left.
    pub(crate) fn left(&self) -> u64 {
        self.rest.len() as u64
    }

    /// Returns everything that is left.
    pub(crate) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// Returns the next `len` bytes, which are `what`.
    pub(crate) fn take(&mut self, len: u64, what: &'static str) -> Result<&'a [u8], FormatError> {
        let own = usize::try_from(len)
            .ok()
            .and_then(|len| self.rest.split_at_checked(len));
        let Some((taken, rest)) = own else {
            return Err(FormatError::Ends {
                within: self.within,
                what,
                found: self.left(),
                wanted: len,
                position: self.at,
            });
        };
        self.rest = rest;
        self.at += len;
        Ok(taken)
    }

    /// Returns the next `len` bytes as a reader of their own.
    pub(crate) fn inner(&mut self, len: u64, what: &'static str) -> Result<Self, FormatError> {
        let at = self.at;
        let rest = self.take(len, what)?;
        Ok(Self {
            rest,
            at,
            within: what,
        })
    }

    fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], FormatError> {
        let taken = self.take(N as u64, what)?;
        Ok(taken.try_into().expect("as many as were taken"))
    }

    pub(crate) fn u8(&mut self, what: &'static str) -> Result<u8, FormatError> {
        Ok(u8::from_le_bytes(self.array(what)?))
    }

    pub(crate) fn u16(&mut self, what: &'static str) -> Result<u16, FormatError> {
        Ok(u16::from_le_bytes(self.array(what)?))
    }

    pub(crate) fn u32(&mut self, what: &'static str) -> Result<u32, FormatError> {
        Ok(u32::from_le_bytes(self.array(what)?))
    }

    pub(crate) fn u64(&mut self, what: &'static str) -> Result<u64, FormatError> {
        Ok(u64::from_le_bytes(self.array(what)?))
    }

    /// Returns the next bytes, whose number stands before them in two bytes.
    pub(crate) fn sized(&mut self, what: &'static str) -> Result<&'a [u8], FormatError> {
        let len = self.u16(what)?;
        self.take(len.into(), what)
    }

    /// Returns an error about the bytes from `start` to the next one.
    pub(crate) fn invalid(
        &self,
        start: u64,
        what: &'static str,
        found: &impl ToString,
        wanted: impl Into<String>,
    ) -> FormatError {
        FormatError::invalid(start..self.at, what, found, wanted)
    }

    /// Requires that nothing is left.
    pub(crate) fn end(&self) -> Result<(), FormatError> {
        if self.rest.is_empty() {
            return Ok(());
        }
        let range: Range<u64> = self.at..self.at + self.left();
        let found = format!("{} more bytes", self.left());
        Err(FormatError::invalid(range, self.within, &found, "its end"))
    }
}
