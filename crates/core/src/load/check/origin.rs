//! Reads tensors again from their origin whose digests did not match, if some of their bytes came
//! from a mirror or from the cache: the origin decides what is right.
//!
//! The last extent of such a tensor has not been passed to the sink, so the tensor is incomplete,
//! and its other bytes can be replaced. It is read again piece by piece: no more than one piece is
//! in memory beside the load's. A file with one digest for all of it is not read again, since its
//! other tensors may have been handed over.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use sha2::{Digest as _, Sha256};

use super::compare::{Check, Onward};
use super::sum::Sum;
use crate::crc::Polynomial;
use crate::error::{Error, ErrorKind, Result, counted};
use crate::load::groups::Sources;
use crate::memory::{Filled, Provenance};
use crate::options::format_bytes;
use crate::plan::{Extent, Plan};
use crate::report::Report;
use crate::sync::cancel::CancelFlag;
use crate::sync::event_count::EventCount;
use crate::sync::lock::Mutex;
use crate::verify::Digest;

/// Bit of a piece's checksum that says that there is one.
const KNOWN: u64 = 1 << 63;

/// Places that the bytes of a load came from, and what was read again from the origin.
pub(super) struct OriginReads {
    sources: Arc<Sources>,
    /// By extent.
    provenance: Box<[AtomicU64]>,
    /// CRC-32C of each piece of extents that came from mirrors, to find the wrong mirror.
    crcs: Box<[AtomicU64]>,
    /// By extent: it has been passed to the sink.
    submitted: Box<[AtomicBool]>,
    /// Notified when an extent has been passed on, and at the end of the load.
    events: EventCount,
    over: CancelFlag,
    /// Held while a tensor is read again: one at a time.
    turn: Mutex<()>,
    /// Number of tensors that were read again, and their bytes.
    tensors: AtomicU64,
    bytes: AtomicU64,
}

impl OriginReads {
    /// Returns the state for a load of `plan` from `sources`; `None` if all bytes come from their
    /// origins.
    pub(super) fn new(sources: Arc<Sources>, plan: &Plan) -> Option<Self> {
        let zeros = |count| (0..count).map(|_| AtomicU64::new(0)).collect();
        let extents = plan.extents.len();
        sources.have_other_places().then(|| Self {
            sources,
            provenance: zeros(extents),
            crcs: zeros(plan.pieces.len()),
            submitted: (0..extents).map(|_| AtomicBool::new(false)).collect(),
            events: EventCount::default(),
            over: CancelFlag::default(),
            turn: Mutex::default(),
            tensors: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
        })
    }

    /// Records where an extent came from. The digests that it is added to publish this to other
    /// lanes.
    pub(super) fn came(&self, index: usize, extent: &Extent, plan: &Plan, filled: &Filled) {
        let provenance = filled.provenance();
        self.provenance[index].store(provenance.bits(), Ordering::Relaxed);
        if provenance.of_mirrors() == Provenance::ORIGIN {
            return;
        }
        for number in extent.pieces.clone() {
            let piece = &plan.pieces[number];
            let own = &filled.bytes()[piece.extent_offset..piece.extent_offset + piece.len];
            let crc = Polynomial::Crc32c.checksum(&[own]);
            self.crcs[number].store(crc | KNOWN, Ordering::Relaxed);
        }
    }

    /// Records that an extent has been passed to the sink.
    pub(super) fn submitted(&self, index: usize) {
        self.submitted[index].store(true, Ordering::Release);
        self.events.notify();
    }

    fn have_submitted(&self, extents: &[usize]) -> bool {
        let mut extents = extents.iter();
        extents.all(|&extent| self.submitted[extent].load(Ordering::Acquire))
    }

    fn provenance(&self, extent: usize) -> Provenance {
        Provenance::from_bits(self.provenance[extent].load(Ordering::Relaxed))
    }

    /// Waits until lanes have passed these extents on, which they have added to a digest. Each
    /// lane goes on to do so, unless it waits here itself: for an earlier or for a later extent of
    /// a tensor that crosses the edge between them. Only one tensor crosses an edge, and only one
    /// lane brings its last extent, so no lanes wait for each other.
    fn wait(&self, extents: &[usize]) -> Result<()> {
        loop {
            let count = self.events.count();
            if self.have_submitted(extents) {
                return Ok(());
            }
            if self.over.is_cancelled() {
                return Err(Error::new(ErrorKind::Cancelled, "the load was cancelled"));
            }
            self.events.wait_past(count);
        }
    }

    /// Ends reads and waits: the load is over.
    pub(super) fn close(&self) {
        self.over.cancel();
        self.events.notify();
    }

    /// Adds what was read again to a report.
    pub(super) fn report(&self, report: &mut Report) {
        let (tensors, bytes) = (&self.tensors, &self.bytes);
        let (tensors, bytes) = (
            tensors.load(Ordering::Relaxed),
            bytes.load(Ordering::Relaxed),
        );
        if tensors > 0 {
            let (tensors, bytes) = (counted(tensors, "tensor"), format_bytes(bytes));
            report.notes.push(format!(
                "{tensors} ({bytes}) did not match a digest: read again from the origin"
            ));
        }
    }
}

/// Result of reading a tensor from its origin.
struct SecondRead {
    found: Digest,
    /// Places of the pieces that differ.
    wrong: Provenance,
    /// Places of the pieces that have no checksum.
    unknown: Provenance,
    /// The sink has taken all pieces.
    is_replaced: bool,
}

impl Check {
    /// Reads a tensor that did not match again, if bytes of it came from elsewhere than its origin,
    /// and replaces all of them. `filled` is the extent with this index, the last one of the
    /// tensor, which has not been passed on.
    ///
    /// # Errors
    ///
    /// The `mismatch` of a tensor that came from its origin, or cannot be replaced or read again;
    /// that of the origin's bytes; [`ErrorKind::Changed`] if the object has been replaced;
    /// [`ErrorKind::Cancelled`]; errors of the sink.
    pub(super) fn mend(
        &self,
        (index, tensor): (usize, usize),
        mismatch: Error,
        filled: &mut Filled,
        onward: &mut dyn Onward,
    ) -> Result<()> {
        let pieces = self.pieces_of(self.plan.extents[index].source, tensor);
        let Some((reads, from)) = self.other_places(pieces.iter().map(|(extent, _)| *extent))
        else {
            return Err(mismatch);
        };
        let others = pieces.iter().map(|(extent, _)| *extent);
        let others: Vec<usize> = others.filter(|extent| *extent != index).collect();
        let (source, range) = (
            self.plan.extents[index].source,
            self.tensors[tensor].file_range(),
        );
        if self.sources[source].in_order.is_some() && !reads.have_submitted(&others) {
            // They wait for their turn, which may need this lane.
            return Err(self.blame((source, from), &range, mismatch));
        }
        reads.wait(&others)?;
        let _turn = reads.turn.lock();
        let second = match self.read_again(reads, (index, tensor), &pieces, filled, onward)? {
            Ok(second) => second,
            Err(error) if matches!(error.kind(), ErrorKind::Cancelled | ErrorKind::Changed) => {
                return Err(error);
            }
            Err(error) => {
                let named = self.blame((source, from), &range, mismatch);
                return Err(named.with_source(error));
            }
        };
        self.compare_tensor(&self.sources[source], tensor, second.found)?;
        let blamed = [second.wrong, second.unknown];
        let blamed = blamed.into_iter().find(|it| *it != Provenance::ORIGIN);
        let blamed = blamed.unwrap_or(Provenance::ORIGIN);
        let named = self.blame((source, blamed), &range, mismatch);
        if !second.is_replaced {
            return Err(named);
        }
        reads.tensors.fetch_add(1, Ordering::Relaxed);
        (reads.bytes).fetch_add(range.end - range.start, Ordering::Relaxed);
        Ok(())
    }

    /// Reads all pieces of a tensor from its origin, and puts them in place. Returns the origin's
    /// error if it cannot be read.
    ///
    /// # Errors
    ///
    /// Those of the sink.
    fn read_again(
        &self,
        reads: &OriginReads,
        (index, tensor): (usize, usize),
        pieces: &[(usize, usize)],
        filled: &mut Filled,
        onward: &mut dyn Onward,
    ) -> Result<Result<SecondRead>> {
        let source = self.plan.extents[index].source;
        let range = self.tensors[tensor].file_range();
        let check = self.digests[tensor].as_ref();
        let algorithm = check.expect("it did not match").expected.algorithm();
        let sum = Sum::new(algorithm, range.end - range.start);
        let (mut hasher, mut found) = (Sha256::new(), None);
        let (mut wrong, mut unknown) = (Provenance::ORIGIN, Provenance::ORIGIN);
        let mut is_replaced = true;
        for &(extent, number) in pieces {
            let piece = &self.plan.pieces[number];
            let start = range.start + piece.tensor_offset;
            let wanted = start..start + piece.len as u64;
            let bytes = match reads.sources.read_origin(source, wanted, &reads.over) {
                Ok(bytes) => bytes,
                Err(error) => return Ok(Err(error)),
            };
            match &sum {
                Some(sum) => found = sum.add(piece.tensor_offset, &bytes).or(found),
                None => hasher.update(&bytes),
            }
            let crc = Polynomial::Crc32c.checksum(&[&bytes]) | KNOWN;
            match reads.crcs[number].load(Ordering::Relaxed) {
                0 => unknown = unknown.and(reads.provenance(extent)),
                known if known != crc => wrong = wrong.and(reads.provenance(extent)),
                _ => {}
            }
            // All of them: the digest decides what is right, and the checksums only tell mirrors
            // apart.
            if extent == index {
                let own = piece.extent_offset..piece.extent_offset + piece.len;
                filled.bytes_mut()[own].copy_from_slice(&bytes);
            } else {
                let extent = &self.plan.extents[extent];
                is_replaced &= onward.replace(extent, piece, &bytes, filled)?;
            }
        }
        Ok(Ok(SecondRead {
            found: found.unwrap_or_else(|| Digest::from_hasher(hasher)),
            wrong,
            unknown,
            is_replaced,
        }))
    }

    /// Names the places of a whole source that did not match, if bytes came from elsewhere than its
    /// origin, and uses them no more.
    pub(super) fn blame_whole(&self, source: usize, mismatch: Error) -> Error {
        let extents = self.plan.extents.iter().enumerate();
        let own = extents.filter(|(_, extent)| extent.source == source);
        match self.other_places(own.map(|(index, _)| index)) {
            Some((_, from)) => {
                let range = 0..self.sources[source].len;
                self.blame((source, from), &range, mismatch)
            }
            None => mismatch,
        }
    }

    fn blame(
        &self,
        (source, from): (usize, Provenance),
        range: &Range<u64>,
        mismatch: Error,
    ) -> Error {
        let Some(reads) = &self.origin_reads else {
            return mismatch;
        };
        let names = reads.sources.distrust(source, from, range, &mismatch);
        if names.is_empty() {
            return mismatch;
        }
        mismatch.with_hint(format!(
            "bytes came from {names}, not used any more: load again"
        ))
    }

    /// Returns the other places than the origin that bytes of these extents came from, if there
    /// are any.
    fn other_places(
        &self,
        extents: impl Iterator<Item = usize>,
    ) -> Option<(&OriginReads, Provenance)> {
        let reads = self.origin_reads.as_ref()?;
        let each = extents.map(|extent| reads.provenance(extent));
        let all = each.fold(Provenance::ORIGIN, Provenance::and);
        (all != Provenance::ORIGIN).then_some((reads, all))
    }

    /// Returns the pieces of a tensor, in file order: extent and piece.
    fn pieces_of(&self, source: usize, tensor: usize) -> Vec<(usize, usize)> {
        let extents = self.plan.extents.iter().enumerate();
        let own = extents.filter(|(_, extent)| extent.source == source);
        own.flat_map(|(index, extent)| {
            let pieces = extent.pieces.clone();
            let own = pieces.filter(|piece| self.plan.pieces[*piece].tensor == tensor);
            own.map(move |piece| (index, piece))
        })
        .collect()
    }
}
