//! Expectations for the sources of a checkpoint, and their authorities.

use std::collections::BTreeMap;
use std::ops::Range;

use super::Digest;

/// Expected digests of one source, and the authority behind them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Expected {
    /// Name of the authority, for errors and reports: `manifest /m/tload-manifest.json`, `the
    /// object's own CRC-64/NVME`, …
    pub by: String,
    /// Length of the source, bytes.
    pub len: Option<u64>,
    /// Digest of the header including the length field, which is everything before the tensors. It
    /// may be omitted if it follows from the others: if the digests of the whole and of all tensors
    /// are CRCs of one kind.
    pub header: Option<Digest>,
    /// Digest of all bytes, including the header.
    pub whole: Option<Digest>,
    /// Digests of the tensors, by name. If an authority has several for one tensor, this is the
    /// cheapest.
    pub tensors: BTreeMap<String, Digest>,
    /// Bytes that the SHA-256 of a tensor covers before those of the tensor, by its name.
    pub before: BTreeMap<String, Vec<u8>>,
}

/// Expectation for one source, or the reason why there is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expectation {
    /// Expected digests.
    Of(Expected),
    /// No authority states a digest.
    Nothing {
        /// Reason, as the end of "was not verified: …".
        why: String,
    },
}

impl Expectation {
    /// Returns the part of the expectation that is secure against deliberate changes.
    #[must_use]
    #[doc(hidden)]
    pub fn secure(&self) -> Self {
        let Self::Of(expected) = self else {
            return self.clone();
        };
        let counts = |digest: &Digest| digest.algorithm().is_secure();
        let own = |digest: Option<Digest>| digest.filter(counts);
        let tensors = expected.tensors.iter();
        let strong = Expected {
            by: expected.by.clone(),
            len: expected.len,
            header: own(expected.header),
            whole: own(expected.whole),
            tensors: tensors
                .filter(|(_, digest)| counts(digest))
                .map(|(name, digest)| (name.clone(), *digest))
                .collect(),
            before: expected.before.clone(),
        };
        if strong.whole.is_none() && strong.tensors.is_empty() {
            let why = no_sha256(&expected.by);
            return Self::Nothing { why };
        }
        Self::Of(strong)
    }
}

/// Returns the reason why the digests of `by` do not count if CRCs do not.
pub(super) fn no_sha256(by: &str) -> String {
    format!("{by} has no SHA-256 of it")
}

/// Derives the digest of everything before the tensors, and its length, from the digest of the
/// whole, which has `len` bytes, and the digests of all tensors in file order. Returns `None` if
/// these do not determine it: if they are not CRCs of one kind, or if there are gaps between
/// tensors.
///
/// Worked example: for a header with the CRC `h` and tensors of 4 and 8 bytes with the CRCs `a` and
/// `b`, the CRC of the file is `h` shifted by 12 bytes, plus `a` shifted by 8, plus `b`. So `h` is
/// the CRC of the file without the others, shifted back by 12.
pub fn implied_header(
    whole: Digest,
    len: u64,
    tensors: impl Iterator<Item = (Range<u64>, Option<Digest>)>,
) -> Option<(u64, Digest)> {
    let algorithm = whole.algorithm();
    let polynomial = algorithm.polynomial()?;
    let mut behind: Option<(u64, Range<u64>)> = None;
    for (range, digest) in tensors.filter(|(range, _)| !range.is_empty()) {
        let own = digest.filter(|digest| digest.algorithm() == algorithm)?;
        let (crc, before) = behind.unwrap_or((polynomial.checksum(&[]), range.start..range.start));
        if before.end != range.start {
            return None;
        }
        let crc = polynomial.combine(crc, own.crc()?, range.end - range.start);
        behind = Some((crc, before.start..range.end));
    }
    let (crc, range) = behind.unwrap_or((polynomial.checksum(&[]), len..len));
    let header = polynomial.without(whole.crc()?, crc, range.end - range.start);
    (range.end == len).then(|| (range.start, Digest::from_crc(algorithm, header)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Algorithm;

    /// Derives the digest of the header from pieces that follow each other; also returns the
    /// expected result.
    fn implied(algorithm: Algorithm, pieces: &[&[u8]]) -> (Option<(u64, Digest)>, (u64, Digest)) {
        let polynomial = algorithm.polynomial().expect("a CRC");
        let of = |all: &[&[u8]]| Digest::from_crc(algorithm, polynomial.checksum(all));
        let mut at = pieces[0].len() as u64;
        let tensors: Vec<_> = pieces[1..]
            .iter()
            .map(|piece| {
                let start = at;
                at += piece.len() as u64;
                (start..at, Some(of(&[piece])))
            })
            .collect();
        let wanted = (pieces[0].len() as u64, of(&pieces[..1]));
        (implied_header(of(pieces), at, tensors.into_iter()), wanted)
    }

    #[test]
    fn header_crc_follows_from_file_and_tensors() {
        let long = vec![7; 70_000];
        let files: [&[&[u8]]; 5] = [
            &[b"header", &[1, 2, 3, 4], &[5; 8]],
            &[b"header", &long, &[], &[9]],
            &[b"header", &[]],
            &[b"header"],
            &[&long, &long, &long],
        ];
        for algorithm in [Algorithm::Crc32c, Algorithm::Crc64Nvme] {
            for pieces in files {
                let (found, wanted) = implied(algorithm, pieces);
                assert_eq!(found, Some(wanted), "{algorithm}, {} pieces", pieces.len());
            }
        }
    }

    #[test]
    fn header_digest_is_none_if_parts_are_unknown() {
        let crc = Digest::compute(Algorithm::Crc64Nvme, b"x");
        let other = Digest::compute(Algorithm::Crc32c, b"x");
        let sha = Digest::compute(Algorithm::Sha256, b"x");
        let good = [(6..10, Some(crc)), (10..18, Some(crc))];
        assert!(implied_header(crc, 18, good.iter().cloned()).is_some());
        for (whole, len, tensors) in [
            (sha, 18, [(6..10, Some(sha)), (10..18, Some(sha))]),
            (crc, 18, [(6..10, Some(crc)), (10..18, None)]),
            (crc, 18, [(6..10, Some(crc)), (10..18, Some(other))]),
            (crc, 18, [(6..10, Some(crc)), (11..18, Some(crc))]),
            (crc, 19, [(6..10, Some(crc)), (10..18, Some(crc))]),
            (crc, 18, [(6..10, Some(crc)), (8..18, Some(crc))]),
        ] {
            assert_eq!(implied_header(whole, len, tensors.into_iter()), None);
        }
    }

    #[test]
    fn sha256_choice_drops_other_digests() {
        let (crc, sha) = [Algorithm::Crc64Nvme, Algorithm::Sha256]
            .map(|algorithm| Digest::compute(algorithm, b"x"))
            .into();
        let expected = Expected {
            by: "M".to_owned(),
            header: Some(crc),
            whole: Some(sha),
            tensors: [("a".to_owned(), crc), ("b".to_owned(), sha)].into(),
            ..Expected::default()
        };
        let Expectation::Of(strong) = Expectation::Of(expected.clone()).secure() else {
            panic!("some are SHA-256");
        };
        assert_eq!((strong.header, strong.whole), (None, Some(sha)));
        assert_eq!(strong.tensors, [("b".to_owned(), sha)].into());
        let weak = Expected {
            whole: Some(crc),
            tensors: BTreeMap::new(),
            ..expected
        };
        let why = "M has no SHA-256 of it".to_owned();
        let nothing = Expectation::Nothing { why };
        assert_eq!(Expectation::Of(weak).secure(), nothing);
        assert_eq!(nothing.secure(), nothing);
    }
}
