//! Claims about a source: the digests that each authority states, and the reasons why other
//! authorities state none. Pure.

use std::collections::BTreeMap;
use std::ops::Range;

use super::Verify;
use super::digest::{Algorithm, Digest};
use super::expected::{Expectation, Expected, implied_header, no_sha256};
use super::manifest::ManifestFile;

/// Algorithms whose digests are accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Counting {
    All,
    Sha256,
}

/// Digests of one source by one authority.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Claim {
    /// Display name of the authority.
    pub(super) by: String,
    pub(super) len: Option<u64>,
    /// Length of the header and its digest, if it has one of its own.
    pub(super) header: Option<(u64, Digest)>,
    /// Digests of all bytes, one per algorithm.
    pub(super) whole: Vec<Digest>,
    pub(super) tensors: BTreeMap<String, TensorClaim>,
}

/// Digests of one tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TensorClaim {
    /// Byte range from the start of the source.
    pub(super) range: Range<u64>,
    pub(super) digests: Vec<Digest>,
    /// Bytes, and the SHA-256 of them and the tensor after them.
    pub(super) prefixed: Option<(Vec<u8>, Digest)>,
}

/// Claims about one source, the strongest authority first, and the reasons why other authorities
/// make none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Claims {
    pub(super) claims: Vec<Claim>,
    pub(super) silent: Vec<String>,
}

impl Claim {
    /// Creates a claim about the whole source only.
    pub(super) fn from_whole(by: impl Into<String>, whole: Vec<Digest>) -> Self {
        Self {
            by: by.into(),
            len: None,
            header: None,
            whole,
            tensors: BTreeMap::new(),
        }
    }

    /// Converts the entry of a manifest.
    pub(super) fn from_manifest(by: impl Into<String>, file: &ManifestFile) -> Self {
        let tensors = file.tensors.iter().map(|(name, tensor)| {
            let said = TensorClaim {
                range: tensor.range.clone(),
                digests: [tensor.crc64nvme, tensor.sha256]
                    .into_iter()
                    .chain(tensor.blake3)
                    .collect(),
                prefixed: None,
            };
            (name.clone(), said)
        });
        Self {
            by: by.into(),
            len: Some(file.bytes),
            header: (file.header.as_ref()).map(|header| (header.bytes, header.blake3)),
            whole: vec![file.crc64nvme, file.sha256],
            tensors: tensors.collect(),
        }
    }
}

impl Claims {
    /// Returns whether any authority has an accepted digest.
    pub(super) fn suffices(&self, counting: Counting) -> bool {
        let mut claims = self.claims.iter();
        claims.any(|claim| claim.counts(counting))
    }

    /// Returns the expectation for a load: from the strongest authority with an accepted digest,
    /// and of its digests the cheapest.
    pub(super) fn into_expectation(mut self, counting: Counting) -> Expectation {
        let is_it = |claim: &Claim| claim.counts(counting);
        let Some(at) = self.claims.iter().position(is_it) else {
            let without = self.claims.iter().map(|claim| no_sha256(&claim.by));
            let why: Vec<_> = without.chain(self.silent).collect();
            return Expectation::Nothing {
                why: why.join("; "),
            };
        };
        let claim = self.claims.swap_remove(at);
        let header = claim.header(counting);
        let mut before = BTreeMap::new();
        let of_tensor = |(name, said): (String, TensorClaim)| {
            let own = counting.cheapest(&said.digests);
            let digest = own.or_else(|| {
                let (bytes, digest) = said.prefixed?;
                before.insert(name.clone(), bytes);
                Some(digest)
            });
            Some((name, digest?))
        };
        Expectation::Of(Expected {
            by: claim.by,
            len: claim.len,
            header,
            whole: counting.cheapest(&claim.whole),
            tensors: claim.tensors.into_iter().filter_map(of_tensor).collect(),
            before,
        })
    }
}

impl Claim {
    fn counts(&self, counting: Counting) -> bool {
        let tensors = self.tensors.values().flat_map(|said| {
            let prefixed = said.prefixed.as_ref().map(|(_, digest)| digest);
            said.digests.iter().chain(prefixed)
        });
        let mut digests = self.whole.iter().chain(tensors);
        digests.any(|digest| counting.counts(digest))
    }

    /// Returns the digest of the header, derived from the other digests if these are CRCs.
    fn header(&self, counting: Counting) -> Option<Digest> {
        let own = self.header.map(|(_, digest)| digest);
        self.implied_header(counting).or(own)
    }

    /// Uses the claim's own tensors, not those that a checkpoint has of the file: an index may
    /// leave some out.
    fn implied_header(&self, counting: Counting) -> Option<Digest> {
        let mut tensors: Vec<_> = self.tensors.values().collect();
        tensors.sort_by_key(|said| (said.range.start, said.range.end));
        // A claim without tensors does not mean that the file has none.
        if tensors.is_empty() {
            return None;
        }
        let each = tensors
            .into_iter()
            .map(|said| (said.range.clone(), counting.cheapest(&said.digests)));
        let whole = counting.cheapest(&self.whole)?;
        implied_header(whole, self.len?, each).map(|(_, digest)| digest)
    }
}

impl Counting {
    /// Returns the algorithms that the requested verification accepts.
    pub(super) fn new(choice: &Verify) -> Self {
        match choice {
            Verify::Off | Verify::Auto | Verify::Require | Verify::Manifest(_) => Self::All,
            Verify::Sha256(_) => Self::Sha256,
        }
    }

    fn counts(self, digest: &Digest) -> bool {
        self == Self::All || digest.algorithm().is_secure()
    }

    /// Returns the cheapest accepted digest: CRCs before others, and of two CRCs the one that
    /// detects more.
    fn cheapest(self, digests: &[Digest]) -> Option<Digest> {
        let cost = |digest: &&Digest| match digest.algorithm() {
            Algorithm::Crc64Nvme => 0,
            Algorithm::Crc32c | Algorithm::Crc32 => 1,
            Algorithm::Blake3 => 2,
            Algorithm::Sha256 => 3,
        };
        let counting = digests.iter().filter(|digest| self.counts(digest));
        counting.min_by_key(cost).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest(text: &str) -> Digest {
        text.parse().expect("a digest")
    }

    #[test]
    fn expectation_prefers_first_authority_and_combining_digest() {
        let sha = digest(&format!("sha256:{}", "ab".repeat(32)));
        let (crc, short) = (
            digest("crc64nvme:0123456789abcdef"),
            digest("crc32c:01234567"),
        );
        let first = Claim::from_whole("the first", vec![sha, short, crc]);
        let second = Claim::from_whole("the second", vec![short]);
        let known = Claims {
            claims: vec![first, second],
            silent: vec!["no third".to_owned()],
        };
        let Expectation::Of(expected) = known.clone().into_expectation(Counting::All) else {
            panic!("two know");
        };
        assert_eq!(
            (expected.by.as_str(), expected.whole),
            ("the first", Some(crc))
        );
        assert_eq!(Counting::All.cheapest(&[sha]), Some(sha));
        assert_eq!(Counting::All.cheapest(&[sha, short]), Some(short));
        let Expectation::Of(expected) = known.into_expectation(Counting::Sha256) else {
            panic!("the first knows");
        };
        assert_eq!(expected.whole, Some(sha));
        let known = Claims {
            claims: vec![Claim::from_whole("the store", vec![crc])],
            silent: vec!["no other".to_owned()],
        };
        assert!(known.suffices(Counting::All) && !known.suffices(Counting::Sha256));
        let why = "the store has no SHA-256 of it; no other".to_owned();
        let nothing = Expectation::Nothing { why };
        assert_eq!(known.into_expectation(Counting::Sha256), nothing);
        let known = Claims {
            claims: Vec::new(),
            silent: vec!["one".to_owned(), "two".to_owned()],
        };
        let why = "one; two".to_owned();
        assert_eq!(
            known.into_expectation(Counting::All),
            Expectation::Nothing { why }
        );
    }
}
