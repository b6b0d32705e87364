//! The header directly before the bytes of a tensor: what the index says, again, and digests,
//! and how to decrypt.

use std::ops::Range;

use sha2::{Digest as _, Sha256};
use tload_base::options::location::hexadecimal;

use crate::encryption::{Encryption, encryption};
use crate::error::FormatError;
use crate::index::{Index, Tensor, kind, shape};
use crate::name::TensorPath;
use crate::reader::Reader;

const CRC32: u8 = 0;
const SHA256: u8 = 1;

/// Header of one tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorHeader {
    /// Number of the module that it belongs to, in the order of `named_modules()`.
    pub module: u16,
    /// CRC-32 (ISO-HDLC) of [`Self::hashed`] and the tensor's plain bytes.
    pub crc32: Option<u32>,
    /// SHA-256 of [`Self::hashed`] and the tensor's plain bytes.
    pub sha256: Option<[u8; 32]>,
    /// The header as digests cover it: with zeros in place of digests, and without what is about
    /// encryption.
    pub hashed: Vec<u8>,
    /// Encryption of the tensor; `None` if it has none.
    pub encryption: Option<Encryption>,
}

impl TensorHeader {
    /// Parses `bytes`, those at [`Tensor::header`], and requires that they say what the index says.
    ///
    /// # Errors
    ///
    /// For a header that is damaged, or that is not about this tensor.
    pub fn parse(bytes: &[u8], tensor: &Tensor, index: &Index) -> Result<Self, FormatError> {
        let parsed = Self::read(bytes, tensor, index.is_encrypted);
        parsed.map_err(|error| error.of_tensor(&tensor.name))
    }

    fn read(bytes: &[u8], tensor: &Tensor, is_encrypted: bool) -> Result<Self, FormatError> {
        let base = tensor.header.start;
        let mut reader = Reader::new(bytes, base, "the header");
        let len = tensor.header.end - base;
        require(
            &reader,
            "length of the header",
            &reader.clone().u64("its length")?,
            &len,
        )?;
        reader.u64("its length")?;
        let module = reader.u16("the number of its module")?;
        let at = reader.clone();
        require(&at, "type of the tensor", &kind(&mut reader)?, &tensor.kind)?;
        let at = reader.clone();
        let path = reader.sized("its name")?;
        let path = TensorPath::parse(path, at.at() + 2)?;
        require(&at, "name of the tensor", &path, &tensor.path)?;
        let at = reader.clone();
        let len = reader.u8("its dtype")?;
        let dtype = reader.take(len.into(), "its dtype")?;
        let text = String::from_utf8_lossy;
        require(&at, "dtype", &text(dtype), &text(&tensor.dtype_name))?;
        let at = reader.clone();
        let shape = shape(&mut reader, tensor.has_long_shape)?;
        require(&at, "shape", &shape, &tensor.shape)?;
        let digests_at = reader.at() + 2;
        let own = reader.sized("its digests")?;
        let mut hashed = bytes.to_vec();
        let (crc32, sha256) = digests(own, digests_at, |own| hashed[within(base, &own)].fill(0))?;
        let mut decryption = None;
        if is_encrypted {
            let start = reader.at();
            let len = reader.u64("the length of its encryption")?;
            let mut own = reader.inner(len, "what it says about encryption")?;
            decryption = encryption(&mut own, tensor.range.end - tensor.range.start)?;
            hashed.drain(within(base, &(start..reader.at())));
            if decryption.is_none() && !tensor.range.is_empty() {
                let wanted = "how the tensor is encrypted";
                return Err(reader.invalid(start, "encryption", &"nothing", wanted));
            }
        }
        let at = reader.clone();
        let len = reader.u64("the length of the tensor")?;
        require(
            &at,
            "length of the tensor",
            &len,
            &(tensor.range.end - tensor.range.start),
        )?;
        reader.end()?;
        Ok(Self {
            module,
            crc32,
            sha256,
            hashed,
            encryption: decryption,
        })
    }

    /// Begins the digests of the tensor's plain bytes.
    pub fn digests(&self) -> Digests<'_> {
        Digests {
            header: self,
            crc32: self.crc32.map(|_| {
                let mut crc32 = crc32fast::Hasher::new();
                crc32.update(&self.hashed);
                crc32
            }),
            sha256: self.sha256.map(|_| Sha256::new_with_prefix(&self.hashed)),
        }
    }
}

/// Returns the range of the header, which begins at `base` in the file, for a range of the file.
fn within(base: u64, range: &Range<u64>) -> Range<usize> {
    let index = |at: u64| usize::try_from(at - base).expect("within bytes in memory");
    index(range.start)..index(range.end)
}

fn require<T: PartialEq + std::fmt::Debug>(
    at: &Reader<'_>,
    what: &'static str,
    found: &T,
    wanted: &T,
) -> Result<(), FormatError> {
    if found == wanted {
        return Ok(());
    }
    let wanted = format!("{wanted:?}, as in the index");
    let range = at.at()..at.at() + 1;
    Err(FormatError::invalid(
        range,
        what,
        &format!("{found:?}"),
        wanted,
    ))
}

/// Reads digests, and calls `each` with the place of each.
fn digests(
    bytes: &[u8],
    position: u64,
    mut each: impl FnMut(Range<u64>),
) -> Result<(Option<u32>, Option<[u8; 32]>), FormatError> {
    let mut reader = Reader::new(bytes, position, "the digests");
    let count = reader.u8("their number")?;
    let (mut crc32, mut sha256) = (None, None);
    for _ in 0..count {
        let at = reader.at();
        let kind = reader.u8("the kind of a digest")?;
        let len = reader.u8("the length of a digest")?;
        let start = reader.at();
        let value = reader.take(len.into(), "a digest")?;
        each(start..reader.at());
        let is_second = match (kind, value.len()) {
            (CRC32, 4) => {
                let value = value.try_into().expect("as many as were taken");
                crc32.replace(u32::from_le_bytes(value)).is_some()
            }
            (SHA256, 32) => {
                let value = value.try_into().expect("as many as were taken");
                sha256.replace(value).is_some()
            }
            _ => {
                let found = format!("kind {kind} of {len} bytes");
                let wanted = "kind 0 of 4 bytes, or kind 1 of 32";
                return Err(reader.invalid(at, "digest", &found, wanted));
            }
        };
        if is_second {
            return Err(reader.invalid(at, "digests", &"two of a kind", "one"));
        }
    }
    reader.end()?;
    Ok((crc32, sha256))
}

/// Digests of the bytes of one tensor, as they arrive.
#[derive(Clone, Debug)]
pub struct Digests<'a> {
    header: &'a TensorHeader,
    crc32: Option<crc32fast::Hasher>,
    sha256: Option<Sha256>,
}

/// Digest that differs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wrong {
    /// Digest that the header of the tensor has.
    pub expected: String,
    /// Digest of the bytes.
    pub found: String,
}

impl Digests<'_> {
    /// Adds the next plain bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        if let Some(crc32) = &mut self.crc32 {
            crc32.update(bytes);
        }
        if let Some(sha256) = &mut self.sha256 {
            sha256.update(bytes);
        }
    }

    /// Compares the digests of all bytes with those of the header.
    ///
    /// # Errors
    ///
    /// The first digest that differs.
    pub fn finish(self) -> Result<(), Wrong> {
        let own = |name: &str, bytes: &[u8]| format!("{name}:{}", hexadecimal(bytes));
        let compare = |name: &str, expected: &[u8], found: &[u8]| {
            if expected == found {
                return Ok(());
            }
            Err(Wrong {
                expected: own(name, expected),
                found: own(name, found),
            })
        };
        if let Some((expected, found)) = self.header.crc32.zip(self.crc32) {
            let found = found.finalize().to_be_bytes();
            compare("crc32", &expected.to_be_bytes(), &found)?;
        }
        if let Some((expected, found)) = self.header.sha256.zip(self.sha256) {
            compare("sha256", &expected, &found.finalize())?;
        }
        Ok(())
    }
}
