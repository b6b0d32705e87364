//! Chunks of a xorb as they arrive: header, scheme, lengths. Pure.
//!
//! Each has a header of 8 bytes: version, length as sent (3 bytes, little endian), scheme of
//! compression, length (3 bytes); see <https://huggingface.co/docs/xet/xorb>, and
//! `xorb_object/xorb_chunk_format.rs` and `compression_scheme.rs` of xet-core-structures 1.6.

use std::io::Read;

use bytes::{Buf, Bytes, BytesMut};
use lz4_flex::frame::FrameDecoder;

/// Longest chunk: `MAX_CHUNK_SIZE` in `xorb_object/constants.rs` of xet-core-structures 1.6.
pub(super) const UNPACKED_MAX: usize = 128 << 10;

/// Longest chunk as it is sent, with its header: writers may double it, `XorbChunkHeader::validate`
/// says.
pub(super) const PACKED_MAX: usize = HEADER_LEN + 2 * UNPACKED_MAX;

const HEADER_LEN: usize = 8;

#[derive(Clone, Copy)]
enum Scheme {
    Plain,
    /// One LZ4 frame.
    Lz4,
    /// One LZ4 frame of the bytes sorted by their offset modulo 4.
    GroupedLz4,
}

#[derive(Clone, Copy)]
struct Header {
    packed: usize,
    scheme: Scheme,
    unpacked: usize,
}

impl Header {
    fn parse(bytes: [u8; HEADER_LEN]) -> Result<Self, String> {
        let number = |at: usize| {
            let [low, middle, high] = [bytes[at], bytes[at + 1], bytes[at + 2]];
            u32::from_le_bytes([low, middle, high, 0]) as usize
        };
        let (version, packed, scheme, unpacked) = (bytes[0], number(1), bytes[4], number(5));
        if version != 0 {
            return Err(format!("a chunk has version {version}, which is unknown"));
        }
        let scheme = match scheme {
            0 => Scheme::Plain,
            1 => Scheme::Lz4,
            2 => Scheme::GroupedLz4,
            other => return Err(format!("a chunk has scheme {other}, which is unknown")),
        };
        let is_plain = matches!(scheme, Scheme::Plain);
        let is_sane = (1..=PACKED_MAX - HEADER_LEN).contains(&packed)
            && (1..=UNPACKED_MAX).contains(&unpacked)
            && (!is_plain || packed == unpacked);
        if !is_sane {
            return Err(format!(
                "a chunk has the impossible lengths {packed} and {unpacked}"
            ));
        }
        Ok(Self {
            packed,
            scheme,
            unpacked,
        })
    }
}

/// Bytes of a xorb that have arrived and have not been unpacked.
#[derive(Default)]
pub(super) struct Unpacker {
    arrived: BytesMut,
    header: Option<Header>,
}

impl Unpacker {
    /// Returns the number of bytes that are not unpacked.
    #[cfg(feature = "testing")]
    pub(super) fn waiting(&self) -> usize {
        self.arrived.len()
    }

    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.arrived.extend_from_slice(bytes);
    }

    /// Returns the length of the next chunk, once all of it has arrived.
    pub(super) fn next_len(&mut self) -> Result<Option<usize>, String> {
        if self.header.is_none()
            && let Some(header) = self.arrived.first_chunk()
        {
            self.header = Some(Header::parse(*header)?);
            self.arrived.advance(HEADER_LEN);
        }
        let header = self
            .header
            .filter(|header| header.packed <= self.arrived.len());
        Ok(header.map(|header| header.unpacked))
    }

    /// Drops the next chunk, which has arrived.
    pub(super) fn skip(&mut self) {
        if let Some(header) = self.header.take() {
            self.arrived.advance(header.packed);
        }
    }

    /// Unpacks the next chunk, which has arrived.
    pub(super) fn unpack(&mut self) -> Result<Bytes, String> {
        let Some(header) = self.header.take() else {
            return Ok(Bytes::new());
        };
        let packed = self.arrived.split_to(header.packed).freeze();
        match header.scheme {
            Scheme::Plain => Ok(packed),
            Scheme::Lz4 => lz4(&packed, header.unpacked).map(Bytes::from),
            Scheme::GroupedLz4 => {
                let grouped = lz4(&packed, header.unpacked)?;
                Ok(ungrouped(&grouped).into())
            }
        }
    }
}

/// Decodes an LZ4 frame of `len` bytes.
fn lz4(packed: &[u8], len: usize) -> Result<Vec<u8>, String> {
    let mut decoder = FrameDecoder::new(packed);
    let mut bytes = vec![0; len];
    let read = decoder.read_exact(&mut bytes);
    let behind = read.and_then(|()| decoder.read(&mut [0]));
    match behind {
        Ok(0) if decoder.get_ref().is_empty() => Ok(bytes),
        Ok(_) => Err(format!("a chunk is longer than its {len} bytes")),
        // The text of LZ4's error is left out: it adds only details of the format.
        Err(_) => Err("a chunk is not valid LZ4".to_owned()),
    }
}

/// Interleaves the four groups of bytes that lie one after the other. The groups of the 6 bytes
/// `abcdef` are `ae bf c d`.
fn ungrouped(grouped: &[u8]) -> Vec<u8> {
    let (quarter, rest) = (grouped.len() / 4, grouped.len() % 4);
    let mut bytes = vec![0; grouped.len()];
    let mut behind = grouped;
    let groups = [0, 1, 2, 3].map(|group| {
        let (first, others) = behind.split_at(quarter + usize::from(group < rest));
        behind = others;
        first
    });
    let [a, b, c, d] = groups;
    let quads = bytes
        .chunks_exact_mut(4)
        .zip(a.iter().zip(b))
        .zip(c.iter().zip(d));
    for ((quad, (a, b)), (c, d)) in quads {
        quad.copy_from_slice(&[*a, *b, *c, *d]);
    }
    for (byte, group) in bytes[4 * quarter..].iter_mut().zip(groups) {
        *byte = group[quarter];
    }
    bytes
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use lz4_flex::frame::FrameEncoder;

    use super::*;

    fn frame(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = FrameEncoder::new(Vec::new());
        encoder.write_all(bytes).expect("to memory");
        encoder.finish().expect("to memory")
    }

    fn packed(version: u8, scheme: u8, body: &[u8], unpacked: usize) -> Vec<u8> {
        let three = |len: usize| u32::try_from(len).expect("short").to_le_bytes();
        let mut bytes = vec![version];
        bytes.extend_from_slice(&three(body.len())[..3]);
        bytes.push(scheme);
        bytes.extend_from_slice(&three(unpacked)[..3]);
        bytes.extend_from_slice(body);
        bytes
    }

    fn grouped(bytes: &[u8]) -> Vec<u8> {
        (0..4)
            .flat_map(|group| bytes.iter().skip(group).step_by(4).copied())
            .collect()
    }

    /// Unpacks everything, arriving in runs of `run` bytes.
    fn unpacked(bytes: &[u8], run: usize) -> Result<Vec<Vec<u8>>, String> {
        let mut unpacker = Unpacker::default();
        let mut found = Vec::new();
        for bytes in bytes.chunks(run) {
            unpacker.push(bytes);
            while let Some(len) = unpacker.next_len()? {
                let bytes = unpacker.unpack()?;
                assert_eq!(bytes.len(), len);
                found.push(bytes.to_vec());
            }
        }
        assert!(unpacker.arrived.is_empty() && unpacker.header.is_none());
        Ok(found)
    }

    #[test]
    fn all_schemes_unpack_in_any_runs() {
        let texts: Vec<Vec<u8>> = (1..12u8)
            .chain([255])
            .map(|len| (0..len).map(|byte| byte % 7).collect())
            .chain([vec![3; UNPACKED_MAX]])
            .collect();
        let mut bytes = Vec::new();
        for text in &texts {
            bytes.extend(packed(0, 0, text, text.len()));
            bytes.extend(packed(0, 1, &frame(text), text.len()));
            bytes.extend(packed(0, 2, &frame(&grouped(text)), text.len()));
        }
        let wanted: Vec<_> = texts
            .iter()
            .flat_map(|text| vec![text.clone(); 3])
            .collect();
        for run in [1, 7, 1000, bytes.len()] {
            assert_eq!(unpacked(&bytes, run).expect("valid"), wanted, "{run}");
        }
    }

    #[test]
    fn groups_of_six_bytes() {
        assert_eq!(ungrouped(b"aebfcd"), b"abcdef");
    }

    #[test]
    fn hostile_headers_are_refused() {
        let text = [5; 100];
        let frame = frame(&text);
        let mut broken = frame.clone();
        broken[0] ^= 1;
        for (bytes, words) in [
            (packed(1, 0, &text, 100), "version 1"),
            (packed(0, 3, &text, 100), "scheme 3"),
            (packed(0, 99, &text, 100), "scheme 99"),
            (packed(0, 0, &text, 99), "lengths 100 and 99"),
            (packed(0, 0, &[], 0), "lengths 0 and 0"),
            (packed(0, 1, &frame, 0), "and 0"),
            (packed(0, 1, &frame, UNPACKED_MAX + 1), "and 131073"),
            (packed(0, 1, &vec![0; PACKED_MAX], 100), "lengths 262152"),
            (packed(0, 1, &frame, 99), "longer than its 99"),
            (packed(0, 1, &frame, 101), "not valid LZ4"),
            (
                packed(0, 1, &frame[..frame.len() - 9], 100),
                "not valid LZ4",
            ),
            (
                packed(0, 1, &[&frame[..], b"x"].concat(), 100),
                "longer than",
            ),
            (packed(0, 2, &broken, 100), "not valid LZ4"),
        ] {
            let error = unpacked(&bytes, 4096).expect_err(words);
            assert!(error.contains(words), "{error}");
        }
    }
}
