//! The index file of a sharded checkpoint, `*.safetensors.index.json`.
//!
//! Owns the rules for the names in an index: the file is untrusted, so a shard name must stay
//! inside the directory of the index. It opens nothing and does not know whether the shards exist
//! or match the index; `checkpoint` checks that. Errors carry no location: the caller knows which
//! file it read and adds it.

#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet};
use std::fmt;

use serde::Deserialize;
use serde::de::{self, Deserializer, MapAccess, Visitor};
use serde_json::error::Category;

use super::header::{AnyValue, first_char};
use super::header_error::clip;
use super::shards::natural_cmp;
use crate::error::{Error, ErrorKind, Result};

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
