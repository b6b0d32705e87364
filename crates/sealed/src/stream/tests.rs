//! Layouts against a plain loop, and faults of every kind at every kind of place.

use std::ops::Range;

use proptest::prelude::*;

use super::*;

/// Seals a whole file.
fn seal(main: &[u8], header: &Header, associated: &[u8], file: &[u8]) -> Vec<u8> {
    let key = FileKey::derive(main, header, associated);
    let layout = Layout::of_opened(header.algorithm(), file.len() as u64).expect("short");
    let mut sealer = Sealer::new(key, *header);
    let mut stored = Vec::new();
    for piece in file.chunks(700_001) {
        sealer.push(piece, &mut stored).expect("short");
    }
    sealer.finish(&mut stored);
    assert_eq!(stored.len() as u64, layout.sealed_len());
    stored
}

/// Opens a whole file.
fn open(
    algorithm: Algorithm,
    main: &[u8],
    associated: &[u8],
    sealed: &[u8],
) -> Result<Vec<u8>, String> {
    let header = Header::parse(algorithm, sealed).map_err(|error| error.to_string())?;
    let key = FileKey::derive(main, &header, associated);
    let layout = Layout::of_sealed(algorithm, sealed.len() as u64);
    let layout = layout.map_err(|error| error.to_string())?;
    let mut file = vec![0xAA; range(&(0..layout.len())).len()];
    for number in 0..=layout.last() {
        let segment = layout.segment(number);
        let to = &mut file[range(&segment.opened)];
        let from = &sealed[range(&segment.sealed)];
        if key.open(&segment, from, to).is_err() {
            assert!(to.iter().all(|byte| *byte == 0), "unchecked bytes are kept");
            return Err(format!("segment {number}"));
        }
        let mut same = from.to_vec();
        assert_eq!(key.open_in_place(&segment, &mut same), Ok(&*to));
    }
    Ok(file)
}

fn range(range: &Range<u64>) -> Range<usize> {
    let index = |at| usize::try_from(at).expect("in memory");
    index(range.start)..index(range.end)
}

fn file_of(len: usize) -> Vec<u8> {
    (0..len)
        .map(|at| (at * 31 % 251).to_le_bytes()[0])
        .collect()
}

/// Lengths around the ends of segments.
const LENGTHS: [usize; 12] = [
    0, 1, 1000, 1_048_519, 1_048_520, 1_048_521, 1_048_536, 1_048_537, 1_048_560, 2_097_080,
    2_097_081, 3_000_000,
];

#[test]
fn sealed_files_open_at_every_length_and_by_both_algorithms() {
    for algorithm in Algorithm::ALL {
        let main = vec![7; algorithm.key_bytes()];
        for len in LENGTHS {
            let file = file_of(len);
            let header = Header::random(algorithm);
            let sealed = seal(&main, &header, b"a", &file);
            assert_eq!(open(algorithm, &main, b"a", &sealed), Ok(file));
        }
    }
}

#[test]
fn worked_example() {
    let layout = Layout::of_opened(Algorithm::Aes256, 3_000_000).expect("short");
    assert_eq!(layout.segments_of(&(1_048_519..1_048_520)), 0..1);
    assert_eq!(layout.segments_of(&(1_048_520..1_048_521)), 1..2);
    assert_eq!(layout.segment(0).sealed, 40..1_048_576);
    assert_eq!(layout.segment(1).sealed.start, 1_048_576);
    assert_eq!(layout.segment(1).opened.start, 1_048_520);
}

#[test]
fn changed_files_do_not_open() {
    let (main, associated) = ([7; 32], b"id/name");
    let file = file_of(2_500_000);
    let header = Header::random(Algorithm::Aes256);
    let sealed = seal(&main, &header, associated, &file);
    let fails = |sealed: &[u8], case: &str| {
        let opened = open(Algorithm::Aes256, &main, associated, sealed);
        assert!(opened.is_err(), "{case}");
    };
    // Length, salt, prefix; text, tag, last byte of each segment.
    let places = [0, 1, 32, 33, 39, 40, 41, 1_048_559, 1_048_560, 1_048_575];
    let later = [1_048_576, 2_097_151, 2_097_152, sealed.len() - 17];
    for place in places.into_iter().chain(later).chain([sealed.len() - 1]) {
        for bit in 0..8 {
            let mut flipped = sealed.clone();
            flipped[place] ^= 1 << bit;
            fails(&flipped, &format!("bit {bit} of byte {place}"));
        }
    }
    for end in [
        0,
        39,
        40,
        55,
        56,
        1_048_576,
        2_097_152,
        2_097_168,
        sealed.len() - 1,
    ] {
        fails(&sealed[..end], &format!("cut at {end}"));
    }
    let mut longer = sealed.clone();
    longer.push(0);
    fails(&longer, "a byte more");
    let mut swapped = sealed.clone();
    swapped[1_048_576..2_097_152].copy_from_slice(&sealed[..1_048_576]);
    fails(&swapped, "a segment twice");
    // Segments of a file that has the same key and associated data, and another header.
    let other = seal(&main, &Header::random(Algorithm::Aes256), associated, &file);
    let mut mixed = sealed.clone();
    mixed[1_048_576..2_097_152].copy_from_slice(&other[1_048_576..2_097_152]);
    fails(&mixed, "a segment of another file");
    assert!(open(Algorithm::Aes256, &main, b"id/other", &sealed).is_err());
    assert!(open(Algorithm::Aes256, &[8; 32], associated, &sealed).is_err());
    assert!(open(Algorithm::Aes128, &main[..16], associated, &sealed).is_err());
}

#[test]
fn exchange_within_a_file_does_not_open() {
    let main = [7; 16];
    let file = vec![5; 4_000_000];
    let header = Header::random(Algorithm::Aes128);
    let mut sealed = seal(&main, &header, b"", &file);
    let (one, two) = sealed.split_at_mut(2 << 20);
    one[1 << 20..].swap_with_slice(&mut two[..1 << 20]);
    let opened = open(Algorithm::Aes128, &main, b"", &sealed);
    assert_eq!(opened, Err("segment 1".to_owned()));
}

#[test]
fn lengths_that_no_file_is_sealed_to_are_refused() {
    for algorithm in Algorithm::ALL {
        let least = algorithm.header_bytes() as u64 + 16;
        let refused = |len| Layout::of_sealed(algorithm, len).is_err();
        assert!((0..least).all(refused));
        assert!(!refused(least));
        // A last segment of a tag alone, and of less.
        assert!((1..=16).all(|more| refused(SEGMENT_BYTES + more)));
        assert!(!refused(SEGMENT_BYTES + 17));
        let most = SEGMENT_BYTES << 32;
        assert!(!refused(most));
        assert!([most + 1, u64::MAX].into_iter().all(refused));
        let longest = Layout::of_sealed(algorithm, most).expect("the longest");
        assert_eq!(longest.last(), u32::MAX);
        assert!(Layout::of_opened(algorithm, longest.len()).is_ok());
        assert!(Layout::of_opened(algorithm, longest.len() + 1).is_err());
    }
}

proptest! {
    /// Every byte is in one segment, in order, and segments follow each other without a gap.
    #[test]
    fn ranges_are_covered(
        len in 0..12_000_000_u64,
        ends in prop::array::uniform2(0.0..=1.0_f64),
        is_long: bool,
    ) {
        let algorithm = if is_long { Algorithm::Aes256 } else { Algorithm::Aes128 };
        let layout = Layout::of_opened(algorithm, len).expect("short");
        let at = |share: f64| {
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_precision_loss,
                clippy::cast_sign_loss,
                reason = "any place will do"
            )]
            let at = (share * len as f64) as u64;
            at.min(len)
        };
        let wanted = at(ends[0]).min(at(ends[1]))..at(ends[0]).max(at(ends[1]));
        let segments = layout.segments_of(&wanted);
        let mut next = None;
        for number in segments.clone() {
            let segment = layout.segment(number);
            prop_assert!(segment.opened.start < wanted.end && wanted.start < segment.opened.end);
            prop_assert_eq!(
                segment.sealed.end - segment.sealed.start,
                segment.opened.end - segment.opened.start + 16
            );
            prop_assert_eq!(number > 0, segment.sealed.start.is_multiple_of(SEGMENT_BYTES));
            let (opened, sealed) = next.unwrap_or((segment.opened.start, segment.sealed.start));
            prop_assert_eq!((segment.opened.start, segment.sealed.start), (opened, sealed));
            next = Some((segment.opened.end, segment.sealed.end));
        }
        if !wanted.is_empty() {
            let first = layout.segment(segments.start);
            let last = layout.segment(segments.end - 1);
            prop_assert!(first.opened.start <= wanted.start && wanted.end <= last.opened.end);
            prop_assert_eq!(layout.sealed(&segments), first.sealed.start..last.sealed.end);
        }
        prop_assert_eq!(Layout::of_sealed(algorithm, layout.sealed_len()), Ok(layout));
        prop_assert_eq!(layout.segment(layout.last()).sealed.end, layout.sealed_len());
    }
}
