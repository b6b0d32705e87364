//! All that is said of a source's bytes, by whom, and what nobody says. Pure.

use std::collections::BTreeMap;
use std::ops::Range;

use super::digest::{Algorithm, Digest};
use super::expected::{Expectation, Expected};
use super::manifest::ManifestFile;

/// What one authority says of one source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Statement {
    /// Who, for people.
    pub(super) by: String,
    pub(super) len: Option<u64>,
    /// Of all bytes; one for each algorithm.
    pub(super) whole: Vec<Digest>,
    pub(super) tensors: BTreeMap<String, TensorStatement>,
}

/// What it says of a tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TensorStatement {
    /// From the start of the source.
    pub(super) range: Range<u64>,
    pub(super) digests: Vec<Digest>,
}

/// What is known of one source: the strongest authority first, and why others say nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Known {
    pub(super) statements: Vec<Statement>,
    pub(super) silent: Vec<String>,
}

impl Statement {
    /// Of all bytes only.
    pub(super) fn of_whole(by: impl Into<String>, whole: Vec<Digest>) -> Self {
        Self {
            by: by.into(),
            len: None,
            whole,
            tensors: BTreeMap::new(),
        }
    }

    /// What a manifest says.
    pub(super) fn of_manifest(by: impl Into<String>, file: &ManifestFile) -> Self {
        let tensors = file.tensors.iter().map(|(name, tensor)| {
            let said = TensorStatement {
                range: tensor.range.clone(),
                digests: vec![tensor.crc64nvme, tensor.sha256],
            };
            (name.clone(), said)
        });
        Self {
            by: by.into(),
            len: Some(file.bytes),
            whole: vec![file.crc64nvme, file.sha256],
            tensors: tensors.collect(),
        }
    }
}

impl Known {
    /// What a load compares with: the strongest authority, and of its checksums the one that costs least.
    pub(super) fn into_expectation(self) -> Expectation {
        let Some(statement) = self.statements.into_iter().next() else {
            return Expectation::Nothing {
                why: self.silent.join("; "),
            };
        };
        let tensors = statement.tensors.into_iter();
        Expectation::Of(Expected {
            by: statement.by,
            len: statement.len,
            whole: cheapest(&statement.whole),
            tensors: tensors
                .filter_map(|(name, said)| Some((name, cheapest(&said.digests)?)))
                .collect(),
        })
    }
}

/// One that combines, if there is one; of these the one that finds most.
fn cheapest(digests: &[Digest]) -> Option<Digest> {
    let cost = |digest: &&Digest| match digest.algorithm() {
        Algorithm::Crc64Nvme => 0,
        Algorithm::Crc32c => 1,
        Algorithm::Sha256 => 2,
    };
    digests.iter().min_by_key(cost).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest(text: &str) -> Digest {
        text.parse().expect("a digest")
    }

    #[test]
    fn a_load_compares_with_the_first_and_by_what_combines() {
        let sha = digest(&format!("sha256:{}", "ab".repeat(32)));
        let (crc, short) = (
            digest("crc64nvme:0123456789abcdef"),
            digest("crc32c:01234567"),
        );
        let first = Statement::of_whole("the first", vec![sha, short, crc]);
        let second = Statement::of_whole("the second", vec![short]);
        let known = Known {
            statements: vec![first, second],
            silent: vec!["no third".to_owned()],
        };
        let Expectation::Of(expected) = known.into_expectation() else {
            panic!("two know");
        };
        assert_eq!(
            (expected.by.as_str(), expected.whole),
            ("the first", Some(crc))
        );
        assert_eq!(cheapest(&[sha]), Some(sha));
        assert_eq!(cheapest(&[sha, short]), Some(short));
        let known = Known {
            statements: Vec::new(),
            silent: vec!["one".to_owned(), "two".to_owned()],
        };
        let why = "one; two".to_owned();
        assert_eq!(known.into_expectation(), Expectation::Nothing { why });
    }
}
