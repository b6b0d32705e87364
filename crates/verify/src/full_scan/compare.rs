//! Compares the digests computed for a file with those stated for it. Pure.

use std::collections::BTreeMap;
use std::ops::Range;

use super::report::Mismatch;
use crate::claims::{Claim, Claims};
use crate::digest::{Algorithm, Digest};

/// Byte range of a file: begin and end.
pub(super) type Span = (u64, u64);

/// Digests to compute for a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Wanted {
    pub(super) whole: Vec<Algorithm>,
    /// Algorithms by byte range.
    pub(super) spans: BTreeMap<Span, Vec<Algorithm>>,
}

/// Digests computed for a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Computed {
    pub(super) whole: Vec<Digest>,
    pub(super) spans: BTreeMap<Span, Vec<Digest>>,
}

impl Wanted {
    /// Returns everything needed to compare with `known`.
    pub(super) fn new(known: &Claims) -> Self {
        let mut wanted = Self::default();
        for claim in &known.claims {
            add(&mut wanted.whole, claim.whole.iter().map(Digest::algorithm));
            if let Some((bytes, digest)) = claim.header {
                wanted.span(&(0..bytes), [digest.algorithm()]);
            }
            for said in claim.tensors.values() {
                let algorithms = said.digests.iter().map(Digest::algorithm);
                wanted.span(&said.range, algorithms);
            }
        }
        wanted
    }

    /// Adds algorithms for the whole file.
    pub(super) fn add_whole(&mut self, algorithms: impl IntoIterator<Item = Algorithm>) {
        add(&mut self.whole, algorithms);
    }

    /// Adds algorithms for a byte range.
    pub(super) fn span(
        &mut self,
        range: &Range<u64>,
        algorithms: impl IntoIterator<Item = Algorithm>,
    ) {
        let span = self.spans.entry((range.start, range.end)).or_default();
        add(span, algorithms);
    }

    /// Returns whether there is nothing to compute.
    pub(super) fn is_empty(&self) -> bool {
        self.whole.is_empty() && self.spans.is_empty()
    }
}

fn add(all: &mut Vec<Algorithm>, more: impl IntoIterator<Item = Algorithm>) {
    for algorithm in more {
        if !all.contains(&algorithm) {
            all.push(algorithm);
        }
    }
}

/// Returns the lengths that differ: then nothing else needs to be computed.
pub(super) fn lengths(len: u64, known: &Claims) -> Vec<Mismatch> {
    let other = known.claims.iter().filter_map(|claim| {
        let expected = claim.len.filter(|&expected| expected != len)?;
        Some(Mismatch {
            tensor: None,
            range: len.min(expected)..len.max(expected),
            by: claim.by.clone(),
            expected: format!("{expected} bytes"),
            found: format!("{len} bytes"),
        })
    });
    other.collect()
}

/// Returns everything that differs in a file of `len` bytes.
pub(super) fn contents(len: u64, known: &Claims, computed: &Computed) -> Vec<Mismatch> {
    let each = known.claims.iter();
    each.flat_map(|claim| of_statement(len, claim, computed))
        .collect()
}

fn of_statement(len: u64, claim: &Claim, computed: &Computed) -> Vec<Mismatch> {
    let mismatch = |tensor, range, (expected, found): (Digest, Option<Digest>)| Mismatch {
        tensor,
        range,
        by: claim.by.clone(),
        expected: expected.to_string(),
        found: found.map_or_else(|| "nothing".to_owned(), |found| found.to_string()),
    };
    let mut tensors: Vec<_> = claim.tensors.iter().collect();
    tensors.sort_by_key(|(_, said)| (said.range.start, said.range.end));
    let mut mismatches = Vec::new();
    for (name, said) in tensors {
        let span = (said.range.start, said.range.end);
        let found = computed.spans.get(&span).map_or(&[][..], Vec::as_slice);
        if let Some(other) = first_other(&said.digests, found) {
            mismatches.push(mismatch(Some(name.clone()), said.range.clone(), other));
        }
    }
    if let Some((bytes, digest)) = claim.header {
        let found = computed
            .spans
            .get(&(0, bytes))
            .map_or(&[][..], Vec::as_slice);
        if let Some(other) = first_other(&[digest], found) {
            mismatches.push(mismatch(None, 0..bytes, other));
        }
    }
    // A tensor that differs explains why the whole file differs.
    if mismatches.is_empty()
        && let Some(other) = first_other(&claim.whole, &computed.whole)
    {
        mismatches.push(mismatch(None, outside(len, claim), other));
    }
    mismatches
}

/// Returns the first digest that differs.
fn first_other(expected: &[Digest], found: &[Digest]) -> Option<(Digest, Option<Digest>)> {
    expected.iter().find_map(|expected| {
        let mut alike = found.iter();
        let found = alike.find(|found| found.algorithm() == expected.algorithm());
        (found != Some(expected)).then_some((*expected, found.copied()))
    })
}

/// Returns the range of the bytes outside of tensors, from the first to the last: in a whole file
/// with good tensors, its header.
fn outside(len: u64, claim: &Claim) -> Range<u64> {
    let mut spans: Vec<_> = claim
        .tensors
        .values()
        .map(|said| (said.range.start, said.range.end))
        .filter(|(start, end)| start < end)
        .collect();
    spans.sort_unstable();
    let (mut begin, mut end, mut at) = (None, 0, 0);
    for (start, stop) in spans.into_iter().chain([(len, len)]) {
        if at < start {
            begin.get_or_insert(at);
            end = start;
        }
        at = at.max(stop);
    }
    begin.map_or(0..len, |begin| begin..end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::claims::TensorClaim;

    fn digest(byte: u8) -> Digest {
        Digest::new(Algorithm::Crc64Nvme, &[byte; 8]).expect("8 bytes")
    }

    fn sha(byte: u8) -> Digest {
        Digest::new(Algorithm::Sha256, &[byte; 32]).expect("32 bytes")
    }

    /// Returns the digests of a file of 100 bytes with a header of 20 and two tensors.
    fn known() -> Claims {
        let tensor = |range, byte| TensorClaim {
            range,
            digests: vec![digest(byte), sha(byte)],
            prefixed: None,
        };
        let claim = Claim {
            by: "m".to_owned(),
            header: None,
            len: Some(100),
            whole: vec![digest(1), sha(1)],
            tensors: [("a", tensor(60..100, 3)), ("b", tensor(20..60, 2))]
                .map(|(name, said)| (name.to_owned(), said))
                .into(),
        };
        Claims {
            claims: vec![claim, Claim::from_whole("o", vec![digest(1)])],
            silent: Vec::new(),
        }
    }

    fn good() -> Computed {
        Computed {
            whole: vec![sha(1), digest(1)],
            spans: [
                ((20, 60), vec![digest(2), sha(2)]),
                ((60, 100), vec![digest(3), sha(3)]),
            ]
            .into(),
        }
    }

    fn found(computed: &Computed) -> Vec<(Option<String>, Range<u64>, String)> {
        let mismatches = contents(100, &known(), computed).into_iter();
        mismatches
            .map(|mismatch| (mismatch.tensor, mismatch.range, mismatch.by))
            .collect()
    }

    #[test]
    fn mismatch_names_smallest_known_range() {
        assert_eq!(found(&good()), []);
        let mut tensor = good();
        tensor.whole = vec![sha(9), digest(9)];
        tensor.spans.insert((60, 100), vec![digest(9), sha(9)]);
        let wanted = [
            (Some("a".to_owned()), 60..100, "m".to_owned()),
            (None, 0..100, "o".to_owned()),
        ];
        assert_eq!(found(&tensor), wanted);
        let mut header = good();
        header.whole = vec![sha(9), digest(9)];
        let wanted = [
            (None, 0..20, "m".to_owned()),
            (None, 0..100, "o".to_owned()),
        ];
        assert_eq!(found(&header), wanted);
        let mut forged = good();
        forged.spans.insert((20, 60), vec![digest(2), sha(9)]);
        let mismatches = contents(100, &known(), &forged);
        assert_eq!(mismatches.len(), 1, "one checksum of two");
        assert_eq!(mismatches[0].expected, sha(2).to_string());
        assert_eq!(mismatches[0].found, sha(9).to_string());
        let missing = contents(100, &known(), &Computed::default());
        assert!(missing.iter().all(|mismatch| mismatch.found == "nothing"));
        assert_eq!(missing.len(), 3);
    }

    #[test]
    fn length_mismatch_has_its_range() {
        assert_eq!(lengths(100, &known()), []);
        for (len, range) in [(90, 90..100), (110, 100..110)] {
            let other = lengths(len, &known());
            assert_eq!(other.len(), 1);
            assert_eq!(
                (other[0].range.clone(), other[0].found.clone()),
                (range, format!("{len} bytes"))
            );
        }
    }

    #[test]
    fn stated_digests_are_computed_once() {
        let mut wanted = Wanted::new(&known());
        assert_eq!(wanted.whole, [Algorithm::Crc64Nvme, Algorithm::Sha256]);
        assert_eq!(wanted.spans.len(), 2);
        wanted.span(&(20..60), Algorithm::ALL);
        assert_eq!(wanted.spans[&(20, 60)].len(), Algorithm::ALL.len());
        assert!(Wanted::new(&Claims::default()).is_empty());
    }
}
