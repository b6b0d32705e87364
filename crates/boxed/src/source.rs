//! An encrypted file or object as a source of what it was before. Opening reads the headers of all
//! tensors, which have what opens them, and finds out whether the key is right.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use tload_memory::Transform;
use tload_tensorizer::{INDEX_BYTES_MAX, Index};
use zeroize::Zeroizing;

use crate::error::{Error, ErrorKind, Result};
use crate::keys::{Encrypted, keys_of};
use crate::opened::OpenedFile;
use crate::options::Location;
use crate::reading::{fetch, index_of, read_header};
use crate::storage::Source;
use crate::sync::parallel::parallel_map;

/// Headers that are read at a time; each is small, and takes a round trip from a store.
const HEADERS_AT_A_TIME: usize = 64;

/// Opened file or object, and its first bytes.
type OpenedSource = (Arc<dyn Source>, Vec<u8>);

/// Returns the text of a key.
type KeyText<'a> = dyn Fn() -> Result<Zeroizing<Vec<u8>>> + 'a;

/// Source of opened tensors. Engines read the stored one, of which [`Source::stored`] tells them.
struct BoxedSource {
    stored: Arc<dyn Source>,
    file: Arc<OpenedFile>,
    transform: Arc<dyn Transform>,
}

/// Opens an encrypted file of Tensorizer, given its first bytes, with a key, and returns its first
/// bytes, with the index that was read.
///
/// # Errors
///
/// [`ErrorKind::PermissionDenied`] for another key; [`ErrorKind::InvalidRequest`] for a file that
/// is not encrypted; those of reading index, headers and the text of the key.
pub fn open(stored: Arc<dyn Source>, first: Vec<u8>, text: &KeyText<'_>) -> Result<OpenedSource> {
    let first_bytes = first.len();
    let opened = match opened(&*stored, first, text) {
        // Wrong bytes that once got into the cache would fail every start.
        Err(error) if error.kind() == ErrorKind::InvalidFormat && stored.clear_cached() => {
            opened(&*stored, stored.fetch(0, first_bytes)?, text)
        }
        opened => opened,
    };
    // With the whole index, however long: read again, it might be another one, whose tensors are in
    // no box.
    let (file, bytes) = opened?;
    let file = Arc::new(file);
    let source = BoxedSource {
        stored,
        transform: Arc::<OpenedFile>::clone(&file),
        file,
    };
    Ok((Arc::new(source), bytes))
}

fn opened(
    stored: &dyn Source,
    first: Vec<u8>,
    text: &KeyText<'_>,
) -> Result<(OpenedFile, Vec<u8>)> {
    let (index, bytes) = index_of(stored, first)?;
    if !index.is_encrypted {
        // Someone may have replaced an encrypted file.
        let message = "a key was given, and the file is not encrypted";
        let hint =
            "leave the key out (TLOAD_KEY, TLOAD_KEY_FILE, TLOAD_KEY_COMMAND) if that is right";
        return Err(Error::invalid_request(message)
            .with_location(stored.location())
            .with_hint(hint));
    }
    let tensors = encrypted(stored, &index)?;
    let text = text()?;
    let keys = keys_of(stored, &tensors, &text)?;
    let file = OpenedFile::new(stored.location(), stored.len(), tensors, keys)?;
    Ok((file, bytes))
}

/// Reads how each tensor with bytes is encrypted.
fn encrypted<'a>(stored: &dyn Source, index: &'a Index) -> Result<Vec<Encrypted<'a>>> {
    let with_bytes = index.tensors.iter().filter(|it| !it.range.is_empty());
    let with_bytes: Vec<_> = with_bytes.collect();
    let headers = with_bytes.iter().map(|it| it.header.end - it.header.start);
    let all = headers.fold(0_u64, u64::saturating_add);
    if all > INDEX_BYTES_MAX {
        let message = format!("has headers of {all} bytes, wanted at most {INDEX_BYTES_MAX}");
        return Err(Error::new(ErrorKind::InvalidFormat, message)
            .with_location(stored.location())
            .with_hint("the file is damaged, or was not copied completely: get it again"));
    }
    let read = parallel_map(&with_bytes, HEADERS_AT_A_TIME, |tensor| {
        let header = read_header(stored, tensor, index)?;
        let encryption = header.encryption;
        Ok((*tensor, encryption.expect("required of tensors with bytes")))
    });
    read.into_iter().collect()
}

impl BoxedSource {
    /// Reads and opens the units of a range within the file.
    fn open(&self, range: &Range<u64>) -> Result<Vec<u8>> {
        if range.is_empty() || self.file.is_plain(range) {
            return fetch(&*self.stored, range.clone());
        }
        let units = self.file.units(range);
        let start = self.file.unit(units.start).stored.start;
        let mut bytes = fetch(
            &*self.stored,
            start..self.file.unit(units.end - 1).stored.end,
        )?;
        let within = |range: &Range<u64>| index(range.start - start)..index(range.end - start);
        for number in units {
            let unit = within(&self.file.unit(number).stored);
            let opened = self.file.apply_in_place(number, &mut bytes[unit]);
            opened.inspect_err(|_| {
                self.stored.clear_cached();
            })?;
        }
        let own = within(range);
        bytes.truncate(own.end);
        bytes.drain(..own.start);
        Ok(bytes)
    }
}

fn index(at: u64) -> usize {
    usize::try_from(at).expect("in memory")
}

impl Source for BoxedSource {
    fn location(&self) -> &Location {
        self.stored.location()
    }

    fn len(&self) -> u64 {
        self.stored.len()
    }

    fn fetch(&self, offset: u64, len: usize) -> Result<Vec<u8>> {
        let start = offset.min(self.len());
        let end = start.saturating_add(len as u64).min(self.len());
        self.open(&(start..end))
    }

    fn verify_unchanged(&self) -> Result<()> {
        self.stored.verify_unchanged()
    }

    fn verify_in_place(&self) -> Result<()> {
        self.stored.verify_in_place()
    }

    fn require_versioned(&self) -> Result<()> {
        self.stored.require_versioned()
    }

    fn is(&self, other: &dyn Source) -> bool {
        self.stored.is(other)
    }

    fn validator(&self) -> String {
        self.stored.validator()
    }

    fn commit_name(&self) -> Option<&str> {
        self.stored.commit_name()
    }

    fn clear_cached(&self) -> bool {
        self.stored.clear_cached()
    }

    fn stored(&self) -> Option<(&Arc<dyn Source>, &Arc<dyn Transform>)> {
        Some((&self.stored, &self.transform))
    }
}

impl fmt::Debug for BoxedSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BoxedSource")
            .field("location", self.location())
            .finish_non_exhaustive()
    }
}
