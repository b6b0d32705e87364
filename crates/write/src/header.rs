//! Header of a safetensors file, with the bytes of the format's own writer. Pure.
//!
//! Its tensors are ordered by dtype from the widest to the narrowest, then by name, and the header
//! is padded with blanks so that they begin at a multiple of 8. That writer stores metadata in the
//! order of a hash table; here it is sorted.

use std::collections::BTreeMap;

use serde::ser::{Error as _, SerializeMap};
use serde::{Serialize, Serializer as _};

use crate::error::{Error, Result};
use crate::format::{Dtype, HEADER_BYTES_MAX};
use crate::tensor_spec::TensorSpec;

/// Bytes of the field that states the header's length.
const LENGTH_BYTES: usize = 8;
const ALIGNMENT: usize = 8;

/// Bytes that a header needs for `spec` at most, without escapes in its name.
pub(crate) fn bytes_max(spec: &TensorSpec) -> usize {
    // Punctuation and field names; 20 digits for each number of 64 bits; six bytes for an escaped
    // character.
    6 * spec.name().len() + 22 * (spec.shape().len() + 2) + 80
}

/// Sorts tensors as the format's own writer does.
pub(crate) fn sort(specs: &mut [TensorSpec]) {
    let rank = |dtype: Dtype| Dtype::ALL.iter().position(|other| *other == dtype);
    specs.sort_by(|left, right| {
        let ranks = rank(right.dtype()).cmp(&rank(left.dtype()));
        ranks.then_with(|| left.name().cmp(right.name()))
    });
}

/// Returns the header of a file whose tensors come in this order: its length and its text, padded
/// to `room` bytes, or to the next multiple of 8.
///
/// # Errors
///
/// [`ErrorKind::InvalidRequest`](crate::error::ErrorKind::InvalidRequest) for a header that the
/// format forbids.
pub(crate) fn render(
    specs: &[TensorSpec],
    metadata: &BTreeMap<String, String>,
    room: Option<usize>,
) -> Result<Vec<u8>> {
    let mut text = vec![0; LENGTH_BYTES];
    let mut json = serde_json::Serializer::new(&mut text);
    let mut map = json.serialize_map(None).map_err(unwritable)?;
    if !metadata.is_empty() {
        map.serialize_entry("__metadata__", metadata)
            .map_err(unwritable)?;
    }
    let mut start = 0_u64;
    for spec in specs {
        let end = start.checked_add(spec.byte_len());
        let end = end.ok_or_else(|| unwritable(serde_json::Error::custom("too many bytes")))?;
        let tensor = Tensor {
            dtype: spec.dtype(),
            shape: spec.shape(),
            data_offsets: [start, end],
        };
        map.serialize_entry(spec.name(), &tensor)
            .map_err(unwritable)?;
        start = end;
    }
    SerializeMap::end(map).map_err(unwritable)?;
    let padded = text.len().next_multiple_of(ALIGNMENT);
    let len = (padded - LENGTH_BYTES) as u64;
    let allowed = room.map_or(HEADER_BYTES_MAX, |room| (room - LENGTH_BYTES) as u64);
    if len > allowed {
        let tensors = specs.len();
        let message = format!(
            "the header of a file with {tensors} tensors has {len} bytes, and {allowed} are allowed"
        );
        return Err(Error::invalid_request(message)
            .with_hint("pass a smaller max_shard_size, or less metadata"));
    }
    text.resize(room.unwrap_or(padded), b' ');
    let len = (text.len() - LENGTH_BYTES) as u64;
    text[..LENGTH_BYTES].copy_from_slice(&len.to_le_bytes());
    Ok(text)
}

/// Entry of a tensor in the header.
#[derive(Serialize)]
struct Tensor<'a> {
    dtype: Dtype,
    shape: &'a [u64],
    data_offsets: [u64; 2],
}

fn unwritable(error: serde_json::Error) -> Error {
    Error::invalid_request("the header cannot be written").with_source(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(name: &str, dtype: Dtype, shape: &[u64]) -> TensorSpec {
        TensorSpec::new(name, dtype, shape).expect("a good shape")
    }

    /// Lays out tensors by the crate `safetensors`.
    fn theirs(specs: &[TensorSpec], metadata: &BTreeMap<String, String>) -> Vec<u8> {
        let bytes = vec![7_u8; 4096];
        let views = specs.iter().map(|spec| {
            let shape = spec
                .shape()
                .iter()
                .map(|&dim| dim.try_into().expect("small"));
            let len = usize::try_from(spec.byte_len()).expect("small");
            let view = safetensors::tensor::TensorView::new(
                spec.dtype().into(),
                shape.collect(),
                &bytes[..len],
            );
            (spec.name().to_owned(), view.expect("as long as its shape"))
        });
        let metadata = metadata.clone().into_iter().collect();
        let metadata = Some(metadata).filter(|it: &std::collections::HashMap<_, _>| !it.is_empty());
        safetensors::serialize(views, metadata).expect("is written")
    }

    #[test]
    fn header_has_bytes_of_safetensors() {
        let mut every: Vec<_> = Dtype::ALL
            .into_iter()
            .map(|dtype| spec(&format!("{dtype}.z"), dtype, &[2, 4]))
            .collect();
        every.extend(Dtype::ALL.map(|dtype| spec(&format!("{dtype}.a"), dtype, &[8])));
        let odd = vec![
            spec("b", Dtype::F32, &[]),
            spec("empty", Dtype::I64, &[0, 3]),
            spec("\"quoted\\ \u{1f600} \n", Dtype::U8, &[3]),
            spec("", Dtype::Bool, &[1]),
        ];
        for specs in [Vec::new(), every, odd] {
            for metadata in [&[][..], &[("format", "pt")], &[("a\n", "\u{e9}\"")]] {
                let metadata = metadata.iter().map(|(name, value)| {
                    let (name, value) = (*name, *value);
                    (name.to_owned(), value.to_owned())
                });
                let metadata = metadata.collect();
                let mut sorted = specs.clone();
                sort(&mut sorted);
                let ours = render(&sorted, &metadata, None).expect("is written");
                let theirs = theirs(&specs, &metadata);
                assert_eq!(ours.len() as u64, header_len(&theirs));
                assert!(theirs.starts_with(&ours));
            }
        }
    }

    fn header_len(file: &[u8]) -> u64 {
        let field = file[..LENGTH_BYTES].try_into().expect("eight bytes");
        LENGTH_BYTES as u64 + u64::from_le_bytes(field)
    }

    #[test]
    fn room_holds_header_of_any_name() {
        let names = ["\u{1}".repeat(40), "\u{1f600}".repeat(9), "x".repeat(300)];
        for name in names {
            let spec = spec(&name, Dtype::F8E4M3Fnuz, &[u64::from(u32::MAX), 1 << 20]);
            let alone = render(std::slice::from_ref(&spec), &BTreeMap::new(), None);
            let alone = alone.expect("is written").len();
            assert!(
                alone <= LENGTH_BYTES + 2 + ALIGNMENT + bytes_max(&spec),
                "{name:?}"
            );
        }
    }

    #[test]
    fn padded_header_reads_as_other_one() {
        let specs = [spec("b", Dtype::F32, &[3]), spec("a", Dtype::F32, &[2])];
        let header = render(&specs, &BTreeMap::new(), Some(4096)).expect("is written");
        assert_eq!(header.len(), 4096);
        let mut file = header;
        file.resize(4096 + 20, 1);
        let read = safetensors::SafeTensors::deserialize(&file).expect("a file");
        assert_eq!(read.tensor("b").expect("is there").data().len(), 12);
    }

    #[test]
    fn header_that_has_no_room_is_refused() {
        let metadata = BTreeMap::from([("key".to_owned(), "x".repeat(5000))]);
        let error = render(&[], &metadata, Some(4096)).expect_err("is too long");
        assert!(error.to_string().contains("4088 are allowed"), "{error}");
        assert!(render(&[], &metadata, Some(5048)).is_ok());
    }

    #[test]
    fn reserved_name_and_fractions_of_bytes_are_refused() {
        assert!(TensorSpec::new("__metadata__", Dtype::F32, vec![1]).is_err());
        assert!(TensorSpec::new("a", Dtype::F4, vec![3]).is_err());
        assert!(TensorSpec::new("a", Dtype::F6E2M3, vec![4]).is_ok());
        assert!(TensorSpec::new("a", Dtype::F32, vec![1 << 40, 1 << 40]).is_err());
    }
}
