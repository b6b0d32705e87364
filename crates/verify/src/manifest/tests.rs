//! Tests of manifests: round trips, and every kind of malformed manifest.

use super::*;

const CRC: &str = "ae8b14860a799888";
const SHA: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

fn manifest() -> Manifest {
    let crc64nvme = Digest::from_hex(Algorithm::Crc64Nvme, CRC).expect("a digest");
    let sha256 = Digest::from_hex(Algorithm::Sha256, SHA).expect("a digest");
    let tensor = |range| ManifestTensor {
        range,
        crc64nvme,
        sha256,
        blake3: None,
    };
    let file = |tensors| ManifestFile {
        bytes: 100,
        crc64nvme,
        sha256,
        header: None,
        tensors,
    };
    let tensors = [("b\n", 90..100), ("a", 10..10), ("c", 10..90)]
        .map(|(name, range)| (name.to_owned(), tensor(range)));
    Manifest {
        files: BTreeMap::from([
            ("z/model.safetensors".to_owned(), file(tensors.into())),
            ("index.json".to_owned(), file(BTreeMap::new())),
        ]),
    }
}

#[track_caller]
fn refused(text: &str, wanted: &str) -> Error {
    let error = Manifest::parse(text.as_bytes()).expect_err(text);
    assert!(
        error.message().contains(wanted),
        "{wanted:?} is not in {:?}",
        error.message()
    );
    error
}

/// Returns a manifest of one file with these fields.
fn with_file(name: &str, fields: &str) -> String {
    format!(r#"{{"tload_manifest":1,"files":{{{name:?}:{{{fields}}}}}}}"#)
}

fn fields(bytes: &str, tensors: &str) -> String {
    format!(r#""bytes":{bytes},"crc64nvme":"{CRC}","sha256":"{SHA}","tensors":{{{tensors}}}"#)
}

#[test]
fn manifest_round_trips_byte_for_byte() {
    let written = manifest().render();
    let read = Manifest::parse(&written).expect("tload's own manifest");
    assert_eq!(read, manifest());
    assert_eq!(read.render(), written);
    let text = String::from_utf8(written).expect("JSON");
    assert!(text.starts_with("{\n  \"tload_manifest\": 1,\n") && text.ends_with("}\n"));
    let (index, model) = (text.find("index.json"), text.find("z/model"));
    assert!(index < model, "by name");
}

#[test]
fn digests_of_older_releases_suffice_and_newer_ones_round_trip() {
    let mut newer = manifest();
    let blake3 = Digest::compute(Algorithm::Blake3, b"");
    let file = newer.files.get_mut("z/model.safetensors").expect("there");
    file.header = Some(ManifestHeader { bytes: 10, blake3 });
    for tensor in file.tensors.values_mut() {
        tensor.blake3 = Some(blake3);
    }
    let read = Manifest::parse(&newer.render()).expect("tload's own manifest");
    assert_eq!(read, newer);
    file_with_header("9", None);
    file_with_header("10", Some("inside the header or the previous tensor"));
    file_with_header("101", Some("its header has 101 bytes, and the file 100"));
}

/// Parses a file of 100 bytes with a header, and with a tensor at 9.
fn file_with_header(bytes: &str, wanted: Option<&str>) {
    let tensor = format!(r#""t":{{"begin":9,"end":100,"crc64nvme":"{CRC}","sha256":"{SHA}"}}"#);
    let header = format!(r#","header":{{"bytes":{bytes},"blake3":"{SHA}"}}"#);
    let text = with_file("m", &format!("{}{header}", fields("100", &tensor)));
    match wanted {
        Some(wanted) => drop(refused(&text, wanted)),
        None => drop(Manifest::parse(text.as_bytes()).expect("fits")),
    }
}

#[test]
fn other_manifest_version_is_unsupported() {
    for text in [
        r#"{"tload_manifest": 2, "shards": [[[]]]}"#,
        r#"{"files": 3, "tload_manifest": 0}"#,
    ] {
        let error = refused(text, "is a manifest of version");
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.message().contains("reads version 1"));
    }
}

#[test]
fn manifest_names_stay_below_directory() {
    for name in [
        "", "/m", "\\m", "..", "a/../m", "a\\..\\m", "m/..", "a//m", "a/", "./m", ".",
    ] {
        let error = refused(
            &with_file(name, &fields("1", "")),
            "below the directory of the manifest",
        );
        assert_eq!(error.kind(), ErrorKind::InvalidFormat);
    }
    refused(
        &with_file("x", &fields("1", "")).replace("\"x\"", r#""x\u0000""#),
        "a zero byte",
    );
    for name in ["m.safetensors", "a/b/m", "..m", "\u{e9}", " "] {
        Manifest::parse(with_file(name, &fields("1", "")).as_bytes()).expect(name);
    }
}

#[test]
fn impossible_manifest_numbers_are_rejected() {
    for bytes in [
        "-1",
        "1.5",
        "1e3",
        "18446744073709551616",
        "\"1\"",
        "null",
        "[]",
        "true",
    ] {
        refused(
            &with_file("m", &fields(bytes, "")),
            "is not a tload manifest",
        );
    }
    let tensor = |begin: &str, end: &str| {
        format!(r#""t":{{"begin":{begin},"end":{end},"crc64nvme":"{CRC}","sha256":"{SHA}"}}"#)
    };
    for (begin, end) in [("2", "1"), ("0", "11"), ("0", "18446744073709551615")] {
        refused(
            &with_file("m", &fields("10", &tensor(begin, end))),
            "has the range",
        );
    }
    let overlap = format!(
        "{},{}",
        tensor("0", "6"),
        tensor("5", "7").replace("\"t\"", "\"u\"")
    );
    let error = refused(
        &with_file("m", &fields("10", &overlap)),
        "inside the header or the previous tensor",
    );
    assert_eq!(error.tensor(), Some("u"));
}

#[test]
fn duplicates_unknown_fields_and_wrong_types_are_rejected() {
    let file = |more: &str| with_file("m", &format!("{}{more}", fields("1", "")));
    refused(&file(r#","sha265":"0""#), "unknown field");
    refused(&file(r#","bytes":1"#), "duplicate field");
    let twice = format!(
        r#"{{"tload_manifest":1,"files":{{"m":{{{0}}},"m":{{{0}}}}}}}"#,
        fields("1", "")
    );
    refused(&twice, "appears twice");
    for text in [
        "",
        " ",
        "[]",
        "[1,{}]",
        "null",
        "{",
        "{}",
        "\"a\"",
        "{\"tload_manifest\": \"1\"}",
        r#"{"tload_manifest":1}"#,
        r#"{"tload_manifest":1,"files":[]}"#,
        r#"{"tload_manifest":1,"files":{"m":1}}"#,
        r#"{"tload_manifest":1,"files":{},"more":1}"#,
        r#"{"tload_manifest":1,"tload_manifest":1,"files":{}}"#,
    ] {
        refused(text, "is not a tload manifest");
    }
    for (short, long) in [(&CRC[1..], CRC), (SHA, CRC), ("zz8b14860a799888", CRC)] {
        let text = with_file("m", &fields("1", "").replacen(long, short, 1));
        refused(&text, "16 hexadecimal digits as crc64nvme");
    }
    Manifest::parse(br#"{"files":{},"tload_manifest":1}"#).expect("empty, and in another order");
}

#[test]
fn long_or_deep_manifest_gives_short_error() {
    let deep = format!(r#"{{"tload_manifest":1,"files":{}"#, "[".repeat(1 << 20));
    assert!(refused(&deep, "is not a tload manifest").message().len() < 300);
    let long = format!(
        r#"{{"tload_manifest":1,"files":{{"{}":1}}}}"#,
        "\\u001b".repeat(1 << 20)
    );
    let error = refused(&long, "is not a tload manifest");
    assert!(
        error.message().len() < 1000 && !error.to_string().contains('\u{1b}'),
        "{error}"
    );
    let name = "../".repeat(1 << 20);
    assert!(
        refused(&with_file(&name, &fields("1", "")), "leaves the directory")
            .message()
            .len()
            < 500
    );
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "is read")]
struct Wanted {
    bytes: u64,
    names: Vec<String>,
}

#[test]
fn json_error_does_not_quote_input() {
    for (json, wanted) in [
        (r#"{"bytes":"hunter2"}"#, "wanted u64 at line 1 column 18"),
        (
            r#"{"bytes":"hunter2, expected hunter2"}"#,
            "wanted u64 at line 1 column 36",
        ),
        (r#"{"bytes":-7771}"#, "wanted u64 at line 1 column 14"),
        (
            r#"{"names":"hunter2"}"#,
            "wanted a sequence at line 1 column 18",
        ),
        (r#"{"hunter2":1}"#, "unknown field at line 1 column 10"),
        (
            r#"{"bytes":1}"#,
            "missing field `names` at line 1 column 11",
        ),
        (
            r#"{"bytes":1,"bytes":1}"#,
            "duplicate field `bytes` at line 1 column 18",
        ),
        ("{hunter2", "key must be a string at line 1 column 2"),
        ("7771", "wanted struct Wanted at line 1 column 4"),
    ] {
        let error = serde_json::from_str::<Wanted>(json).expect_err(json);
        let text = wrong_json(&error);
        assert_eq!(text, wanted, "{json}");
        assert!(
            !text.contains("hunter2") && !text.contains("7771"),
            "{text}"
        );
    }
}
