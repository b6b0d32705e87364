//! Headers, compared with the safetensors crate: it accepts every header that tload accepts, and
//! finds the same tensors at the same offsets; it refuses every header that tload refuses, except
//! where tload is documented to be stricter.

use safetensors::SafeTensors;

use super::assert_fit_to_print;
use tload_format::HeaderError;
use tload_format::{Header, LENGTH_BYTES, header_len, parse};

/// Maximum length of a file that is made for the safetensors crate, bytes.
const FILE_BYTES_MAX: u64 = 1 << 18;

/// Maximum length of a file that a header is tried with, bytes: close to where sums overflow.
const FAR: u64 = u64::MAX - 1;

/// Checks `input` as a file, and as the JSON of a file's header.
pub(super) fn check(input: &[u8]) {
    as_file(input);
    as_json(input);
}

/// Returns a file with the JSON `json`, its right length before it, and as many zeros after it as
/// it declares, if these are not too many.
pub(super) fn file_of(json: &[u8]) -> Option<Vec<u8>> {
    let begin = LENGTH_BYTES + json.len() as u64;
    let promised = parse(json, FAR).err()?;
    let (HeaderError::Truncated { wanted, .. } | HeaderError::TrailingBytes { wanted, .. }) =
        promised
    else {
        return None;
    };
    if wanted - begin > FILE_BYTES_MAX {
        return None;
    }
    let mut file = (json.len() as u64).to_le_bytes().to_vec();
    file.extend_from_slice(json);
    file.resize(usize::try_from(wanted).expect("small"), 0);
    Some(file)
}

fn as_file(file: &[u8]) {
    let file_bytes = file.len() as u64;
    let prefix = &file[..file.len().min(8)];
    let parsed = header_len(prefix, file_bytes).and_then(|len| {
        let end = usize::try_from(LENGTH_BYTES + len).expect("the file has it");
        parse(&file[8..end], file_bytes)
    });
    compare(parsed, file);
}

fn as_json(json: &[u8]) {
    if json.is_empty() {
        return;
    }
    let begin = LENGTH_BYTES + json.len() as u64;
    for file_bytes in [begin, FAR] {
        match parse(json, file_bytes) {
            Ok(header) => assert_tiles(&header, file_bytes),
            Err(error) => assert_fit_to_print(&error.into_error("file")),
        }
    }
    if let Some(file) = file_of(json) {
        let header = parse(json, file.len() as u64);
        assert!(
            header.is_ok(),
            "the file of the declared length is refused: {header:?}"
        );
        compare(header, &file);
    } else {
        let mut file = (json.len() as u64).to_le_bytes().to_vec();
        file.extend_from_slice(json);
        compare(parse(json, file.len() as u64), &file);
    }
}

/// Checks that every byte after the header belongs to exactly one tensor, whose shape has that many
/// bytes.
fn assert_tiles(header: &Header, file_bytes: u64) {
    let mut end = header.bytes;
    for tensor in &header.tensors {
        assert_eq!(tensor.range.start, end, "{tensor:?}: a hole or an overlap");
        let elements: u128 = tensor
            .shape
            .iter()
            .fold(1, |product, &dimension| product * (dimension as u128));
        let bits = elements * tensor.dtype.bits() as u128;
        let bytes = u128::from(tensor.range.end - tensor.range.start);
        assert_eq!(bits, bytes * 8, "{tensor:?}: not the bytes of its shape");
        end = tensor.range.end;
    }
    assert_eq!(end, file_bytes, "bytes behind the last tensor");
}

fn compare(ours: Result<Header, HeaderError>, file: &[u8]) {
    match ours {
        Ok(header) => {
            assert_tiles(&header, file.len() as u64);
            let theirs =
                SafeTensors::deserialize(file).expect("accepted by tload, refused by safetensors");
            assert_eq!(header.tensors.len(), theirs.len());
            for tensor in &header.tensors {
                let view = theirs.tensor(&tensor.name).expect("tload has it");
                let begin = view.data().as_ptr().addr() - file.as_ptr().addr();
                let range = begin as u64..(begin + view.data().len()) as u64;
                assert_eq!(view.shape(), tensor.shape);
                // A tensor without bytes has no particular place.
                let is_empty = range.is_empty() && tensor.range.is_empty();
                assert!(
                    range == tensor.range || is_empty,
                    "{tensor:?} is at {range:?}"
                );
            }
        }
        Err(error) => {
            if !is_stricter(&error) && !has_long_number(file) {
                let theirs = SafeTensors::deserialize(file);
                assert!(
                    theirs.is_err(),
                    "accepted by safetensors, refused by tload: {error}"
                );
            }
            assert_fit_to_print(&error.into_error("file"));
        }
    }
}

/// Returns whether the safetensors crate may accept what tload refuses with this error: see the
/// `stricter` rows of `tests/it/hostile.rs`.
fn is_stricter(error: &HeaderError) -> bool {
    if let HeaderError::InvalidEntry { what, .. } = error {
        return what.starts_with("found sequence") || what.starts_with("dtype: found map");
    }
    matches!(
        error,
        HeaderError::DuplicateTensor { .. } | HeaderError::DuplicateMetadata { .. }
    )
}

/// Returns whether the file has a long number: the safetensors crate adds offsets without a check,
/// which panics in a build with overflow checks.
fn has_long_number(file: &[u8]) -> bool {
    const DIGITS: usize = 12;
    file.windows(DIGITS)
        .any(|window| window.iter().all(u8::is_ascii_digit))
}
