//! Names of the tensors of a checkpoint: an index says which shard has each, headers say where. One
//! map serves both, so that each name is looked up once.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use super::index::Placement;
use crate::error::{Error, ErrorKind, Result, shortened};
use crate::format::listed_twice;

/// Tensors by name.
#[derive(Debug)]
pub(super) struct Names {
    slots: HashMap<String, Slot>,
    /// An index has decided which tensors exist.
    is_indexed: bool,
}

#[derive(Clone, Copy, Debug)]
enum Slot {
    /// The index places the tensor in this shard, whose header has not been merged.
    Expected(usize),
    /// Index of the tensor among those of the checkpoint.
    Found(usize),
}

impl Slot {
    fn is_expected_in(self, shard: usize) -> bool {
        matches!(self, Self::Expected(expected) if expected == shard)
    }
}

/// Result of adding a tensor that a header describes.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Added {
    /// It is a tensor of the checkpoint.
    Kept,
    /// The index places it elsewhere, or does not list it.
    LeftOut,
    /// Another shard has this tensor as well.
    Twice(usize),
}

impl Names {
    /// Creates the names of a checkpoint without an index.
    pub(super) fn new(count: usize) -> Self {
        Self {
            slots: HashMap::with_capacity(count),
            is_indexed: false,
        }
    }

    /// Creates the names that an index lists, with the positions of their shards.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidFormat`] for a tensor that is listed twice.
    pub(super) fn indexed(weight_map: Vec<(String, usize)>) -> Result<Self> {
        let mut slots = HashMap::with_capacity(weight_map.len());
        for (name, shard) in weight_map {
            match slots.entry(name) {
                Entry::Vacant(entry) => entry.insert(Slot::Expected(shard)),
                Entry::Occupied(entry) => return Err(listed_twice(entry.key())),
            };
        }
        Ok(Self {
            slots,
            is_indexed: true,
        })
    }

    /// Adds a tensor in the header of `shard`; `tensor` is its index if it is kept.
    pub(super) fn add(&mut self, name: &str, shard: usize, tensor: usize) -> Added {
        if self.is_indexed {
            return match self.slots.get_mut(name) {
                Some(slot) if slot.is_expected_in(shard) => {
                    *slot = Slot::Found(tensor);
                    Added::Kept
                }
                Some(_) | None => Added::LeftOut,
            };
        }
        match self.slots.insert(name.to_owned(), Slot::Found(tensor)) {
            Some(Slot::Found(first)) => Added::Twice(first),
            Some(Slot::Expected(_)) | None => Added::Kept,
        }
    }

    /// Returns the index of a tensor.
    pub(super) fn get(&self, name: &str) -> Option<usize> {
        match self.slots.get(name)? {
            Slot::Found(tensor) => Some(*tensor),
            Slot::Expected(_) => None,
        }
    }

    /// Requires every tensor of the index to be in its shard.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidFormat`] that names the first missing tensor.
    pub(super) fn require_all(&self, placement: &Placement) -> Result<()> {
        let missing = self.slots.iter().filter_map(|(name, slot)| match slot {
            Slot::Expected(shard) => Some((name, *shard)),
            Slot::Found(_) => None,
        });
        // Take the smallest name, so that the error does not depend on the order of the map.
        let Some((first, shard)) = missing.clone().min() else {
            return Ok(());
        };
        let others = missing.count() - 1;
        let rest = if others > 0 {
            format!(" (and {others} more)")
        } else {
            String::new()
        };
        Err(Error::new(
            ErrorKind::InvalidFormat,
            format!(
                "the index places it in {:?}, which does not contain it{rest}",
                shortened(&placement.shards[shard])
            ),
        )
        .with_location(placement.file.location())
        .with_tensor(first)
        .with_hint(
            "the index and the shards are of different versions; download the checkpoint again",
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn index_decides_which_of_several_tensors_counts() {
        let listed = [("a", 0), ("b", 1)].map(|(name, shard)| (name.to_owned(), shard));
        let mut names = Names::indexed(listed.into()).expect("distinct");
        assert_eq!(names.add("b", 0, 0), Added::LeftOut, "it is in shard 1");
        assert_eq!(names.add("c", 0, 0), Added::LeftOut, "it is not listed");
        assert_eq!(names.get("a"), None);
        assert_eq!(names.add("a", 0, 0), Added::Kept);
        assert_eq!(names.add("a", 1, 1), Added::LeftOut);
        assert_eq!(names.add("b", 1, 1), Added::Kept);
        assert_eq!((names.get("a"), names.get("b")), (Some(0), Some(1)));
        assert_eq!(names.get("c"), None);
    }

    #[test]
    fn names_are_distinct() {
        let mut names = Names::new(2);
        assert_eq!(names.add("a", 0, 7), Added::Kept);
        assert_eq!(names.add("a", 1, 8), Added::Twice(7));
        let twice = vec![("a".to_owned(), 0), ("a".to_owned(), 1)];
        let error = Names::indexed(twice).expect_err("twice");
        assert_eq!(error.tensor(), Some("a"));
    }
}
