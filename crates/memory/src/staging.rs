//! Staging memory for bytes that are copied elsewhere: populated once, pinned for GPUs, and kept
//! for the next load of the process.
//!
//! Touching and pinning half a gigabyte takes longer than reading it, so memory returned by a load
//! is kept here for the next load that it fits. [`release_staging`] frees it. Teardown: rings are
//! gone before, because they keep the slab; then the memory is unpinned, then unmapped.

#![expect(unsafe_code, reason = "pins a mapping that it owns")]

use std::mem::ManuallyDrop;
use std::ops::Range;

use super::mapping::Mapping;
use crate::cuda::{Context, Pinned};
use crate::error::{Error, Result};
use crate::sync::per_process::{PerProcess, process_id};

/// Size of one registration when the driver refuses to pin all memory at once. (Some kernels refuse
/// gigabytes and accept 256 MiB; pinning is as fast in steps of 64 MiB as in one, 2026-11.)
const PIECE_BYTES: usize = 64 << 20;

/// Maximum of the bytes kept between loads: two loads of the default size.
const IDLE_BYTES_MAX: usize = 1 << 30;

/// Memory that no load uses at present.
static IDLE: PerProcess<Vec<Staging>> = PerProcess::new();

/// Staging memory that a load needs.
#[derive(Clone, Copy, Debug)]
pub struct StagingNeed<'a> {
    /// Size of one slot in bytes, whole pages.
    pub slot_bytes: usize,
    /// Number of slots, at least one.
    pub slots: usize,
    /// Maximum of the bytes in all.
    pub bytes_max: usize,
    /// GPU that reads the memory; `None` when only the processor does.
    pub context: Option<&'a Context>,
}

/// One mapping and its registrations.
#[derive(Debug)]
pub struct Staging {
    pins: Vec<Pinned>,
    /// Ranges that no slot may cross: a copy must not begin in one registration and end in another.
    spans: Vec<Range<usize>>,
    /// Mapping, unmapped when all registrations have ended.
    mapping: ManuallyDrop<Mapping>,
    facts: StagingFacts,
    /// No load has used it.
    is_new: bool,
    /// Process that owns the memory.
    process: u32,
}

/// Properties of a load's staging memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StagingFacts {
    /// Length in bytes.
    pub bytes: usize,
    /// Bytes that the GPU reads directly.
    pub pinned_bytes: usize,
    /// Memory came from an earlier load of the process.
    pub reused: bool,
    /// Reason why not all of it is pinned.
    pub refusal: Option<String>,
    /// Pinning was requested.
    for_gpu: bool,
    node: Option<u32>,
}

impl Staging {
    /// Takes memory for `need` that an earlier load left, or allocates it.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::OutOfMemory`](crate::error::ErrorKind::OutOfMemory) when the system has no
    /// memory to map.
    pub fn take(need: &StagingNeed<'_>) -> Result<Self> {
        let kind = kind_for(need.context);
        let same_kind = |staging: &Staging| staging.kind() == kind;
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
        // Free the others to make room. The lock is released first, because unpinning takes a
        // while.
        drop(others);
        match fitting {
            Some(mut staging) => {
                staging.facts.reused = !std::mem::take(&mut staging.is_new);
                if staging.pins.is_empty()
                    && let Some(context) = need.context
                {
                    // The driver may now accept memory that it refused before.
                    staging.pin(context, need.slot_bytes);
                }
                Ok(staging)
            }
            None => Self::fresh(need, kind.1),
        }
    }

    /// Allocates memory for a load that has not begun, unless an earlier one has left some. The
    /// load takes it once it is [kept](Self::keep).
    ///
    /// # Errors
    ///
    /// As [`Self::take`].
    pub fn ahead(need: &StagingNeed<'_>) -> Result<Option<Self>> {
        let kind = kind_for(need.context);
        if IDLE.lock().iter().any(|staging| staging.kind() == kind) {
            return Ok(None);
        }
        let mut staging = Self::fresh(need, kind.1)?;
        staging.is_new = true;
        Ok(Some(staging))
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
            is_new: false,
            process: process_id(),
        };
        if let Some(context) = need.context {
            staging.pin(context, need.slot_bytes);
        }
        Ok(staging)
    }

    /// Pins all of the memory, or pieces of it if the driver refuses that; pieces that it still
    /// refuses stay unpinned.
    fn pin(&mut self, context: &Context, slot_bytes: usize) {
        let len = self.mapping.len();
        self.facts.refusal = None;
        let whole = self.pin_range(context, 0..len);
        let Err(refusal) = whole else {
            return;
        };
        // Round to whole slots, so that the number of slots stays the same.
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
        // SAFETY: the range lies in the mapping, which is unmapped after the pins have ended.
        let pinned = unsafe { Pinned::register(context, start, range.len()) }?;
        self.pins.push(pinned);
        self.facts.pinned_bytes += range.len();
        Ok(())
    }

    /// Returns whether the memory is for a GPU, and its NUMA node.
    fn kind(&self) -> (bool, Option<u32>) {
        (self.facts.for_gpu, self.facts.node)
    }

    /// Returns the number of slots of `slot_bytes` bytes that it has room for.
    pub(super) fn slots(&self, slot_bytes: usize) -> usize {
        self.spans.iter().map(|span| span.len() / slot_bytes).sum()
    }

    /// Returns the offsets of slots of `slot_bytes` bytes.
    pub(super) fn offsets(&self, slot_bytes: usize) -> Vec<usize> {
        let starts = |span: &Range<usize>| {
            let start = span.start;
            (0..span.len() / slot_bytes).map(move |index| start + index * slot_bytes)
        };
        self.spans.iter().flat_map(starts).collect()
    }

    /// Returns whether this process made the memory: in a forked child, the parent's memory is not
    /// mapped.
    pub(super) fn is_ours(&self) -> bool {
        self.process == process_id()
    }

    pub(super) fn mapping(&self) -> &Mapping {
        &self.mapping
    }

    /// Properties of the memory.
    pub fn facts(&self) -> &StagingFacts {
        &self.facts
    }

    /// Keeps the memory for the next load, and frees the oldest if too much is kept.
    pub fn keep(self) {
        if !self.is_ours() {
            return;
        }
        let unwanted = {
            let mut idle = IDLE.lock();
            idle.push(self);
            let mut bytes: usize = idle.iter().map(|kept| kept.facts.bytes).sum();
            let mut unwanted = Vec::new();
            while bytes > IDLE_BYTES_MAX {
                // Free the oldest memory first, because the next load is likely to resemble the
                // last.
                let oldest = idle.remove(0);
                bytes -= oldest.facts.bytes;
                unwanted.push(oldest);
            }
            unwanted
        };
        // The lock is released first, because unpinning takes a while.
        drop(unwanted);
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        if !self.is_ours() {
            // In a forked process, the memory and the driver belong to the parent.
            let _not_ours = ManuallyDrop::new(std::mem::take(&mut self.pins));
            return;
        }
        let mut ended = true;
        for pin in self.pins.drain(..) {
            ended &= pin.end();
        }
        if ended {
            // SAFETY: dropped once, here, and no longer used.
            unsafe { ManuallyDrop::drop(&mut self.mapping) };
        } else {
            tracing::warn!(
                bytes = self.facts.bytes,
                "memory could not be unpinned, so it stays mapped"
            );
        }
    }
}

/// Returns the refusal and the driver's own message, on one line.
fn reason(refusal: &Error) -> String {
    match std::error::Error::source(refusal) {
        Some(cause) => format!("{refusal}: {cause}"),
        None => refusal.to_string(),
    }
}

/// Frees the staging memory that earlier loads of this process have left, and returns its size in
/// bytes. Memory in use by a running load is not freed.
///
/// # Examples
///
/// ```
/// # use tload_memory as tload;
/// let freed = tload::release_staging();
/// println!("{freed} bytes freed");
/// ```
pub fn release_staging() -> usize {
    crate::cuda::free_leftovers();
    let staging = std::mem::take(&mut *IDLE.lock());
    staging.iter().map(|staging| staging.facts.bytes).sum()
}

/// Frees memory that was [prepared](Staging::ahead) and kept, and that no load has taken.
pub fn release_untaken_staging() {
    let untaken: Vec<_> = IDLE.lock().extract_if(.., |kept| kept.is_new).collect();
    // The lock is released first, because unpinning takes a while.
    drop(untaken);
}

/// Minimum of the kept bytes that the next load which needs memory for this GPU, or for none,
/// reuses or frees: it reuses the memory of one load and leaves that of others, or frees all.
pub fn kept_staging(context: Option<&Context>) -> usize {
    let kind = kind_for(context);
    let idle = IDLE.lock();
    let kept = idle.iter().filter(|staging| staging.kind() == kind);
    kept.map(|staging| staging.facts.bytes).min().unwrap_or(0)
}

/// Returns the [`Staging::kind`] that a GPU needs, or no GPU.
fn kind_for(context: Option<&Context>) -> (bool, Option<u32>) {
    (context.is_some(), context.and_then(Context::numa_node))
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
    fn returned_staging_reused_if_fitting_and_freed_on_release() {
        release_staging();
        let first = Staging::take(&need(4096, 8)).expect("maps");
        assert!(!first.facts().reused);
        first.keep();
        let second = Staging::take(&need(8192, 4)).expect("there");
        assert!(second.facts().reused, "cut anew");
        assert_eq!(second.offsets(8192), [0, 8192, 16384, 24576]);
        second.keep();
        assert_eq!(kept_staging(None), 32768);
        let mut pinned = Staging::fresh(&need(4096, 1), None).expect("maps");
        pinned.facts.for_gpu = true;
        pinned.keep();
        assert_eq!(kept_staging(None), 32768, "of the kind that is needed");
        let other = Staging::fresh(&need(4096, 3), None).expect("maps");
        other.keep();
        assert_eq!(
            kept_staging(None),
            12288,
            "a load may take it, and leave the first"
        );
        let larger = Staging::take(&need(4096, 9)).expect("maps");
        assert!(!larger.facts().reused, "and what did not fit made room");
        larger.keep();
        assert_eq!(release_staging(), 36864 + 4096);
        assert_eq!(release_staging(), 0);
        let ahead = Staging::ahead(&need(4096, 8)).expect("maps");
        ahead.expect("nothing is kept").keep();
        release_untaken_staging();
        assert_eq!(kept_staging(None), 0);
        let ahead = Staging::ahead(&need(4096, 8)).expect("maps");
        ahead.expect("nothing is kept").keep();
        assert!(Staging::ahead(&need(4096, 8)).expect("no need").is_none());
        for reused in [false, true] {
            let staging = Staging::take(&need(4096, 8)).expect("there");
            assert_eq!(staging.facts().reused, reused, "by a load");
            staging.keep();
        }
        release_untaken_staging();
        assert_eq!(release_staging(), 32768, "one mapping");
    }

    /// Returns the kernel's policy for the memory at an address; `None` if it does not tell.
    #[cfg(all(target_os = "linux", not(miri)))]
    fn policy_at(address: usize) -> Option<String> {
        let maps = std::fs::read_to_string("/proc/self/numa_maps").ok()?;
        let line = maps
            .lines()
            .find_map(|line| line.strip_prefix(&format!("{address:08x} ")))?;
        Some(line.split(' ').next()?.to_owned())
    }

    /// The kernel takes memory of other nodes if the preferred one has none. A node that does not
    /// exist is not preferred.
    #[cfg(all(target_os = "linux", not(miri)))]
    #[test]
    fn memory_prefers_its_node_and_comes_from_others_too() {
        for (node, expected) in [
            (Some(0), "prefer:0"),
            (Some(900), "default"),
            (None, "default"),
        ] {
            let staging = Staging::fresh(&need(4096, 600), node).expect("memory of any node");
            let start = staging.mapping().start().as_ptr().addr();
            // A filter of system calls may refuse the policy, and then it is the default.
            let policy = policy_at(start);
            let policy = policy.filter(|found| node.is_none() || found != "default");
            assert!(policy.is_none_or(|it| it == expected), "{node:?}");
            assert_eq!(staging.facts().bytes, 600 * 4096);
        }
    }

    #[test]
    fn staging_slots_do_not_cross_spans() {
        let mut staging = Staging::fresh(&need(4096, 8), None).expect("maps");
        staging.spans = vec![0..12288, 12288..32768];
        assert_eq!(staging.offsets(8192), [0, 12288, 20480]);
        assert_eq!(staging.slots(8192), 3);
    }
}
