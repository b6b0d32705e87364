//! Content of a listing: its order and its JSON. The text shows the same values.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use serde::Serialize;
use tload::{Checkpoint, Shard, TensorInfo};

/// Tensors that a summary names.
const LARGEST: usize = 10;

/// Order of the tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    Offset,
    Name,
    /// Largest first.
    Size,
    Dtype,
}

/// Output of `--json`.
#[derive(Debug, Serialize)]
pub(super) struct Listing {
    pub(super) location: String,
    pub(super) total: Total,
    pub(super) dtypes: Vec<DtypeTotal>,
    pub(super) metadata: BTreeMap<String, String>,
    pub(super) shards: Vec<ShardLine>,
    #[serde(flatten)]
    pub(super) tensors: Tensors,
}

/// Tensors of a listing, in its order.
#[derive(Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Tensors {
    /// All selected ones.
    Tensors(Vec<TensorLine>),
    /// Those of a summary.
    Largest(Vec<TensorLine>),
}

#[derive(Debug, Serialize)]
pub(super) struct Total {
    pub(super) tensors: usize,
    pub(super) bytes: u64,
    pub(super) shards: usize,
}

#[derive(Debug, Serialize)]
pub(super) struct DtypeTotal {
    pub(super) dtype: &'static str,
    pub(super) tensors: usize,
    pub(super) bytes: u64,
}

#[derive(Debug, Serialize)]
pub(super) struct ShardLine {
    pub(super) location: String,
    pub(super) file_bytes: u64,
    pub(super) header_bytes: u64,
    pub(super) tensors: usize,
}

#[derive(Debug, Serialize)]
pub(super) struct TensorLine {
    pub(super) name: String,
    pub(super) dtype: &'static str,
    pub(super) shape: Vec<usize>,
    pub(super) bytes: u64,
    /// Index into the shards.
    pub(super) shard: usize,
    /// Offset from the start of the file, bytes.
    pub(super) offset: u64,
}

impl Listing {
    /// Returns a listing of the selected tensors, which must be in the order of their files.
    pub(super) fn new(checkpoint: &Checkpoint, tensors: &[TensorInfo]) -> Self {
        let shards = checkpoint.shards();
        Self {
            location: checkpoint.location().to_string(),
            total: Total {
                tensors: tensors.len(),
                bytes: tensors.iter().map(TensorInfo::byte_len).sum(),
                shards: shards.len(),
            },
            dtypes: dtype_totals(tensors),
            metadata: checkpoint.metadata().clone(),
            shards: shards.iter().map(ShardLine::new).collect(),
            tensors: Tensors::Tensors(tensors.iter().map(TensorLine::new).collect()),
        }
    }

    /// Sorts the tensors. Those that are equal stay in the order of their files.
    pub(super) fn sort(&mut self, order: Order, is_reversed: bool) {
        let lines = self.lines_mut();
        match order {
            Order::Offset => {}
            Order::Name => lines.sort_by(|a, b| a.name.cmp(&b.name)),
            Order::Size => lines.sort_by_key(|line| Reverse(line.bytes)),
            Order::Dtype => lines.sort_by_key(|line| line.dtype),
        }
        if is_reversed {
            lines.reverse();
        }
    }

    /// Keeps the largest tensors only; the totals remain those of all.
    pub(super) fn summarise(&mut self) {
        self.sort(Order::Size, false);
        let mut lines = std::mem::take(self.lines_mut());
        lines.truncate(LARGEST);
        self.tensors = Tensors::Largest(lines);
    }

    pub(super) fn lines(&self) -> &[TensorLine] {
        let (Tensors::Tensors(lines) | Tensors::Largest(lines)) = &self.tensors;
        lines
    }

    fn lines_mut(&mut self) -> &mut Vec<TensorLine> {
        let (Tensors::Tensors(lines) | Tensors::Largest(lines)) = &mut self.tensors;
        lines
    }
}

impl ShardLine {
    fn new(shard: &Shard) -> Self {
        Self {
            location: shard.location().to_string(),
            file_bytes: shard.file_bytes(),
            header_bytes: shard.header_bytes(),
            tensors: shard.tensor_count(),
        }
    }
}

impl TensorLine {
    fn new(tensor: &TensorInfo) -> Self {
        Self {
            name: tensor.name().to_owned(),
            dtype: tensor.dtype().name(),
            shape: tensor.shape().to_vec(),
            bytes: tensor.byte_len(),
            shard: tensor.shard(),
            offset: tensor.file_range().start,
        }
    }
}

/// Returns the totals of each dtype, the one with the most bytes first.
fn dtype_totals(tensors: &[TensorInfo]) -> Vec<DtypeTotal> {
    let mut totals = BTreeMap::new();
    for tensor in tensors {
        let dtype = tensor.dtype().name();
        let total = totals.entry(dtype).or_insert(DtypeTotal {
            dtype,
            tensors: 0,
            bytes: 0,
        });
        total.tensors += 1;
        total.bytes += tensor.byte_len();
    }
    let mut totals: Vec<_> = totals.into_values().collect();
    totals.sort_by_key(|total| Reverse(total.bytes));
    totals
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listing() -> Listing {
        let line = |(name, dtype, bytes, offset): (&str, &'static str, u64, u64)| TensorLine {
            name: name.to_owned(),
            dtype,
            shape: vec![1],
            bytes,
            shard: 0,
            offset,
        };
        let lines = [("c", "F32", 8, 0), ("a", "BF16", 8, 8), ("b", "F32", 9, 16)].map(line);
        Listing {
            location: "model".to_owned(),
            total: Total {
                tensors: 3,
                bytes: 25,
                shards: 1,
            },
            dtypes: Vec::new(),
            metadata: BTreeMap::new(),
            shards: Vec::new(),
            tensors: Tensors::Tensors(lines.into()),
        }
    }

    #[test]
    fn tensors_are_sorted_stably_by_key() {
        for (order, wanted) in [
            (Order::Offset, "cab"),
            (Order::Name, "abc"),
            (Order::Size, "bca"),
            (Order::Dtype, "acb"),
        ] {
            for is_reversed in [false, true] {
                let mut listing = listing();
                listing.sort(order, is_reversed);
                let mut names: String = listing.lines().iter().map(|it| &*it.name).collect();
                if is_reversed {
                    names = names.chars().rev().collect();
                }
                assert_eq!(names, wanted, "{order:?}");
            }
        }
    }

    #[test]
    fn summary_names_largest_tensors_and_keeps_totals() {
        let mut listing = listing();
        let line = |index: u64| TensorLine {
            name: index.to_string(),
            dtype: "U8",
            shape: vec![1],
            bytes: 100 + index,
            shard: 0,
            offset: 0,
        };
        listing.lines_mut().extend((0..20).map(line));
        listing.summarise();
        let json = serde_json::to_value(&listing).unwrap();
        assert_eq!(json["largest"].as_array().unwrap().len(), LARGEST);
        assert_eq!(json["largest"][0]["bytes"], 119);
        assert_eq!(json["total"]["tensors"], 3);
        assert!(json.get("tensors").is_none());
    }
}
