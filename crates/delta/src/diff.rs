//! Makes a patch: compares two checkpoints tensor by tensor, and writes what differs.
//!
//! The first pass counts and digests, since the header of a patch comes first, and keeps the
//! changes while there is room. The second writes, and reads tensors again whose changes were not
//! kept.

use std::collections::{BTreeMap, HashSet};
use std::fs::File;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

use serde_json::{Map, Value, json};
use tload::{Checkpoint, Dtype, Error, Result, TensorInfo};
use tload_format::{HEADER_BYTES_MAX, parse};
use tload_partial::Partial;

use crate::output::fill;
use crate::pieces::{Pieces, Sum, element_bytes, piece};
use crate::record::{
    Change, FORMAT, FileRecord, OWN, Record, TensorRecord, VERSION, header_name, index_name,
    indices_name, values_name,
};
use crate::{Control, KEPT_BYTES_MAX, Summary, workers};

/// One tensor of the patch that is being made.
struct Planned<'c> {
    name: String,
    dtype: Dtype,
    shape: Vec<u64>,
    bytes: u64,
    content: Content<'c>,
}

enum Content<'c> {
    Indices(&'c TensorInfo),
    Values(&'c TensorInfo),
    Whole(&'c TensorInfo),
    Own(Vec<u8>),
}

/// Two checkpoints that are compared.
struct Both<'c> {
    old: &'c Pieces,
    new: &'c Pieces,
    /// Bytes of changes that may still be kept.
    left: AtomicU64,
    control: &'c Control,
}

/// Result of comparing one tensor.
struct Compared {
    /// Elements that differ; `None` if the tensors cannot be compared.
    changed: Option<u64>,
    digest: String,
    base_digest: String,
    /// Indices and values, if they were kept.
    kept: Option<[Vec<u8>; 2]>,
}

/// Writes the patch that makes `new` of `base` to the file `out`, which must not exist.
///
/// # Errors
///
/// Any error of reading; [`InvalidRequest`](tload::ErrorKind::InvalidRequest) if `out` exists;
/// [`Unsupported`](tload::ErrorKind::Unsupported) for names of tensors or files that a patch cannot
/// have, and for shards with other tensors than the index says;
/// [`Cancelled`](tload::ErrorKind::Cancelled); [`Io`](tload::ErrorKind::Io) or
/// [`OutOfMemory`](tload::ErrorKind::OutOfMemory) if `out` cannot be written. `out` is complete, or
/// is not there.
pub fn diff(base: &Checkpoint, new: &Checkpoint, out: &Path, control: &Control) -> Result<Summary> {
    diff_keeping(base, new, out, control, KEPT_BYTES_MAX)
}

pub(crate) fn diff_keeping(
    base: &Checkpoint,
    new: &Checkpoint,
    out: &Path,
    control: &Control,
    kept_bytes_max: u64,
) -> Result<Summary> {
    let mut partial = Partial::new(out)?;
    partial.refuse_existing()?;
    let (old, new) = (Pieces::new(base)?, Pieces::new(new)?);
    let both = Both {
        old: &old,
        new: &new,
        left: AtomicU64::new(kept_bytes_max),
        control,
    };
    let mut tensors: Vec<&TensorInfo> = new.checkpoint().tensors().iter().collect();
    tensors.sort_by_key(|it| it.name());
    let mut record = Record::default();
    let mut summary = Summary::default();
    let mut planned = Vec::new();
    describe_files(new.checkpoint(), &mut record, &mut planned)?;
    let compared = both.compare_all(&tensors)?;
    let kept = compared.iter().filter_map(|it| it.kept.as_ref()).flatten();
    debug_assert!(kept.map(Vec::len).sum::<usize>() as u64 <= kept_bytes_max);
    let mut taken: HashSet<String> = tensors.iter().map(|it| it.name().to_owned()).collect();
    for (tensor, mut compared) in tensors.into_iter().zip(compared) {
        let change = change(tensor, &compared, &mut taken);
        summary.add(tensor.byte_len());
        plan(tensor, change, &mut compared, &mut planned, &mut summary);
        let is_based = change != Change::None && compared.changed.is_some();
        record.tensors.push(TensorRecord {
            name: tensor.name().to_owned(),
            dtype: tensor.dtype().name().to_owned(),
            shape: wide(tensor.shape()),
            change,
            base_sha256: is_based.then_some(compared.base_digest),
            sha256: compared.digest,
        });
    }
    let removed = base.tensors().iter().map(TensorInfo::name);
    let removed = removed.filter(|name| new.checkpoint().get(name).is_none());
    record.removed = removed.map(str::to_owned).collect();
    record.removed.sort();
    summary.removed = record.removed.len();
    // Wide elements first, so that every tensor is aligned.
    planned.sort_by_key(|it| std::cmp::Reverse(it.dtype.alignment()));
    both.write(partial.create_file()?, out, &record, &planned)?;
    partial.complete(false)?;
    Ok(summary)
}

impl Both<'_> {
    /// Compares every tensor with that of the same name, dtype and shape in the base.
    fn compare_all(&self, tensors: &[&TensorInfo]) -> Result<Vec<Compared>> {
        self.control
            .expect(tensors.iter().map(|it| it.byte_len()).sum());
        let compared: Vec<_> = tensors.iter().map(|_| Mutex::new(None)).collect();
        workers::each(tensors.len(), |at| {
            let result = self.compare(tensors[at])?;
            *compared[at].lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
            Ok(())
        })?;
        let compared = compared.into_iter();
        let compared =
            compared.filter_map(|it| it.into_inner().unwrap_or_else(PoisonError::into_inner));
        Ok(compared.collect())
    }

    fn compare(&self, tensor: &TensorInfo) -> Result<Compared> {
        if tensor.name().starts_with(OWN) {
            let message = format!("begins with {OWN:?}, as what patches have themselves");
            return Err(Error::unsupported(message).with_tensor(tensor.name()));
        }
        let before =
            self.old.checkpoint().get(tensor.name()).filter(|before| {
                before.dtype() == tensor.dtype() && before.shape() == tensor.shape()
            });
        let width = element_bytes(tensor);
        let each = index_dtype(tensor.shape()).bits() / 8 + width.unwrap_or(1);
        let (mut digest, mut base_digest) = (Sum::default(), Sum::default());
        let (mut changed, mut held) = (0, 0);
        let mut kept = before.and(width).map(|_| [Vec::new(), Vec::new()]);
        let mut others = vec![0; piece(before.map_or(0, TensorInfo::byte_len))];
        self.new.each(tensor, self.control, |offset, bytes| {
            digest.add(bytes);
            let Some(before) = before else {
                return Ok(());
            };
            let others = &mut others[..bytes.len()];
            self.old.read(before, offset, others)?;
            base_digest.add(others);
            if others == bytes {
                return Ok(());
            }
            let known = changed;
            let first = offset / width.unwrap_or(1) as u64;
            scan(width, bytes, others, |index, value| {
                changed += 1;
                if let Some([indices, values]) = &mut kept {
                    number(index_dtype(tensor.shape()), first + index, |it| {
                        indices.extend(it);
                    });
                    values.extend(value);
                }
            });
            let more = (changed - known) * each as u64;
            let fits = changed * (each as u64) < tensor.byte_len();
            if kept.is_some() && fits && self.take(more) {
                held += more;
            } else {
                kept = None;
                self.left.fetch_add(std::mem::take(&mut held), Relaxed);
            }
            Ok(())
        })?;
        Ok(Compared {
            changed: before.map(|_| changed),
            digest: digest.finish(),
            base_digest: base_digest.finish(),
            kept,
        })
    }

    /// Takes room for so many bytes, if there is as much.
    fn take(&self, bytes: u64) -> bool {
        let less = |left: u64| left.checked_sub(bytes);
        self.left.fetch_update(Relaxed, Relaxed, less).is_ok()
    }

    fn write(
        &self,
        file: File,
        path: &Path,
        record: &Record,
        planned: &[Planned<'_>],
    ) -> Result<()> {
        let record = serde_json::to_string(record).expect("texts and numbers");
        let metadata = [("format", FORMAT), ("version", VERSION), ("delta", &record)];
        let mut header = Map::new();
        header.insert("__metadata__".to_owned(), json!(BTreeMap::from(metadata)));
        let mut start = 0;
        for tensor in planned {
            let end = start + tensor.bytes;
            let (dtype, shape) = (tensor.dtype.name(), &tensor.shape);
            let entry = json!({"dtype": dtype, "shape": shape, "data_offsets": [start, end]});
            header.insert(tensor.name.clone(), entry);
            start = end;
            self.control
                .expect(tensor.content.again().map_or(0, TensorInfo::byte_len));
        }
        let mut header = Value::Object(header).to_string();
        header.push_str(&" ".repeat(header.len().next_multiple_of(8) - header.len()));
        if header.len() as u64 > HEADER_BYTES_MAX {
            return Err(Error::unsupported(
                "the header of the patch would be too long",
            ));
        }
        fill(file, path, |put| {
            put(&(header.len() as u64).to_le_bytes())?;
            put(header.as_bytes())?;
            planned
                .iter()
                .try_for_each(|it| self.write_content(it, put))
        })
    }

    fn write_content(
        &self,
        planned: &Planned<'_>,
        put: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        match planned.content {
            Content::Own(ref bytes) => bytes.chunks(piece(u64::MAX)).try_for_each(|it| {
                self.control.check()?;
                put(it)
            }),
            Content::Whole(tensor) => self.new.each(tensor, self.control, |_, bytes| put(bytes)),
            Content::Indices(tensor) => self.changed(tensor, put, |out, index, _| {
                number(planned.dtype, index, |it| out.extend(it));
            }),
            Content::Values(tensor) => self.changed(tensor, put, |out, _, value| out.extend(value)),
        }
    }

    /// Reads both tensors again, and writes what `collect` makes of each element that differs.
    fn changed(
        &self,
        tensor: &TensorInfo,
        put: &mut dyn FnMut(&[u8]) -> Result<()>,
        collect: impl Fn(&mut Vec<u8>, u64, &[u8]),
    ) -> Result<()> {
        let before = self.old.checkpoint().get(tensor.name());
        let before = before.expect("compared before");
        let width = element_bytes(tensor);
        let mut others = vec![0; piece(tensor.byte_len())];
        self.new.each(tensor, self.control, |offset, bytes| {
            let others = &mut others[..bytes.len()];
            self.old.read(before, offset, others)?;
            let first = offset / width.unwrap_or(1) as u64;
            let mut out = Vec::new();
            scan(width, bytes, others, |index, value| {
                collect(&mut out, first + index, value);
            });
            put(&out)
        })
    }
}

impl<'c> Content<'c> {
    /// Returns the tensor that is read again.
    fn again(&self) -> Option<&'c TensorInfo> {
        match self {
            Self::Indices(tensor) | Self::Values(tensor) | Self::Whole(tensor) => Some(tensor),
            Self::Own(_) => None,
        }
    }
}

/// Passes each element of `bytes` that differs from that of `others` to `take`, with its index.
fn scan(width: Option<usize>, bytes: &[u8], others: &[u8], take: impl FnMut(u64, &[u8])) {
    fn of<const W: usize>(bytes: &[u8], others: &[u8], mut take: impl FnMut(u64, &[u8])) {
        let pairs = bytes
            .as_chunks::<W>()
            .0
            .iter()
            .zip(others.as_chunks::<W>().0);
        for (index, (one, other)) in (0..).zip(pairs) {
            if one != other {
                take(index, one);
            }
        }
    }
    match width {
        Some(2) => of::<2>(bytes, others, take),
        Some(4) => of::<4>(bytes, others, take),
        Some(8) => of::<8>(bytes, others, take),
        _ => of::<1>(bytes, others, take),
    }
}

/// Passes the bytes of an index of this dtype to `take`.
fn number(dtype: Dtype, index: u64, take: impl FnOnce(&[u8])) {
    match u32::try_from(index) {
        Ok(index) if dtype == Dtype::I32 => take(&index.to_le_bytes()),
        _ => take(&index.to_le_bytes()),
    }
}

/// Returns what the patch has of a tensor: the shorter of both forms.
fn change(tensor: &TensorInfo, compared: &Compared, taken: &mut HashSet<String>) -> Change {
    match (compared.changed, element_bytes(tensor)) {
        (Some(0), _) => Change::None,
        (Some(changed), Some(width)) => {
            let each = (index_dtype(tensor.shape()).bits() / 8 + width) as u64;
            let names = [indices_name(tensor.name()), values_name(tensor.name())];
            // Another tensor may be called so.
            let is_free = !names.iter().any(|name| taken.contains(name));
            if is_free && changed.saturating_mul(each) < tensor.byte_len() {
                taken.extend(names);
                Change::Sparse
            } else {
                Change::Whole
            }
        }
        _ => Change::Whole,
    }
}

fn plan<'c>(
    tensor: &'c TensorInfo,
    change: Change,
    compared: &mut Compared,
    planned: &mut Vec<Planned<'c>>,
    summary: &mut Summary,
) {
    match change {
        Change::None => {}
        Change::Sparse => {
            let changed = compared.changed.unwrap_or(0);
            let (indices, values) = match compared.kept.take() {
                Some([indices, values]) => (Content::Own(indices), Content::Own(values)),
                None => (Content::Indices(tensor), Content::Values(tensor)),
            };
            let mut add = |name, dtype: Dtype, content| {
                let bytes = changed * (dtype.bits() as u64 / 8);
                planned.push(Planned {
                    name,
                    dtype,
                    shape: vec![changed],
                    bytes,
                    content,
                });
                bytes
            };
            let name = tensor.name();
            let bytes = add(indices_name(name), index_dtype(tensor.shape()), indices)
                + add(values_name(name), tensor.dtype(), values);
            summary.add_sparse(changed, bytes);
        }
        Change::Whole => {
            summary.add_whole(tensor.byte_len());
            planned.push(Planned {
                name: tensor.name().to_owned(),
                dtype: tensor.dtype(),
                shape: wide(tensor.shape()),
                bytes: tensor.byte_len(),
                content: Content::Whole(tensor),
            });
        }
    }
}

fn wide(shape: &[usize]) -> Vec<u64> {
    shape.iter().map(|dim| *dim as u64).collect()
}

/// Returns the dtype of indices into a tensor of this shape.
fn index_dtype(shape: &[usize]) -> Dtype {
    let elements: u64 = wide(shape).iter().product();
    if elements <= 1 << 31 {
        Dtype::I32
    } else {
        Dtype::I64
    }
}

/// Adds the headers of the files, and the index file.
fn describe_files(
    new: &Checkpoint,
    record: &mut Record,
    planned: &mut Vec<Planned<'_>>,
) -> Result<()> {
    let mut own = |name: String, content: Vec<u8>| {
        let bytes = content.len() as u64;
        planned.push(Planned {
            name,
            dtype: Dtype::U8,
            shape: vec![bytes],
            bytes,
            content: Content::Own(content),
        });
    };
    let (mut names, mut stated) = (HashSet::new(), 0);
    for (number, shard) in new.shards().iter().enumerate() {
        let len = usize::try_from(shard.header_bytes()).expect("headers are bounded");
        let header = shard.source().fetch(0, len)?;
        let text = header
            .split_first_chunk::<8>()
            .map_or(&[][..], |(_, text)| text);
        let parsed = parse(text, shard.file_bytes()).map_err(|error| {
            Error::unsupported("a patch is of safetensors files only")
                .with_location(shard.location())
                .with_source(error)
        })?;
        stated += parsed.tensors.len();
        own(header_name(number), header);
        let name = shard.location().file_name().to_owned();
        if !names.insert(name.clone()) {
            let message = "a patch has no folders, and two files of the checkpoint have this name";
            return Err(Error::unsupported(message).with_location(shard.location()));
        }
        let bytes = shard.file_bytes();
        record.files.push(FileRecord { name, bytes });
    }
    if stated != new.tensors().len() {
        let message = "the shards have tensors that the index leaves out, or some twice, which a patch cannot describe";
        return Err(Error::unsupported(message).with_location(new.location()));
    }
    if let Some(index) = new.index() {
        own(index_name(), index.bytes().to_vec());
        record.index = Some(index.location().file_name().to_owned());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The largest index is one less than the number of elements.
    #[test]
    fn indices_have_64_bits_where_32_do_not_suffice() {
        assert_eq!(index_dtype(&[1 << 20, 1 << 11]), Dtype::I32);
        assert_eq!(index_dtype(&[(1 << 31) + 1]), Dtype::I64);
    }
}
