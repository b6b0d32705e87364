//! Bytes, numbers and safetensors files for tests. Everything is determined by a seed.

use std::ops::Range;

use tload::TensorInfo;
use tload_format::{Dtype, Entry};

/// Random number generator: splitmix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number
/// generators", OOPSLA 2014).
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// Creates a generator with the given seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        bits ^ (bits >> 31)
    }

    /// Returns a number below `bound`, which is not 0. The distribution is slightly uneven for huge
    /// bounds, which is harmless in tests.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.bits() % bound
    }

    /// Returns an index below `bound`, which is not 0.
    pub fn index(&mut self, bound: usize) -> usize {
        usize::try_from(self.below(bound as u64)).expect("below a usize")
    }

    /// Returns true once in `times` on average.
    pub fn once_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    /// Returns one of `choices`, which are not empty.
    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.index(choices.len())]
    }

    /// Puts `items` into a random order (Fisher and Yates).
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.index(last + 1));
        }
    }

    /// Returns `len` random bytes.
    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len.next_multiple_of(8)];
        for eight in bytes.as_chunks_mut().0 {
            *eight = self.bits().to_le_bytes();
        }
        bytes.truncate(len);
        bytes
    }
}

/// Returns the description of a tensor as in a header: `range` is relative to the start of shard
/// `shard`.
pub fn tensor_info(
    name: impl Into<String>,
    dtype: Dtype,
    shape: Vec<usize>,
    shard: usize,
    range: Range<u64>,
) -> TensorInfo {
    let entry = Entry {
        name: name.into(),
        dtype,
        shape,
        range,
    };
    TensorInfo::new(entry, shard)
}

/// Writes safetensors files byte by byte, including files that the `safetensors` crate would not
/// write: any dtype, any order, tensors at odd offsets.
#[derive(Clone, Debug, Default)]
pub struct FileBuilder {
    entries: Vec<String>,
    tensors: Vec<u8>,
    /// Extra spaces at the end of the header, which move all tensors.
    padding: usize,
    unaligned: bool,
}

impl FileBuilder {
    /// Creates a file without tensors.
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends a tensor. `bytes` need not match dtype and shape: that is how broken files are made.
    #[must_use]
    pub fn tensor(mut self, name: &str, dtype: Dtype, shape: &[usize], bytes: &[u8]) -> Self {
        let begin = self.tensors.len();
        self.tensors.extend_from_slice(bytes);
        let end = self.tensors.len();
        self.entries.push(format!(
            r#"{}:{{"dtype":"{dtype}","shape":{shape:?},"data_offsets":[{begin},{end}]}}"#,
            serde_json::Value::from(name)
        ));
        self
    }

    /// Adds `bytes` spaces to the header without padding it to a multiple of 8: tensors may then
    /// begin at any offset.
    #[must_use]
    pub fn unaligned(mut self, bytes: usize) -> Self {
        self.padding = bytes;
        self.unaligned = true;
        self
    }

    /// Returns the whole file. Tensors begin on a multiple of 8, as writers do it, unless
    /// [`Self::unaligned`] was called.
    pub fn build(&self) -> Vec<u8> {
        let mut header = format!("{{{}}}", self.entries.join(","));
        header.push_str(&" ".repeat(self.padding));
        while !self.unaligned && !header.len().is_multiple_of(8) {
            header.push(' ');
        }
        let mut file = (header.len() as u64).to_le_bytes().to_vec();
        file.extend_from_slice(header.as_bytes());
        file.extend_from_slice(&self.tensors);
        file
    }
}

/// Returns the bytes of a tensor of `elements` elements, if that is a whole number of bytes.
pub fn byte_len(dtype: Dtype, elements: usize) -> Option<usize> {
    let bits = elements * dtype.bits();
    bits.is_multiple_of(8).then_some(bits / 8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splitmix_follows_the_reference() {
        // From the reference implementation (prng.di.unimi.it/splitmix64.c) with seed 1234567.
        let mut rng = Rng::new(1_234_567);
        assert_eq!(rng.bits(), 6_457_827_717_110_365_317);
        assert_eq!(rng.bits(), 3_203_168_211_198_807_973);
    }

    #[test]
    fn built_files_are_valid() {
        let file = FileBuilder::new()
            .tensor("a\"b", Dtype::U8, &[3], &[1, 2, 3])
            .tensor("c", Dtype::F32, &[], &[0; 4])
            .build();
        let parsed = safetensors::SafeTensors::deserialize(&file).expect("valid");
        assert_eq!(parsed.tensor("a\"b").expect("there").data(), [1, 2, 3]);
        assert_eq!(parsed.tensor("c").expect("there").shape(), [0usize; 0]);
    }
}
