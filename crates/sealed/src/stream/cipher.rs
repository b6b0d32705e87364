//! Key of one file: opens and seals its segments.

use std::fmt;

use aws_lc_rs::aead::{AES_128_GCM, AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use aws_lc_rs::hkdf::{HKDF_SHA256, Salt};

use super::header::PREFIX_BYTES;
use super::{Algorithm, Header, Segment, TAG_BYTES};

/// Key of one file, which is derived from the main key. Cleared when it is dropped, by aws-lc.
pub struct FileKey {
    key: LessSafeKey,
    prefix: [u8; PREFIX_BYTES],
}

/// Error of a segment that was not sealed by this key in this place, or that was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unauthentic;

impl FileKey {
    /// Derives the key of the file with this header, from a main key of the algorithm's length.
    ///
    /// # Panics
    ///
    /// For a main key of another length.
    #[must_use]
    pub fn derive(main: &[u8], header: &Header, associated: &[u8]) -> Self {
        let algorithm = header.algorithm();
        assert_eq!(main.len(), algorithm.key_bytes(), "a key of another length");
        let cipher = match algorithm {
            Algorithm::Aes256 => &AES_256_GCM,
            Algorithm::Aes128 => &AES_128_GCM,
        };
        let extracted = Salt::new(HKDF_SHA256, header.salt()).extract(main);
        let info = [associated];
        let derived = extracted.expand(&info, cipher).expect("a short output");
        Self {
            key: LessSafeKey::new(UnboundKey::from(derived)),
            prefix: header.prefix(),
        }
    }

    fn nonce(&self, number: u32, is_last: bool) -> Nonce {
        let mut nonce = [0; NONCE_LEN];
        nonce[..PREFIX_BYTES].copy_from_slice(&self.prefix);
        nonce[PREFIX_BYTES..NONCE_LEN - 1].copy_from_slice(&number.to_be_bytes());
        nonce[NONCE_LEN - 1] = is_last.into();
        Nonce::assume_unique_for_key(nonce)
    }

    /// Opens a segment to `opened`, which is as long as what the segment holds.
    ///
    /// # Errors
    ///
    /// [`Unauthentic`]; `opened` is then cleared, so that no byte of it can be mistaken for one of
    /// the file.
    pub fn open(
        &self,
        segment: &Segment,
        sealed: &[u8],
        opened: &mut [u8],
    ) -> Result<(), Unauthentic> {
        let Some(text_len) = sealed.len().checked_sub(TAG_BYTES) else {
            return Err(Unauthentic);
        };
        let (text, tag) = sealed.split_at(text_len);
        let nonce = self.nonce(segment.number, segment.is_last);
        let open = self
            .key
            .open_separate_gather(nonce, Aad::empty(), text, tag, opened);
        open.map_err(|_| {
            opened.fill(0);
            Unauthentic
        })
    }

    /// Opens a segment in place, and returns what it holds.
    ///
    /// # Errors
    ///
    /// [`Unauthentic`]; `sealed` is then cleared.
    pub fn open_in_place<'a>(
        &self,
        segment: &Segment,
        sealed: &'a mut [u8],
    ) -> Result<&'a [u8], Unauthentic> {
        let nonce = self.nonce(segment.number, segment.is_last);
        let opened_len = match self.key.open_in_place(nonce, Aad::empty(), sealed) {
            Ok(opened) => Some(opened.len()),
            Err(_) => None,
        };
        let Some(opened_len) = opened_len else {
            sealed.fill(0);
            return Err(Unauthentic);
        };
        Ok(&sealed[..opened_len])
    }

    /// Seals the segment of this number in place, and returns its tag.
    #[must_use]
    pub fn seal_in_place(&self, number: u32, is_last: bool, bytes: &mut [u8]) -> [u8; TAG_BYTES] {
        let nonce = self.nonce(number, is_last);
        let sealed = self
            .key
            .seal_in_place_separate_tag(nonce, Aad::empty(), bytes);
        let tag = sealed.expect("a segment is far below the cipher's limit");
        let mut kept = [0; TAG_BYTES];
        kept.copy_from_slice(tag.as_ref());
        kept
    }
}

impl fmt::Debug for FileKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileKey").finish_non_exhaustive()
    }
}

impl fmt::Display for Unauthentic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the tag does not match")
    }
}

impl std::error::Error for Unauthentic {}
