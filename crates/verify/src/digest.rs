//! Digests: an algorithm and a value, as stated by manifests, stores and hubs, and as computed by a
//! load.

use std::fmt;
use std::str::FromStr;

use sha2::{Digest as _, Sha256};

use crate::crc::Polynomial;
use crate::error::{Error, Result};
use crate::options::location::hexadecimal;

/// Algorithm of a digest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Algorithm {
    /// CRC-32C (Castagnoli; RFC 3720), 4 bytes.
    Crc32c,
    /// CRC-64/NVME (NVM Express, NVM Command Set Specification 1.0, section 5.2.1.3.4), 8 bytes.
    Crc64Nvme,
    /// CRC-32 (ISO-HDLC, that of zlib), 4 bytes.
    Crc32,
    /// SHA-256 (FIPS 180-4), 32 bytes. Secure against deliberate changes, and several times slower
    /// than the others.
    Sha256,
    /// BLAKE3 ([specification](https://github.com/BLAKE3-team/BLAKE3-specs)), 32 bytes. Secure
    /// against deliberate changes, and computed by all threads at once.
    Blake3,
}

impl Algorithm {
    /// All algorithms.
    pub const ALL: [Self; 5] = [
        Self::Crc32c,
        Self::Crc64Nvme,
        Self::Crc32,
        Self::Sha256,
        Self::Blake3,
    ];

    /// Returns the name used in manifests and messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Crc32c => "crc32c",
            Self::Crc64Nvme => "crc64nvme",
            Self::Crc32 => "crc32",
            Self::Sha256 => "sha256",
            Self::Blake3 => "blake3",
        }
    }

    /// Returns whether the digest of a whole follows from the digests of its pieces: then the
    /// pieces may arrive in any order.
    pub fn combines(self) -> bool {
        self != Self::Sha256
    }

    /// Returns whether bytes cannot be changed in such a way that the digest stays the same: CRCs
    /// find damage only.
    pub fn is_secure(self) -> bool {
        self.polynomial().is_none()
    }

    /// Returns the length of a digest, bytes.
    #[expect(clippy::len_without_is_empty, reason = "no digest is empty")]
    pub fn len(self) -> usize {
        match self {
            Self::Crc32c | Self::Crc32 => 4,
            Self::Crc64Nvme => 8,
            Self::Sha256 | Self::Blake3 => 32,
        }
    }

    /// Returns the polynomial, if it is a CRC.
    #[doc(hidden)]
    pub fn polynomial(self) -> Option<Polynomial> {
        match self {
            Self::Crc32c => Some(Polynomial::Crc32c),
            Self::Crc64Nvme => Some(Polynomial::Crc64Nvme),
            Self::Crc32 => Some(Polynomial::Crc32),
            Self::Sha256 | Self::Blake3 => None,
        }
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Algorithm {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let named = |algorithm: &Self| algorithm.name() == text;
        Self::ALL.into_iter().find(named).ok_or_else(|| {
            Error::unknown_name("digest algorithm", text, &Self::ALL.map(Self::name))
        })
    }
}

/// Digest of some bytes, displayed like `crc64nvme:ae8b14860a799888`.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Digest {
    algorithm: Algorithm,
    /// Shorter digests are padded with zeros.
    bytes: [u8; 32],
}

/// Values of hexadecimal digits; 0x10 for other characters. A manifest has 72 bytes of digits for
/// each tensor.
const HEX: [u8; 256] = {
    let mut values = [0x10; 256];
    let mut value = 0;
    while value < 16 {
        let digit = b"0123456789abcdef"[value as usize];
        values[digit as usize] = value;
        values[digit.to_ascii_uppercase() as usize] = value;
        value += 1;
    }
    values
};

impl Digest {
    /// Creates a digest from its bytes, the most significant of a CRC first; `None` if their number
    /// is not that of the algorithm.
    pub fn new(algorithm: Algorithm, bytes: &[u8]) -> Option<Self> {
        let mut padded = [0; 32];
        if bytes.len() != algorithm.len() {
            return None;
        }
        padded[..bytes.len()].copy_from_slice(bytes);
        Some(Self {
            algorithm,
            bytes: padded,
        })
    }

    /// Parses hexadecimal digits, lower or upper case; `None` if their number is not that of the
    /// algorithm.
    pub fn from_hex(algorithm: Algorithm, text: &str) -> Option<Self> {
        let mut bytes = [0; 32];
        let own = &mut bytes[..algorithm.len()];
        if text.len() != 2 * own.len() {
            return None;
        }
        for (byte, digits) in own.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
            let [high, low] = [digits[0], digits[1]].map(|digit| HEX[usize::from(digit)]);
            if high | low > 0xF {
                return None;
            }
            *byte = high << 4 | low;
        }
        Some(Self { algorithm, bytes })
    }

    /// Parses the form used by S3 and GCS: the bytes in Base64, the most significant of a CRC
    /// first.
    pub fn from_base64(algorithm: Algorithm, text: &str) -> Option<Self> {
        use base64::Engine as _;
        let bytes = base64::engine::general_purpose::STANDARD.decode(text);
        Self::new(algorithm, &bytes.ok()?)
    }

    /// Returns the bytes in lower-case hexadecimal.
    pub fn to_hex(&self) -> String {
        hexadecimal(self.bytes())
    }

    /// Returns the bytes in Base64, as headers of HTTP have them.
    pub fn to_base64(&self) -> String {
        use base64::Engine as _;
        base64::engine::general_purpose::STANDARD.encode(self.bytes())
    }

    /// Computes the digest of `bytes`.
    ///
    /// # Examples
    ///
    /// ```
    /// # mod tload {
    /// #     pub mod verify { pub use tload_verify::*; }
    /// # }
    /// use tload::verify::{Algorithm, Digest};
    ///
    /// let digest = Digest::compute(Algorithm::Sha256, b"abc");
    /// assert!(digest.to_hex().starts_with("ba7816bf8f01cfea414140de"));
    /// assert_eq!(Digest::from_hex(Algorithm::Sha256, &digest.to_hex()), Some(digest));
    /// ```
    pub fn compute(algorithm: Algorithm, bytes: &[u8]) -> Self {
        match (algorithm, algorithm.polynomial()) {
            (_, Some(polynomial)) => Self::from_crc(algorithm, polynomial.checksum(&[bytes])),
            (Algorithm::Blake3, None) => {
                Self::new(algorithm, blake3::hash(bytes).as_bytes()).expect("32 bytes")
            }
            (_, None) => Self::from_hasher(Sha256::new_with_prefix(bytes)),
        }
    }

    /// Returns the digest of all bytes that `hasher` has consumed.
    #[doc(hidden)]
    pub fn from_hasher(hasher: Sha256) -> Self {
        Self::new(Algorithm::Sha256, &hasher.finalize()).expect("as many as SHA-256 makes")
    }

    /// Creates a digest from the value of a CRC.
    #[doc(hidden)]
    pub fn from_crc(algorithm: Algorithm, crc: u64) -> Self {
        let bytes = crc.to_be_bytes();
        let own = &bytes[bytes.len() - algorithm.len()..];
        Self::new(algorithm, own).expect("as many as the algorithm makes")
    }

    /// Returns the value of a CRC; `None` for other algorithms.
    pub(crate) fn crc(&self) -> Option<u64> {
        self.algorithm.polynomial()?;
        let fold = |crc: u64, byte: &u8| crc << 8 | u64::from(*byte);
        Some(self.bytes().iter().fold(0, fold))
    }

    /// Returns the algorithm.
    pub fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// Returns the bytes, the most significant of a CRC first.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.algorithm.len()]
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.algorithm, self.to_hex())
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Digest({self})")
    }
}

impl FromStr for Digest {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let invalid = || {
            let message = format!("digest {text:?} is not of the form crc64nvme:ae8b14860a799888");
            Error::invalid_request(message)
        };
        let (algorithm, digits) = text.split_once(':').ok_or_else(invalid)?;
        Self::from_hex(algorithm.parse()?, digits).ok_or_else(invalid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    #[test]
    fn digests_are_read_back() {
        for (text, crc) in [
            ("crc32c:e3069283", Some(0xE306_9283)),
            ("crc64nvme:ae8b14860a799888", Some(0xAE8B_1486_0A79_9888)),
            ("crc32:cbf43926", Some(0xCBF4_3926)),
            (
                "sha256:15e2b0d3c33891ebb0f1ef609ec419420c20e320ce94c65fbc8c3312448eb225",
                None,
            ),
            (
                "blake3:b7d65b48420d1033cb2595293263b6f72eabee20d55e699d0df1973b3c9deed1",
                None,
            ),
        ] {
            let digest: Digest = text.parse().expect("a digest");
            assert_eq!(digest.to_string(), text);
            assert_eq!(Digest::compute(digest.algorithm(), b"123456789"), digest);
            assert_eq!(digest.crc(), crc);
            assert_eq!(digest.bytes().len(), digest.algorithm().len());
            if let Some(crc) = crc {
                assert_eq!(Digest::from_crc(digest.algorithm(), crc), digest);
            }
            let capitals = text.to_uppercase();
            let (_, digits) = capitals.split_once(':').expect("has one");
            assert_eq!(Digest::from_hex(digest.algorithm(), digits), Some(digest));
        }
    }

    #[test]
    fn invalid_text_is_rejected() {
        for text in [
            "",
            "crc32c",
            "crc32c:",
            "crc32c:e306928",
            "crc32c:e30692831",
            "crc32c:e306928g",
            "crc32c:+3069283",
            "md5:e3069283",
            "crc32c:é692833",
        ] {
            let error = text.parse::<Digest>().expect_err(text);
            assert_eq!(error.kind(), ErrorKind::InvalidRequest);
        }
        assert_eq!(Digest::new(Algorithm::Sha256, &[0; 31]), None);
    }

    #[test]
    fn base64_digests_of_stores_parse() {
        // Digests of the nine ASCII digits, as above: 4 bytes and 8 bytes, the most significant
        // first.
        let digest = Digest::from_base64(Algorithm::Crc32c, "4waSgw==");
        let digest = digest.expect("a digest");
        assert_eq!(digest.to_string(), "crc32c:e3069283");
        assert_eq!(digest.to_base64(), "4waSgw==");
        let digest = Digest::from_base64(Algorithm::Crc64Nvme, "rosUhgp5mIg=");
        let wanted = "crc64nvme:ae8b14860a799888";
        assert_eq!(digest.expect("a digest").to_string(), wanted);
        assert_eq!(Digest::from_base64(Algorithm::Crc32c, "rosUhgp5mIg="), None);
        assert_eq!(Digest::from_base64(Algorithm::Crc32c, "4waSgw="), None);
    }
}
