//! Setup of a check: decides for each source what is compared, and compares everything that needs
//! no reading: lengths, headers and tensors without bytes.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use sha2::{Digest as _, Sha256};

use super::compare::{Account, Check, SourceCheck, TensorCheck};
use super::coverage::{Coverage, Decision, SourceFacts, decide};
use super::in_order::InOrder;
use super::sum::Sum;
use crate::crc::Crcs;
use crate::error::{Comparison, Error, ErrorKind, Result, counted};
use crate::format::TensorInfo;
use crate::plan::Plan;
use crate::sync::detached::PendingOps;
use crate::sync::parallel::parallel_map;
use crate::verify::{Algorithm, Digest, Expectation, Expected, HINT, Verify, corrupt};

/// Number of headers read again concurrently, for digests other than CRCs.
const HEADERS_AT_A_TIME: usize = 8;

impl Check {
    /// Decides how to compare `tensors`, from which `plan` was made, with the expectations for
    /// `sources`. Both belong to the checkpoint; a tensor's shard is an index into them.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Corrupt`] for a difference that is already known: the length of a source, its
    /// header, a tensor without bytes. [`ErrorKind::InvalidRequest`] for anything that cannot be
    /// compared, if `choice` is strict. Errors of reading a header.
    pub fn new(
        plan: Arc<Plan>,
        tensors: Arc<[TensorInfo]>,
        sources: &[SourceFacts<'_>],
        expectations: &[Expectation],
        choice: &Verify,
        pending: &PendingOps,
    ) -> Result<Self> {
        let mut strong = Vec::new();
        let expectations = if matches!(choice, Verify::Sha256(_)) {
            strong.extend(expectations.iter().map(Expectation::secure));
            &strong[..]
        } else {
            expectations
        };
        assert_eq!(
            sources.len(),
            expectations.len(),
            "one expectation per source"
        );
        let mut check = Self {
            digests: tensors.iter().map(|_| None).collect(),
            sources: Vec::new(),
            verified_bytes: AtomicU64::new(0),
            account: Account {
                choice: choice.to_string(),
                ..Account::default()
            },
            blame: None,
            plan,
            tensors,
        };
        let mut decided: Vec<Option<Decided<'_>>> = Vec::new();
        let mut first = 0;
        for (shard, (facts, expectation)) in sources.iter().zip(expectations).enumerate() {
            // Tensors are ordered by shard, so those of this shard come first.
            let rest = &check.tensors[first..];
            let count = rest.partition_point(|tensor| tensor.shard() == shard);
            let wanted = first..first + count;
            first = wanted.end;
            decided.push(if wanted.is_empty() || facts.is_elsewhere {
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
        check.begin(&decided, pending)?;
        Ok(check)
    }

    /// Creates the sums for all decisions, and compares everything that needs no reading.
    fn begin(&mut self, decided: &[Option<Decided<'_>>], pending: &PendingOps) -> Result<()> {
        let wanted = decided.iter().flatten();
        for decided in wanted {
            let Some((_, Coverage::Tensors(digests))) = decided.coverage() else {
                continue;
            };
            for (tensor, digest) in decided.wanted.clone().zip(digests) {
                let before = decided.decision.before(self.tensors[tensor].name());
                self.digests[tensor] = digest.map(|expected| TensorCheck {
                    expected,
                    sum: Sum::new(expected.algorithm(), self.tensors[tensor].byte_len()),
                    before: before.to_vec(),
                });
            }
        }
        let begun = parallel_map(decided, HEADERS_AT_A_TIME, |decided| {
            let begin = |decided: &Decided<'_>| {
                let location = decided.facts.source.location();
                let stage = "reading its header again";
                pending.during(location, stage, || decided.begin())
            };
            decided.as_ref().map(begin).transpose()
        });
        let begun: Vec<_> = begun.into_iter().collect::<Result<_>>()?;
        let sources = self.plan.extents.last().map_or(0, |last| last.source + 1);
        self.sources.resize_with(sources, SourceCheck::default);
        let mut extents = self.extents(decided.len());
        let decided = decided.iter().zip(begun).enumerate();
        for (shard, (decided, begun)) in decided {
            let Some(((decided, mut begun), (by, coverage))) = decided
                .as_ref()
                .zip(begun)
                .zip(decided.as_ref().and_then(Decided::coverage))
            else {
                continue;
            };
            let mut source = SourceCheck {
                location: decided.facts.source.location().to_string(),
                len: decided.facts.source.len(),
                by: by.to_owned(),
                ..SourceCheck::default()
            };
            if let Coverage::Whole(expected) = coverage {
                source.whole = Some((*expected, begun.sum.take()));
            }
            self.compare_empty(&source, decided)?;
            match extents[shard].take() {
                Some((index, range)) => {
                    let hasher = begun.hasher;
                    source.in_order = hasher.map(|hasher| InOrder::new(range, hasher));
                    self.sources[index] = source;
                }
                // The source has no tensor bytes.
                None => {
                    if let Some(((expected, _), found)) = source.whole.as_ref().zip(begun.whole()) {
                        self.compare_whole(&source, *expected, found)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Returns for each shard its number among the plan's sources and its range of extents, if it
    /// has any. The extents of one source are contiguous.
    fn extents(&self, shards: usize) -> Vec<Option<(usize, Range<usize>)>> {
        let mut found = vec![None; shards];
        let mut extents = self.plan.extents.iter().enumerate().peekable();
        while let Some((start, first)) = extents.next() {
            // Some extents hold nothing but a gap.
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
            assert!(before.is_none(), "the extents of a source are contiguous");
        }
        found
    }

    /// Compares tensors without bytes, for which no read will arrive.
    fn compare_empty(&self, source: &SourceCheck, decided: &Decided<'_>) -> Result<()> {
        for tensor in decided.wanted.clone() {
            let check = self.digests[tensor].as_ref();
            if let Some(check) = check.filter(|_| self.tensors[tensor].byte_len() == 0) {
                let found = Digest::compute(check.expected.algorithm(), &check.before);
                self.compare_tensor(source, tensor, found)?;
            }
        }
        Ok(())
    }
}

impl Account {
    fn add(
        &mut self,
        facts: &SourceFacts<'_>,
        decision: &Outcome<'_>,
        choice: &Verify,
    ) -> Result<()> {
        if let Some(by) = decision
            .by
            .filter(|_| decision.coverage != Coverage::Nothing)
        {
            let own = decision.coverage.algorithms();
            let is_known = |(known, algorithm, _): &&mut (String, String, u64)| {
                known == by && *algorithm == own
            };
            match self.by.iter_mut().find(is_known) {
                Some((_, _, sources)) => *sources += 1,
                None => self.by.push((by.to_owned(), own, 1)),
            }
        }
        let Some(why) = &decision.why else {
            return Ok(());
        };
        let location = facts.source.location();
        if choice.is_strict() {
            let message = format!("cannot be verified as requested: {why}");
            return Err(Error::invalid_request(message)
                .with_location(location)
                .with_hint(hint(choice, decision)));
        }
        self.unverified.push((location.to_string(), why.clone()));
        Ok(())
    }
}

/// Returns the hint for a source that cannot be compared.
fn hint(choice: &Verify, decision: &Outcome<'_>) -> &'static str {
    match (choice, decision.by) {
        (Verify::Sha256(_), Some(_)) => {
            "load every tensor of the file in full: its SHA-256 covers the whole file; or use ‹verify=require›, which also accepts CRCs"
        }
        (Verify::Sha256(_), None) => {
            "write a manifest, which has SHA-256 digests; or use ‹verify=require›, which also accepts CRCs"
        }
        _ => {
            "write a manifest that has it, load tensors whole, or use ‹verify=auto›, which verifies what it can"
        }
    }
}

/// Decision for one source from which tensors are requested.
struct Decided<'a> {
    facts: &'a SourceFacts<'a>,
    wanted: Range<usize>,
    decision: Outcome<'a>,
}

/// Decision, with the authority of the expectation behind it.
struct Outcome<'a> {
    by: Option<&'a str>,
    expected: Option<&'a Expected>,
    coverage: Coverage,
    header: Option<Digest>,
    why: Option<String>,
}

impl Outcome<'_> {
    /// Returns the bytes that the digest of a tensor covers before those of the tensor.
    fn before(&self, tensor: &str) -> &[u8] {
        let before = self.expected.and_then(|it| it.before.get(tensor));
        before.map_or(&[], Vec::as_slice)
    }

    /// Compares the header if its CRC is known: both CRCs were computed when the source was opened.
    fn compare_header(&self, facts: &SourceFacts<'_>) -> Result<()> {
        let Some(expected) = self.header else {
            return Ok(());
        };
        match expected.algorithm().polynomial() {
            Some(polynomial) => {
                let crc = facts.header.get(polynomial);
                let found = Digest::from_crc(expected.algorithm(), crc);
                self.require_header(facts, expected, found)
            }
            None => Ok(()),
        }
    }

    fn require_header(
        &self,
        facts: &SourceFacts<'_>,
        expected: Digest,
        found: Digest,
    ) -> Result<()> {
        if found == expected {
            return Ok(());
        }
        Err(corrupt(self.by.unwrap_or_default(), expected, found)
            .with_location(facts.source.location())
            .with_range(0..facts.header_bytes))
    }
}

impl Coverage {
    /// Returns the names of the algorithms used.
    fn algorithms(&self) -> String {
        let is_used = |algorithm: &Algorithm| match self {
            Self::Nothing => false,
            Self::Whole(digest) => digest.algorithm() == *algorithm,
            Self::Tensors(digests) => {
                let mut digests = digests.iter().flatten();
                digests.any(|digest| digest.algorithm() == *algorithm)
            }
        };
        let used = Algorithm::ALL.into_iter().filter(is_used);
        let names: Vec<_> = used.map(Algorithm::name).collect();
        names.join(" and ")
    }
}

impl Decided<'_> {
    fn coverage(&self) -> Option<(&str, &Coverage)> {
        self.decision.by.map(|by| (by, &self.decision.coverage))
    }

    /// Begins the digests of the source, and compares its header if that has a digest other than
    /// a CRC.
    fn begin(&self) -> Result<Begun> {
        let whole = match &self.decision.coverage {
            Coverage::Whole(digest) => Some(digest.algorithm()),
            Coverage::Nothing | Coverage::Tensors(_) => None,
        };
        let stated = (self.decision.header).filter(|header| header.algorithm().is_secure());
        let header = if stated.is_some() || whole.is_some_and(Algorithm::is_secure) {
            header_again(self.facts)?
        } else {
            Vec::new()
        };
        if let Some(expected) = stated {
            let found = Digest::compute(expected.algorithm(), &header);
            self.decision.require_header(self.facts, expected, found)?;
        }
        let Some(algorithm) = whole else {
            let hasher = self.hashes_in_order().then(Sha256::new);
            return Ok(Begun {
                hasher,
                ..Begun::default()
            });
        };
        let Some(sum) = Sum::new(algorithm, self.facts.source.len()) else {
            return Ok(Begun {
                hasher: Some(Sha256::new_with_prefix(header)),
                ..Begun::default()
            });
        };
        let whole = match &sum {
            Sum::Crc(_, polynomial, crc) => {
                let header = self.facts.header.get(*polynomial);
                let crc = crc.add_crc(0, self.facts.header_bytes, header);
                crc.map(|crc| Digest::from_crc(algorithm, crc))
            }
            Sum::Blake3(_) => sum.add(0, &header),
        };
        Ok(Begun {
            sum: Some(sum),
            hasher: None,
            whole,
        })
    }

    fn hashes_in_order(&self) -> bool {
        let Coverage::Tensors(digests) = &self.decision.coverage else {
            return false;
        };
        let mut digests = digests.iter().flatten();
        digests.any(|digest| !digest.algorithm().combines())
    }
}

/// Digests of a source before its first read: a digest of the whole has consumed the header.
#[derive(Default)]
struct Begun {
    sum: Option<Sum>,
    hasher: Option<Sha256>,
    /// Value of `sum`, if nothing follows the header.
    whole: Option<Digest>,
}

impl Begun {
    /// Returns the digest of a source that is only a header.
    fn whole(self) -> Option<Digest> {
        self.whole.or_else(|| self.hasher.map(Digest::from_hasher))
    }
}

fn decided_of<'a>(
    facts: &SourceFacts<'_>,
    expectation: &'a Expectation,
    wanted: &[TensorInfo],
) -> Result<Outcome<'a>> {
    let expected = match expectation {
        Expectation::Of(expected) => expected,
        Expectation::Nothing { why } => {
            return Ok(Outcome {
                by: None,
                expected: None,
                coverage: Coverage::Nothing,
                header: None,
                why: Some(why.clone()),
            });
        }
    };
    let (len, header_bytes) = (facts.source.len(), facts.header_bytes);
    refuse_other_length(facts, expected)?;
    let Decision {
        coverage,
        header,
        why,
    } = decide(len, header_bytes, facts.tensors, wanted, expected);
    let outcome = Outcome {
        by: Some(&expected.by),
        expected: Some(expected),
        coverage,
        header,
        why,
    };
    outcome.compare_header(facts)?;
    Ok(outcome)
}

fn refuse_other_length(facts: &SourceFacts<'_>, expected: &Expected) -> Result<()> {
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

/// Reads the header again, since it is not kept in memory, and requires that it has not changed
/// since it was opened.
fn header_again(facts: &SourceFacts<'_>) -> Result<Vec<u8>> {
    let source = facts.source;
    let len = usize::try_from(facts.header_bytes).expect("at most 100 MB");
    let header = source.fetch(0, len)?;
    if header.len() != len || Crcs::new(&[&header]) != facts.header {
        return Err(Error::new(
            ErrorKind::Corrupt,
            "two reads of the header returned different bytes",
        )
        .with_location(source.location())
        .with_range(0..facts.header_bytes)
        .with_hint("look for a failing disk, network or memory, and load again"));
    }
    Ok(header)
}
