//! Data key of a checkpoint: the main key that the keys of its files are derived from. Its text is
//! a keyset of Tink in JSON, so that Tink's own tools take it.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use tload_base::error::{Error, Result};
use tload_base::options::location::hexadecimal;
use zeroize::{Zeroize, Zeroizing};

use crate::stream::{Algorithm, FileKey, Header};

/// Type of the only key of a keyset.
const TYPE_URL: &str = "type.googleapis.com/google.crypto.tink.AesGcmHkdfStreamingKey";

/// Description of what the check of a key is for, in its derivation.
const CHECK_INFO: &[u8] = b"tload sealed: key check";

/// Length of the check, bytes.
const CHECK_BYTES: usize = 16;

/// Data key. Its memory is cleared when it is dropped.
#[derive(Clone)]
pub struct MainKey {
    algorithm: Algorithm,
    bytes: Zeroizing<Vec<u8>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Keyset {
    primary_key_id: u32,
    key: Vec<KeysetKey>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct KeysetKey {
    key_data: KeyMaterial,
    status: String,
    key_id: u32,
    output_prefix_type: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct KeyMaterial {
    type_url: String,
    value: Zeroizing<String>,
}

impl MainKey {
    /// Creates a random key.
    #[must_use]
    pub fn random(algorithm: Algorithm) -> Self {
        let mut bytes = Zeroizing::new(vec![0; algorithm.key_bytes()]);
        aws_lc_rs::rand::fill(&mut bytes).expect("the system's random numbers do not fail");
        Self { algorithm, bytes }
    }

    /// Reads a keyset of Tink with one key. The text never becomes part of an error.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidRequest`](tload_base::error::ErrorKind::InvalidRequest) for anything
    /// else.
    pub fn from_keyset(text: &str) -> Result<Self> {
        let wrong = |why: &str| {
            Error::invalid_request(format!("the key is no keyset that tload reads: {why}"))
                .with_hint("it is a cleartext keyset of Tink in JSON, with one key of AES256_GCM_HKDF_1MB or AES128_GCM_HKDF_1MB")
        };
        // An error of the parser may quote what it found.
        let keyset: Keyset = serde_json::from_str(text).map_err(|_| wrong("it is not its JSON"))?;
        let [key] = &keyset.key[..] else {
            return Err(wrong("it has several keys, or none"));
        };
        if key.key_data.type_url != TYPE_URL || key.output_prefix_type != "RAW" {
            return Err(wrong("its key is of another type"));
        }
        if key.status != "ENABLED" || key.key_id != keyset.primary_key_id {
            return Err(wrong("its key is not enabled, or not primary"));
        }
        let decoded = STANDARD.decode(key.key_data.value.as_bytes());
        let message = Zeroizing::new(decoded.map_err(|_| wrong("its value is no base64"))?);
        for algorithm in Algorithm::ALL {
            let len = algorithm.key_bytes();
            if let Some(bytes) = message.strip_prefix(&beginning(algorithm)[..])
                && bytes.len() == len
            {
                return Ok(Self {
                    algorithm,
                    bytes: Zeroizing::new(bytes.to_vec()),
                });
            }
        }
        Err(wrong("its key has other parameters"))
    }

    /// Returns the keyset of the key.
    #[must_use]
    pub fn to_keyset(&self) -> Zeroizing<String> {
        let mut message = Zeroizing::new(Vec::with_capacity(64));
        message.extend(beginning(self.algorithm));
        message.extend_from_slice(&self.bytes);
        let value = Zeroizing::new(STANDARD.encode(&*message));
        // Tink requires any number but 0 that no other key of the keyset has.
        let id = 1;
        let before = format!(
            "{{\"primaryKeyId\":{id},\"key\":[{{\"keyData\":{{\"typeUrl\":\"{TYPE_URL}\",\"value\":\""
        );
        let after = format!(
            "\",\"keyMaterialType\":\"SYMMETRIC\"}},\"status\":\"ENABLED\",\"keyId\":{id},\"outputPrefixType\":\"RAW\"}}]}}"
        );
        // All of its length at once: a string that grows leaves copies of the key behind.
        let mut text = String::with_capacity(before.len() + value.len() + after.len());
        text.push_str(&before);
        text.push_str(&value);
        text.push_str(&after);
        Zeroizing::new(text)
    }

    /// Returns the algorithm.
    #[must_use]
    pub fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// Derives the key of a file.
    #[must_use]
    pub fn file_key(&self, header: &Header, associated: &[u8]) -> FileKey {
        FileKey::derive(&self.bytes, header, associated)
    }

    /// Returns what tells this key from others for a checkpoint, without revealing anything else.
    #[must_use]
    pub fn check(&self, id: &str) -> String {
        use aws_lc_rs::hkdf::{HKDF_SHA256, KeyType, Salt};

        struct Check;
        impl KeyType for Check {
            fn len(&self) -> usize {
                CHECK_BYTES
            }
        }

        let extracted = Salt::new(HKDF_SHA256, id.as_bytes()).extract(&self.bytes);
        let mut check = [0; CHECK_BYTES];
        let expanded = extracted.expand(&[CHECK_INFO], Check);
        let filled = expanded.and_then(|expanded| expanded.fill(&mut check));
        filled.expect("a short output");
        let text = hexadecimal(&check);
        check.zeroize();
        text
    }
}

/// Returns the beginning of the message `AesGcmHkdfStreamingKey`, up to the bytes of the key: field
/// 2 has the parameters (segments of 1 MiB, length of derived keys, SHA-256 as number 3), field 3
/// the key. Writers of protocol buffers leave out the version, which is 0.
fn beginning(algorithm: Algorithm) -> [u8; 12] {
    let len = u8::try_from(algorithm.key_bytes()).expect("at most 32");
    [
        0x12, 0x08, 0x08, 0x80, 0x80, 0x40, 0x10, len, 0x18, 0x03, 0x1A, len,
    ]
}

impl fmt::Debug for MainKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MainKey")
            .field("algorithm", &self.algorithm)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keysets_are_read_as_they_are_written() {
        for algorithm in Algorithm::ALL {
            let key = MainKey::random(algorithm);
            let read = MainKey::from_keyset(&key.to_keyset()).expect("its own");
            assert_eq!(read.bytes, key.bytes);
            assert_eq!(read.check("a"), key.check("a"));
            assert_ne!(key.check("a"), key.check("b"));
            assert!(!format!("{key:?}").contains(&hexadecimal(&key.bytes)[..8]));
        }
    }

    #[test]
    fn other_keysets_are_errors_without_their_text() {
        let good = MainKey::random(Algorithm::Aes256).to_keyset();
        let other = |from: &str, to: &str| good.replace(from, to);
        let cases = [
            other("RAW", "TINK"),
            other("ENABLED", "DISABLED"),
            other("GcmHkdf", "CtrHmac"),
            other("\"keyId\":1", "\"keyId\":2"),
            other("EggI", "EggJ"),
            "{\"secret\": 1}".to_owned(),
            String::new(),
        ];
        for text in cases {
            let error = MainKey::from_keyset(&text).expect_err(&text);
            let shown = format!("{error} {error:?}");
            assert!(
                !shown.contains("secret") && !shown.contains("Egg"),
                "{shown}"
            );
        }
    }
}
