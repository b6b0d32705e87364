//! Frames: the headers of messages between the leaders of nodes. Pure.

use crate::crc::Polynomial;

/// Length of a frame, bytes.
pub(super) const FRAME_BYTES: usize = 40;

/// First bytes of every frame: the other end speaks the same protocol, and nothing was lost.
const MARK: u32 = 0x7470_6c64;

/// Longest payload of a frame that does not announce bytes of a fetch.
pub(super) const PAYLOAD_MAX: u64 = 256 << 20;

/// Meaning of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// The ranges that the sender's node wants are the payload.
    Wants,
    /// The sender wants bytes of `source` for its `extent`; the ranges are the payload.
    Fetch,
    /// Bytes for the receiver's `extent`, at `offset` in the source, are the payload.
    Bytes,
    /// Bytes for the receiver's `extent` are no longer kept.
    Gone,
    /// Everything that the sender reads for others has been read, and verified if requested.
    Whole,
    /// The sender has failed; the error is the payload.
    Failed,
    /// The sender needs nothing more.
    Done,
    /// The sender sends nothing more.
    Bye,
    /// The sender runs.
    Alive,
}

const KINDS: [Kind; 9] = [
    Kind::Wants,
    Kind::Fetch,
    Kind::Bytes,
    Kind::Gone,
    Kind::Whole,
    Kind::Failed,
    Kind::Done,
    Kind::Bye,
    Kind::Alive,
];

/// Header of one message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Frame {
    pub(super) kind: Kind,
    /// Index of a source of the checkpoint.
    pub(super) source: u32,
    /// The receiver's or sender's name for a fetch.
    pub(super) extent: u64,
    pub(super) offset: u64,
    /// Length of the payload, which follows the frame if it is not 0.
    pub(super) len: u64,
    /// CRC-32C of this frame, with 0 in this place, and of the payload.
    pub(super) crc: u32,
}

impl Frame {
    /// Creates a frame without a payload.
    pub(super) fn new(kind: Kind) -> Self {
        Self {
            kind,
            source: 0,
            extent: 0,
            offset: 0,
            len: 0,
            crc: 0,
        }
    }

    /// Adds the length and the checksum of a payload.
    #[must_use]
    pub(super) fn with_payload(mut self, payload: &[u8]) -> Self {
        self.len = payload.len() as u64;
        self.crc = self.checksum(payload);
        self
    }

    /// Computes the checksum of this frame and a payload.
    pub(super) fn checksum(&self, payload: &[u8]) -> u32 {
        let frame = Self { crc: 0, ..*self }.encode();
        u32::try_from(Polynomial::Crc32c.checksum(&[&frame, payload])).expect("32 bits")
    }

    pub(super) fn encode(&self) -> [u8; FRAME_BYTES] {
        let place = KINDS.iter().position(|kind| *kind == self.kind);
        let kind = u32::try_from(place.expect("listed")).expect("few");
        let mut bytes = [0; FRAME_BYTES];
        bytes[..4].copy_from_slice(&MARK.to_le_bytes());
        bytes[4..8].copy_from_slice(&kind.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.source.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.crc.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.extent.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.offset.to_le_bytes());
        bytes[32..].copy_from_slice(&self.len.to_le_bytes());
        bytes
    }

    /// Decodes a frame; `None` if `bytes` are not a valid one.
    pub(super) fn decode(bytes: &[u8; FRAME_BYTES]) -> Option<Self> {
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap_or_default());
        let long = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap_or_default());
        (word(0) == MARK).then_some(())?;
        Some(Self {
            kind: *KINDS.get(word(4) as usize)?,
            source: word(8),
            crc: word(12),
            extent: long(16),
            offset: long(24),
            len: long(32),
        })
    }
}

/// Writes ranges as a payload.
pub(super) fn encode_ranges(ranges: &[std::ops::Range<u64>]) -> Vec<u8> {
    let ends = ranges.iter().flat_map(|range| [range.start, range.end]);
    ends.flat_map(u64::to_le_bytes).collect()
}

/// Reads ranges from a payload; `None` for bytes that are no ranges.
pub(super) fn decode_ranges(payload: &[u8]) -> Option<Vec<std::ops::Range<u64>>> {
    let long = |bytes: &[u8]| Some(u64::from_le_bytes(bytes.try_into().ok()?));
    let ranges = payload.chunks(16).map(|bytes| {
        let (start, end) = bytes.split_at_checked(8)?;
        let (start, end) = (long(start)?, long(end)?);
        (start < end).then_some(start..end)
    });
    ranges.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksum_covers_frame_and_payload() {
        let frame = Frame {
            extent: 3,
            offset: 1 << 20,
            ..Frame::new(Kind::Bytes)
        };
        let frame = frame.with_payload(b"payload");
        assert_eq!((frame.len, frame.crc), (7, frame.checksum(b"payload")));
        assert_ne!(frame.crc, frame.checksum(b"pay1oad"));
        for bit in 0..8 * FRAME_BYTES {
            let mut bytes = frame.encode();
            bytes[bit / 8] ^= 1 << (bit % 8);
            let Some(damaged) = Frame::decode(&bytes) else {
                continue;
            };
            assert_ne!(damaged.crc, damaged.checksum(b"payload"), "bit {bit}");
        }
    }

    #[test]
    fn frames_and_ranges_round_trip() {
        for kind in KINDS {
            let frame = Frame {
                kind,
                source: 1,
                extent: u64::MAX,
                offset: 2,
                len: 3,
                crc: u32::MAX,
            };
            assert_eq!(Frame::decode(&frame.encode()), Some(frame));
        }
        let ranges = [0..1, 5..u64::MAX];
        assert_eq!(
            decode_ranges(&encode_ranges(&ranges)).as_deref(),
            Some(&ranges[..])
        );
    }

    #[test]
    fn other_bytes_are_neither() {
        assert_eq!(Frame::decode(&[0; FRAME_BYTES]), None);
        let mut bytes = Frame::new(Kind::Alive).encode();
        bytes[4] = 9;
        assert_eq!(Frame::decode(&bytes), None);
        assert_eq!(decode_ranges(&[0; 16]), None, "empty");
        assert_eq!(
            decode_ranges(&encode_ranges(std::slice::from_ref(&(0..1)))[..15]),
            None
        );
    }
}
