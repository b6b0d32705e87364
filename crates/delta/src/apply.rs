//! Applies a patch to the files of its base: writes the new checkpoint beside it, byte for byte.

use std::collections::HashMap;
use std::path::Path;

use tload::{Checkpoint, Result, TensorInfo};
use tload_format::{
    Entry, HEADER_BYTES_MAX, INDEX_BYTES_MAX, INDEX_SUFFIX, LENGTH_BYTES, SUFFIX, parse,
};
use tload_partial::Partial;

use crate::changes::{Changes, Kept};
use crate::output::write_file;
use crate::patch::{Patch, not_base, other_digest};
use crate::pieces::{Pieces, Sum};
use crate::record::{Change, TensorRecord, header_name, index_name};
use crate::{Control, Summary, workers};

/// A file to write, with the header that the patch has of it.
struct Planned<'p> {
    name: &'p str,
    header: Vec<u8>,
    tensors: Vec<(Entry, &'p TensorRecord)>,
}

/// Writes the checkpoint that `patch` makes of `base` to the directory `out`, which must not exist.
/// Other files than those of tensors, such as `config.json`, are not in a patch.
///
/// # Errors
///
/// [`ErrorKind::Corrupt`](tload::ErrorKind) if a tensor of the base is another than the patch was
/// made for, or values of the patch are damaged; `InvalidFormat` if it contradicts itself;
/// `InvalidRequest` if `out` exists; `Cancelled`; `Io` or `OutOfMemory` if it cannot be written;
/// any error of reading. `out` is complete, or is not there.
pub fn apply(base: &Checkpoint, patch: &Patch, out: &Path, control: &Control) -> Result<Summary> {
    let mut partial = Partial::new(out)?;
    partial.refuse_existing()?;
    let base = Pieces::new(base)?;
    let planned = files(patch)?;
    let mut summary = Summary {
        removed: patch.record.removed.len(),
        ..Summary::default()
    };
    for (entry, record) in planned.iter().flat_map(|file| &file.tensors) {
        check(patch, &base, record, entry, &mut summary)?;
    }
    control.expect(summary.total_bytes);
    partial.create_folder()?;
    let folder = partial.beside();
    workers::each(planned.len(), |number| {
        let file = &planned[number];
        write_file(&folder.join(file.name), |put| {
            put(&file.header)?;
            let mut tensors = file.tensors.iter();
            tensors.try_for_each(|(_, record)| tensor(patch, &base, record, control, put))
        })
    })?;
    write_index(patch, folder)?;
    partial.complete(false)?;
    Ok(summary)
}

/// Reads the headers of the new files. Together they have every tensor of the record once.
fn files(patch: &Patch) -> Result<Vec<Planned<'_>>> {
    let mut files: Vec<Planned<'_>> = Vec::new();
    let mut left: HashMap<&str, &TensorRecord> = patch.by_name();
    for (number, file) in patch.record.files.iter().enumerate() {
        let own = header_name(number);
        let invalid = |message: &str| patch.invalid(&own, message);
        let is_twice = files.iter().any(|other| other.name == file.name);
        if is_twice || !is_file_name(&file.name, SUFFIX) {
            return Err(invalid("the name of its file is no name of one file"));
        }
        let header = own_bytes(patch, &own, HEADER_BYTES_MAX + LENGTH_BYTES)?;
        let Some((length, text)) = header.split_first_chunk::<8>() else {
            return Err(invalid("the header is shorter than 8 bytes"));
        };
        if u64::from_le_bytes(*length) != text.len() as u64 {
            return Err(invalid("the header has another length than it says"));
        }
        let parsed = parse(text, file.bytes)
            .map_err(|error| invalid("the header is invalid").with_source(error))?;
        let tensors = parsed.tensors.into_iter().map(|entry| {
            let record = left.remove(entry.name.as_str()).ok_or_else(|| {
                let message = "a header has the tensor, and the record does not, or only once";
                patch.invalid(&entry.name, message)
            });
            Ok((entry, record?))
        });
        files.push(Planned {
            name: &file.name,
            tensors: tensors.collect::<Result<_>>()?,
            header,
        });
    }
    match left.keys().min() {
        Some(name) => Err(patch.invalid(name, "no header has the tensor")),
        None => Ok(files),
    }
}

fn own_bytes(patch: &Patch, name: &str, bytes_max: u64) -> Result<Vec<u8>> {
    patch.pieces.whole(patch.own(name)?, bytes_max)
}

/// Returns whether a name is that of a file in a directory, which is not hidden.
fn is_file_name(name: &str, suffix: &str) -> bool {
    let is_plain = |c: char| c != '/' && c != '\\' && !c.is_control();
    name.ends_with(suffix) && !name.starts_with('.') && name.chars().all(is_plain)
}

/// Checks a tensor of a header against the record and the base.
fn check(
    patch: &Patch,
    base: &Pieces,
    record: &TensorRecord,
    entry: &Entry,
    summary: &mut Summary,
) -> Result<()> {
    let name = &entry.name;
    let bytes = entry.range.end - entry.range.start;
    let shape = entry.shape.iter().map(|dim| *dim as u64);
    if entry.dtype.name() != record.dtype || !shape.eq(record.shape.iter().copied()) {
        return Err(patch.invalid(
            name,
            "its dtype or shape in a header is not that of the record",
        ));
    }
    summary.add(bytes);
    if record.change == Change::Whole {
        summary.add_whole(bytes);
        return Ok(());
    }
    let Some(before) = base.checkpoint().get(name) else {
        return Err(not_base(name, "there is none of this name"));
    };
    if before.dtype() != entry.dtype || before.shape() != entry.shape {
        let (dtype, shape) = (before.dtype(), before.shape());
        let (wanted, dims) = (entry.dtype, &entry.shape);
        return Err(not_base(
            name,
            &format!("is {dtype} {shape:?}, wanted {wanted} {dims:?}"),
        ));
    }
    if record.change == Change::Sparse {
        let (indices, values) = patch.sparse(name)?;
        let elements = values.shape().iter().product::<usize>() as u64;
        summary.add_sparse(elements, indices.byte_len() + values.byte_len());
    }
    Ok(())
}

fn write_index(patch: &Patch, folder: &Path) -> Result<()> {
    let Some(name) = &patch.record.index else {
        return Ok(());
    };
    let own = index_name();
    if !is_file_name(name, INDEX_SUFFIX) {
        return Err(patch.invalid(&own, "the name of the index is no name of one file"));
    }
    let bytes = own_bytes(patch, &own, INDEX_BYTES_MAX)?;
    write_file(&folder.join(name), |put| put(&bytes))
}

/// Writes one tensor, and compares its digests.
fn tensor(
    patch: &Patch,
    base: &Pieces,
    record: &TensorRecord,
    control: &Control,
    put: &mut dyn FnMut(&[u8]) -> Result<()>,
) -> Result<()> {
    let kept = Kept::new();
    let (mut before, mut after) = (Sum::default(), Sum::default());
    if record.change == Change::Whole {
        let own: &TensorInfo = patch.own(&record.name)?;
        patch.pieces.each(own, control, |_, bytes| {
            after.add(bytes);
            put(bytes)
        })?;
    } else {
        let own = base.checkpoint().get(&record.name).expect("checked before");
        let mut changes = Changes::new(patch, record, &kept)?;
        base.each(own, control, |offset, bytes| {
            before.add(bytes);
            if let Some(changes) = &mut changes {
                changes.put(offset, bytes)?;
                after.add(bytes);
            }
            put(bytes)
        })?;
    }
    let (before, after) = (before.finish(), after.finish());
    match (record.change, &record.base_sha256) {
        (Change::None, _) if before != record.sha256 => {
            Err(other_digest(record, &before, &record.sha256))
        }
        (Change::Sparse, Some(wanted)) if before != *wanted => {
            Err(other_digest(record, &before, wanted))
        }
        (Change::Sparse | Change::Whole, _) if after != record.sha256 => {
            Err(patch.misleads(&record.name))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_to_no_other_directory() {
        for (name, is_one) in [
            ("m.safetensors", true),
            ("m.json", false),
            (".safetensors", false),
            ("../m.safetensors", false),
            ("a/m.safetensors", false),
            ("a\\m.safetensors", false),
            ("a\0.safetensors", false),
        ] {
            assert_eq!(is_file_name(name, ".safetensors"), is_one, "{name:?}");
        }
    }
}
