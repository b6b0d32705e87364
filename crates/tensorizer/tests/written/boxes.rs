//! Writes encrypted files as the package tensorizer does, version 4, with as many boxes as a test
//! wants. The recorded files have small tensors only.

use crypto_secretbox::XSalsa20Poly1305;
use crypto_secretbox::aead::{AeadInPlace, KeyInit};
use sha2::{Digest as _, Sha256};

/// Key of the files.
pub(crate) const KEY: [u8; 32] = [0x5a; 32];

/// A file of one-dimensional tensors of bytes, and where everything is in it.
pub(crate) struct BoxedFile {
    pub(crate) bytes: Vec<u8>,
    pub(crate) tensors: Vec<Places>,
}

/// Positions of the first byte of each kind of place of a tensor.
pub(crate) struct Places {
    pub(crate) header: usize,
    pub(crate) sha256: usize,
    pub(crate) nonce: usize,
    pub(crate) macs: usize,
    pub(crate) start: usize,
}

fn sized(text: &[u8]) -> Vec<u8> {
    let len = u16::try_from(text.len()).expect("short").to_le_bytes();
    [&len[..], text].concat()
}

fn long(number: usize) -> [u8; 8] {
    (number as u64).to_le_bytes()
}

/// Adds one to a number in little-endian order.
fn count_up(nonce: &mut [u8; 24]) {
    for byte in nonce {
        *byte = byte.wrapping_add(1);
        if *byte != 0 {
            return;
        }
    }
}

/// Header of a tensor, and its positions relative to the header.
struct Header {
    bytes: Vec<u8>,
    places: Places,
    stored: Vec<u8>,
}

impl Header {
    /// Encrypts the tensor `own`, whose name and shape are as headers have them.
    fn new(number: usize, [name, shape]: [&[u8]; 2], own: &[u8], box_bytes: usize) -> Self {
        let count = own.len().div_ceil(box_bytes);
        // The method: its kind, size and number of boxes, nonce, authenticators.
        let method = 2 + 8 + 24 + 8 + 16 * count;
        let encryption = 2 + 8 + method;
        let len = 8 + 2 + 1 + name.len() + shape.len() + 2 + 1 + 6 + 34 + 8 + encryption + 8;
        let mut header = long(len).to_vec();
        header.extend(u16::try_from(number).expect("few").to_le_bytes());
        header.extend([&[1][..], name, shape].concat());
        header.extend([41, 0, 2, 0, 4]);
        let crc = header.len();
        header.extend([0, 0, 0, 0, 1, 32]);
        let sha256 = header.len();
        header.extend([0; 32]);
        let hashed = [&header[..], &long(own.len()), own].concat();
        header[crc..][..4].copy_from_slice(&crc32fast::hash(&hashed).to_le_bytes());
        header[sha256..][..32].copy_from_slice(&Sha256::digest(&hashed));
        header.extend(long(encryption));
        header.extend([1, 0]);
        header.extend(long(method));
        header.extend([2, 0]);
        header.extend(long(box_bytes));
        let nonce_at = header.len();
        // It carries through all bytes soon.
        let mut nonce = [255_u8; 24];
        nonce[0] = nonce[0].wrapping_sub(u8::try_from(number % 8).expect("few"));
        nonce[23] = u8::try_from(number % 256).expect("few");
        header.extend(nonce);
        header.extend(long(count));
        let macs = header.len();
        let mut stored = own.to_vec();
        let cipher = XSalsa20Poly1305::new(&KEY.into());
        for bytes in stored.chunks_mut(box_bytes) {
            let mac = cipher.encrypt_in_place_detached((&nonce).into(), b"", bytes);
            header.extend(mac.expect("short"));
            count_up(&mut nonce);
        }
        header.extend(long(own.len()));
        assert_eq!(header.len(), len);
        Self {
            bytes: header,
            places: Places {
                header: 0,
                sha256,
                nonce: nonce_at,
                macs,
                start: len,
            },
            stored,
        }
    }
}

impl BoxedFile {
    /// Writes tensors, each in boxes of `box_bytes`.
    pub(crate) fn new(tensors: &[(String, Vec<u8>)], box_bytes: usize) -> Self {
        let described = |(name, own): &(String, Vec<u8>)| {
            let len = u32::try_from(own.len()).expect("short").to_le_bytes();
            let shape = [&[3][..], b"|u1", &[1], &len].concat();
            (sized(name.as_bytes()), shape)
        };
        let entry_len = |tensor| {
            let (name, shape) = described(tensor);
            name.len() + 1 + shape.len() + 24
        };
        let mut at = 73 + tensors.iter().map(entry_len).sum::<usize>();
        let mut index = Vec::new();
        let mut behind = Vec::new();
        let mut places = Vec::new();
        for (number, tensor) in tensors.iter().enumerate() {
            let (name, shape) = described(tensor);
            let header = Header::new(number, [&name, &shape], &tensor.1, box_bytes);
            index.extend([&name[..], &[1], &shape].concat());
            let start = at + header.places.start;
            for place in [at, start, tensor.1.len()] {
                index.extend(long(place));
            }
            places.push(header.places.from(at));
            at = start + header.stored.len();
            behind.extend(header.bytes);
            behind.extend(header.stored);
        }
        let mut bytes = b"|TZR|\x04\0\0\0\x01".to_vec();
        bytes.resize(5 + 4 + 32 + 16, 0);
        bytes.extend(long(tensors.len()));
        bytes.extend(long(index.len()));
        bytes.extend(index);
        bytes.extend(behind);
        bytes.extend([0; 8]);
        Self {
            bytes,
            tensors: places,
        }
    }
}

impl Places {
    /// Returns the positions in a file that has the header at `start`.
    fn from(&self, start: usize) -> Self {
        let Self {
            header,
            sha256,
            nonce,
            macs,
            start: bytes,
        } = *self;
        let [header, sha256, nonce, macs, bytes] =
            [header, sha256, nonce, macs, bytes].map(|at| at + start);
        Self {
            header,
            sha256,
            nonce,
            macs,
            start: bytes,
        }
    }
}
