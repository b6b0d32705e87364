//! How a check begins: what is compared of each source, and what needs no reading for that: lengths, headers, tensors without bytes.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use sha2::{Digest as _, Sha256};

use super::check::{Check, HINT, SourceCheck, TensorCheck, corrupt};
use super::decide::{Decision, Facts, Way, decide, implied};
use super::in_order::InOrder;
use super::{Digest, Expectation, Expected, Verify};
use crate::crc::{Crcs, Sum};
use crate::error::{Comparison, Error, ErrorKind, Result, counted};
use crate::plan::Plan;
use crate::side_by_side::side_by_side;
use crate::tensor::TensorInfo;

/// Headers read again at a time, for digests that do not combine.
const HEADERS_AT_A_TIME: usize = 8;

/// What is known of a check before the first read.
#[derive(Debug, Default)]
pub(super) struct Account {
    /// What was asked for.
    pub(super) choice: String,
    /// Who says what is expected, and of how many sources.
    pub(super) by: Vec<(String, u64)>,
    /// Sources of which not everything is compared, and why.
    pub(super) unverified: Vec<(String, String)>,
}

impl Check {
    /// What can be compared of `tensors`, which `plan` was made of, with what is expected of `sources`. Both are those of the
    /// checkpoint; a tensor's shard is an index into them.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Corrupt`] for what is known to differ already: the length of a source, its header, a tensor without bytes.
    /// [`ErrorKind::InvalidRequest`] for what cannot be compared, if `choice` is strict. What reading a header runs into.
    pub(crate) fn new(
        plan: Arc<Plan>,
        tensors: Arc<[TensorInfo]>,
        sources: &[Facts<'_>],
        expectations: &[Expectation],
        choice: &Verify,
    ) -> Result<Self> {
        assert_eq!(sources.len(), expectations.len(), "one for each source");
        let mut check = Self {
            digests: tensors.iter().map(|_| None).collect(),
            sources: Vec::new(),
            verified_bytes: AtomicU64::new(0),
            account: Account {
                choice: choice.to_string(),
                ..Account::default()
            },
            plan,
            tensors,
        };
        let mut decided: Vec<Option<Decided<'_>>> = Vec::new();
        let mut first = 0;
        for (shard, (facts, expectation)) in sources.iter().zip(expectations).enumerate() {
            // Tensors come by shard.
            let rest = &check.tensors[first..];
            let count = rest.partition_point(|tensor| tensor.shard() == shard);
            let wanted = first..first + count;
            first = wanted.end;
            decided.push(if wanted.is_empty() {
                None
            } else {
                let tensors = &check.tensors[wanted.clone()];
                let decision = decided_of(facts, expectation, tensors)?;
                check.account.add(facts, &decision, choice)?;
                Some(Decided {
                    facts,
                    wanted,
                    decision,
                })
            });
        }
        check.begin(&decided)?;
        Ok(check)
    }

    /// Makes sums of what was decided, and compares what needs no reading.
    fn begin(&mut self, decided: &[Option<Decided<'_>>]) -> Result<()> {
        let wanted = decided.iter().flatten();
        for decided in wanted {
            let Some((_, Way::Tensors(digests))) = decided.way() else {
                continue;
            };
            for (tensor, digest) in decided.wanted.clone().zip(digests) {
                self.digests[tensor] = digest.map(|expected| TensorCheck {
                    expected,
                    sum: (expected.algorithm().polynomial())
                        .map(|polynomial| Sum::new(polynomial, self.tensors[tensor].byte_len())),
                });
            }
        }
        let hashed: Vec<_> = decided
            .iter()
            .map(|decided| decided.as_ref().filter(|decided| decided.hashes_whole()))
            .collect();
        let hashers = side_by_side(&hashed, HEADERS_AT_A_TIME, |decided| {
            decided.map(|decided| hasher(decided.facts)).transpose()
        });
        let hashers: Vec<_> = hashers.into_iter().collect::<Result<_>>()?;
        let sources = self.plan.extents.last().map_or(0, |last| last.source + 1);
        self.sources.resize_with(sources, SourceCheck::default);
        let mut extents = self.extents(decided.len());
        let decided = decided.iter().zip(hashers).enumerate();
        for (shard, (decided, hasher)) in decided {
            let Some((decided, (by, way))) = decided
                .as_ref()
                .zip(decided.as_ref().and_then(Decided::way))
            else {
                continue;
            };
            let mut source = SourceCheck {
                location: decided.facts.source.location().to_string(),
                len: decided.facts.source.len(),
                by: by.to_owned(),
                ..SourceCheck::default()
            };
            let sha = match way {
                Way::Whole(expected) => {
                    source.whole = Some((*expected, decided.sum(*expected)));
                    hasher
                }
                Way::Tensors(digests) => {
                    let in_order = |digest: &Digest| !digest.algorithm().combines();
                    digests.iter().flatten().any(in_order).then(Sha256::new)
                }
                Way::Nothing => None,
            };
            self.compare_empty(&source, decided)?;
            match extents[shard].take() {
                Some((index, range)) => {
                    source.in_order = sha.map(|hasher| InOrder::new(range, hasher));
                    self.sources[index] = source;
                }
                // It has no bytes of tensors.
                None => self.compare_header_only(&source, decided, sha)?,
            }
        }
        Ok(())
    }

    /// By shard: its number among the plan's sources and its extents, if it has any. A source's stand together.
    fn extents(&self, shards: usize) -> Vec<Option<(usize, Range<usize>)>> {
        let mut found = vec![None; shards];
        let mut extents = self.plan.extents.iter().enumerate().peekable();
        while let Some((start, first)) = extents.next() {
            // Some may bring nothing but a gap.
            let mut piece = first.pieces.start;
            let mut end = start + 1;
            while let Some((index, extent)) =
                extents.next_if(|(_, next)| next.source == first.source)
            {
                end = index + 1;
                piece = piece.min(extent.pieces.start);
            }
            let shard = self.tensors[self.plan.pieces[piece].tensor].shard();
            let before = found[shard].replace((first.source, start..end));
            assert!(before.is_none(), "the extents of a source stand together");
        }
        found
    }

    /// Tensors without bytes, which nothing will bring.
    fn compare_empty(&self, source: &SourceCheck, decided: &Decided<'_>) -> Result<()> {
        for tensor in decided.wanted.clone() {
            let expected = self.digests[tensor].as_ref().map(|check| check.expected);
            if let Some(expected) = expected.filter(|_| self.tensors[tensor].byte_len() == 0) {
                self.compare_tensor(source, tensor, Digest::of(expected.algorithm(), &[]))?;
            }
        }
        Ok(())
    }

    /// A source of which there is nothing but the header.
    fn compare_header_only(
        &self,
        source: &SourceCheck,
        decided: &Decided<'_>,
        sha: Option<Sha256>,
    ) -> Result<()> {
        let Some((expected, _)) = source.whole else {
            return Ok(());
        };
        let algorithm = expected.algorithm();
        let found = match (algorithm.polynomial(), sha) {
            (Some(polynomial), _) => {
                Digest::of_crc(algorithm, decided.facts.header.get(polynomial))
            }
            (None, sha) => Digest::of_hasher(sha.expect("begun for a whole that is hashed")),
        };
        self.compare_whole(source, expected, found)
    }
}

impl Account {
    fn add(&mut self, facts: &Facts<'_>, decision: &Outcome<'_>, choice: &Verify) -> Result<()> {
        if let Some(by) = decision.by.filter(|_| decision.way != Way::Nothing) {
            match self.by.iter_mut().find(|(known, _)| known == by) {
                Some((_, sources)) => *sources += 1,
                None => self.by.push((by.to_owned(), 1)),
            }
        }
        let Some(why) = &decision.why else {
            return Ok(());
        };
        let location = facts.source.location();
        if choice.is_strict() {
            let message = format!("cannot be verified, as was asked for: {why}");
            return Err(Error::new(ErrorKind::InvalidRequest, message)
                .with_location(location)
                .with_hint(
                    "write a manifest that has it, or use verify=auto, which verifies what it can",
                ));
        }
        self.unverified.push((location.to_string(), why.clone()));
        Ok(())
    }
}

/// What was decided of one source of which tensors are wanted.
struct Decided<'a> {
    facts: &'a Facts<'a>,
    wanted: Range<usize>,
    decision: Outcome<'a>,
}

/// A decision, and whose expectation it is about.
struct Outcome<'a> {
    by: Option<&'a str>,
    way: Way,
    why: Option<String>,
}

impl Decided<'_> {
    fn way(&self) -> Option<(&str, &Way)> {
        self.decision.by.map(|by| (by, &self.decision.way))
    }

    fn hashes_whole(&self) -> bool {
        matches!(&self.decision.way, Way::Whole(digest) if !digest.algorithm().combines())
    }

    /// The sum of the whole source, with its header in it, if it combines and anything is to come.
    fn sum(&self, expected: Digest) -> Option<Sum> {
        let polynomial = expected.algorithm().polynomial()?;
        let header = self.facts.header.get(polynomial);
        let sum = Sum::new(polynomial, self.facts.source.len());
        sum.add_crc(0, self.facts.header_bytes, header);
        Some(sum)
    }
}

fn decided_of<'a>(
    facts: &Facts<'_>,
    expectation: &'a Expectation,
    wanted: &[TensorInfo],
) -> Result<Outcome<'a>> {
    let expected = match expectation {
        Expectation::Of(expected) => expected,
        Expectation::Nothing { why } => {
            return Ok(Outcome {
                by: None,
                way: Way::Nothing,
                why: Some(why.clone()),
            });
        }
    };
    let (len, header_bytes) = (facts.source.len(), facts.header_bytes);
    refuse_other_length(facts, expected)?;
    let Decision { way, why } = decide(len, header_bytes, facts.tensors, wanted, expected);
    if matches!(way, Way::Tensors(_))
        && let Some(whole) = expected.whole
        && let Some(implied) = implied(len, header_bytes, &facts.header, facts.tensors, expected)
        && implied != whole
    {
        let mut error = corrupt(&expected.by, whole, implied);
        error = error
            .with_location(facts.source.location())
            .with_range(0..header_bytes);
        return Err(error);
    }
    Ok(Outcome {
        by: Some(&expected.by),
        way,
        why,
    })
}

fn refuse_other_length(facts: &Facts<'_>, expected: &Expected) -> Result<()> {
    let len = facts.source.len();
    match expected.len {
        Some(wanted) if wanted != len => Err(Error::new(
            ErrorKind::Corrupt,
            format!(
                "has {}, and {} says {wanted}",
                counted(len, "byte"),
                expected.by
            ),
        )
        .with_location(facts.source.location())
        .with_comparison(Comparison {
            expected: counted(wanted, "byte"),
            found: counted(len, "byte"),
            by: expected.by.clone(),
        })
        .with_hint(HINT)),
        _ => Ok(()),
    }
}

/// A hasher that has seen the header: read once more, since nobody keeps it, and the same as when it was opened.
fn hasher(facts: &Facts<'_>) -> Result<Sha256> {
    let source = facts.source;
    let len = usize::try_from(facts.header_bytes).expect("at most 100 MB");
    let header = source.fetch(0, len)?;
    if header.len() != len || Crcs::of(&[&header]) != facts.header {
        return Err(Error::new(
            ErrorKind::Corrupt,
            "two reads of the header brought different bytes",
        )
        .with_location(source.location())
        .with_range(0..facts.header_bytes)
        .with_hint("look for a failing disk, network or memory, and load again"));
    }
    Ok(Sha256::new_with_prefix(header))
}
