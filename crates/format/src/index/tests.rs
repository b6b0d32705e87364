//! Tests of index files.

use super::*;

#[test]
fn parse_index_keeps_order_and_sorts_shards_naturally() {
    let index = parse_index(
        br#"{"metadata": {"total_size": 12, "x": [1.5, {"y": null}]}, "extra": [],
            "weight_map": {"b": "m-10.safetensors", "a": "m-2.safetensors",
                           "c": "deep/m-1.safetensors", "d": "m-10.safetensors"}}"#,
    )
    .unwrap();
    assert_eq!(index.total_size, Some(12));
    let tensors: Vec<_> = index.weight_map.iter().map(|(tensor, _)| tensor).collect();
    assert_eq!(tensors, ["b", "a", "c", "d"]);
    assert_eq!(
        index.shards,
        [
            "deep/m-1.safetensors",
            "m-2.safetensors",
            "m-10.safetensors"
        ]
    );
    let shards: Vec<_> = index.weight_map.iter().map(|(_, shard)| *shard).collect();
    assert_eq!(shards, [2, 1, 0, 2]);
}

#[test]
fn first_error_of_the_weight_map_counts() {
    let cases = [
        (
            r#""a": "m", "a": "m", "b": "../m""#,
            "found its name twice",
            "a",
        ),
        (
            r#""a": "m", "b": "../m", "a": "m""#,
            "leaves the directory",
            "b",
        ),
        (r#""a": "m", "a": "../m""#, "found its name twice", "a"),
    ];
    for (entries, message, tensor) in cases {
        let text = format!(r#"{{"weight_map": {{{entries}}}}}"#);
        let error = parse_index(text.as_bytes()).expect_err(entries);
        assert!(error.message().contains(message), "{entries}: {error}");
        assert_eq!(error.tensor(), Some(tensor), "{entries}");
    }
    let twice = br#"{"weight_map": {"a": "m", "a": "n"}}"#;
    let index = read_index(twice).expect("the caller looks for names that are listed twice");
    index.require_distinct().expect_err("it is there twice");
}

#[test]
fn malformed_total_size_is_ignored() {
    for metadata in [
        "null",
        "{}",
        r#"{"total_size": 1.5}"#,
        r#"{"total_size": "12"}"#,
    ] {
        let text = format!(r#"{{"metadata": {metadata}, "weight_map": {{"a": "b"}}}}"#);
        assert_eq!(
            parse_index(text.as_bytes()).unwrap().total_size,
            None,
            "{metadata}"
        );
    }
}

#[test]
fn hostile_indexes_are_rejected_with_reason() {
    let rows: [(&[u8], &str); 13] = [
        (b"\xff{}", "index is not UTF-8"),
        (b" \n", "found a blank index, wanted '{'"),
        (
            b"{",
            "index is not JSON: EOF while parsing an object at line 1 column 1",
        ),
        (
            br#"{"weight_map": {"a": "x"}} x"#,
            "index is not JSON: trailing characters at line 1 column 28",
        ),
        (
            br#"[{"a": "x"}, null]"#,
            "found an index that begins with '[', wanted '{'",
        ),
        (
            b"{}",
            "index: missing field `weight_map` at line 1 column 2",
        ),
        (
            br#"{"weight_map": []}"#,
            "index: invalid type: sequence, expected an object of tensor name to shard name \
             as weight_map at line 1 column 15",
        ),
        (
            br#"{"weight_map": {"a": 1}}"#,
            "index: weight_map at \"a\": invalid type: integer `1`, expected a string at line 1 \
             column 22",
        ),
        (
            br#"{"weight_map": {}}"#,
            "index: weight_map is empty, wanted at least one tensor",
        ),
        (
            br#"{"weight_map": {"a": "x", "a": "x"}}"#,
            "found its name twice in weight_map, wanted distinct names",
        ),
        (
            br#"{"weight_map": {"a": "x"}, "weight_map": {}}"#,
            "index: duplicate field `weight_map` at line 1 column 39",
        ),
        (
            br#"{"weight_map": {"a": "x"}, "metadata": 3}"#,
            "index: invalid type: integer `3`, expected an object as metadata at line 1 column 40",
        ),
        (
            br#"{"weight_map": {"a": "../x"}}"#,
            "shard name \"../x\" leaves the directory of the index, wanted a path below the directory \
             of the index",
        ),
    ];
    for (bytes, message) in rows {
        let error = parse_index(bytes).unwrap_err();
        assert_eq!(error.message(), message);
        assert_eq!(error.kind(), ErrorKind::InvalidFormat);
        assert_eq!(error.location(), None);
    }
}

#[test]
fn shard_names_are_taken_as_their_writers_mean_them() {
    for (written, wanted) in [
        ("./m", "m"),
        ("././a/./m", "a/m"),
        ("a//m", "a/m"),
        (".\\\\m", "m"),
        ("a\\\\b\\\\m.safetensors", "a/b/m.safetensors"),
        (".//m", "m"),
        ("...", "..."),
        ("a./.m", "a./.m"),
    ] {
        let text = format!(r#"{{"weight_map": {{"t": "{written}", "u": "{wanted}"}}}}"#);
        let index = parse_index(text.as_bytes()).expect(written);
        assert_eq!(index.shards, [wanted], "{written}");
        assert!(index.weight_map.iter().all(|(_, shard)| *shard == 0));
        let is_backslashed = written.contains('\\');
        assert_eq!(
            index.backslashed.contains_key(wanted),
            is_backslashed,
            "{written}"
        );
    }
    for written in [
        "/m",
        "\\\\m",
        "./../m",
        ".\\\\..\\\\m",
        "a\\\\..\\\\m",
        "a/",
        "a\\\\",
        ".",
        "./",
        ".\\\\C:\\\\m",
        "./C:m",
    ] {
        let text = format!(r#"{{"weight_map": {{"t": "{written}"}}}}"#);
        let error = parse_index(text.as_bytes()).expect_err(written);
        assert!(error.message().contains("wanted a path below"), "{written}");
    }
}

#[test]
fn shard_name_stays_below_index_directory() {
    for name in [
        "m.safetensors",
        "a/b/m",
        "..m",
        "m..",
        "a/...",
        "\u{e9}",
        " ",
    ] {
        assert!(check_shard_name(name).is_ok(), "{name:?}");
    }
    for name in [
        "",
        "/m",
        "\\m",
        "..",
        "a/../m",
        "a\\..\\m",
        "m/..",
        "a//m",
        "a/",
        "./m",
        "m\0",
        ".",
        "C:m",
        "c:\\m",
        "\\\\host\\m",
    ] {
        let error = check_shard_name(name).unwrap_err();
        assert!(error.message().contains("wanted a path below"), "{name:?}");
    }
}
