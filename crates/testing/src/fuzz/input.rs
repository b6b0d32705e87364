//! Bytes of a fuzzer as numbers and choices. After the end of the bytes everything is 0: every
//! input is valid.

/// Reader that takes numbers from the front of some bytes.
#[derive(Clone, Debug)]
pub struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    /// Creates a reader of all of these bytes.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// Returns whether nothing is left.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns everything that is left.
    pub fn rest(self) -> &'a [u8] {
        self.0
    }

    /// Returns the next `len` bytes, or the rest if there are fewer.
    pub fn take(&mut self, len: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        taken
    }

    /// Returns the next `len` bytes as text; invalid UTF-8 is replaced.
    pub fn text(&mut self, len: usize) -> String {
        String::from_utf8_lossy(self.take(len)).into_owned()
    }

    /// Returns the next byte.
    pub fn byte(&mut self) -> u8 {
        self.take(1).first().copied().unwrap_or(0)
    }

    /// Returns the next eight bytes as a little-endian number.
    pub fn bits(&mut self) -> u64 {
        let mut bytes = [0; 8];
        let taken = self.take(8);
        bytes[..taken.len()].copy_from_slice(taken);
        u64::from_le_bytes(bytes)
    }

    /// Returns a number up to `most`, from as many bytes as it needs: small bounds leave more of
    /// the input.
    pub fn up_to(&mut self, most: u64) -> u64 {
        let bytes = (8 - most.leading_zeros() as usize / 8).max(1);
        let number = self
            .take(bytes)
            .iter()
            .rev()
            .fold(0_u64, |number, &byte| (number << 8) | u64::from(byte));
        if most == u64::MAX {
            number
        } else {
            number % (most + 1)
        }
    }

    /// Returns an index up to `most`.
    pub fn index_up_to(&mut self, most: usize) -> usize {
        usize::try_from(self.up_to(most as u64)).expect("at most a usize")
    }

    /// Returns one of `choices`, which are not empty.
    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.index_up_to(choices.len() - 1)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn input_numbers_use_minimal_bytes_then_zero() {
        let mut input = Input::new(&[7, 1, 2, 9]);
        assert_eq!(input.up_to(4), 2);
        assert_eq!(input.up_to(0x300), 0x201);
        assert_eq!((input.byte(), input.byte(), input.bits()), (9, 0, 0));
        assert!(input.is_empty() && input.rest().is_empty());
        assert_eq!(Input::new(&[0xFF; 8]).up_to(u64::MAX), u64::MAX);
    }
}
