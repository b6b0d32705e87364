//! Digest of the tensors of a checkpoint that does not depend on the order of delivery.
//!
//! The text of `tload load --help` is the specification; the integration tests compute it a second
//! time with the `safetensors` crate.

use std::fmt::Write;

use sha2::{Digest as _, Sha256};

use tload::Tensor;

/// Collects one line per tensor.
#[derive(Debug, Default)]
pub(crate) struct Digest {
    lines: Vec<(String, String)>,
}

impl Digest {
    pub(crate) fn add(&mut self, tensor: &Tensor) {
        self.add_bytes(
            tensor.name(),
            tensor.dtype().name(),
            tensor.shape(),
            tensor.bytes(),
        );
    }

    fn add_bytes(&mut self, name: &str, dtype: &str, shape: &[usize], bytes: &[u8]) {
        let shape: Vec<String> = shape.iter().map(ToString::to_string).collect();
        let line = format!(
            "\0{dtype}\0{}\0{}\n",
            shape.join(","),
            hex(&Sha256::digest(bytes))
        );
        self.lines.push((name.to_owned(), line));
    }

    /// Returns the digest of all tensors added, in lower-case hexadecimal.
    pub(crate) fn finish(mut self) -> String {
        self.lines.sort_unstable();
        let mut hash = Sha256::new();
        for (name, line) in &self.lines {
            hash.update(name);
            hash.update(line);
        }
        hex(&hash.finalize())
    }
}

/// Returns `bytes` in lower-case hexadecimal.
fn hex(bytes: &[u8]) -> String {
    bytes
        .iter()
        .fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
            // Writing to a string cannot fail.
            let _ = write!(text, "{byte:02x}");
            text
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn does_not_depend_on_order() {
        let digest = |names: [&str; 2]| {
            let mut digest = Digest::default();
            for name in names {
                digest.add_bytes(name, "U8", &[1], name.as_bytes());
            }
            digest.finish()
        };
        assert_eq!(digest(["a", "b"]), digest(["b", "a"]));
        assert_ne!(digest(["a", "b"]), digest(["a", "c"]));
    }

    #[test]
    fn digest_without_tensors_is_that_of_empty_string() {
        assert_eq!(
            Digest::default().finish(),
            "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
        );
    }

    #[test]
    fn lines_are_as_documented() {
        let mut digest = Digest::default();
        digest.add_bytes("w", "BF16", &[2, 3], b"123456789012");
        let inner = hex(&Sha256::digest(b"123456789012"));
        let line = format!("w\0BF16\02,3\0{inner}\n");
        assert_eq!(digest.finish(), hex(&Sha256::digest(line)));
    }
}
