//! Hostile and odd files through the public API: each hostile file is refused with exactly one line
//! that names the bytes, the tensor, the value found and the value wanted; each odd but valid file
//! opens.
//!
//! The safetensors crate is the oracle: it refuses each file that we refuse, except for the rows of
//! `stricter`.

use std::error::Error as _;
use std::path::Path;

use safetensors::SafeTensors;
use tload::internal::HeaderError;
use tload::sealed::Algorithm;
use tload::{Checkpoint, Dtype, Error, ErrorKind, Key, Location, OpenOptions};

use crate::files::write;
use crate::sealing::{new_key, seal_with};

/// Description of a file, its bytes, and the expected variant of `HeaderError` followed by the
/// error's line without the location.
type Row = (&'static str, Vec<u8>, &'static str);

/// Returns a length, a header whose length may differ, and `tensor_bytes` zeros.
fn sized(length: u64, header: &[u8], tensor_bytes: usize) -> Vec<u8> {
    let mut file = length.to_le_bytes().to_vec();
    file.extend_from_slice(header);
    file.resize(file.len() + tensor_bytes, 0);
    file
}

/// Returns a header after its correct length, and `tensor_bytes` zeros.
fn file(header: &str, tensor_bytes: usize) -> Vec<u8> {
    sized(header.len() as u64, header.as_bytes(), tensor_bytes)
}

/// Returns a file of the tensor `t` with these fields, and four bytes.
fn one(fields: &str) -> Vec<u8> {
    file(&format!("{{\"t\": {{{fields}}}}}"), 4)
}

/// Returns a file of the tensors `a` and `b`, each of four bytes, at these offsets. The header is
/// 120 bytes long for offsets of one digit, so the tensors begin at byte 128.
fn two(a: (u64, u64), b: (u64, u64), tensor_bytes: usize) -> Vec<u8> {
    let entry = |name: &str, (begin, end)| {
        format!(r#""{name}":{{"dtype":"U8","shape":[4],"data_offsets":[{begin},{end}]}}"#)
    };
    let header = format!("{{{},{}}}", entry("a", a), entry("b", b));
    file(&format!("{header:120}"), tensor_bytes)
}

fn open(folder: &Path, bytes: &[u8]) -> Result<Checkpoint, Error> {
    let path = folder.join("model.safetensors");
    std::fs::write(&path, bytes).expect("the temporary folder takes files");
    Checkpoint::open(Location::from_path(path))
}

/// Opens a file that is sealed with `key`.
fn open_sealed(folder: &Path, key: &Key, bytes: &[u8]) -> Result<Checkpoint, Error> {
    let (plain, sealed) = (folder.join("plain"), folder.join("sealed"));
    write(&plain.join("model.safetensors"), bytes);
    let _ = std::fs::remove_dir_all(&sealed);
    seal_with(key, &plain, &sealed).expect("any bytes can be sealed");
    let options = OpenOptions::default().key(key.clone());
    Checkpoint::open_with(
        Location::from_path(sealed.join("model.safetensors")),
        options,
    )
}

/// Formats an error as the rows do: `Variant [bytes]: message`.
fn describe(error: &Error, cause: &HeaderError) -> String {
    let line = error.to_string();
    let location = error.location().expect("errors of files name them");
    let place = line
        .strip_prefix(location)
        .expect("the line begins with the location");
    let debug = format!("{cause:?}");
    let variant = debug.split(' ').next().unwrap_or_default();
    format!("{variant}{place}")
}

#[test]
fn hostile_files_are_rejected_with_exact_message() {
    let folder = tempfile::tempdir().unwrap();
    let groups = [
        lengths(),
        other_formats(),
        json(),
        metadata(),
        entries(),
        layout(),
    ];
    let refused_by_all = groups.into_iter().flatten().map(|row| (row, true));
    let refused_by_us = stricter().into_iter().map(|row| (row, false));

    let rows: Vec<_> = refused_by_all.chain(refused_by_us).collect();
    assert!(
        rows.len() >= 100,
        "the corpus has shrunk to {} files",
        rows.len()
    );

    let key = new_key(Algorithm::Aes256, &folder.path().join("key.json"));
    let mut failures = Vec::new();
    for ((name, bytes, wanted), by_oracle) in rows {
        let Err(error) = open(folder.path(), &bytes) else {
            failures.push(format!("{name}: opens"));
            continue;
        };
        let cause: &HeaderError = error.source().unwrap().downcast_ref().unwrap();
        let found = describe(&error, cause);
        if found != wanted {
            failures.push(format!("{name}:\n   found {found}\n  wanted {wanted}"));
        }
        assert_eq!(error.kind(), ErrorKind::InvalidFormat, "{name}");
        assert!(
            !error.to_string().contains(char::is_control),
            "{name}: {error}"
        );
        assert_eq!(
            (error.tensor(), error.range()),
            (cause.tensor(), cause.range()),
            "{name}"
        );
        assert!(error.hint().is_some(), "{name}");
        match open_sealed(folder.path(), &key, &bytes) {
            Ok(_) => failures.push(format!("{name}: opens when it is sealed")),
            Err(sealed) => {
                let cause = sealed.source().unwrap().downcast_ref().unwrap();
                assert_eq!(describe(&sealed, cause), found, "{name}, sealed");
                assert_eq!(sealed.hint(), error.hint(), "{name}, sealed");
            }
        }
        assert_eq!(error.chain().matches(error.message()).count(), 1, "{name}");
        assert_eq!(
            SafeTensors::deserialize(&bytes).is_err(),
            by_oracle,
            "{name}: the oracle"
        );
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn odd_but_valid_files_open() {
    let folder = tempfile::tempdir().unwrap();
    let key = new_key(Algorithm::Aes256, &folder.path().join("key.json"));
    for (name, bytes) in odd() {
        let [checkpoint, sealed] = [
            open(folder.path(), &bytes),
            open_sealed(folder.path(), &key, &bytes),
        ]
        .map(|opened| opened.unwrap_or_else(|error| panic!("{name}: {error}")));
        assert_eq!(sealed.tensors(), checkpoint.tensors(), "{name}, sealed");
        assert_eq!(sealed.metadata(), checkpoint.metadata(), "{name}, sealed");
        let theirs = SafeTensors::deserialize(&bytes).unwrap();
        assert_eq!(checkpoint.tensors().len(), theirs.len(), "{name}");
        for tensor in checkpoint.tensors() {
            let view = theirs.tensor(tensor.name()).unwrap();
            assert_eq!(
                safetensors::Dtype::from(tensor.dtype()),
                view.dtype(),
                "{name}"
            );
            assert_eq!(tensor.shape(), view.shape(), "{name}");
            assert_eq!(tensor.byte_len(), view.data().len() as u64, "{name}");
            let begin = view.data().as_ptr().addr() - bytes.as_ptr().addr();
            assert_eq!(tensor.file_range().start, begin as u64, "{name}");
        }
        let (_, metadata) = SafeTensors::read_metadata(&bytes).unwrap();
        let metadata = metadata
            .metadata()
            .clone()
            .unwrap_or_default()
            .into_iter()
            .collect();
        assert_eq!(checkpoint.metadata(), &metadata, "{name}");
    }
}

#[test]
fn offsets_up_to_64_bits_do_not_overflow() {
    // Eight tensors of 2^61 - 1 bytes, the maximum for a 64-bit count of bits, and one that ends at
    // the last 64-bit offset. The oracle does not take part: it adds the header's length to that
    // without a check, which panics in a debug build.
    let bytes = (1_u64 << 61) - 1;
    let entries: Vec<String> = (0..8)
        .map(|i| {
            let (begin, end) = (i * bytes, (i + 1) * bytes);
            format!(r#""{i}":{{"dtype":"U8","shape":[{bytes}],"data_offsets":[{begin},{end}]}}"#)
        })
        .chain([format!(
            r#""8":{{"dtype":"U8","shape":[7],"data_offsets":[{},{}]}}"#,
            bytes * 8,
            u64::MAX
        )])
        .collect();
    let folder = tempfile::tempdir().unwrap();
    let error = open(
        folder.path(),
        &file(&format!("{{{}}}", entries.join(",")), 4),
    )
    .err()
    .unwrap();
    assert_eq!(error.tensor(), Some("0"));
    assert_eq!(error.range().unwrap().end, u64::MAX);
}

#[test]
fn tensor_name_of_one_megabyte_is_truncated_in_error() {
    let header = format!(r#"{{"{}": 1}}"#, "n".repeat(1 << 20));
    let folder = tempfile::tempdir().unwrap();
    let error = open(folder.path(), &file(&header, 0)).err().unwrap();
    assert!(error.chain().len() < 1000, "{}", error.chain().len());
}

/// Returns files whose first eight bytes, the header length, are wrong.
fn lengths() -> Vec<Row> {
    vec![
        (
            "an empty file",
            vec![],
            "FileTooSmall [0..0]: found a file of 0 bytes, wanted at least 8 for the header \
             length",
        ),
        (
            "a file of one byte",
            vec![2],
            "FileTooSmall [0..1]: found a file of 1 bytes, wanted at least 8 for the header \
             length",
        ),
        (
            "a file of seven bytes",
            vec![0; 7],
            "FileTooSmall [0..7]: found a file of 7 bytes, wanted at least 8 for the header \
             length",
        ),
        (
            "a length of zero and nothing else",
            vec![0; 8],
            "LengthZero [0..8]: found a header length of 0, wanted at least 2",
        ),
        (
            "a length of zero before bytes",
            vec![0; 16],
            "LengthZero [0..8]: found a header length of 0, wanted at least 2",
        ),
        (
            "a length one above the limit",
            sized(100_000_001, b"{}", 0),
            "LengthTooLarge [0..8]: found a header length of 100000001, wanted at most 100000000",
        ),
        (
            "the largest signed length",
            sized(u64::MAX >> 1, b"{}", 0),
            "LengthTooLarge [0..8]: found a header length of 9223372036854775807, wanted at \
             most 100000000",
        ),
        (
            "the largest length",
            sized(u64::MAX, b"{}", 0),
            "LengthTooLarge [0..8]: found a header length of 18446744073709551615, wanted at \
             most 100000000",
        ),
        (
            "a length one beyond the file",
            sized(3, b"{}", 0),
            "LengthBeyondFile [0..8]: header length 3 does not fit the file: found 10 bytes, \
             wanted at least 11",
        ),
        (
            "a length at the limit in a small file",
            sized(100_000_000, b"{}", 0),
            "LengthBeyondFile [0..8]: header length 100000000 does not fit the file: found 10 \
             bytes, wanted at least 100000008",
        ),
        (
            "a file that ends after the length",
            sized(2, b"", 0),
            "LengthBeyondFile [0..8]: header length 2 does not fit the file: found 8 bytes, \
             wanted at least 10",
        ),
    ]
}

/// Returns files of other formats, such as failed downloads saved under a model's name.
fn other_formats() -> Vec<Row> {
    vec![
        (
            "a git-lfs pointer",
            b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n".to_vec(),
            "OtherFormat [0..8]: found a git-lfs pointer, wanted a safetensors file",
        ),
        (
            "an HTML page",
            b"<!DOCTYPE html><html></html>".to_vec(),
            "OtherFormat [0..8]: found an HTML page, wanted a safetensors file",
        ),
        (
            "an HTML page without a doctype",
            b"<html><body>404</body></html>".to_vec(),
            "OtherFormat [0..8]: found an HTML page, wanted a safetensors file",
        ),
        (
            "an XML text",
            b"<?xml version=\"1.0\"?><Error/>".to_vec(),
            "OtherFormat [0..8]: found an XML text, wanted a safetensors file",
        ),
        (
            "a JSON text",
            br#"{"error": "Repository not found"}"#.to_vec(),
            "OtherFormat [0..8]: found a JSON text without a header length, wanted a \
             safetensors file",
        ),
        (
            "a zip archive",
            b"PK\x03\x04\x14\0\x08\x08\0\0".to_vec(),
            "OtherFormat [0..8]: found a zip archive (torch.save writes these), wanted a \
             safetensors file",
        ),
        (
            "an old pickle",
            b"\x80\x02}q\x00X\x01\x00\x00\x00aq".to_vec(),
            "OtherFormat [0..8]: found a Python pickle, wanted a safetensors file",
        ),
        (
            "a pickle",
            b"\x80\x04\x95\x20\0\0\0\0\0\0\0".to_vec(),
            "OtherFormat [0..8]: found a Python pickle, wanted a safetensors file",
        ),
        (
            "a GGUF file",
            b"GGUF\x03\0\0\0\0\0".to_vec(),
            "OtherFormat [0..8]: found a GGUF file, wanted a safetensors file",
        ),
        (
            "a numpy array",
            b"\x93NUMPY\x01\0v\0".to_vec(),
            "OtherFormat [0..8]: found a numpy array, wanted a safetensors file",
        ),
    ]
}

/// Returns files whose header is not a JSON object.
#[expect(clippy::too_many_lines, reason = "a table")]
fn json() -> Vec<Row> {
    vec![
        (
            "a byte that no UTF-8 has",
            sized(4, b"{\"\xff}", 0),
            "NotUtf8 [10..11]: header is not UTF-8 at byte 10 of the file",
        ),
        (
            "UTF-8 cut in two",
            sized(5, b"{\"a\xe2\x82", 0),
            "NotUtf8 [11..12]: header is not UTF-8 at byte 11 of the file",
        ),
        (
            "a byte order mark",
            file("\u{feff}{}", 0),
            "NotAnObject: found a header that begins with '\\u{feff}', wanted '{'",
        ),
        (
            "a blank header",
            file(" \n\t\r    ", 0),
            "NotAnObject: found a blank header, wanted '{'",
        ),
        (
            "an array",
            file("[]", 0),
            "NotAnObject: found a header that begins with '[', wanted '{'",
        ),
        (
            "a text",
            file("\"a\"", 0),
            "NotAnObject: found a header that begins with '\"', wanted '{'",
        ),
        (
            "null",
            file("null", 0),
            "NotAnObject: found a header that begins with 'n', wanted '{'",
        ),
        (
            "a control character first",
            file("\u{1}{}", 0),
            "NotAnObject: found a header that begins with '\\u{1}', wanted '{'",
        ),
        (
            "an object that does not end",
            file("{", 0),
            "NotJson [8..9]: header is not JSON at line 1 column 1: EOF while parsing an object",
        ),
        (
            "a key without a value",
            file(r#"{"a"}"#, 0),
            "NotJson [12..13]: header is not JSON at line 1 column 5: expected `:`",
        ),
        (
            "a comma at the end",
            file(r#"{"__metadata__": {},}"#, 0),
            "NotJson [28..29]: header is not JSON at line 1 column 21: trailing comma",
        ),
        (
            "two objects",
            file("{}\n {}", 0),
            "NotJson [12..13]: header is not JSON at line 2 column 2: trailing characters",
        ),
        (
            "padding with NUL",
            file("{}\0\0", 0),
            "NotJson [10..11]: header is not JSON at line 1 column 3: trailing characters",
        ),
        (
            "padding with a vertical tab",
            file("{}\u{b}", 0),
            "NotJson [10..11]: header is not JSON at line 1 column 3: trailing characters",
        ),
        (
            "single quotes",
            file("{'a': 1}", 0),
            "NotJson [9..10]: header is not JSON at line 1 column 2: key must be a string",
        ),
        (
            "half a surrogate pair",
            file(r#"{"\ud800": 1}"#, 0),
            "NotJson [16..17]: header is not JSON at line 1 column 9: unexpected end of hex \
             escape",
        ),
        (
            "nesting without end",
            one(&format!(r#""x": {}"#, "[".repeat(5000))),
            "NotJson [145..146]: header is not JSON at line 1 column 138: recursion limit \
             exceeded",
        ),
        (
            "a number that no float holds",
            one(r#""x": 1e999"#),
            "NotJson [24..25]: header is not JSON at line 1 column 17: number out of range",
        ),
        (
            "a line feed in a name",
            file("{\"a\nb\": 1}", 0),
            "NotJson [11..12]: header is not JSON at line 2 column 0: control character \
             (\\u0000-\\u001F) found while parsing a string",
        ),
    ]
}

/// Returns files with invalid `__metadata__`.
fn metadata() -> Vec<Row> {
    vec![
        (
            "metadata that is an array",
            file(r#"{"__metadata__": []}"#, 0),
            "InvalidMetadata: __metadata__: found sequence, wanted an object of strings",
        ),
        (
            "metadata that is a text",
            file(r#"{"__metadata__": "pt"}"#, 0),
            "InvalidMetadata: __metadata__: found string \"pt\", wanted an object of strings",
        ),
        (
            "metadata with a number",
            file(r#"{"__metadata__": {"a": "b", "step": 3}}"#, 0),
            "InvalidMetadata: __metadata__ at \"step\": found integer `3`, wanted a string",
        ),
        (
            "metadata with null",
            file(r#"{"__metadata__": {"a": null}}"#, 0),
            "InvalidMetadata: __metadata__ at \"a\": found null, wanted a string",
        ),
        (
            "metadata with an object",
            file(r#"{"__metadata__": {"a": {}}}"#, 0),
            "InvalidMetadata: __metadata__ at \"a\": found map, wanted a string",
        ),
        (
            "metadata with a line feed in its key",
            file(r#"{"__metadata__": {"a\nb": 1}}"#, 0),
            "InvalidMetadata: __metadata__ at \"a\\nb\": found integer `1`, wanted a string",
        ),
        (
            "metadata twice",
            file(r#"{"__metadata__": {}, "__metadata__": {}}"#, 0),
            "DuplicateMetadata: found __metadata__ twice, wanted it at most once",
        ),
    ]
}

/// Returns files with entries that do not describe a tensor.
#[expect(clippy::too_many_lines, reason = "a table")]
fn entries() -> Vec<Row> {
    vec![
        (
            "an entry that is null",
            file(r#"{"t": null}"#, 0),
            "InvalidEntry: tensor \"t\": found null, wanted an object with dtype, shape and \
             data_offsets",
        ),
        (
            "an entry that is a number",
            file(r#"{"t": 1}"#, 0),
            "InvalidEntry: tensor \"t\": found integer `1`, wanted an object with dtype, shape \
             and data_offsets",
        ),
        (
            "no dtype",
            one(r#""shape": [4], "data_offsets": [0, 4]"#),
            "InvalidEntry: tensor \"t\": missing field `dtype`",
        ),
        (
            "no shape",
            one(r#""dtype": "U8", "data_offsets": [0, 4]"#),
            "InvalidEntry: tensor \"t\": missing field `shape`",
        ),
        (
            "no offsets",
            one(r#""dtype": "U8", "shape": [4]"#),
            "InvalidEntry: tensor \"t\": missing field `data_offsets`",
        ),
        (
            "a field twice",
            one(r#""dtype": "U8", "shape": [4], "data_offsets": [0, 4], "shape": [4]"#),
            "InvalidEntry: tensor \"t\": shape: found it twice, wanted it once",
        ),
        (
            "a dtype that is a number",
            one(r#""dtype": 8, "shape": [4], "data_offsets": [0, 4]"#),
            "InvalidEntry: tensor \"t\": dtype: found integer `8`, wanted a string",
        ),
        (
            "a dtype that is null",
            one(r#""dtype": null, "shape": [4], "data_offsets": [0, 4]"#),
            "InvalidEntry: tensor \"t\": dtype: found null, wanted a string",
        ),
        (
            "an unknown dtype",
            one(r#""dtype": "F8_E3M4", "shape": [4], "data_offsets": [0, 4]"#),
            "UnknownDtype: tensor \"t\": found the dtype \"F8_E3M4\", wanted one of the 22 of \
             the format",
        ),
        (
            "a dtype in lower case",
            one(r#""dtype": "u8", "shape": [4], "data_offsets": [0, 4]"#),
            "UnknownDtype: tensor \"t\": found the dtype \"u8\", wanted one of the 22 of the \
             format",
        ),
        (
            "a hostile dtype",
            one(r#""dtype": "\n\u0000", "shape": [4], "data_offsets": [0, 4]"#),
            "UnknownDtype: tensor \"t\": found the dtype \"\\n\\0\", wanted one of the 22 of \
             the format",
        ),
        (
            "a shape that is a text",
            one(r#""dtype": "U8", "shape": "4", "data_offsets": [0, 4]"#),
            "InvalidEntry: tensor \"t\": shape: found string \"4\", wanted an array of dimensions",
        ),
        (
            "a shape that is null",
            one(r#""dtype": "U8", "shape": null, "data_offsets": [0, 4]"#),
            "InvalidEntry: tensor \"t\": shape: found null, wanted an array of dimensions",
        ),
        (
            "a negative dimension",
            one(r#""dtype": "U8", "shape": [2, -2], "data_offsets": [0, 4]"#),
            "InvalidEntry: tensor \"t\": shape: found integer `-2`, wanted a whole number from \
             0 to 18446744073709551615",
        ),
        (
            "negative zero",
            one(r#""dtype": "U8", "shape": [-0], "data_offsets": [0, 4]"#),
            "InvalidEntry: tensor \"t\": shape: found floating point `-0.0`, wanted a whole \
             number from 0 to 18446744073709551615",
        ),
        (
            "a fraction of a dimension",
            one(r#""dtype": "U8", "shape": [1.5], "data_offsets": [0, 4]"#),
            "InvalidEntry: tensor \"t\": shape: found floating point `1.5`, wanted a whole \
             number from 0 to 18446744073709551615",
        ),
        (
            "a dimension as a float",
            one(r#""dtype": "U8", "shape": [4.0], "data_offsets": [0, 4]"#),
            "InvalidEntry: tensor \"t\": shape: found floating point `4.0`, wanted a whole \
             number from 0 to 18446744073709551615",
        ),
        (
            "a dimension above 64 bits",
            one(r#""dtype": "U8", "shape": [18446744073709551616], "data_offsets": [0, 4]"#),
            "InvalidEntry: tensor \"t\": shape: found floating point `1.8446744073709552e+19`, \
             wanted a whole number from 0 to 18446744073709551615",
        ),
        (
            "a shape in a shape",
            one(r#""dtype": "U8", "shape": [[4]], "data_offsets": [0, 4]"#),
            "InvalidEntry: tensor \"t\": shape: found sequence, wanted a whole number from 0 to \
             18446744073709551615",
        ),
        (
            "a dimension that is a text",
            one(r#""dtype": "U8", "shape": ["4"], "data_offsets": [0, 4]"#),
            "InvalidEntry: tensor \"t\": shape: found string \"4\", wanted a whole number from \
             0 to 18446744073709551615",
        ),
        (
            "a negative offset",
            one(r#""dtype": "U8", "shape": [4], "data_offsets": [-4, 0]"#),
            "InvalidEntry: tensor \"t\": data_offsets: found integer `-4`, wanted a whole \
             number from 0 to 18446744073709551615",
        ),
        (
            "an offset as a float",
            one(r#""dtype": "U8", "shape": [4], "data_offsets": [0, 4.0]"#),
            "InvalidEntry: tensor \"t\": data_offsets: found floating point `4.0`, wanted a \
             whole number from 0 to 18446744073709551615",
        ),
        (
            "an offset above 64 bits",
            one(r#""dtype": "U8", "shape": [4], "data_offsets": [0, 36893488147419103232]"#),
            "InvalidEntry: tensor \"t\": data_offsets: found floating point \
             `3.6893488147419103e+19`, wanted a whole number from 0 to \
             18446744073709551615",
        ),
        (
            "no offset",
            one(r#""dtype": "U8", "shape": [4], "data_offsets": []"#),
            "InvalidEntry: tensor \"t\": data_offsets: found length 0, wanted two offsets, \
             [begin, end]",
        ),
        (
            "one offset",
            one(r#""dtype": "U8", "shape": [4], "data_offsets": [0]"#),
            "InvalidEntry: tensor \"t\": data_offsets: found length 1, wanted two offsets, \
             [begin, end]",
        ),
        (
            "three offsets",
            one(r#""dtype": "U8", "shape": [4], "data_offsets": [0, 4, 4]"#),
            "InvalidEntry: tensor \"t\": data_offsets: found length 3, wanted two offsets, \
             [begin, end]",
        ),
        (
            "offsets in an object",
            one(r#""dtype": "U8", "shape": [4], "data_offsets": {"begin": 0, "end": 4}"#),
            "InvalidEntry: tensor \"t\": data_offsets: found map, wanted two offsets, [begin, \
             end]",
        ),
    ]
}

/// Returns files with entries that do not fit each other, their shapes or the file.
#[expect(clippy::too_many_lines, reason = "a table")]
fn layout() -> Vec<Row> {
    vec![
        (
            "offsets reversed",
            one(r#""dtype": "U8", "shape": [4], "data_offsets": [4, 0]"#),
            "ReversedOffsets: tensor \"t\": found offsets [4, 0], wanted an end that is not \
             below the start",
        ),
        (
            "a first tensor that is not first",
            one(r#""dtype": "U8", "shape": [4], "data_offsets": [4, 8]"#),
            "Hole [68..72]: tensor \"t\": found it at offset 4, wanted 0: the bytes before it \
             belong to no tensor",
        ),
        (
            "a hole",
            two((0, 4), (5, 9), 9),
            "Hole [132..133]: tensor \"b\": found it at offset 5, wanted 4: the bytes between \
             \"a\" and it belong to no tensor",
        ),
        (
            "an overlap of one byte",
            two((0, 4), (3, 7), 7),
            "Overlap [131..132]: tensor \"b\": found it at offset 3, wanted 4: it overlaps \"a\"",
        ),
        (
            "two tensors in one place",
            two((0, 4), (0, 4), 4),
            "Overlap [128..132]: tensor \"b\": found it at offset 0, wanted 4: it overlaps \"a\"",
        ),
        (
            "a tensor inside another",
            file(
                r#"{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[0],"data_offsets":[2,2]}}"#,
                4,
            ),
            "Overlap [115..117]: tensor \"b\": found it at offset 2, wanted 4: it overlaps \"a\"",
        ),
        (
            "an empty tensor beyond the end",
            file(
                r#"{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[0],"data_offsets":[9,9]}}"#,
                4,
            ),
            "Hole [117..122]: tensor \"b\": found it at offset 9, wanted 4: the bytes between \
             \"a\" and it belong to no tensor",
        ),
        (
            "a name twice in two places",
            file(
                r#"{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"a":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}}"#,
                8,
            ),
            "DuplicateTensor: tensor \"a\": found its name twice, wanted distinct names",
        ),
        (
            "elements above 64 bits",
            one(r#""dtype": "U8", "shape": [4294967296, 4294967296], "data_offsets": [0, 4]"#),
            "ShapeOverflow: tensor \"t\": counting the bits of [4294967296, 4294967296] of U8 \
             overflows 64 bits",
        ),
        (
            "bits above 64 bits",
            one(r#""dtype": "U8", "shape": [2305843009213693952], "data_offsets": [0, 4]"#),
            "ShapeOverflow: tensor \"t\": counting the bits of [2305843009213693952] of U8 \
             overflows 64 bits",
        ),
        (
            "elements above 64 bits before a zero",
            one(r#""dtype": "U8", "shape": [9223372036854775808, 2, 0], "data_offsets": [0, 0]"#),
            "ShapeOverflow: tensor \"t\": counting the bits of [9223372036854775808, 2, 0] of \
             U8 overflows 64 bits",
        ),
        (
            "the largest dimension and offset",
            one(
                r#""dtype": "U8", "shape": [18446744073709551615], "data_offsets": [0, 18446744073709551615]"#,
            ),
            "ShapeOverflow: tensor \"t\": counting the bits of [18446744073709551615] of U8 \
             overflows 64 bits",
        ),
        (
            "half a byte",
            one(r#""dtype": "F4", "shape": [7], "data_offsets": [0, 4]"#),
            "SubByteSize: tensor \"t\": found 7 elements of F4 (28 bits), wanted whole bytes",
        ),
        (
            "three quarters of a byte",
            one(r#""dtype": "F6_E2M3", "shape": [5], "data_offsets": [0, 4]"#),
            "SubByteSize: tensor \"t\": found 5 elements of F6_E2M3 (30 bits), wanted whole bytes",
        ),
        (
            "a shape smaller than its bytes",
            one(r#""dtype": "U8", "shape": [3], "data_offsets": [0, 4]"#),
            "SizeMismatch [68..72]: tensor \"t\": found 4 bytes between its offsets, wanted 3 \
             for [3] of U8",
        ),
        (
            "a shape larger than its bytes",
            one(r#""dtype": "U8", "shape": [2, 4], "data_offsets": [0, 4]"#),
            "SizeMismatch [71..75]: tensor \"t\": found 4 bytes between its offsets, wanted 8 \
             for [2, 4] of U8",
        ),
        (
            "a dtype larger than its bytes",
            one(r#""dtype": "F32", "shape": [4], "data_offsets": [0, 4]"#),
            "SizeMismatch [69..73]: tensor \"t\": found 4 bytes between its offsets, wanted 16 \
             for [4] of F32",
        ),
        (
            "a scalar without bytes",
            one(r#""dtype": "U8", "shape": [], "data_offsets": [0, 0]"#),
            "SizeMismatch [67..67]: tensor \"t\": found 0 bytes between its offsets, wanted 1 \
             for [] of U8",
        ),
        (
            "a zero dimension with bytes",
            one(r#""dtype": "U8", "shape": [4, 0], "data_offsets": [0, 4]"#),
            "SizeMismatch [71..75]: tensor \"t\": found 4 bytes between its offsets, wanted 0 \
             for [4, 0] of U8",
        ),
        (
            "a file cut by one byte",
            two((0, 4), (4, 8), 7),
            "Truncated [135..136]: tensor \"b\": file ends too early: found 135 bytes, wanted 136",
        ),
        (
            "a file cut between tensors",
            two((0, 4), (4, 8), 4),
            "Truncated [132..136]: tensor \"b\": file ends too early: found 132 bytes, wanted 136",
        ),
        (
            "a file cut in its first tensor",
            two((0, 4), (4, 8), 3),
            "Truncated [131..136]: tensor \"a\": file ends too early: found 131 bytes, wanted 136",
        ),
        (
            "a file cut after its header",
            two((0, 4), (4, 8), 0),
            "Truncated [128..136]: tensor \"a\": file ends too early: found 128 bytes, wanted 136",
        ),
        (
            "one byte too many",
            two((0, 4), (4, 8), 9),
            "TrailingBytes [136..137]: bytes follow the last tensor: found 137 bytes, wanted 136",
        ),
        (
            "bytes without tensors",
            file("{}", 4),
            "TrailingBytes [10..14]: bytes follow the last tensor: found 14 bytes, wanted 10",
        ),
        (
            "a petabyte in a small file",
            one(
                r#""dtype": "U8", "shape": [1125899906842624], "data_offsets": [0, 1125899906842624]"#,
            ),
            "Truncated [102..1125899906842722]: tensor \"t\": file ends too early: found 102 \
             bytes, wanted 1125899906842722",
        ),
    ]
}

/// Returns files that we refuse and the safetensors crate accepts. The specification forbids the
/// first two; the others pass serde's derive by accident, and no writer creates them.
fn stricter() -> Vec<Row> {
    vec![
        (
            "a tensor twice in one place",
            file(
                r#"{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}"#,
                4,
            ),
            "DuplicateTensor: tensor \"a\": found its name twice, wanted distinct names",
        ),
        (
            "a key twice in the metadata",
            file(r#"{"__metadata__": {"a": "1", "a": "2"}}"#, 0),
            "DuplicateMetadata: found \"a\" twice in __metadata__, wanted distinct keys",
        ),
        (
            "an entry that is an array",
            file(r#"{"t": ["U8", [4], [0, 4]]}"#, 4),
            "InvalidEntry: tensor \"t\": found sequence, wanted an object with dtype, shape and \
             data_offsets",
        ),
        (
            "a dtype that is an object",
            one(r#""dtype": {"U8": null}, "shape": [4], "data_offsets": [0, 4]"#),
            "InvalidEntry: tensor \"t\": dtype: found map, wanted a string",
        ),
    ]
}

/// Returns files that look wrong and are valid.
#[expect(clippy::too_many_lines, reason = "a table")]
fn odd() -> Vec<(&'static str, Vec<u8>)> {
    vec![
        ("an empty header", file("{}", 0)),
        (
            "an empty header with white space on both sides",
            file(" \n\t\r {\r\n} \t", 0),
        ),
        (
            "metadata only",
            file(r#"{"__metadata__": {"format": "pt", "": "\n"}}"#, 0),
        ),
        (
            "metadata that is null",
            file(r#"{"__metadata__": null}"#, 0),
        ),
        ("metadata behind the tensors", {
            let t = r#""t": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}"#;
            file(&format!(r#"{{{t}, "__metadata__": {{"a": "b"}}}}"#), 4)
        }),
        ("every dtype", every_dtype()),
        (
            "a scalar",
            one(r#""dtype": "F32", "shape": [], "data_offsets": [0, 4]"#),
        ),
        (
            "fields in another order",
            one(r#""data_offsets": [0, 4], "shape": [4], "dtype": "I8""#),
        ),
        ("tensors without bytes between others", {
            let t = |name, begin, end| {
                let shape = end - begin;
                format!(
                    r#""{name}":{{"dtype":"U8","shape":[{shape},1],"data_offsets":[{begin},{end}]}}"#
                )
            };
            let all = [
                t("d", 4, 4),
                t("a", 0, 0),
                t("c", 2, 4),
                t("b", 0, 2),
                t("e", 4, 4),
            ];
            file(&format!("{{{}}}", all.join(",")), 4)
        }),
        ("a padded header", file(&format!("{:4096}", "{}"), 0)),
        ("tensors at an odd byte", {
            let t = r#"{"t":{"dtype":"F64","shape":[1],"data_offsets":[0,8]}}"#;
            file(&format!("{t:63}"), 8)
        }),
        ("unknown keys in an entry", {
            let extra = r#""x": [1, -1, 1.5, true, null, {"y": "\u00e9"}], "x": "again""#;
            one(&format!(
                r#"{extra}, "dtype": "U8", "shape": [4], "data_offsets": [0, 4]"#
            ))
        }),
        ("names of any text", {
            let t = r#"{"dtype":"U8","shape":[0],"data_offsets":[0,0]}"#;
            let names = [
                "",
                " ",
                "\u{1f980}",
                "\\u0000",
                "../../etc/passwd",
                "e\u{301}",
                "\\n",
            ];
            let all: Vec<_> = names.iter().map(|name| format!("\"{name}\":{t}")).collect();
            file(&format!("{{{}}}", all.join(",")), 0)
        }),
        ("a huge shape behind a zero", {
            let shape = format!("[0, {}, {}]", u64::MAX, u64::MAX);
            file(
                &format!(r#"{{"t":{{"dtype":"F64","shape":{shape},"data_offsets":[0,0]}}}}"#),
                0,
            )
        }),
        ("a shape of many ones", {
            let shape = format!("[{}4]", "1,".repeat(10_000));
            one(&format!(
                r#""dtype": "U8", "shape": {shape}, "data_offsets": [0, 4]"#
            ))
        }),
        (
            "the header in another order than the file",
            two((4, 8), (0, 4), 8),
        ),
        ("escapes in keys", {
            one(r#""\u0064type": "U8", "shap\u0065": [4], "data_offsets": [0, 4]"#)
        }),
    ]
}

/// Returns a file of one tensor of four elements for each dtype. Four elements of 6 bits are three
/// bytes, so later tensors are not aligned.
fn every_dtype() -> Vec<u8> {
    let mut offset = 0;
    let entries: Vec<String> = Dtype::ALL
        .into_iter()
        .map(|dtype| {
            let begin = offset;
            offset += dtype.bits() / 2;
            format!(
                r#""{dtype}":{{"dtype":"{dtype}","shape":[2,2],"data_offsets":[{begin},{offset}]}}"#
            )
        })
        .collect();
    file(&format!("{{{}}}", entries.join(",")), offset)
}
