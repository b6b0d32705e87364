//! Everything before the first tensor: version, flags, and the index of all tensors.

use std::collections::HashSet;
use std::ops::Range;

use tload_format::{Dtype, Entry};

use crate::dtype::dtype;
use crate::error::FormatError;
use crate::name::TensorPath;
use crate::reader::Reader;

/// First bytes of every file.
pub const MAGIC: &[u8; 5] = b"|TZR|";

/// Bytes up to the index: magic, version, flags, sizes, count, and the length of the index.
pub const PREFIX_BYTES: u64 = 73;

/// Longest index that is read, bytes: as the longest header of safetensors. Tensorizer reserves
/// 256 KiB, and refuses to write more.
pub const INDEX_BYTES_MAX: u64 = tload_format::HEADER_BYTES_MAX;

/// Versions of files. 2 adds opaque dtypes, 3 encryption, 4 tensors without bytes and flags, 5
/// dimensions of 2^32 and more.
const VERSIONS: std::ops::RangeInclusive<u32> = 1..=5;
/// Version whose files are encrypted, although no flag says so.
const ENCRYPTED_VERSION: u32 = 3;
/// First version with flags, and with tensors without bytes.
const META_VERSION: u32 = 4;
/// First version with versions of entries, and version of entries with long dimensions.
const LONG_VERSION: u32 = 5;

const ENCRYPTED_FLAG: u8 = 1;
const VERSIONED_FLAG: u8 = 2;

/// Type of tensors of a state dictionary; parameters are 0, buffers 1.
const STATE_DICT: u8 = 2;

/// Shortest header of a tensor, bytes: its length, module, type, four lengths of nothing, the
/// number of no digests, the length of its bytes.
const HEADER_BYTES_MIN: u64 = 8 + 2 + 1 + 2 + 1 + 1 + 2 + 1 + 8;

/// Everything before the first tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Index {
    /// Version of the file.
    pub version: u32,
    /// True if tensors with bytes are encrypted.
    pub is_encrypted: bool,
    /// Length of magic, version and index: position of the first header of a tensor.
    pub bytes: u64,
    /// Tensors in file order.
    pub tensors: Vec<Tensor>,
}

/// One tensor, as the index describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    /// Name as `state_dict()` has it.
    pub name: String,
    /// Name as the file has it.
    pub path: TensorPath,
    /// 0 for parameters, 1 for buffers, 2 for tensors of state dictionaries.
    pub kind: u8,
    /// Element type.
    pub dtype: Dtype,
    /// Dtype as the file writes it.
    pub(crate) dtype_name: Box<[u8]>,
    /// Dimensions, row-major.
    pub shape: Vec<usize>,
    /// True if dimensions have eight bytes each.
    pub(crate) has_long_shape: bool,
    /// Range of its header, which ends where its bytes begin.
    pub header: Range<u64>,
    /// Range of its bytes in the file; empty for a *meta tensor*, which has a shape and no bytes.
    pub range: Range<u64>,
    /// Bytes that dtype and shape need.
    pub byte_len: u64,
}

impl Tensor {
    /// Returns whether it was a meta tensor when the file was written: it has no bytes, and
    /// Tensorizer makes zeros of it.
    pub fn is_meta(&self) -> bool {
        self.byte_len > 0 && self.range.is_empty()
    }

    /// Returns the entry that a safetensors header would have of it.
    pub fn entry(&self) -> Entry {
        Entry {
            name: self.name.clone(),
            dtype: self.dtype,
            shape: self.shape.clone(),
            range: self.range.clone(),
        }
    }
}

/// Returns whether a file that begins with `first` is one of Tensorizer.
pub fn begins(first: &[u8]) -> bool {
    first.starts_with(MAGIC)
}

/// Returns the end of the index of a file of `file_bytes` bytes, from its first ones: at least
/// [`PREFIX_BYTES`] of them, or all.
///
/// # Errors
///
/// For another format, an unknown version, a file that is too short, an index that is too long.
pub fn index_end(first: &[u8], file_bytes: u64) -> Result<u64, FormatError> {
    prefix(first, file_bytes).map(|prefix| prefix.end)
}

struct Prefix {
    version: u32,
    is_encrypted: bool,
    is_versioned: bool,
    count: u64,
    end: u64,
}

fn prefix(first: &[u8], file_bytes: u64) -> Result<Prefix, FormatError> {
    if !begins(first) {
        let found = String::from_utf8_lossy(&first[..first.len().min(MAGIC.len())]);
        return Err(FormatError::Magic {
            found: found.into_owned(),
        });
    }
    let mut reader = Reader::new(first, 0, "the file");
    reader.take(MAGIC.len() as u64, "the magic")?;
    let position = reader.at();
    let version = reader.u32("its version")?;
    if !VERSIONS.contains(&version) {
        return Err(FormatError::Version {
            what: "file",
            found: version,
            wanted: "1 to 5",
            position,
        });
    }
    let flags_at = reader.at();
    let flags = reader.take(32, "its flags")?;
    let known = match version {
        ..META_VERSION => 0,
        META_VERSION..LONG_VERSION => ENCRYPTED_FLAG,
        LONG_VERSION.. => ENCRYPTED_FLAG | VERSIONED_FLAG,
    };
    if flags[0] & !known != 0 || flags[1..].iter().any(|byte| *byte != 0) {
        let found = format!("{flags:02x?}");
        let wanted = format!("none but {known:#04x} in version {version}");
        return Err(reader.invalid(flags_at, "flags", &found, wanted));
    }
    reader.take(16, "its sizes")?;
    let count = reader.u64("its number of tensors")?;
    let len_at = reader.at();
    let len = reader.u64("the length of its index")?;
    if len > INDEX_BYTES_MAX {
        let wanted = format!("at most {INDEX_BYTES_MAX}");
        return Err(reader.invalid(len_at, "length of the index", &len, wanted));
    }
    let end = PREFIX_BYTES + len;
    if end > file_bytes {
        return Err(FormatError::Ends {
            within: "the file",
            what: "its index",
            found: file_bytes.saturating_sub(PREFIX_BYTES),
            wanted: len,
            position: PREFIX_BYTES,
        });
    }
    Ok(Prefix {
        version,
        is_encrypted: version == ENCRYPTED_VERSION || flags[0] & ENCRYPTED_FLAG != 0,
        is_versioned: flags[0] & VERSIONED_FLAG != 0,
        count,
        end,
    })
}

/// Parses the first bytes of a file of `file_bytes` bytes: as many as [`index_end`] says, or more.
///
/// # Errors
///
/// As for [`index_end`]; for entries that are damaged or overlap, names that occur twice, dtypes
/// that safetensors does not have.
pub fn parse(first: &[u8], file_bytes: u64) -> Result<Index, FormatError> {
    let prefix = prefix(first, file_bytes)?;
    let mut reader = Reader::new(first, 0, "the file");
    reader.take(PREFIX_BYTES, "its begin")?;
    let mut reader = reader.inner(prefix.end - PREFIX_BYTES, "the index")?;
    let mut tensors = Vec::new();
    for _ in 0..prefix.count {
        tensors.push(tensor(&mut reader, &prefix, file_bytes)?);
    }
    if let Some(at) = reader.rest().iter().position(|byte| *byte != 0) {
        let at = reader.at() + at as u64;
        let found = format!("{} and further bytes", prefix.count);
        let wanted = "as many as entries";
        return Err(FormatError::invalid(
            at..at + 1,
            "number of tensors",
            &found,
            wanted,
        ));
    }
    tensors.sort_by_key(|tensor| tensor.header.start);
    require_distinct(&tensors)?;
    require_apart(&tensors, prefix.end)?;
    Ok(Index {
        version: prefix.version,
        is_encrypted: prefix.is_encrypted,
        bytes: prefix.end,
        tensors,
    })
}

fn tensor(
    reader: &mut Reader<'_>,
    prefix: &Prefix,
    file_bytes: u64,
) -> Result<Tensor, FormatError> {
    let has_long_shape = prefix.is_versioned && entry_version(reader)? == LONG_VERSION;
    let len = reader.u16("the name of a tensor")?;
    let name_at = reader.at();
    let path = reader.take(len.into(), "the name of a tensor")?;
    let path = TensorPath::parse(path, name_at)?;
    let kind = kind(reader)?;
    let name = path.name(kind != STATE_DICT);
    let described = described(reader, has_long_shape, prefix, file_bytes);
    let (dtype, dtype_name, shape, [header, start, len], byte_len) =
        described.map_err(|error| error.of_tensor(&name))?;
    Ok(Tensor {
        name,
        path,
        kind,
        dtype,
        dtype_name,
        shape,
        has_long_shape,
        header: header..start,
        range: start..start + len,
        byte_len,
    })
}

fn entry_version(reader: &mut Reader<'_>) -> Result<u32, FormatError> {
    let position = reader.at();
    let found = reader.u32("the version of an entry")?;
    if found == 1 || found == LONG_VERSION {
        return Ok(found);
    }
    Err(FormatError::Version {
        what: "entry",
        found,
        wanted: "1 or 5",
        position,
    })
}

/// Reads the type of a tensor.
pub(crate) fn kind(reader: &mut Reader<'_>) -> Result<u8, FormatError> {
    let at = reader.at();
    let kind = reader.u8("the type of a tensor")?;
    if kind > STATE_DICT {
        return Err(reader.invalid(at, "type of a tensor", &kind, "0, 1 or 2"));
    }
    Ok(kind)
}

/// Reads a shape, whose number of dimensions stands before it.
pub(crate) fn shape(reader: &mut Reader<'_>, is_long: bool) -> Result<Vec<usize>, FormatError> {
    let what = "the shape of a tensor";
    let count = reader.u8(what)?;
    let mut shape = Vec::with_capacity(count.into());
    for _ in 0..count {
        let at = reader.at();
        let dimension = if is_long {
            reader.u64(what)?
        } else {
            reader.u32(what)?.into()
        };
        let dimension = usize::try_from(dimension)
            .map_err(|_| reader.invalid(at, "dimension", &dimension, "one that fits memory"))?;
        shape.push(dimension);
    }
    Ok(shape)
}

type Described = (Dtype, Box<[u8]>, Vec<usize>, [u64; 3], u64);

/// Reads dtype, shape and places of a tensor, and checks that they agree.
fn described(
    reader: &mut Reader<'_>,
    has_long_shape: bool,
    prefix: &Prefix,
    file_bytes: u64,
) -> Result<Described, FormatError> {
    let what = "the dtype of a tensor";
    let len = reader.u8(what)?;
    let dtype_name = reader.take(len.into(), what)?;
    let shape_at = reader.at();
    let shape = shape(reader, has_long_shape)?;
    let shape_end = reader.at();
    let mut place = || reader.u64("the place of a tensor");
    let [header, start, len] = [place()?, place()?, place()?];
    let places = shape_end..reader.at();
    let dtype = dtype(dtype_name)?;
    let byte_len = byte_len(dtype, &shape).ok_or_else(|| {
        let range = shape_at..shape_end;
        FormatError::invalid(
            range,
            "shape",
            &format!("{shape:?}"),
            "one that fits memory",
        )
    })?;
    let least = prefix.end.max(header).saturating_add(HEADER_BYTES_MIN);
    if header < prefix.end || start < least {
        let found = format!("{header} and {start}");
        let wanted = format!(
            "a header from {} on, and the tensor at least {HEADER_BYTES_MIN} bytes behind it",
            prefix.end
        );
        return Err(FormatError::invalid(places, "places", &found, wanted));
    }
    if start - header > INDEX_BYTES_MAX {
        let wanted = format!("a header of at most {INDEX_BYTES_MAX} bytes");
        let found = start - header;
        return Err(FormatError::invalid(places, "places", &found, wanted));
    }
    let end = start.checked_add(len).filter(|end| *end <= file_bytes);
    if end.is_none() {
        let found = format!("{len} at {start}");
        let wanted = format!("an end within the {file_bytes} bytes of the file");
        return Err(FormatError::invalid(
            places,
            "bytes of the tensor",
            &found,
            wanted,
        ));
    }
    let is_meta = len == 0 && prefix.version >= META_VERSION;
    if len != byte_len && !is_meta {
        let found = format!("{len} bytes");
        let wanted = format!("{byte_len} for {dtype} {shape:?}");
        return Err(FormatError::invalid(
            places,
            "length of the tensor",
            &found,
            wanted,
        ));
    }
    let places = [header, start, len];
    Ok((dtype, dtype_name.into(), shape, places, byte_len))
}

fn byte_len(dtype: Dtype, shape: &[usize]) -> Option<u64> {
    let elements = shape.iter().try_fold(1_usize, |product, dimension| {
        product.checked_mul(*dimension)
    })?;
    Some((elements.checked_mul(dtype.bits())? / 8) as u64)
}

fn require_distinct(tensors: &[Tensor]) -> Result<(), FormatError> {
    let mut names = HashSet::with_capacity(tensors.len());
    match tensors.iter().find(|tensor| !names.insert(&tensor.name)) {
        Some(twice) => {
            let place = twice.header.start..twice.header.end;
            let error = FormatError::invalid(place, "name", &"it twice", "each name once");
            Err(error.of_tensor(&twice.name))
        }
        None => Ok(()),
    }
}

/// Requires that tensors, sorted by their headers, do not overlap: neither headers nor bytes.
fn require_apart(tensors: &[Tensor], index_end: u64) -> Result<(), FormatError> {
    let mut end = index_end;
    let mut total = 0_u64;
    for tensor in tensors {
        total = total.saturating_add(tensor.byte_len);
        if total > i64::MAX.cast_unsigned() {
            let found = format!("{} bytes", tensor.byte_len);
            let wanted = "tensors that fit a file together";
            let range = tensor.header.clone();
            let error = FormatError::invalid(range, "shape", &found, wanted);
            return Err(error.of_tensor(&tensor.name));
        }
        if tensor.header.start < end {
            let found = format!("a header at {}", tensor.header.start);
            let wanted = format!("one behind the tensor before it, from {end} on");
            let range = tensor.header.clone();
            let error = FormatError::invalid(range, "places", &found, wanted);
            return Err(error.of_tensor(&tensor.name));
        }
        end = tensor.range.end;
    }
    Ok(())
}
