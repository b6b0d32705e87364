//! A sealed file or object as a source of what it was before: for headers and other small reads.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use tload_base::error::{Error, Result};
use tload_base::options::Location;
use tload_memory::Transform;
use tload_storage::Source;

use crate::opened::{SealedFile, index};

/// Source of the bytes that a sealed one holds. Engines read the sealed one, of which
/// [`Source::stored`] tells them.
pub(crate) struct SealedSource {
    sealed: Arc<dyn Source>,
    len: u64,
    file: Arc<dyn Transform>,
}

impl SealedSource {
    pub(crate) fn new(sealed: Arc<dyn Source>, file: SealedFile) -> Self {
        Self {
            sealed,
            len: file.len(),
            file: Arc::new(file),
        }
    }

    /// Returns the first bytes, up to `len` of them, given the first ones of the sealed source:
    /// without a further read if they have all segments.
    pub(crate) fn first(&self, sealed: Vec<u8>, len: usize) -> Result<Vec<u8>> {
        // An empty file has a tag too.
        if self.len == 0 {
            let unit = self.file.unit(0).stored;
            let mut bytes = self
                .sealed
                .fetch(unit.start, index(unit.end - unit.start))?;
            return self.file.apply_in_place(0, &mut bytes).map(<[u8]>::to_vec);
        }
        self.open(0, len, Some(sealed))
    }

    /// Reads and opens the segments of a range. `first` is what is known of the sealed source.
    fn open(&self, offset: u64, len: usize, first: Option<Vec<u8>>) -> Result<Vec<u8>> {
        let start = offset.min(self.len);
        let end = start.saturating_add(len as u64).min(self.len);
        let units = self.file.units(&(start..end));
        if units.is_empty() {
            return Ok(Vec::new());
        }
        let stored =
            self.file.unit(units.start).stored.start..self.file.unit(units.end - 1).stored.end;
        let mut bytes = match first.filter(|first| first.len() as u64 >= stored.end) {
            Some(mut first) => {
                first.truncate(index(stored.end));
                first.drain(..index(stored.start));
                first
            }
            None => self.fetch_stored(&stored)?,
        };
        let mut opened = Vec::with_capacity(index(end - start));
        for number in units {
            let unit = self.file.unit(number);
            let at = index(unit.stored.start - stored.start)..index(unit.stored.end - stored.start);
            let whole = self.file.apply_in_place(number, &mut bytes[at]);
            let whole = whole.inspect_err(|_| {
                self.sealed.clear_cached();
            })?;
            let from = start.max(unit.bytes.start) - unit.bytes.start;
            let to = end.min(unit.bytes.end) - unit.bytes.start;
            opened.extend_from_slice(&whole[index(from)..index(to)]);
        }
        Ok(opened)
    }

    fn fetch_stored(&self, range: &Range<u64>) -> Result<Vec<u8>> {
        let len = index(range.end - range.start);
        let bytes = self.sealed.fetch(range.start, len)?;
        if bytes.len() == len {
            return Ok(bytes);
        }
        let message = format!("ended after {} of {len} bytes", bytes.len());
        Err(Error::new(tload_base::error::ErrorKind::Changed, message)
            .with_location(self.location())
            .with_range(range.clone()))
    }
}

impl Source for SealedSource {
    fn location(&self) -> &Location {
        self.sealed.location()
    }

    fn len(&self) -> u64 {
        self.len
    }

    fn fetch(&self, offset: u64, len: usize) -> Result<Vec<u8>> {
        self.open(offset, len, None)
    }

    fn verify_unchanged(&self) -> Result<()> {
        self.sealed.verify_unchanged()
    }

    fn verify_in_place(&self) -> Result<()> {
        self.sealed.verify_in_place()
    }

    fn require_versioned(&self) -> Result<()> {
        self.sealed.require_versioned()
    }

    fn is(&self, other: &dyn Source) -> bool {
        self.sealed.is(other)
    }

    fn validator(&self) -> String {
        self.sealed.validator()
    }

    fn commit_name(&self) -> Option<&str> {
        self.sealed.commit_name()
    }

    fn clear_cached(&self) -> bool {
        self.sealed.clear_cached()
    }

    fn stored(&self) -> Option<(&Arc<dyn Source>, &Arc<dyn Transform>)> {
        Some((&self.sealed, &self.file))
    }
}

impl fmt::Debug for SealedSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SealedSource")
            .field("location", self.location())
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}
