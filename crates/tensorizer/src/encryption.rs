//! Encryption, as the header of a tensor describes it: key derivation, and the boxes that the bytes
//! are in.

use std::ops::Range;

use crate::error::FormatError;
use crate::reader::Reader;

/// Largest box that is opened, bytes: a box is in memory as a whole, since its authenticator stands
/// for all of it. Tensorizer makes boxes of 2 MiB.
pub const BOX_BYTES_MAX: u64 = 64 << 20;

/// Derivation of a key from a passphrase.
const KEY_DERIVATION: u16 = 1;
/// Boxes of one size, whose nonces are consecutive numbers.
const PARALLEL: u16 = 2;
/// One box.
const SEQUENTIAL: u16 = 3;

/// The only derivation: libsodium's `crypto_pwhash`.
const PWHASH: u16 = 1;

pub(crate) const NONCE_BYTES: usize = 24;
pub(crate) const MAC_BYTES: usize = 16;

/// Encryption of one tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Encryption {
    /// Derivation of the key, if it comes from a passphrase.
    pub derivation: Option<Derivation>,
    /// Boxes that hold its bytes.
    pub boxes: Boxes,
}

/// Parameters of libsodium's `crypto_pwhash`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Derivation {
    /// Number of passes.
    pub ops: u64,
    /// Memory, bytes.
    pub memory_bytes: u64,
    /// Algorithm: 2 is Argon2id, version 1.3.
    pub algorithm: i32,
    /// Salt.
    pub salt: Vec<u8>,
}

/// Boxes, as those of libsodium's `crypto_secretbox`: ciphertext as long as the plain text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Boxes {
    /// Bytes of each box but the last one.
    pub box_bytes: u64,
    /// Bytes of all boxes.
    pub byte_len: u64,
    /// Nonce of the first box. That of the next one is greater by one, in little-endian order.
    pub(crate) nonce: [u8; NONCE_BYTES],
    /// Authenticator of each box.
    pub(crate) macs: Vec<[u8; MAC_BYTES]>,
}

impl Boxes {
    /// Returns how many boxes there are.
    pub fn count(&self) -> usize {
        self.macs.len()
    }

    /// Returns the range of a box among the bytes of its tensor.
    pub fn range(&self, index: usize) -> Range<u64> {
        let start = (index as u64).saturating_mul(self.box_bytes);
        let end = start.saturating_add(self.box_bytes);
        start.min(self.byte_len)..end.min(self.byte_len)
    }
}

/// Reads what a header says about the encryption of a tensor of `byte_len` bytes; `None` if it is
/// not encrypted, which tensors without bytes are not.
pub(crate) fn encryption(
    reader: &mut Reader<'_>,
    byte_len: u64,
) -> Result<Option<Encryption>, FormatError> {
    let start = reader.at();
    let count = reader.u16("its number of parts")?;
    let mut derivation = None;
    let mut boxes = None;
    for _ in 0..count {
        let len = reader.u64("the length of a part")?;
        let mut own = reader.inner(len, "a part of the encryption")?;
        let at = own.at();
        let is_second = match own.u16("its kind")? {
            KEY_DERIVATION => derivation.replace(pwhash(&mut own)?).is_some(),
            PARALLEL => boxes.replace(parallel(&mut own, byte_len)?).is_some(),
            SEQUENTIAL => boxes.replace(sequential(&mut own, byte_len)?).is_some(),
            other => return Err(own.invalid(at, "part of the encryption", &other, "1, 2 or 3")),
        };
        own.end()?;
        if is_second {
            return Err(own.invalid(at, "parts of the encryption", &"two of a kind", "one"));
        }
    }
    reader.end()?;
    match boxes {
        Some(boxes) => Ok(Some(Encryption { derivation, boxes })),
        None if count == 0 => Ok(None),
        None => Err(reader.invalid(start, "parts of the encryption", &"no boxes", "some")),
    }
}

fn pwhash(reader: &mut Reader<'_>) -> Result<Derivation, FormatError> {
    let what = "a key derivation";
    let at = reader.at();
    let method = reader.u16(what)?;
    if method != PWHASH {
        return Err(reader.invalid(at, "method of key derivation", &method, "1"));
    }
    Ok(Derivation {
        ops: reader.u64(what)?,
        memory_bytes: reader.u64(what)?,
        algorithm: i32::from_le_bytes(reader.u32(what)?.to_le_bytes()),
        salt: reader.sized(what)?.to_vec(),
    })
}

fn parallel(reader: &mut Reader<'_>, byte_len: u64) -> Result<Boxes, FormatError> {
    let at = reader.at();
    let box_bytes = reader.u64("the size of boxes")?;
    let nonce = nonce(reader)?;
    let count_at = reader.at();
    let count = reader.u64("the number of boxes")?;
    // One authenticator is for all bytes, as Tensorizer reads it.
    let box_bytes = if count == 1 { byte_len } else { box_bytes };
    if box_bytes == 0 || box_bytes > BOX_BYTES_MAX {
        let wanted = format!("1 to {BOX_BYTES_MAX} bytes");
        return Err(reader.invalid(at, "size of boxes", &box_bytes, wanted));
    }
    let wanted = byte_len.div_ceil(box_bytes);
    if count != wanted {
        let wanted = format!("{wanted} for {byte_len} bytes");
        return Err(reader.invalid(count_at, "number of boxes", &count, wanted));
    }
    let macs = reader.rest();
    reader.take(count.saturating_mul(MAC_BYTES as u64), "authenticators")?;
    let macs = macs.as_chunks::<MAC_BYTES>().0;
    Ok(Boxes {
        box_bytes,
        byte_len,
        nonce,
        macs: macs.to_vec(),
    })
}

fn sequential(reader: &mut Reader<'_>, byte_len: u64) -> Result<Boxes, FormatError> {
    let at = reader.at();
    let nonce = nonce(reader)?;
    let mac = reader.take(MAC_BYTES as u64, "an authenticator")?;
    if byte_len == 0 || byte_len > BOX_BYTES_MAX {
        let wanted = format!("1 to {BOX_BYTES_MAX} bytes");
        return Err(reader.invalid(at, "size of the box", &byte_len, wanted));
    }
    Ok(Boxes {
        box_bytes: byte_len,
        byte_len,
        nonce,
        macs: vec![mac.try_into().expect("as many as were taken")],
    })
}

fn nonce(reader: &mut Reader<'_>) -> Result<[u8; NONCE_BYTES], FormatError> {
    let nonce = reader.take(NONCE_BYTES as u64, "a nonce")?;
    Ok(nonce.try_into().expect("as many as were taken"))
}
