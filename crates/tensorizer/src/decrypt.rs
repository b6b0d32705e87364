//! Decryption: `XSalsa20-Poly1305`, with a key that the caller has or that Argon2id makes of a
//! passphrase.
//!
//! Keys are wiped from memory when they are dropped, and are never shown.

use std::fmt;

use argon2::{Algorithm, Argon2, Params, Version};
use crypto_secretbox::aead::{AeadInPlace, KeyInit};
use crypto_secretbox::{Tag, XSalsa20Poly1305};
use zeroize::Zeroizing;

use crate::encryption::{Boxes, Derivation, Encryption};

/// Length of a key, bytes.
pub const KEY_BYTES: usize = 32;

/// Length of a salt, bytes.
const SALT_BYTES: usize = 16;

/// Number of libsodium for Argon2id, version 1.3.
const ARGON2ID13: i32 = 2;

/// Most memory that a file can make a key derivation take, bytes: that of libsodium's most
/// expensive preset.
const MEMORY_BYTES_MAX: u64 = 1 << 30;

/// Most passes of a key derivation: 16 times as many as in that preset.
const OPS_MAX: u64 = 64;

/// Key or passphrase of the caller.
#[derive(Clone)]
pub enum Secret {
    /// The key itself.
    Key(Key),
    /// Passphrase that the key is derived from.
    Passphrase(Zeroizing<Vec<u8>>),
}

/// Key of tensors.
#[derive(Clone)]
pub struct Key(Zeroizing<[u8; KEY_BYTES]>);

/// Reason why a tensor is not decrypted. Never shows a key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecryptError {
    /// A key has another length.
    #[error("found a key of {found} bytes, wanted {KEY_BYTES}")]
    KeyLength {
        /// Length of the key.
        found: usize,
    },
    /// There is a passphrase, and the file was encrypted with a key.
    #[error("found a passphrase, wanted the key: it was not derived from a passphrase")]
    NotDerived,
    /// Parameters of the key derivation that are not known, or too expensive.
    #[error("{what} of the key derivation: found {found}, wanted {wanted}")]
    Derivation {
        /// Parameter.
        what: &'static str,
        /// Its value.
        found: String,
        /// Allowed values.
        wanted: String,
    },
    /// A box does not match its authenticator.
    #[error("box {index} of {count} does not match its authenticator")]
    Box {
        /// Number of the box in its tensor.
        index: usize,
        /// Number of boxes.
        count: usize,
    },
}

impl Key {
    /// Creates a key from its bytes.
    ///
    /// # Errors
    ///
    /// [`DecryptError::KeyLength`].
    pub fn new(bytes: &[u8]) -> Result<Self, DecryptError> {
        let found = bytes.len();
        let bytes: [u8; KEY_BYTES] = bytes
            .try_into()
            .map_err(|_| DecryptError::KeyLength { found })?;
        Ok(Self(Zeroizing::new(bytes)))
    }

    /// Decrypts box `index` in place.
    ///
    /// # Errors
    ///
    /// [`DecryptError::Box`]: the key is another one, or the box is damaged. The bytes are then
    /// undefined.
    ///
    /// # Panics
    ///
    /// Panics if there is no such box.
    pub fn open(&self, boxes: &Boxes, index: usize, bytes: &mut [u8]) -> Result<(), DecryptError> {
        let cipher = XSalsa20Poly1305::new((&*self.0).into());
        let nonce = counted(boxes.nonce, index as u64);
        let mac = Tag::from_slice(&boxes.macs[index]);
        let opened = cipher.decrypt_in_place_detached((&nonce).into(), b"", bytes, mac);
        opened.map_err(|_| DecryptError::Box {
            index,
            count: boxes.count(),
        })
    }
}

impl Secret {
    /// Returns the key for a tensor. Deriving it takes a second or so: callers keep it for tensors
    /// with equal [`Encryption::derivation`].
    ///
    /// # Errors
    ///
    /// [`DecryptError::NotDerived`] and [`DecryptError::Derivation`].
    pub fn key(&self, encryption: &Encryption) -> Result<Key, DecryptError> {
        match (self, &encryption.derivation) {
            (Self::Key(key), _) => Ok(key.clone()),
            (Self::Passphrase(_), None) => Err(DecryptError::NotDerived),
            (Self::Passphrase(passphrase), Some(derivation)) => derivation.key(passphrase),
        }
    }
}

impl Derivation {
    fn key(&self, passphrase: &[u8]) -> Result<Key, DecryptError> {
        let wrong = |what, found: String, wanted: &str| DecryptError::Derivation {
            what,
            found,
            wanted: wanted.to_owned(),
        };
        if self.algorithm != ARGON2ID13 {
            let wanted = "2, Argon2id";
            return Err(wrong("algorithm", self.algorithm.to_string(), wanted));
        }
        if self.salt.len() != SALT_BYTES {
            let found = format!("{} bytes", self.salt.len());
            return Err(wrong("salt", found, "16"));
        }
        if self.memory_bytes > MEMORY_BYTES_MAX {
            let found = format!("{} bytes", self.memory_bytes);
            return Err(wrong("memory", found, "at most 1 GiB"));
        }
        if self.ops == 0 || self.ops > OPS_MAX {
            return Err(wrong("passes", self.ops.to_string(), "1 to 64"));
        }
        let (memory, ops) = (self.memory_bytes >> 10, self.ops);
        let [memory, ops] = [memory, ops].map(|it| u32::try_from(it).expect("bounded above"));
        let params = Params::new(memory, ops, 1, Some(KEY_BYTES))
            .map_err(|error| wrong("parameters", error.to_string(), "those of libsodium"))?;
        let argon2 = Argon2::new(Algorithm::Argon2id, Version::V0x13, params);
        let mut key = Zeroizing::new([0; KEY_BYTES]);
        argon2
            .hash_password_into(passphrase, &self.salt, &mut *key)
            .map_err(|error| wrong("passphrase", error.to_string(), "another one"))?;
        Ok(Key(key))
    }
}

/// Returns the nonce that is greater by `index`: libsodium's order is little-endian.
fn counted<const N: usize>(mut nonce: [u8; N], index: u64) -> [u8; N] {
    let mut carry = u128::from(index);
    for byte in &mut nonce {
        carry += u128::from(*byte);
        *byte = carry.to_le_bytes()[0];
        carry >>= 8;
    }
    nonce
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(…)")
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Key(_) => "Key(…)",
            Self::Passphrase(_) => "Passphrase(…)",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nonces_count_in_little_endian_order_with_carries() {
        assert_eq!(counted([255, 255, 0], 1), [0, 0, 1]);
        assert_eq!(counted([254, 0, 0], 0x1_0003), [1, 1, 1]);
        assert_eq!(counted([255; 3], 2), [1, 0, 0]);
    }

    #[test]
    fn boxes_are_opened_each_with_its_nonce() {
        let (size, nonce) = (1024, [255; 24]);
        let plain: Vec<u8> = (0..2500_u32).map(|it| it.to_le_bytes()[0]).collect();
        let mut bytes = plain.clone();
        let cipher = XSalsa20Poly1305::new(&[7; KEY_BYTES].into());
        let macs = bytes.chunks_mut(size).enumerate().map(|(at, own)| {
            let nonce = counted(nonce, at as u64);
            let mac = cipher.encrypt_in_place_detached((&nonce).into(), b"", own);
            mac.expect("short").into()
        });
        let boxes = Boxes {
            box_bytes: size as u64,
            macs: macs.collect(),
            byte_len: bytes.len() as u64,
            nonce,
        };
        let key = Key::new(&[7; KEY_BYTES]).expect("32 bytes");
        let own = |at: usize| at * size..bytes.len().min((at + 1) * size);
        for at in 0..boxes.count() {
            let range = boxes.range(at);
            assert_eq!(range, own(at).start as u64..own(at).end as u64);
            let mut opened = bytes[own(at)].to_vec();
            key.open(&boxes, at, &mut opened).expect("as it was closed");
            assert_eq!(opened, plain[own(at)]);
            // Exchanged boxes do not match.
            let mut other = bytes[own((at + 1) % 2)].to_vec();
            let wrong = key.open(&boxes, at, &mut other).expect_err("another one");
            assert_eq!(
                wrong,
                DecryptError::Box {
                    index: at,
                    count: 3
                }
            );
        }
    }

    #[test]
    fn secrets_are_not_shown() {
        let key = Key::new(&[0x55; 32]).expect("32 bytes");
        let passphrase = Secret::Passphrase(Zeroizing::new(b"horse".to_vec()));
        for text in [
            format!("{key:?}"),
            format!("{:?}", Secret::Key(key)),
            format!("{passphrase:?}"),
        ] {
            assert!(!text.contains("55") && !text.contains("85") && !text.contains("horse"));
        }
    }
}
