//! The index of several files: which tensor is in which. Pure.

use std::collections::BTreeMap;

use serde::ser::{Serialize, SerializeMap, Serializer};

/// Key of the bytes of all tensors, beside the aliases.
pub(crate) const TOTAL_SIZE: &str = "total_size";

/// Index as `huggingface_hub` writes it: the tensors in the order of the files.
struct Index<'a> {
    metadata: Metadata<'a>,
    weight_map: WeightMap<'a>,
}

struct Metadata<'a> {
    total_size: u64,
    aliases: &'a BTreeMap<String, String>,
}

struct WeightMap<'a>(&'a [(String, Vec<String>)]);

/// Returns the text of the index of these files: their names, and those of their tensors.
pub(crate) fn render(
    total_size: u64,
    aliases: &BTreeMap<String, String>,
    files: &[(String, Vec<String>)],
) -> Vec<u8> {
    let index = Index {
        metadata: Metadata {
            total_size,
            aliases,
        },
        weight_map: WeightMap(files),
    };
    serde_json::to_vec_pretty(&index).expect("strings and numbers are JSON")
}

impl Serialize for Index<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(2))?;
        map.serialize_entry("metadata", &self.metadata)?;
        map.serialize_entry("weight_map", &self.weight_map)?;
        map.end()
    }
}

impl Serialize for Metadata<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry(TOTAL_SIZE, &self.total_size)?;
        for (name, kept) in self.aliases {
            map.serialize_entry(name, kept)?;
        }
        map.end()
    }
}

impl Serialize for WeightMap<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for (file, tensors) in self.0 {
            for tensor in tensors {
                map.serialize_entry(tensor, file)?;
            }
        }
        map.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_that_of_json_dump_with_indent() {
        let files = [
            (
                "b.safetensors".to_owned(),
                vec!["z".to_owned(), "a".to_owned()],
            ),
            ("a.safetensors".to_owned(), vec!["m".to_owned()]),
        ];
        let aliases = BTreeMap::from([("tied".to_owned(), "z".to_owned())]);
        let text = String::from_utf8(render(12, &aliases, &files)).expect("text");
        // Python: json.dump(index, file, indent=2).
        let wanted = r#"{
  "metadata": {
    "total_size": 12,
    "tied": "z"
  },
  "weight_map": {
    "z": "b.safetensors",
    "a": "b.safetensors",
    "m": "a.safetensors"
  }
}"#;
        assert_eq!(text, wanted);
    }
}
