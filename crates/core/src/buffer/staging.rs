//! Staging memory for bytes that go on elsewhere: populated once, pinned for GPUs, and kept for the next load of the process.
//!
//! Touching and pinning half a gigabyte takes longer than reading it, so what a load has let go of waits here for the next one that
//! it fits. [`release_staging`] frees it. Teardown: rings have let go before, because they keep the slab; then it is unpinned, then
//! unmapped.

#![expect(unsafe_code, reason = "pins a mapping that it owns")]

use std::mem::ManuallyDrop;
use std::ops::Range;
use std::process;

use super::mapping::Mapping;
use crate::cuda::{Context, Pinned};
use crate::error::{Error, Result};
use crate::per_process::PerProcess;

/// What is pinned at a time when the driver refuses all at once. (Some kernels refuse gigabytes and take 256 MiB; pinning is as
/// fast in steps of 64 MiB as in one, 2026-11.)
const PIECE_BYTES: usize = 64 << 20;

/// Most that is kept between loads, bytes: two loads of the default size.
const IDLE_BYTES_MAX: usize = 1 << 30;

/// Memory that no load has at present.
static IDLE: PerProcess<Vec<Staging>> = PerProcess::new();

/// What a load needs.
#[derive(Clone, Copy, Debug)]
pub struct StagingNeed<'a> {
    /// Bytes of one slot, whole pages.
    pub slot_bytes: usize,
    /// Slots, at least one.
    pub slots: usize,
    /// Most bytes in all.
    pub bytes_max: usize,
    /// The GPU that reads it; none when only the processor does.
    pub context: Option<&'a Context>,
}

/// One mapping and its registrations.
#[derive(Debug)]
pub struct Staging {
    pins: Vec<Pinned>,
    /// Ranges that no slot may leave: a copy must not begin in one registration and end in another.
    spans: Vec<Range<usize>>,
    /// Unmapped when all registrations have ended.
    mapping: ManuallyDrop<Mapping>,
    facts: StagingFacts,
    /// Whose memory it is.
    process: u32,
}

/// What the staging memory of a load is like.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StagingFacts {
    /// Bytes.
    pub bytes: usize,
    /// Bytes that the GPU reads by itself.
    pub pinned_bytes: usize,
    /// Whether an earlier load of the process had it.
    pub reused: bool,
    /// Why not all of it is pinned.
    pub refusal: Option<String>,
    /// Whether pinning was asked for.
    for_gpu: bool,
    node: Option<u32>,
}

impl Staging {
    /// Memory for `need`: what an earlier load left, or fresh.
    ///
    /// # Errors
    ///
    /// [`crate::ErrorKind::OutOfMemory`] when the system has no memory to map.
    pub fn take(need: &StagingNeed<'_>) -> Result<Self> {
        let node = need.context.and_then(Context::numa_node);
        let same_kind = |staging: &Staging| {
            let facts = &staging.facts;
            facts.for_gpu == need.context.is_some() && facts.node == node
        };
        let fits = |staging: &Staging| {
            same_kind(staging)
                && staging.slots(need.slot_bytes) >= need.slots
                && staging.facts.bytes <= need.bytes_max
        };
        let (fitting, others) = {
            let mut idle = IDLE.lock();
            if let Some(index) = idle.iter().position(fits) {
                (Some(idle.swap_remove(index)), Vec::new())
            } else {
                let all = std::mem::take(&mut *idle).into_iter();
                let (others, kept) = all.partition(same_kind);
                *idle = kept;
                (None, others)
            }
        };
        // Makes room, without the lock: unpinning takes a while.
        drop(others);
        match fitting {
            Some(mut staging) => {
                staging.facts.reused = true;
                if staging.pins.is_empty()
                    && let Some(context) = need.context
                {
                    // What was refused then may be granted now.
                    staging.pin(context, need.slot_bytes);
                }
                Ok(staging)
            }
            None => Self::fresh(need, node),
        }
    }

    fn fresh(need: &StagingNeed<'_>, node: Option<u32>) -> Result<Self> {
        let mapping = Mapping::anonymous(need.slot_bytes * need.slots)?;
        mapping.keep_from_forks();
        mapping.populate(node);
        let mut staging = Self {
            pins: Vec::new(),
            spans: std::iter::once(0..mapping.len()).collect(),
            facts: StagingFacts {
                bytes: mapping.len(),
                for_gpu: need.context.is_some(),
                node,
                ..StagingFacts::default()
            },
            mapping: ManuallyDrop::new(mapping),
            process: process::id(),
        };
        if let Some(context) = need.context {
            staging.pin(context, need.slot_bytes);
        }
        Ok(staging)
    }

    /// Pins everything; in pieces if the driver refuses that; and what it still refuses stays as it is.
    fn pin(&mut self, context: &Context, slot_bytes: usize) {
        let len = self.mapping.len();
        self.facts.refusal = None;
        let whole = self.pin_range(context, 0..len);
        let Err(refusal) = whole else {
            return;
        };
        // Whole slots, so that there are as many of them.
        let piece = (PIECE_BYTES / slot_bytes).max(1) * slot_bytes;
        let pieces: Vec<_> = (0..len)
            .step_by(piece)
            .map(|from| from..len.min(from + piece))
            .collect();
        let mut refusal = Some(refusal);
        if pieces.len() > 1 {
            refusal = pieces
                .iter()
                .find_map(|range| self.pin_range(context, range.clone()).err());
            if self.facts.pinned_bytes > 0 {
                self.spans = pieces;
            }
        }
        self.facts.refusal = refusal.as_ref().map(reason);
    }

    fn pin_range(&mut self, context: &Context, range: Range<usize>) -> Result<()> {
        let start = self.mapping.start().as_ptr().wrapping_add(range.start);
        // SAFETY: the range lies in the mapping, which goes after the pins.
        let pinned = unsafe { Pinned::register(context, start, range.len()) }?;
        self.pins.push(pinned);
        self.facts.pinned_bytes += range.len();
        Ok(())
    }

    /// How many slots of so many bytes it has room for.
    pub(super) fn slots(&self, slot_bytes: usize) -> usize {
        self.spans.iter().map(|span| span.len() / slot_bytes).sum()
    }

    /// Where slots of so many bytes begin.
    pub(super) fn offsets(&self, slot_bytes: usize) -> Vec<usize> {
        let starts = |span: &Range<usize>| {
            let start = span.start;
            (0..span.len() / slot_bytes).map(move |index| start + index * slot_bytes)
        };
        self.spans.iter().flat_map(starts).collect()
    }

    /// What belongs to the process that this one was forked from is not here.
    pub(super) fn is_ours(&self) -> bool {
        self.process == process::id()
    }

    pub(super) fn mapping(&self) -> &Mapping {
        &self.mapping
    }

    /// What it is like.
    pub fn facts(&self) -> &StagingFacts {
        &self.facts
    }

    /// Keeps it for the next load, unless there is enough already.
    pub(super) fn give_back(self) {
        if !self.is_ours() {
            return;
        }
        let unwanted = {
            let mut idle = IDLE.lock();
            idle.push(self);
            let mut bytes: usize = idle.iter().map(|kept| kept.facts.bytes).sum();
            let mut unwanted = Vec::new();
            while bytes > IDLE_BYTES_MAX {
                // The oldest: the next load is likely to be like the last.
                let oldest = idle.remove(0);
                bytes -= oldest.facts.bytes;
                unwanted.push(oldest);
            }
            unwanted
        };
        // Without the lock: unpinning takes a while.
        drop(unwanted);
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        if !self.is_ours() {
            // Neither the memory nor the driver is here.
            let _not_ours = ManuallyDrop::new(std::mem::take(&mut self.pins));
            return;
        }
        let mut ended = true;
        for pin in self.pins.drain(..) {
            ended &= pin.end();
        }
        if ended {
            // SAFETY: dropped once, here, and nobody uses it any more.
            unsafe { ManuallyDrop::drop(&mut self.mapping) };
        } else {
            tracing::warn!(
                bytes = self.facts.bytes,
                "memory could not be unpinned, so it stays mapped"
            );
        }
    }
}

/// The refusal and the driver's own word for it, on one line.
fn reason(refusal: &Error) -> String {
    match std::error::Error::source(refusal) {
        Some(cause) => format!("{refusal}: {cause}"),
        None => refusal.to_string(),
    }
}

/// Frees the staging memory that loads of this process have left, and says how many bytes that were. What a running load uses
/// stays.
pub fn release_staging() -> usize {
    crate::cuda::free_leftovers();
    let staging = std::mem::take(&mut *IDLE.lock());
    staging.iter().map(|staging| staging.facts.bytes).sum()
}

/// Bytes that wait for the next load.
pub fn kept_staging() -> usize {
    let idle = IDLE.lock();
    idle.iter().map(|staging| staging.facts.bytes).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn need(slot_bytes: usize, slots: usize) -> StagingNeed<'static> {
        StagingNeed {
            slot_bytes,
            slots,
            bytes_max: 1 << 20,
            context: None,
        }
    }

    #[test]
    fn what_is_given_back_is_used_again_if_it_fits_and_freed_on_request() {
        release_staging();
        let first = Staging::take(&need(4096, 8)).expect("maps");
        assert!(!first.facts().reused);
        first.give_back();
        let second = Staging::take(&need(8192, 4)).expect("there");
        assert!(second.facts().reused, "cut anew");
        assert_eq!(second.offsets(8192), [0, 8192, 16384, 24576]);
        second.give_back();
        assert_eq!(kept_staging(), 32768);
        let larger = Staging::take(&need(4096, 9)).expect("maps");
        assert!(!larger.facts().reused, "and what did not fit made room");
        larger.give_back();
        assert_eq!(release_staging(), 36864);
        assert_eq!(release_staging(), 0);
    }

    #[test]
    fn slots_stay_inside_their_spans() {
        let mut staging = Staging::fresh(&need(4096, 8), None).expect("maps");
        staging.spans = vec![0..12288, 12288..32768];
        assert_eq!(staging.offsets(8192), [0, 12288, 20480]);
        assert_eq!(staging.slots(8192), 3);
    }
}
