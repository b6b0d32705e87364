//! One tensor: read, decrypted, compared with its digests, and written, a few MiB at a time.

use std::ops::Range;

use tload_boxed::{fetch, read_header};
use tload_tensorizer::{Encryption, Index, Key, Tensor, TensorHeader};

use super::keys::Keys;
use super::target::Target;
use crate::error::{Comparison, Error, ErrorKind, Result};
use crate::storage::Source;

/// Bytes of a tensor that are read at a time, unless it is encrypted: then they are those of a box.
const READ_BYTES: u64 = 4 << 20;

/// A file that is converted.
pub(crate) struct File<'a> {
    pub(crate) source: &'a dyn Source,
    pub(crate) index: &'a Index,
    pub(crate) keys: &'a Keys<'a>,
    /// True if the key has opened a box: one that does not open is damaged then.
    pub(crate) is_key_right: bool,
}

impl File<'_> {
    /// Copies a tensor to `position` of the target; calls `done` with the bytes that were written,
    /// which fails when the conversion was cancelled.
    pub(crate) fn copy(
        &self,
        tensor: &Tensor,
        target: &Target,
        position: u64,
        done: &dyn Fn(u64) -> Result<()>,
    ) -> Result<()> {
        let header = self.header(tensor)?;
        // Deriving a key cannot be cancelled.
        done(0)?;
        let mut digests = header.digests();
        let opening = header.encryption.as_ref();
        let opening = opening
            .map(|encryption| Ok::<_, Error>((encryption, self.key(tensor, encryption)?)))
            .transpose()?;
        let len = tensor.range.end - tensor.range.start;
        let step = header
            .encryption
            .as_ref()
            .map_or(READ_BYTES, |encryption| encryption.boxes.box_bytes);
        let mut at = 0;
        for box_index in 0.. {
            if at == len {
                break;
            }
            let own = at..len.min(at.saturating_add(step));
            let mut bytes = self.fetch(tensor, &own)?;
            if let Some((encryption, key)) = &opening {
                self.open(tensor, encryption, key, box_index, &mut bytes)?;
            }
            digests.update(&bytes);
            target.write_at(&bytes, position + at)?;
            done(bytes.len() as u64)?;
            at = own.end;
        }
        digests.finish().map_err(|wrong| {
            let by = "the file's own digest of the tensor";
            let message = format!("found {}, and {by} is {}", wrong.found, wrong.expected);
            self.about(tensor, Error::new(ErrorKind::Corrupt, message))
                .with_comparison(Comparison {
                    expected: wrong.expected,
                    found: wrong.found,
                    by: by.to_owned(),
                })
                .with_hint("the file is damaged: get it again")
        })
    }

    /// Returns whether the key opens the first box of a tensor; `None` if it has none.
    pub(crate) fn opens(&self, tensor: &Tensor) -> Result<Option<bool>> {
        let Some(encryption) = self.header(tensor)?.encryption else {
            return Ok(None);
        };
        let key = self.key(tensor, &encryption)?;
        let mut bytes = self.fetch(tensor, &encryption.boxes.range(0))?;
        Ok(Some(key.open(&encryption.boxes, 0, &mut bytes).is_ok()))
    }

    fn header(&self, tensor: &Tensor) -> Result<TensorHeader> {
        read_header(self.source, tensor, self.index)
    }

    fn key(&self, tensor: &Tensor, encryption: &Encryption) -> Result<Key> {
        let key = self.keys.of(encryption);
        key.map_err(|error| self.about(tensor, error))
    }

    fn open(
        &self,
        tensor: &Tensor,
        encryption: &Encryption,
        key: &Key,
        index: usize,
        bytes: &mut [u8],
    ) -> Result<()> {
        key.open(&encryption.boxes, index, bytes).map_err(|error| {
            let (kind, hint) = if self.is_key_right {
                let hint = "the file is damaged, since the key opens others: get it again";
                (ErrorKind::Corrupt, hint)
            } else {
                (ErrorKind::PermissionDenied, "the key is another one")
            };
            let own = encryption.boxes.range(index);
            let start = tensor.range.start;
            self.about(tensor, Error::new(kind, error.to_string()))
                .with_range(start + own.start..start + own.end)
                .with_hint(hint)
        })
    }

    /// Returns the bytes `own` of a tensor.
    fn fetch(&self, tensor: &Tensor, own: &Range<u64>) -> Result<Vec<u8>> {
        let start = tensor.range.start;
        let bytes = fetch(self.source, start + own.start..start + own.end);
        bytes.map_err(|error| error.with_tensor(&tensor.name))
    }

    fn about(&self, tensor: &Tensor, error: Error) -> Error {
        error
            .with_location(self.source.location())
            .with_tensor(&tensor.name)
    }
}
