//! The index file of a sharded checkpoint, `*.safetensors.index.json`, and the natural order of
//! shards.
//!
//! Owns the rules for the names in an index: the file is untrusted, so a shard name must stay
//! inside the directory of the index. It opens nothing and does not know whether the shards exist
//! or match the index; `checkpoint` checks that. Errors carry no location: the caller knows which
//! file it read and adds it.

use std::cmp::Ordering;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::fmt;

use serde::Deserialize;
use serde::de::{self, Deserializer, MapAccess, Visitor};
use serde_json::error::Category;

use super::header::{AnyValue, first_char};
use super::header_error::clip;
use crate::error::{Error, ErrorKind, Result};

/// Suffix of a shard's name.
pub const SUFFIX: &str = ".safetensors";

/// Longest index file that is read. The largest published ones are under 30 MB; the bound is the
/// header's, for the same reason: both list every tensor once.
pub const INDEX_BYTES_MAX: u64 = super::HEADER_BYTES_MAX;

/// Contents of an index file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Index {
    /// Tensors, each with the position of its shard in `shards`, in the order of the file.
    pub weight_map: Vec<(String, usize)>,
    /// Shards, each once, in natural order: relative paths with `/`, below the directory of the
    /// index, without `.` and empty components.
    pub shards: Vec<String>,
    /// Names with backslashes, as they were written, by shard: elsewhere than on Windows, a file
    /// can have such a name.
    pub backslashed: HashMap<String, String>,
    /// `metadata.total_size`, if present and a whole number. Writers disagree on what it counts:
    /// for display only.
    pub total_size: Option<u64>,
}

impl Index {
    /// Requires that no tensor is listed twice.
    pub fn require_distinct(&self) -> Result<()> {
        require_distinct(&self.weight_map)
    }
}

/// Parses the bytes of an index file.
pub fn parse_index(bytes: &[u8]) -> Result<Index> {
    let index = read_index(bytes)?;
    index.require_distinct()?;
    Ok(index)
}

/// Returns the error of an index that lists `tensor` twice.
pub fn listed_twice(tensor: &str) -> Error {
    let error = invalid("found its name twice in weight_map, wanted distinct names");
    error.with_tensor(clip(tensor))
}

fn require_distinct(weight_map: &[(String, usize)]) -> Result<()> {
    let mut tensors = HashSet::with_capacity(weight_map.len());
    let mut names = weight_map.iter().map(|(tensor, _)| tensor.as_str());
    match names.find(|tensor| !tensors.insert(*tensor)) {
        Some(tensor) => Err(listed_twice(tensor)),
        None => Ok(()),
    }
}

fn parse_file(bytes: &[u8]) -> Result<IndexFile> {
    if bytes.len() as u64 > INDEX_BYTES_MAX {
        let found = bytes.len();
        return Err(invalid(format!(
            "found an index of {found} bytes, wanted at most {INDEX_BYTES_MAX}"
        )));
    }
    let text = str::from_utf8(bytes).map_err(|error| {
        let position = error.valid_up_to() as u64;
        invalid("index is not UTF-8").with_range(position..position + 1)
    })?;
    if text.starts_with("version https://git-lfs") {
        return Err(Error::new(
            ErrorKind::InvalidFormat,
            "is a git-lfs pointer, not an index",
        )
        .with_hint("run `git lfs pull` to fetch the file itself"));
    }
    // The first character is checked because serde would also accept an array in place of an
    // object.
    match first_char(text) {
        Some('{') => {}
        Some(found) => {
            return Err(invalid(format!(
                "found an index that begins with {found:?}, wanted '{{'"
            )));
        }
        None => return Err(invalid("found a blank index, wanted '{'")),
    }
    serde_json::from_str(text).map_err(|error| match error.classify() {
        Category::Data => invalid(format!("index: {}", clip(&error.to_string()))),
        Category::Io | Category::Syntax | Category::Eof => {
            invalid(format!("index is not JSON: {}", clip(&error.to_string())))
        }
    })
}

/// Parses the bytes of an index file, except that it may list a tensor twice: the caller requires
/// that it does not, while the shards are opened.
pub fn read_index(bytes: &[u8]) -> Result<Index> {
    let parsed = parse_file(bytes)?;
    let WeightMap {
        tensors: mut weight_map,
        shards: written,
    } = parsed.weight_map;
    if weight_map.is_empty() {
        return Err(invalid(
            "index: weight_map is empty, wanted at least one tensor",
        ));
    }
    let mut backslashed = HashMap::new();
    let mut names = Vec::with_capacity(written.len());
    for name in written {
        let Some(plain) = plain_name(&name) else {
            names.push(name);
            continue;
        };
        if name.contains('\\') {
            backslashed.insert(plain.clone(), name);
        }
        names.push(plain);
    }
    for (written, name) in names.iter().enumerate() {
        if let Err(error) = check_shard_name(name) {
            let first = weight_map.iter().position(|(_, shard)| *shard == written);
            let first = first.expect("each of the names is the shard of a tensor");
            // The first error of the file counts.
            require_distinct(&weight_map[..=first])?;
            return Err(error.with_tensor(clip(&weight_map[first].0)));
        }
    }
    let mut shards = names.clone();
    shards.sort_by(|a, b| natural_cmp(a, b));
    // One shard may be written in several ways.
    shards.dedup();
    let position = |name: &String| shards.binary_search_by(|shard| natural_cmp(shard, name));
    let positions: Vec<_> = names.iter().flat_map(position).collect();
    for (_, shard) in &mut weight_map {
        *shard = positions[*shard];
    }
    let total_size = parsed.metadata.and_then(|metadata| metadata.total_size);
    Ok(Index {
        weight_map,
        shards,
        backslashed,
        total_size,
    })
}

/// Compares names in natural order: `model-2` comes before `model-10`. Runs of ASCII digits compare
/// by their value, however long, all else by bytes. The order is total: names that differ only in
/// leading zeros (`m-2`, `m-02`) are compared by their bytes.
pub fn natural_cmp(a: &str, b: &str) -> Ordering {
    let (mut left, mut right) = (a.as_bytes(), b.as_bytes());
    while let (&[first, ref left_rest @ ..], &[second, ref right_rest @ ..]) = (left, right) {
        let order = if first.is_ascii_digit() && second.is_ascii_digit() {
            let (left_number, right_number);
            (left_number, left) = split_number(left);
            (right_number, right) = split_number(right);
            // Leading zeros were removed, so the longer number is the larger one.
            left_number
                .len()
                .cmp(&right_number.len())
                .then_with(|| left_number.cmp(right_number))
        } else {
            (left, right) = (left_rest, right_rest);
            first.cmp(&second)
        };
        if order.is_ne() {
            return order;
        }
    }
    left.len().cmp(&right.len()).then_with(|| a.cmp(b))
}

/// Splits the leading digits off `text`, and drops leading zeros.
fn split_number(text: &[u8]) -> (&[u8], &[u8]) {
    let end = text
        .iter()
        .position(|byte| !byte.is_ascii_digit())
        .unwrap_or(text.len());
    let (digits, rest) = text.split_at(end);
    let zeros = digits.iter().take_while(|&&digit| digit == b'0').count();
    (&digits[zeros..], rest)
}

/// Gap in a set of shards whose names state how many there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gap<'a> {
    /// Lowest number that is missing.
    pub number: u64,
    /// Number of shards that the names state.
    pub count: u64,
    /// Number of shards of the set that exist.
    pub present: u64,
    /// First name of the set.
    pub beside: &'a str,
}

/// Returns the gap of the first set that has one, sets being in the order of their first names.
///
/// Files named `…-00002-of-00004.safetensors` belong to a set of four. One pass: a directory may
/// hold any number of names, in any number of sets.
pub fn missing_shard<'a>(names: impl IntoIterator<Item = &'a str>) -> Option<Gap<'a>> {
    let mut places: HashMap<(&str, u64), usize> = HashMap::new();
    let mut sets: Vec<(&str, u64, BTreeSet<u64>)> = Vec::new();
    for name in names {
        let Some((prefix, number, count)) = numbered(name) else {
            continue;
        };
        let place = *places.entry((prefix, count)).or_insert_with(|| {
            sets.push((name, count, BTreeSet::new()));
            sets.len() - 1
        });
        sets[place].2.insert(number);
    }
    sets.into_iter().find_map(|(beside, count, numbers)| {
        let present = numbers.len() as u64;
        // Some writers count from 0, so only the number of shards tells whether one is missing.
        (present < count).then(|| {
            let follow = (1..=count).zip(numbers.range(1..));
            let before = follow.take_while(|(wanted, there)| wanted == *there);
            Gap {
                number: before.last().map_or(1, |(last, _)| last + 1),
                count,
                present,
                beside,
            }
        })
    })
}

/// Splits `"model-00002-of-00004.safetensors"` into `("model-", 2, 4)`.
pub(super) fn numbered(name: &str) -> Option<(&str, u64, u64)> {
    let stem = name.strip_suffix(SUFFIX)?;
    let (front, count) = stem.rsplit_once("-of-")?;
    let prefix = front.trim_end_matches(|c: char| c.is_ascii_digit());
    let (prefix, number) = front.split_at(prefix.len());
    Some((prefix, number.parse().ok()?, count.parse().ok()?))
}

/// Returns a relative name as the systems of its writers read it: Windows separates by `\` as well
/// as by `/`, and no system cares for `.` and empty components. `None` if it was written so.
fn plain_name(shard: &str) -> Option<String> {
    let slashes = ['/', '\\'];
    if shard.starts_with(slashes) || !(shard.contains(['\\', '.']) || shard.contains("//")) {
        return None;
    }
    let components = shard.split(slashes);
    let named = components.filter(|component| !component.is_empty() && *component != ".");
    let mut plain = named.collect::<Vec<_>>().join("/");
    if shard.ends_with(slashes) {
        plain.push('/');
    }
    (plain != shard).then_some(plain)
}

/// Checks that a shard is a file in the directory of its index, or below. Both slashes separate
/// here, so that a name which is harmless on one system does not leave the directory on another.
fn check_shard_name(shard: &str) -> Result<()> {
    let wrong = if shard.is_empty() {
        "is empty"
    } else if shard.contains('\0') {
        "contains a NUL byte"
    } else if shard.starts_with(['/', '\\']) || names_drive(shard) {
        "is an absolute path"
    } else if shard.split(['/', '\\']).any(|component| component == "..") {
        "leaves the directory of the index"
    } else if shard
        .split(['/', '\\'])
        .any(|component| component.is_empty() || component == ".")
    {
        "is not a plain path"
    } else {
        return Ok(());
    };
    let name = clip(shard);
    Err(invalid(format!(
        "shard name {name:?} {wrong}, wanted a path below the directory of the index"
    )))
}

/// Returns whether the path names a drive: on systems with drives, `C:m` and `C:\m` are not
/// relative to the directory.
fn names_drive(shard: &str) -> bool {
    matches!(shard.as_bytes(), [drive, b':', ..] if drive.is_ascii_alphabetic())
}

fn invalid(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidFormat, message).with_hint(
        "this must be the index of a sharded checkpoint (*.safetensors.index.json), whole and as it was written; download \
         it again, or pass the model's directory or a safetensors file",
    )
}

#[derive(Deserialize)]
#[serde(expecting = "an object with weight_map")]
struct IndexFile {
    weight_map: WeightMap,
    metadata: Option<Metadata>,
}

/// Tensors with the positions of their shards, and the shards as they are written, each once.
struct WeightMap {
    tensors: Vec<(String, usize)>,
    shards: Vec<String>,
}

impl<'de> Deserialize<'de> for WeightMap {
    fn deserialize<D: Deserializer<'de>>(json: D) -> Result<Self, D::Error> {
        struct WeightMapVisitor;

        impl<'de> Visitor<'de> for WeightMapVisitor {
            type Value = WeightMap;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tensor name to shard name as weight_map")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<WeightMap, A::Error> {
                let mut tensors = Vec::new();
                let mut shards = ShardNames::default();
                while let Some(tensor) = map.next_key::<String>()? {
                    let shard = map.next_value_seed(&mut shards).map_err(|error| {
                        let tensor = clip(&tensor);
                        <A::Error as de::Error>::custom(format!(
                            "weight_map at {tensor:?}: {error}"
                        ))
                    })?;
                    tensors.push((tensor, shard));
                }
                Ok(WeightMap {
                    tensors,
                    shards: shards.names,
                })
            }
        }

        json.deserialize_map(WeightMapVisitor)
    }
}

/// Shards that were read, each once: an index repeats their names for every tensor.
#[derive(Default)]
struct ShardNames {
    names: Vec<String>,
    positions: HashMap<String, usize>,
    last: usize,
}

impl<'de> de::DeserializeSeed<'de> for &mut ShardNames {
    type Value = usize;

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<usize, D::Error> {
        json.deserialize_str(self)
    }
}

impl Visitor<'_> for &mut ShardNames {
    type Value = usize;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }

    fn visit_str<E>(self, name: &str) -> Result<usize, E> {
        // Most tensors are in the shard of the one before.
        if self.names.get(self.last).is_none_or(|last| last != name) {
            let next = self.names.len();
            self.last = self.positions.get(name).copied().unwrap_or(next);
            if self.last == next {
                self.names.push(name.to_owned());
                self.positions.insert(name.to_owned(), next);
            }
        }
        Ok(self.last)
    }
}

struct Metadata {
    total_size: Option<u64>,
}

impl<'de> Deserialize<'de> for Metadata {
    fn deserialize<D: Deserializer<'de>>(json: D) -> Result<Self, D::Error> {
        struct MetadataVisitor;

        impl<'de> Visitor<'de> for MetadataVisitor {
            type Value = Metadata;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object as metadata")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Metadata, A::Error> {
                let mut total_size = None;
                while let Some(key) = map.next_key::<String>()? {
                    // Some writers put a float or a text here: that is no reason to reject the
                    // checkpoint.
                    let value = map.next_value::<AnyValue>()?;
                    if key == "total_size" {
                        total_size = value.whole;
                    }
                }
                Ok(Metadata { total_size })
            }
        }

        json.deserialize_map(MetadataVisitor)
    }
}

#[cfg(test)]
mod tests {
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

    #[test]
    fn natural_cmp_compares_digit_runs_by_value() {
        let sorted = [
            "",
            "0",
            "001",
            "01",
            "1",
            "2",
            "10",
            "18446744073709551616",
            "a",
            "a1b2",
            "a1b10",
            "a2",
            "a02b",
            "model-2-of-10",
            "model-10-of-10",
            "model-x",
        ];
        for (i, a) in sorted.iter().enumerate() {
            for (j, b) in sorted.iter().enumerate() {
                assert_eq!(natural_cmp(a, b), i.cmp(&j), "{a:?} and {b:?}");
            }
        }
    }

    #[test]
    fn numbered_parses_shard_names() {
        assert_eq!(
            numbered("model-00002-of-00004.safetensors"),
            Some(("model-", 2, 4))
        );
        assert_eq!(numbered("2-of-4.safetensors"), Some(("", 2, 4)));
        assert_eq!(numbered("model.safetensors"), None);
        assert_eq!(numbered("a-of-b.safetensors"), None);
        assert_eq!(numbered("é2-of-4.safetensors"), Some(("é", 2, 4)));
        assert_eq!(numbered("é-of-4.safetensors"), None);
    }

    #[test]
    fn missing_shard_finds_first_gap() {
        let gap = |names: &[&'static str]| {
            let names: Vec<_> = names.iter().map(|it| format!("{it}{SUFFIX}")).collect();
            let found = missing_shard(names.iter().map(String::as_str));
            found.map(|gap| (gap.number, gap.count, gap.present, gap.beside.to_owned()))
        };
        let missing = |number, count, present, beside: &str| {
            Some((number, count, present, format!("{beside}{SUFFIX}")))
        };
        for whole in [
            &["model"][..],
            &["m-1-of-2", "m-2-of-2"],
            &["m-2-of-2", "m-1-of-2", "n-1-of-1"],
            // Counted from 0.
            &["m-0-of-2", "m-1-of-2"],
            &["m-0-of-0"],
        ] {
            assert_eq!(gap(whole), None, "{whole:?}");
        }
        assert_eq!(gap(&["m-2-of-2"]), missing(1, 2, 1, "m-2-of-2"));
        let set = ["a-1-of-1", "m-1-of-4", "m-2-of-4", "m-4-of-4", "z-1-of-9"];
        assert_eq!(gap(&set), missing(3, 4, 3, "m-1-of-4"));
        // One number in two spellings is one shard.
        assert_eq!(
            gap(&["m-1-of-2", "m-01-of-2"]),
            missing(2, 2, 1, "m-1-of-2")
        );
        let most = "m-18446744073709551615-of-18446744073709551615";
        assert_eq!(gap(&[most]), missing(1, u64::MAX, 1, most));
    }

    /// Pairwise comparison would take 10^11 steps: hours, where one pass takes a second.
    #[test]
    fn missing_shard_is_linear() {
        const NAMES: u64 = 500_000;
        let one_set: Vec<_> = (1..NAMES)
            .map(|number| format!("m-{number}-of-{NAMES}{SUFFIX}"))
            .collect();
        let gap = missing_shard(one_set.iter().map(String::as_str)).expect("the last is missing");
        assert_eq!((gap.number, gap.present), (NAMES, NAMES - 1));
        let sets: Vec<_> = (0..NAMES)
            .map(|set| format!("m{set}-{}-of-1{SUFFIX}", set % 2))
            .collect();
        assert_eq!(missing_shard(sets.iter().map(String::as_str)), None);
    }
}
