//! Checks of what a content store sends, for the fuzz target `xet`: any bytes are refused, or are
//! terms and chunks within their limits.

use std::io::Write;

use bytes::Bytes;
use lz4_flex::frame::FrameEncoder;

use super::terms::{self, Version};
use super::unpack::{PACKED_MAX, UNPACKED_MAX, Unpacker};

/// Chunks of some bytes, and why the next one is refused.
type Unpacked = (Vec<Bytes>, Option<String>);

/// Checks `input` as a reconstruction, as the chunks of a xorb, and as the contents of chunks.
///
/// # Panics
///
/// Panics if terms lie outside of the range or their places, if chunks depend on the runs in which
/// they arrive, or if contents come back changed.
pub fn assert_content_store_is_bounded(input: &[u8]) {
    for len in [1, 100, 4 << 20] {
        for version in [Version::One, Version::Two] {
            assert_terms_cover(input, version, len);
        }
    }
    let run = 1 + usize::from(input.first().copied().unwrap_or_default());
    let at_once = unpacked(input, usize::MAX);
    assert_eq!(unpacked(input, run), at_once, "in runs of {run} bytes");
    if let Some(refusal) = at_once.1 {
        assert!(refusal.len() < 200, "{refusal}");
    }
    assert_contents_come_back(&input[..input.len().min(UNPACKED_MAX)]);
}

fn assert_terms_cover(answer: &[u8], version: Version, len: u64) {
    let steps = match terms::parse(answer, version, len) {
        Ok(steps) => steps,
        Err(refusal) => {
            assert!(refusal.len() < 200, "{refusal}");
            return;
        }
    };
    let mut behind = 0;
    for (index, step) in steps.iter().enumerate() {
        assert!(behind < len, "term {index} lies behind the range");
        assert!(step.bytes.start < step.bytes.end, "an empty request");
        assert!(step.skip == 0 || index == 0, "a gap in front of {index}");
        assert!(step.skip < step.unpacked, "term {index} lies in front");
        let chunks = u64::from(step.count);
        assert!(step.unpacked <= chunks * UNPACKED_MAX as u64);
        assert!(step.leading.checked_add(step.count).is_some());
        behind += step.unpacked - step.skip;
    }
    assert!(behind >= len, "{behind} of {len} bytes");
}

/// Unpacks bytes that arrive in runs of `run` bytes.
fn unpacked(bytes: &[u8], run: usize) -> Unpacked {
    let mut unpacker = Unpacker::default();
    let mut found = Vec::new();
    for bytes in bytes.chunks(run) {
        unpacker.push(bytes);
        loop {
            let chunk = match unpacker.next_len() {
                Ok(None) => break,
                Ok(Some(len)) => unpacker.unpack().map(|chunk| (len, chunk)),
                Err(refusal) => Err(refusal),
            };
            match chunk {
                Ok((len, chunk)) => {
                    assert!((1..=UNPACKED_MAX).contains(&len) && chunk.len() == len);
                    found.push(chunk);
                }
                Err(refusal) => return (found, Some(refusal)),
            }
        }
        assert!(unpacker.waiting() < PACKED_MAX, "a chunk that is too long");
    }
    (found, None)
}

/// Packs `contents` by each scheme, with a library of its own, and unpacks them.
fn assert_contents_come_back(contents: &[u8]) {
    if contents.is_empty() {
        return;
    }
    let grouped: Vec<u8> = (0..4)
        .flat_map(|group| contents.iter().skip(group).step_by(4).copied())
        .collect();
    let bodies = [contents.to_vec(), lz4(contents), lz4(&grouped)];
    let mut xorb = Vec::new();
    for (scheme, body) in (0u8..).zip(&bodies) {
        let three = |len: usize| len.to_le_bytes().into_iter().take(3);
        xorb.push(0);
        xorb.extend(three(body.len()));
        xorb.push(scheme);
        xorb.extend(three(contents.len()));
        xorb.extend_from_slice(body);
    }
    let wanted = Bytes::copy_from_slice(contents);
    assert_eq!(unpacked(&xorb, 4096), (vec![wanted; 3], None));
}

fn lz4(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = FrameEncoder::new(Vec::new());
    let written = encoder.write_all(bytes);
    written.expect("memory takes all that is written");
    encoder.finish().expect("memory takes all that is written")
}
