//! Layout of one safetensors file: the order of its tensors, and its header.
//!
//! Order and padding are those of the format's own writer: tensors are ordered by dtype from the
//! widest to the narrowest, then by name; the header is padded with spaces so that the tensors
//! begin at a multiple of 8.

use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::json;
use tload::Dtype;

use super::Entry;

const ALIGNMENT: usize = 8;

/// Tensors of one file, in the order of their bytes.
#[derive(Debug)]
pub(super) struct Layout<'a> {
    entries: Vec<&'a Entry>,
}

impl<'a> Layout<'a> {
    pub(super) fn new(entries: &'a [Entry]) -> Self {
        let mut entries: Vec<_> = entries.iter().collect();
        entries.sort_by(|left, right| {
            rank(right.dtype)
                .cmp(&rank(left.dtype))
                .then_with(|| left.name.cmp(&right.name))
        });
        Self { entries }
    }

    pub(super) fn entries(&self) -> &[&'a Entry] {
        &self.entries
    }

    /// Returns the length of the header, followed by the padded header.
    pub(super) fn header(&self) -> Vec<u8> {
        let mut json = serde_json::to_vec(self).expect("a map of strings and numbers is JSON");
        json.resize(json.len().next_multiple_of(ALIGNMENT), b' ');
        let mut header = (json.len() as u64).to_le_bytes().to_vec();
        header.append(&mut json);
        header
    }
}

/// Writes tensors in the order of their offsets, which suits readers that parse serially.
impl Serialize for Layout<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.entries.len() + 1))?;
        map.serialize_entry("__metadata__", &json!({"format": "pt"}))?;
        let mut offset = 0;
        for entry in &self.entries {
            let end = offset + entry.byte_len();
            let tensor = json!({
                "dtype": entry.dtype.name(),
                "shape": entry.shape,
                "data_offsets": [offset, end],
            });
            map.serialize_entry(&entry.name, &tensor)?;
            offset = end;
        }
        map.end()
    }
}

/// Returns the rank of `dtype` in the format's own order, which [`Dtype::ALL`] follows.
fn rank(dtype: Dtype) -> Option<usize> {
    Dtype::ALL.into_iter().position(|other| other == dtype)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Model, Preset};

    #[test]
    fn safetensors_crate_reads_file_in_same_order() {
        let model = Model::new(Preset::Tiny, 1 << 20).unwrap();
        let layout = Layout::new(&model.entries);
        let mut file = layout.header();
        assert_eq!(file.len() % ALIGNMENT, 0);
        file.resize(file.len() + usize::try_from(model.bytes()).unwrap(), 7);

        let read = ::safetensors::SafeTensors::deserialize(&file).unwrap();
        assert_eq!(read.len(), model.entries.len());
        for entry in &model.entries {
            let tensor = read.tensor(&entry.name).unwrap();
            assert_eq!(tensor.dtype().to_string(), entry.dtype.name());
            let shape: Vec<u64> = tensor.shape().iter().map(|size| *size as u64).collect();
            assert_eq!(shape, entry.shape);
        }
        // The format's own writer writes the same tensors in the same order.
        let own = ::safetensors::serialize(read.tensors(), None).unwrap();
        let own = ::safetensors::SafeTensors::deserialize(&own).unwrap();
        let order = |file: &::safetensors::SafeTensors| {
            let mut tensors: Vec<_> = file
                .iter()
                .filter(|(_, tensor)| !tensor.data().is_empty())
                .map(|(name, tensor)| (tensor.data().as_ptr() as usize, name.to_owned()))
                .collect();
            tensors.sort_unstable();
            tensors
                .into_iter()
                .map(|(_, name)| name)
                .collect::<Vec<_>>()
        };
        assert_eq!(order(&read), order(&own));
    }
}
