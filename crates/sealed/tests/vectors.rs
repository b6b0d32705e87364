//! Vectors that Tink for Python wrote: this crate opens them, and seals the same files to the same
//! bytes.

use std::ops::Range;

use aws_lc_rs::digest::{SHA256, digest};
use serde::Deserialize;
use tload_sealed::MainKey;
use tload_sealed::stream::{Algorithm, Header, Layout, Sealer};

#[derive(Deserialize)]
struct Vector {
    algorithm: String,
    keyset: String,
    associated: String,
    /// Length of the file, whose byte `i` is `31 i` modulo 251.
    bytes: usize,
    header: String,
    sealed_bytes: u64,
    sealed_sha256: String,
    /// All of a short file.
    sealed: Option<String>,
}

fn bytes(text: &str) -> Vec<u8> {
    let digit = |at| u8::from_str_radix(&text[at..at + 2], 16).expect("hexadecimal");
    (0..text.len()).step_by(2).map(digit).collect()
}

fn index(range: &Range<u64>) -> Range<usize> {
    let index = |at| usize::try_from(at).expect("in memory");
    index(range.start)..index(range.end)
}

#[test]
fn files_are_sealed_and_opened_as_tink_does() {
    let text = include_str!("vectors.json");
    let vectors: Vec<Vector> = serde_json::from_str(text).expect("valid");
    assert_eq!(vectors.len(), 12);
    for vector in vectors {
        let algorithm = Algorithm::from_name(&vector.algorithm).expect("known");
        let main = MainKey::from_keyset(&vector.keyset).expect("a keyset of Tink");
        assert_eq!(main.algorithm(), algorithm);
        let header = Header::parse(algorithm, &bytes(&vector.header)).expect("a header");
        let key = main.file_key(&header, &bytes(&vector.associated));
        let file: Vec<u8> = (0..vector.bytes)
            .map(|at| (at * 31 % 251).to_le_bytes()[0])
            .collect();
        let layout = Layout::of_opened(algorithm, file.len() as u64).expect("short");
        assert_eq!(layout.sealed_len(), vector.sealed_bytes);
        let own = main.file_key(&header, &bytes(&vector.associated));
        let (mut sealer, mut stored) = (Sealer::new(own, header), Vec::new());
        for piece in file.chunks(1_000_003) {
            sealer.push(piece, &mut stored).expect("short");
        }
        sealer.finish(&mut stored);
        let found = digest(&SHA256, &stored);
        assert_eq!(
            found.as_ref(),
            bytes(&vector.sealed_sha256),
            "{}",
            vector.bytes
        );
        if let Some(theirs) = &vector.sealed {
            assert_eq!(stored, bytes(theirs));
        }
        // From the last segment to the first: any one opens alone.
        for number in (0..=layout.last()).rev() {
            let segment = layout.segment(number);
            let mut opened = vec![0; index(&segment.opened).len()];
            let own = &stored[index(&segment.sealed)];
            key.open(&segment, own, &mut opened).expect("opens");
            assert_eq!(opened, file[index(&segment.opened)]);
        }
    }
}
