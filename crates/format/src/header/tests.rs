//! Tests of the header's rules below the public API. The corpus of hostile files is in
//! `tests/it/hostile.rs`.

use std::collections::{BTreeMap, HashMap};

use proptest::prelude::*;
use proptest::sample::{Index, select};
use safetensors::SafeTensors;
use safetensors::tensor::TensorView;

use super::*;

/// A whole file with this header and `tensor_bytes` zeros behind it.
fn file(header: &str, tensor_bytes: usize) -> Vec<u8> {
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend_from_slice(header.as_bytes());
    file.resize(file.len() + tensor_bytes, 0);
    file
}

fn read(file: &[u8]) -> Result<Header, HeaderError> {
    let file_bytes = file.len() as u64;
    let len = header_len(&file[..file.len().min(8)], file_bytes)?;
    parse(&file[8..8 + usize::try_from(len).unwrap()], file_bytes)
}

#[test]
fn header_len_needs_only_the_first_eight_bytes() {
    let len = |bytes: u64, file_bytes| header_len(&bytes.to_le_bytes(), file_bytes);
    assert_eq!(len(2, 10), Ok(2));
    assert_eq!(
        len(2, 9),
        Err(HeaderError::LengthBeyondFile {
            bytes: 2,
            file_bytes: 9
        })
    );
    assert_eq!(len(0, 10), Err(HeaderError::LengthZero));
    assert_eq!(len(HEADER_BYTES_MAX, u64::MAX), Ok(HEADER_BYTES_MAX));
    let bytes = HEADER_BYTES_MAX + 1;
    assert_eq!(
        len(bytes, u64::MAX),
        Err(HeaderError::LengthTooLarge { bytes })
    );
    assert_eq!(
        header_len(&[1, 0], 2),
        Err(HeaderError::FileTooSmall { file_bytes: 2 })
    );
}

#[test]
fn check_layout_worked_example() {
    let layout = |begin: u64, file_bytes: u64| {
        let entry = |name: &str, dtype, shape, range| Entry {
            name: name.into(),
            dtype,
            shape: vec![shape],
            range,
        };
        let b = entry("b", Dtype::F32, 2, begin..begin + 8);
        check_layout(&[entry("a", Dtype::U8, 4, 0..4), b], 100, file_bytes)
    };
    let (b, a) = (|| "b".to_owned(), || "a".to_owned());
    assert_eq!(layout(4, 112), Ok(()));
    let hole = HeaderError::Hole {
        tensor: b(),
        after: Some(a()),
        found: 5,
        wanted: 4,
        range: 104..105,
    };
    assert_eq!(layout(5, 113), Err(hole));
    let overlap = HeaderError::Overlap {
        tensor: b(),
        other: a(),
        found: 3,
        wanted: 4,
        range: 103..104,
    };
    assert_eq!(layout(3, 111), Err(overlap));
    let cut = |tensor, found| HeaderError::Truncated {
        tensor,
        found,
        wanted: 112,
    };
    assert_eq!(layout(4, 111), Err(cut(b(), 111)));
    assert_eq!(layout(4, 104), Err(cut(b(), 104)));
    assert_eq!(layout(4, 103), Err(cut(a(), 103)));
    assert_eq!(
        layout(4, 113),
        Err(HeaderError::TrailingBytes {
            found: 113,
            wanted: 112
        })
    );
}

#[test]
fn parse_sorts_by_offset_then_name() {
    let header = r#"{
        "z": {"dtype": "U8", "shape": [2], "data_offsets": [0, 2]},
        "y": {"dtype": "F32", "shape": [0], "data_offsets": [2, 2]},
        "a": {"dtype": "U8", "shape": [1], "data_offsets": [2, 3]},
        "x": {"dtype": "F32", "shape": [3, 0], "data_offsets": [2, 2]}
    }"#;
    let parsed = read(&file(header, 3)).unwrap();
    let base = 8 + header.len() as u64;
    assert_eq!(parsed.bytes, base);
    let order: Vec<_> = parsed
        .tensors
        .iter()
        .map(|entry| (entry.name.as_str(), entry.range.clone()))
        .collect();
    let at = |begin, end| base + begin..base + end;
    assert_eq!(
        order,
        [
            ("z", at(0, 2)),
            ("x", at(2, 2)),
            ("y", at(2, 2)),
            ("a", at(2, 3))
        ]
    );
}

#[test]
fn json_error_reports_byte_position() {
    //            0123456789
    let header = "{\"a\":\n  ?}";
    let error = parse(header.as_bytes(), 100).unwrap_err();
    let HeaderError::NotJson {
        line: 2,
        column: 3,
        position,
        ..
    } = error
    else {
        panic!("{error:?}")
    };
    assert_eq!(position, 8 + 8);
}

#[test]
fn parse_reads_hundred_thousand_tensors() {
    const COUNT: usize = 100_000;
    let entries: Vec<String> = (0..COUNT)
        // From the last to the first, so that sorting has work to do.
        .rev()
        .map(|i| {
            format!(
                r#""t{i}":{{"dtype":"U8","shape":[1],"data_offsets":[{i},{}]}}"#,
                i + 1
            )
        })
        .collect();
    let header = read(&file(&format!("{{{}}}", entries.join(",")), COUNT)).unwrap();
    assert_eq!(header.tensors.len(), COUNT);
    assert_eq!(header.tensors[COUNT - 1].name, format!("t{}", COUNT - 1));
}

/// Tensors by name, with bytes that differ from each other.
fn tensors() -> impl Strategy<Value = BTreeMap<String, (Dtype, Vec<usize>)>> {
    let shape = proptest::collection::vec(0..5_usize, 0..4);
    let tensor = (select(Dtype::ALL.to_vec()), shape).prop_map(|(dtype, mut shape)| {
        if dtype.bits() < 8 {
            // Four elements of 6 bits are the fewest that fill whole bytes.
            shape.push(4);
        }
        (dtype, shape)
    });
    proptest::collection::btree_map(any::<String>(), tensor, 0..12)
}

fn serialize(
    tensors: &BTreeMap<String, (Dtype, Vec<usize>)>,
    metadata: Option<HashMap<String, String>>,
) -> Vec<u8> {
    let bytes = vec![7; 1 << 12];
    let views = tensors.iter().map(|(name, (dtype, shape))| {
        let len = shape.iter().product::<usize>() * dtype.bits() / 8;
        (
            name,
            TensorView::new((*dtype).into(), shape.clone(), &bytes[..len]).unwrap(),
        )
    });
    safetensors::serialize(views, metadata).unwrap()
}

proptest! {
    #[test]
    fn header_written_by_safetensors_crate_is_read_back(
        tensors in tensors(),
        // Never empty: for no tensors and empty metadata safetensors 0.8.0 writes
        // `{}"__metadata__":{}`, which it does not read back either.
        metadata in proptest::option::of(
            proptest::collection::hash_map(any::<String>(), any::<String>(), 1..4)
        ),
    ) {
        let file = serialize(&tensors, metadata.clone());
        let header = read(&file).unwrap();
        let read_back: BTreeMap<_, _> = header
            .tensors
            .iter()
            .map(|entry| (entry.name.clone(), (entry.dtype, entry.shape.clone())))
            .collect();
        prop_assert_eq!(read_back, tensors);
        prop_assert_eq!(header.metadata, metadata.unwrap_or_default().into_iter().collect());

        let theirs = SafeTensors::deserialize(&file).unwrap();
        for entry in &header.tensors {
            let view = theirs.tensor(&entry.name).unwrap();
            let at = |offset: u64| usize::try_from(offset).unwrap();
            let ours = &file[at(entry.range.start)..at(entry.range.end)];
            prop_assert_eq!(ours.as_ptr_range(), view.data().as_ptr_range());
        }
    }

    /// Flips, cuts and splices never panic, and the verdict is the one of the safetensors crate.
    #[test]
    fn damaged_headers_are_judged_like_safetensors_crate(
        tensors in tensors(),
        changes in proptest::collection::vec((any::<Index>(), any::<u8>(), 0..5_u8), 1..6),
    ) {
        let mut file = serialize(&tensors, None);
        for (index, byte, change) in changes {
            if file.is_empty() {
                break;
            }
            let at = index.index(file.len());
            match change {
                0 => file[at] = byte,
                // Bytes that matter in JSON, to get past its parser more often.
                1 => file[at] = b"0123456789[]{},:\" -.e"[usize::from(byte) % 21],
                2 => file.truncate(at),
                3 => file.push(byte),
                _ => { file.remove(at); }
            }
        }
        let (ours, theirs) = (read(&file), SafeTensors::deserialize(&file));
        if let Err(error) = &ours {
            let line = error.to_string();
            prop_assert!(!line.contains('\n') && !line.is_empty(), "{line:?}");
            if matches!(
                error,
                HeaderError::DuplicateTensor { .. } | HeaderError::DuplicateMetadata { .. }
            ) {
                return Ok(());
            }
        }
        prop_assert_eq!(ours.is_ok(), theirs.is_ok(), "{:?} / {:?}", ours, theirs.err());
    }

    #[test]
    fn any_bytes_are_read_without_a_panic(file in proptest::collection::vec(any::<u8>(), 0..64)) {
        prop_assert_eq!(read(&file).is_ok(), SafeTensors::deserialize(&file).is_ok());
    }
}
