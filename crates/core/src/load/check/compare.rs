//! Comparison during a load. All lanes pass their filled extents through here, between engine and
//! sink.
//!
//! Each byte of a tensor is in exactly one piece of one extent, so each byte is counted once,
//! whatever else windows hold at their edges. The lane with the last piece of a tensor compares the
//! tensor, and passes the piece to the sink only if it matches: without that piece no sink
//! completes the tensor.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use sha2::{Digest as _, Sha256};

use super::in_order::InOrder;
use super::late::not_compared;
use super::sum::Sum;
use crate::crc::Polynomial;
use crate::error::{Error, Result};
use crate::format::TensorInfo;
use crate::memory::Filled;
use crate::plan::{Extent, Piece, Plan};
use crate::report::Report;
use crate::verify::{Digest, corrupt};

/// All comparisons of one load.
pub struct Check {
    pub(super) plan: Arc<Plan>,
    pub(super) tensors: Arc<[TensorInfo]>,
    /// Digests of tensors that have their own, by tensor.
    pub(super) digests: Box<[Option<TensorCheck>]>,
    /// Sources, by their number in the plan.
    pub(super) sources: Vec<SourceCheck>,
    pub(super) verified_bytes: AtomicU64,
    pub(super) account: Account,
    pub(super) blame: Option<Arc<dyn Blame>>,
}

/// Knows who sent the bytes that a load compares.
pub(crate) trait Blame: Send + Sync {
    /// Uses the places no more that may have sent wrong bytes, whose location and range `mismatch`
    /// has, and returns the error with their names.
    fn blame(&self, mismatch: Error) -> Error;
}

/// Passes an extent on to a sink.
type Onward<'a> = dyn FnMut(&Extent, Filled) -> Result<()> + 'a;

/// State of a check before the first comparison.
#[derive(Debug, Default)]
pub(super) struct Account {
    /// Requested verification.
    pub(super) choice: String,
    /// Authorities: name, algorithms, and number of sources compared with them.
    pub(super) by: Vec<(String, String, u64)>,
    /// Sources that are not compared completely, and the reasons.
    pub(super) unverified: Vec<(String, String)>,
}

pub(super) struct TensorCheck {
    pub(super) expected: Digest,
    /// `None` for SHA-256.
    pub(super) sum: Option<Sum>,
    /// Bytes that a SHA-256 covers before those of the tensor.
    pub(super) before: Vec<u8>,
}

/// Comparison of one source.
#[derive(Default)]
pub(super) struct SourceCheck {
    pub(super) location: String,
    pub(super) len: u64,
    pub(super) by: String,
    pub(super) whole: Option<(Digest, Option<Sum>)>,
    pub(super) in_order: Option<InOrder>,
}

impl Check {
    /// Passes an extent that the engine has filled to the sink, through `onward`, if everything it
    /// completes matches. If the source is hashed in file order, also passes the extents that
    /// waited for this one.
    ///
    /// # Errors
    ///
    /// [`Corrupt`](crate::ErrorKind::Corrupt) that names the tensor or the file, its bytes, and the
    /// mirrors that may have sent them; errors of `onward`.
    pub(crate) fn pass(&self, index: usize, filled: Filled, onward: &mut Onward<'_>) -> Result<()> {
        let extent = &self.plan.extents[index];
        let source = &self.sources[extent.source];
        self.add(extent, &filled)?;
        let Some(in_order) = &source.in_order else {
            return onward(extent, filled);
        };
        let mut turn = in_order.arrived(index, filled);
        while let Some(mut now) = turn {
            let extent = &self.plan.extents[now.extent];
            self.hash(extent, &now.filled, &mut now.hasher)?;
            onward(extent, now.filled)?;
            turn = in_order.hashed(now.hasher);
        }
        Ok(())
    }

    /// Returns the polynomial of the CRC that an extent is compared by, if it is one.
    pub(crate) fn polynomial(&self, extent: &Extent) -> Option<Polynomial> {
        let whole = self.sources[extent.source].whole.as_ref();
        let mut pieces = self.plan.pieces[extent.pieces.clone()].iter();
        let sum = match whole {
            Some((_, sum)) => sum.as_ref(),
            None => pieces.find_map(|piece| self.digests[piece.tensor].as_ref()?.sum.as_ref()),
        };
        sum.and_then(Sum::polynomial)
    }

    /// Adds an extent to the digests that combine.
    fn add(&self, extent: &Extent, filled: &Filled) -> Result<()> {
        let source = &self.sources[extent.source];
        let pieces = &self.plan.pieces[extent.pieces.clone()];
        if let Some((expected, Some(sum))) = &source.whole {
            for run in runs(pieces) {
                let offset = extent.offset + run.start as u64;
                if let Some(found) = sum.add_filled(offset, filled, run) {
                    self.compare_whole(source, *expected, found)?;
                }
            }
            return Ok(());
        }
        for piece in pieces {
            let Some(check) = &self.digests[piece.tensor] else {
                continue;
            };
            let own = piece.extent_offset..piece.extent_offset + piece.len;
            let sum = check.sum.as_ref();
            let found = sum.and_then(|sum| sum.add_filled(piece.tensor_offset, filled, own));
            if let Some(found) = found {
                self.compare_tensor(source, piece.tensor, found)?;
            }
        }
        Ok(())
    }

    /// Adds an extent to the digests that do not combine.
    fn hash(&self, extent: &Extent, filled: &Filled, hasher: &mut Sha256) -> Result<()> {
        let source = &self.sources[extent.source];
        for piece in &self.plan.pieces[extent.pieces.clone()] {
            let own = &filled.bytes()[piece.extent_offset..][..piece.len];
            let is_last = |whole: u64| piece.tensor_offset + own.len() as u64 == whole;
            if let Some((expected, None)) = source.whole {
                hasher.update(own);
                let tensor = &self.tensors[piece.tensor];
                if is_last(tensor.byte_len()) && tensor.file_range().end == source.len {
                    let found = Digest::from_hasher(hasher.clone());
                    self.compare_whole(source, expected, found)?;
                }
                continue;
            }
            let check = self.digests[piece.tensor].as_ref();
            let Some(check) = check.filter(|check| check.sum.is_none()) else {
                continue;
            };
            if piece.tensor_offset == 0 {
                *hasher = Sha256::new_with_prefix(&check.before);
            }
            hasher.update(own);
            if is_last(self.tensors[piece.tensor].byte_len()) {
                let found = Digest::from_hasher(hasher.clone());
                self.compare_tensor(source, piece.tensor, found)?;
            }
        }
        Ok(())
    }

    pub(super) fn compare_tensor(
        &self,
        source: &SourceCheck,
        tensor: usize,
        found: Digest,
    ) -> Result<()> {
        let info = &self.tensors[tensor];
        let check = self.digests[tensor].as_ref();
        let expected = check
            .expect("only tensors with a digest are compared")
            .expected;
        if found == expected {
            self.count(info.byte_len());
            return Ok(());
        }
        Err(self.blamed(
            corrupt(&source.by, expected, found)
                .with_location(&source.location)
                .with_range(info.file_range())
                .with_tensor(info.name()),
        ))
    }

    pub(super) fn compare_whole(
        &self,
        source: &SourceCheck,
        expected: Digest,
        found: Digest,
    ) -> Result<()> {
        if found == expected {
            self.count(source.len);
            return Ok(());
        }
        Err(self.blamed(
            corrupt(&source.by, expected, found)
                .with_location(&source.location)
                .with_range(0..source.len),
        ))
    }

    fn blamed(&self, mismatch: Error) -> Error {
        match &self.blame {
            Some(blame) => blame.blame(mismatch),
            None => mismatch,
        }
    }

    fn count(&self, bytes: u64) {
        self.verified_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Checks at the end of a successful load that every planned comparison was made.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Io`](crate::ErrorKind::Io) if not, which would be a bug.
    pub fn finish(&self) -> Result<()> {
        let tensors = self.digests.iter().flatten();
        let tensors_are_whole = tensors
            .filter_map(|check| check.sum.as_ref())
            .all(Sum::is_whole);
        let source_is_whole = |source: &SourceCheck| {
            let sum = source.whole.as_ref().and_then(|(_, sum)| sum.as_ref());
            sum.is_none_or(Sum::is_whole) && source.in_order.as_ref().is_none_or(InOrder::is_whole)
        };
        if tensors_are_whole && self.sources.iter().all(source_is_whole) {
            return Ok(());
        }
        Err(not_compared())
    }

    /// Frees the memory of extents that wait for their turn, after the end of the load.
    pub(crate) fn close(&self) {
        let sources = self.sources.iter();
        sources
            .filter_map(|source| source.in_order.as_ref())
            .for_each(InOrder::close);
    }

    /// Adds the result of the comparison to a report.
    pub fn report(&self, report: &mut Report) {
        let bytes = self.verified_bytes.load(Ordering::Relaxed);
        let Account {
            choice,
            by,
            unverified,
        } = &self.account;
        report.set_verification(choice, bytes, by, unverified);
    }
}

impl fmt::Debug for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Check")
            .field("account", &self.account)
            .finish_non_exhaustive()
    }
}

/// Joins pieces without gaps between them into ranges of the extent's window: thousands of small
/// tensors become one range.
fn runs(pieces: &[Piece]) -> impl Iterator<Item = Range<usize>> {
    let mut pieces = pieces.iter().peekable();
    std::iter::from_fn(move || {
        let first = pieces.next()?;
        let mut run = first.extent_offset..first.extent_offset + first.len;
        while let Some(next) = pieces.next_if(|next| next.extent_offset == run.end) {
            run.end += next.len;
        }
        Some(run)
    })
}
