//! BLAKE3 of pieces that arrive in any order: each is hashed where it lies in the tree, and only
//! the tree's inner values are kept.
//!
//! [BLAKE3](https://github.com/BLAKE3-team/BLAKE3-specs) hashes leaves of 1,024 bytes, and then
//! pairs of values up to a root. Aligned runs of 2^k leaves are subtrees, so pieces need no order;
//! the leaves that they cut wait for the bytes of their neighbours.

use std::collections::BTreeMap;

use blake3::hazmat::{
    ChainingValue, HasherExt, Mode, left_subtree_len, merge_subtrees_non_root, merge_subtrees_root,
};
use blake3::{CHUNK_LEN as LEAF_LEN, Hasher};

use crate::sync::lock::Mutex;

/// Bytes of a leaf, which BLAKE3 calls a chunk.
const LEAF_BYTES: u64 = LEAF_LEN as u64;

/// BLAKE3 of `len` bytes, whose pieces arrive in any order from any thread; each byte once.
#[derive(Debug)]
pub(super) struct TreeSum {
    len: u64,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    missing: u64,
    /// Values of subtrees, by their first byte, with their length; none inside another.
    subtrees: BTreeMap<u64, (u64, ChainingValue)>,
    /// Leaves of which some bytes are missing, by their first byte, and the number of bytes there.
    broken: BTreeMap<u64, (usize, Box<[u8; LEAF_LEN]>)>,
}

impl TreeSum {
    /// Starts a sum to which no bytes have been added.
    pub(super) fn new(len: u64) -> Self {
        let state = State {
            missing: len,
            subtrees: BTreeMap::new(),
            broken: BTreeMap::new(),
        };
        Self {
            len,
            state: Mutex::new(state),
        }
    }

    /// Adds the bytes that begin at `offset`. Returns the hash if they are the last missing ones.
    pub(super) fn add(&self, offset: u64, bytes: &[u8]) -> Option<[u8; 32]> {
        let end = offset + bytes.len() as u64;
        assert!(end <= self.len, "bytes behind the end");
        // A tree that is shorter than a leaf is one leaf, whose value is the root.
        let whole = offset.next_multiple_of(LEAF_BYTES)..end / LEAF_BYTES * LEAF_BYTES;
        let (mut at, mut rest) = (offset, bytes);
        let (mut subtrees, mut edges) = (Vec::new(), Vec::new());
        while !rest.is_empty() {
            let is_subtree = self.len > LEAF_BYTES && whole.contains(&at);
            let len = if is_subtree {
                self.subtree_len(at, whole.end - at)
            } else {
                (LEAF_BYTES - at % LEAF_BYTES).min(end - at)
            };
            let (own, behind) = rest.split_at(usize::try_from(len).expect("within the piece"));
            if is_subtree {
                subtrees.push((at, len, value(at, own)));
            } else {
                edges.push((at, own));
            }
            (at, rest) = (at + len, behind);
        }
        let mut state = self.state.lock();
        for (at, len, value) in subtrees {
            state.insert(self.len, at, len, value);
        }
        for (at, own) in edges {
            state.fill(self.len, at, own);
        }
        assert!(
            state.missing >= bytes.len() as u64,
            "each byte is added once"
        );
        state.missing -= bytes.len() as u64;
        (state.missing == 0).then(|| state.root(self.len))
    }

    /// Returns the length of the largest subtree at `at` that is not the whole tree and has at most
    /// `most` bytes.
    fn subtree_len(&self, at: u64, most: u64) -> u64 {
        let aligned = if at == 0 {
            u64::MAX
        } else {
            1 << at.trailing_zeros()
        };
        let len = 1 << most.min(aligned).ilog2();
        if len == self.len { len / 2 } else { len }
    }

    /// Returns whether all bytes have been added.
    pub(super) fn is_whole(&self) -> bool {
        self.state.lock().missing == 0
    }
}

impl State {
    /// Inserts a subtree, and merges it with its neighbours.
    fn insert(&mut self, whole: u64, mut at: u64, mut len: u64, mut value: ChainingValue) {
        loop {
            let other = at ^ len;
            let is_equal = self
                .subtrees
                .get(&other)
                .is_some_and(|found| found.0 == len);
            if !is_equal || 2 * len == whole {
                self.subtrees.insert(at, (len, value));
                return;
            }
            let (_, found) = self.subtrees.remove(&other).expect("found above");
            value = if at < other {
                merge_subtrees_non_root(&value, &found, Mode::Hash)
            } else {
                merge_subtrees_non_root(&found, &value, Mode::Hash)
            };
            at = at.min(other);
            len *= 2;
        }
    }

    /// Adds bytes of a leaf.
    fn fill(&mut self, whole: u64, at: u64, bytes: &[u8]) {
        let start = at / LEAF_BYTES * LEAF_BYTES;
        let wanted = usize::try_from((whole - start).min(LEAF_BYTES)).expect("a leaf");
        let (filled, leaf) = self
            .broken
            .entry(start)
            .or_insert_with(|| (0, Box::new([0; LEAF_LEN])));
        let from = usize::try_from(at - start).expect("a leaf");
        leaf[from..from + bytes.len()].copy_from_slice(bytes);
        *filled += bytes.len();
        if *filled < wanted || whole <= LEAF_BYTES {
            return;
        }
        let value = value(start, &leaf[..wanted]);
        self.broken.remove(&start);
        if wanted == LEAF_LEN {
            self.insert(whole, start, LEAF_BYTES, value);
        } else {
            self.subtrees.insert(start, (wanted as u64, value));
        }
    }

    /// Returns the hash of everything.
    fn root(&self, whole: u64) -> [u8; 32] {
        if whole <= LEAF_BYTES {
            let leaf = self.broken.get(&0).map(|(filled, leaf)| &leaf[..*filled]);
            return blake3::hash(leaf.unwrap_or_default()).into();
        }
        let left = left_subtree_len(whole);
        let (left, right) = (self.value_of(0, left), self.value_of(left, whole - left));
        merge_subtrees_root(&left, &right, Mode::Hash).into()
    }

    fn value_of(&self, at: u64, len: u64) -> ChainingValue {
        match self.subtrees.get(&at) {
            Some((found, value)) if *found == len => *value,
            _ => {
                let left = left_subtree_len(len);
                let (left, right) = (
                    self.value_of(at, left),
                    self.value_of(at + left, len - left),
                );
                merge_subtrees_non_root(&left, &right, Mode::Hash)
            }
        }
    }
}

/// Returns the value of a subtree.
fn value(at: u64, bytes: &[u8]) -> ChainingValue {
    let mut hasher = Hasher::new();
    hasher.set_input_offset(at).update(bytes);
    hasher.finalize_non_root()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn pieces_in_any_order_give_hash_of_whole(
            len in prop_oneof![0..3000_usize, 0..70_000_usize, Just(1024), Just(2048), Just(4096), Just(65536)],
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..20),
            seed in any::<u64>(),
        ) {
            let bytes: Vec<u8> = (0..len).map(|at| (at as u64).wrapping_mul(seed | 1).to_le_bytes()[2]).collect();
            let mut ends: Vec<_> = cuts.iter().map(|cut| cut.index(len + 1)).chain([0, len]).collect();
            ends.sort_unstable();
            let mut pieces: Vec<_> = ends.windows(2).map(|ends| ends[0]..ends[1]).collect();
            pieces.sort_by_key(|piece| (piece.start as u64).wrapping_mul(seed));
            let sum = TreeSum::new(len as u64);
            let mut last = None;
            for piece in &pieces {
                last = sum.add(piece.start as u64, &bytes[piece.clone()]);
            }
            // Empty pieces may follow the last byte.
            prop_assert_eq!(last, Some(*blake3::hash(&bytes).as_bytes()));
            prop_assert!(sum.is_whole());
        }
    }
}
