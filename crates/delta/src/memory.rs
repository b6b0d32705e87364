//! Applies a patch to tensors in memory, in place.
//!
//! Everything that can be wrong is found before the first byte is written: the first pass reads
//! the patch and digests all tensors, as they are and as they will be.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

use tload::{Error, ErrorKind, Result};

use crate::changes::{Changes, Kept};
use crate::patch::{Patch, not_base, other_digest};
use crate::pieces::{PIECE_BYTES, Sum};
use crate::record::{Change, TensorRecord};
use crate::{Control, KEPT_BYTES_MAX, Summary, workers};

/// Memory of a tensor, with all names that it has: tied tensors share it.
#[derive(Debug)]
pub struct TensorMemory<'m> {
    /// Names in checkpoints.
    pub names: Vec<String>,
    /// Its bytes, row-major.
    pub bytes: &'m mut [u8],
}

/// Memory of a tensor, and its record.
pub(crate) struct Matched<'p, 'm> {
    record: &'p TensorRecord,
    bytes: Mutex<&'m mut [u8]>,
}

impl Patch {
    /// Checks that the patch fits tensors, by their names and lengths.
    ///
    /// # Errors
    ///
    /// Those of [`Self::apply_in_place`] that need no bytes.
    pub fn check_fit(&self, tensors: Vec<TensorMemory<'_>>) -> Result<()> {
        self.match_up(tensors).map(drop).map_err(nothing)
    }

    /// Reads what the patch changes into memory, unless that is more than [`KEPT_BYTES_MAX`].
    ///
    /// # Errors
    ///
    /// Any error of reading. The text says that nothing was written.
    pub fn fetch(&self) -> Result<Kept> {
        self.keep(KEPT_BYTES_MAX).map_err(nothing)
    }

    /// Changes tensors of the base in memory, given by name, by what [`Self::fetch`] has read; what
    /// it has not is read now. Names that the patch does not know
    /// stay as they are. All digests are compared, before and after the changes, before the first
    /// byte is written.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`] if the patch adds or removes tensors, or changes dtypes or
    /// shapes, which memory cannot follow; [`ErrorKind::NoSuchTensor`] if a changed tensor is not
    /// given; [`ErrorKind::InvalidRequest`] if a name is given twice, or tied tensors change
    /// differently; [`ErrorKind::Corrupt`] if one is not the base, or values of the patch are
    /// damaged; [`ErrorKind::InvalidFormat`] if the patch contradicts itself; any error of reading.
    /// The text says whether anything was written: for patches below [`KEPT_BYTES_MAX`], which are
    /// read once, nothing was.
    pub fn apply_in_place(
        &self,
        tensors: Vec<TensorMemory<'_>>,
        kept: &Kept,
        control: &Control,
    ) -> Result<Summary> {
        let (matched, mut summary) = self.match_up(tensors).map_err(nothing)?;
        control.expect(summary.total_bytes);
        let check = |at: usize| self.check_digests(&matched[at], kept, control);
        workers::each(matched.len(), check).map_err(nothing)?;
        self.put(&matched, kept, control)?;
        summary.tensors = matched.len();
        Ok(summary)
    }

    /// Finds the record of each tensor.
    pub(crate) fn match_up<'p, 'm>(
        &'p self,
        tensors: Vec<TensorMemory<'m>>,
    ) -> Result<(Vec<Matched<'p, 'm>>, Summary)> {
        if let Some(name) = self.record.removed.first() {
            return Err(cannot_follow(name, "the patch removes the tensor"));
        }
        let records = self.by_name();
        let mut left: HashMap<&str, &TensorRecord> = records.clone();
        left.retain(|_, it| it.change != Change::None);
        let mut matched = Vec::new();
        let mut summary = Summary::default();
        for TensorMemory { names, bytes } in tensors {
            let mut first: Option<&TensorRecord> = None;
            for name in &names {
                let Some(record) = records.get(name.as_str()).copied() else {
                    continue;
                };
                let is_new = record.change == Change::None || left.remove(name.as_str()).is_some();
                let problem = match first {
                    _ if !is_new => "is given twice".to_owned(),
                    Some(first) if !first.is_same_change(record) => {
                        let first = &first.name;
                        format!("shares the memory of {first:?}, and the patch changes one of them")
                    }
                    _ => {
                        first = first.or(Some(record));
                        continue;
                    }
                };
                return Err(Error::invalid_request(problem).with_tensor(name));
            }
            let Some(record) = first else {
                continue;
            };
            self.fit(record, bytes, &mut summary)?;
            matched.push(Matched {
                record,
                bytes: Mutex::new(bytes),
            });
        }
        match left.keys().min() {
            None => Ok((matched, summary)),
            Some(name) => {
                let message = "the patch changes the tensor, and it is not given";
                Err(Error::new(ErrorKind::NoSuchTensor, message).with_tensor(*name))
            }
        }
    }

    /// Checks that memory can be the tensor of a record, and adds it to the summary.
    fn fit(&self, record: &TensorRecord, bytes: &[u8], summary: &mut Summary) -> Result<()> {
        let (found, wanted) = (bytes.len() as u64, record.byte_len());
        if wanted != Some(found) {
            let (dtype, shape) = (&record.dtype, &record.shape);
            let wanted = wanted.unwrap_or(0);
            let reason = format!("has {found} bytes, and {dtype} {shape:?} has {wanted}");
            return Err(not_base(&record.name, &reason));
        }
        summary.add(found);
        match record.change {
            Change::None => {}
            Change::Whole if record.base_sha256.is_none() => {
                let message = "the patch adds the tensor, or changes its dtype or shape";
                return Err(cannot_follow(&record.name, message));
            }
            Change::Whole => summary.add_whole(found),
            Change::Sparse => {
                let (indices, values) = self.sparse(&record.name)?;
                let elements = values.shape().iter().product::<usize>() as u64;
                summary.add_sparse(elements, indices.byte_len() + values.byte_len());
            }
        }
        Ok(())
    }

    /// Reads all changes, unless they have more than `bytes_max` bytes.
    pub(crate) fn keep(&self, bytes_max: u64) -> Result<Kept> {
        let mut wanted = Vec::new();
        for record in &self.record.tensors {
            match record.change {
                Change::None => {}
                Change::Whole => wanted.push(self.own(&record.name)?),
                Change::Sparse => wanted.extend(<[_; 2]>::from(self.sparse(&record.name)?)),
            }
        }
        let lens = wanted.iter().map(|own| own.byte_len());
        if lens.sum::<u64>() > bytes_max {
            return Ok(Kept::new());
        }
        let sized = wanted.iter().map(|own| {
            let len = usize::try_from(own.byte_len()).unwrap_or(usize::MAX);
            (own.name().to_owned(), vec![0; len])
        });
        let mut kept: Kept = sized.collect();
        let wanted = kept.iter_mut();
        let wanted = wanted.map(|(name, bytes)| (name.as_str(), bytes.as_mut_slice()));
        self.pieces.read_all(wanted)?;
        Ok(kept)
    }

    /// Compares the digests of a tensor, as it is and as it will be.
    fn check_digests(&self, it: &Matched<'_, '_>, kept: &Kept, control: &Control) -> Result<()> {
        let bytes = it.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        let mut changes = Changes::new(self, it.record, kept)?;
        let (mut before, mut after) = (Sum::default(), Sum::default());
        let mut memory = vec![0; bytes.len().min(PIECE_BYTES)];
        let mut offset = 0;
        for piece in bytes.chunks(PIECE_BYTES) {
            before.add(piece);
            if let Some(changes) = &mut changes {
                let copy = &mut memory[..piece.len()];
                copy.copy_from_slice(piece);
                changes.put(offset, copy)?;
                after.add(copy);
            }
            offset += piece.len() as u64;
            control.advance(piece.len())?;
        }
        let wanted = it.record.base_sha256.as_ref();
        let wanted = wanted.unwrap_or(&it.record.sha256);
        let found = before.finish();
        if found != *wanted {
            return Err(other_digest(it.record, &found, wanted));
        }
        if changes.is_some() && after.finish() != it.record.sha256 {
            return Err(self.misleads(&it.record.name));
        }
        Ok(())
    }

    /// Writes all changes. If they are in memory, this cannot fail, and is not cancelled.
    pub(crate) fn put(
        &self,
        matched: &[Matched<'_, '_>],
        kept: &Kept,
        control: &Control,
    ) -> Result<()> {
        let is_changed = |it: &&Matched<'_, '_>| it.record.change != Change::None;
        let changed: Vec<_> = matched.iter().filter(is_changed).collect();
        let (begun, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let put = |at: usize| {
            let it = changed[at];
            if let Some(mut changes) = Changes::new(self, it.record, kept)? {
                let mut bytes = it.bytes.lock().unwrap_or_else(PoisonError::into_inner);
                let mut offset = 0;
                begun.fetch_add(1, Relaxed);
                for piece in bytes.chunks_mut(PIECE_BYTES) {
                    if kept.is_empty() {
                        control.check()?;
                    }
                    changes.put(offset, piece)?;
                    offset += piece.len() as u64;
                }
            }
            done.fetch_add(1, Relaxed);
            Ok(())
        };
        workers::each(changed.len(), put).map_err(|error| {
            let (begun, done) = (begun.into_inner(), done.into_inner());
            let all = changed.len();
            let text = format!(
                "{done} of {all} tensors were written, {} in part",
                begun - done
            );
            let hint = "the tensors are of no version now: load them again";
            error.with_context(text).with_hint(hint)
        })
    }
}

impl TensorRecord {
    /// Returns whether two tied tensors are the same before and after.
    fn is_same_change(&self, other: &Self) -> bool {
        (&self.base_sha256, &self.sha256) == (&other.base_sha256, &other.sha256)
    }
}

fn nothing(error: Error) -> Error {
    error.with_context("nothing was written")
}

fn cannot_follow(tensor: &str, message: &str) -> Error {
    Error::unsupported(message)
        .with_tensor(tensor)
        .with_hint("apply the patch to files, and load those")
}
