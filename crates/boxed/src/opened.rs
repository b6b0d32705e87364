//! The boxes of a file, and everything between them, as units of a [`Transform`]. What was
//! encrypted is as long as before, and stays at its place.

use std::fmt;
use std::ops::Range;

use tload_memory::{Transform, Unit};
use tload_tensorizer::{Boxes, Key};

use crate::error::{Error, ErrorKind, Result};
use crate::keys::Encrypted;
use crate::options::Location;

/// Length of the units that are not encrypted, bytes.
const PLAIN_BYTES: u64 = 1 << 20;

/// File whose tensors a key opens.
pub(crate) struct OpenedFile {
    location: Location,
    /// Spans that follow each other without gaps. None is empty.
    spans: Vec<Span>,
    unit_bytes_max: u64,
}

/// Tensor, or what is between two of them.
struct Span {
    bytes: Range<u64>,
    /// Number of the first unit.
    first: u32,
    /// Bytes of each unit but the last one.
    unit_bytes: u64,
    tensor: Option<OpenedTensor>,
}

struct OpenedTensor {
    name: String,
    boxes: Boxes,
    key: Key,
}

impl OpenedFile {
    /// Creates the units of a file of `len` bytes, given its encrypted tensors in file order and
    /// their keys.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`] for more units than are counted.
    pub(crate) fn new(
        location: &Location,
        len: u64,
        tensors: Vec<Encrypted<'_>>,
        keys: Vec<Key>,
    ) -> Result<Self> {
        let mut file = Self {
            location: location.clone(),
            spans: Vec::with_capacity(2 * tensors.len() + 1),
            unit_bytes_max: 1,
        };
        for ((tensor, encryption), key) in tensors.into_iter().zip(keys) {
            file.push(tensor.range.start, PLAIN_BYTES, None)?;
            let boxes = encryption.boxes;
            let name = tensor.name.clone();
            let unit_bytes = boxes.box_bytes;
            let opened = OpenedTensor { name, boxes, key };
            file.push(tensor.range.end, unit_bytes, Some(opened))?;
        }
        file.push(len, PLAIN_BYTES, None)?;
        Ok(file)
    }

    /// Adds a span up to `end`, unless it is empty.
    fn push(&mut self, end: u64, unit_bytes: u64, tensor: Option<OpenedTensor>) -> Result<()> {
        let last = self.spans.last();
        let (start, first) = last.map_or((0, 0), |last| (last.bytes.end, last.end()));
        if start == end {
            return Ok(());
        }
        let span = Span {
            bytes: start..end,
            first: u32::try_from(first).expect("checked below"),
            unit_bytes,
            tensor,
        };
        if u32::try_from(span.end()).is_err() {
            let message = format!("has {} boxes or more, which are not counted", span.end());
            return Err(Error::unsupported(message).with_location(&self.location));
        }
        self.unit_bytes_max = self.unit_bytes_max.max(unit_bytes.min(end - start));
        self.spans.push(span);
        Ok(())
    }

    /// Returns whether all bytes of a range are stored as they are.
    pub(crate) fn is_plain(&self, range: &Range<u64>) -> bool {
        let span = self.span_at(range.start);
        span.tensor.is_none() && range.end <= span.bytes.end
    }

    /// Returns the span that has a byte of the file.
    fn span_at(&self, at: u64) -> &Span {
        let behind = self.spans.partition_point(|span| span.bytes.start <= at);
        &self.spans[behind - 1]
    }

    fn span_of(&self, unit: u32) -> &Span {
        let behind = self.spans.partition_point(|span| span.first <= unit);
        &self.spans[behind - 1]
    }

    /// Returns the number of the unit that has a byte of the file.
    fn unit_at(&self, at: u64) -> u32 {
        let span = self.span_at(at);
        let within = (at - span.bytes.start) / span.unit_bytes;
        span.first + u32::try_from(within).expect("as many units have been counted")
    }

    /// Opens a unit in place; clears it if it does not open.
    fn open(&self, number: u32, bytes: &mut [u8]) -> Result<()> {
        let span = self.span_of(number);
        let Some(tensor) = &span.tensor else {
            return Ok(());
        };
        let index = usize::try_from(number - span.first).expect("counted in memory");
        let opened = tensor.key.open(&tensor.boxes, index, bytes);
        opened.map_err(|error| {
            bytes.fill(0);
            Error::new(ErrorKind::Corrupt, error.to_string())
                .with_location(&self.location)
                .with_tensor(&tensor.name)
                .with_range(span.unit(number))
                .with_hint("the file is damaged, since the key opens others: get it again")
        })
    }
}

impl Span {
    /// Returns the number behind that of the last unit.
    fn end(&self) -> u64 {
        let len = self.bytes.end - self.bytes.start;
        u64::from(self.first) + len.div_ceil(self.unit_bytes)
    }

    fn unit(&self, number: u32) -> Range<u64> {
        let start = self.bytes.start + u64::from(number - self.first) * self.unit_bytes;
        start..start.saturating_add(self.unit_bytes).min(self.bytes.end)
    }
}

impl Transform for OpenedFile {
    fn units(&self, range: &Range<u64>) -> Range<u32> {
        if range.is_empty() {
            return 0..0;
        }
        self.unit_at(range.start)..self.unit_at(range.end - 1) + 1
    }

    fn unit(&self, number: u32) -> Unit {
        let bytes = self.span_of(number).unit(number);
        Unit {
            stored: bytes.clone(),
            bytes,
        }
    }

    fn unit_bytes_max(&self) -> u64 {
        self.unit_bytes_max
    }

    fn keeps_headers(&self) -> bool {
        true
    }

    fn apply(&self, number: u32, stored: &[u8], to: &mut [u8]) -> Result<()> {
        to.copy_from_slice(stored);
        self.open(number, to)
    }

    fn apply_in_place<'a>(&self, number: u32, stored: &'a mut [u8]) -> Result<&'a [u8]> {
        self.open(number, stored)?;
        Ok(stored)
    }
}

impl fmt::Debug for OpenedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenedFile")
            .field("location", &self.location)
            .field("spans", &self.spans.len())
            .finish_non_exhaustive()
    }
}
