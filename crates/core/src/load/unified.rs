//! Loads to GPUs that share the host's memory (GB10, Jetson): one budget for both, files that leave
//! the page cache, and a short ring of staging memory.
//!
//! Memory that is not there is refused on every such GPU. All else is a variant that no such GPU
//! has run yet. GPUs with memory of their own are not affected: their budgets stay separate. Pure,
//! except that free memory is queried.

use super::budget::{Demand, HostBudget};
use super::destinations::{Destinations, Sharing};
use crate::error::{Error, ErrorKind, Result};
use crate::options::{CacheMode, LoadOptions, format_bytes};

/// Most bytes of staging memory beside a GPU that shares the host's memory. A ring that fits the
/// processor's cache is faster than a longer one (2026-11, `benches/results/`), and here it also
/// takes memory from the GPU.
const RING_BYTES_MAX: u64 = 64 << 20;

/// Alignment of tensors that a GPU reads where they were read to, bytes: that of its widest loads.
const IN_PLACE_ALIGNMENT: u64 = 16;

/// Divisor of the memory beyond the least that a load needs: its host takes at most this share for
/// staging memory, and as much for tensors.
const SPARE_SHARE: u64 = 4;

/// Returns the options of a load whose destinations share memory as `sharing` says. A page cache
/// mode that the caller has chosen stays.
pub(crate) fn adapted(mut options: LoadOptions, sharing: Sharing) -> LoadOptions {
    if !options.trial.unified || sharing == Sharing::Nothing {
        return options;
    }
    if options.cache == CacheMode::Auto {
        options.cache = CacheMode::Drop;
    }
    if sharing == Sharing::InPlace {
        let align = options.align.unwrap_or(1).max(IN_PLACE_ALIGNMENT);
        options.align = Some(align);
        let limits = [options.memory_limit, options.device_memory_limit];
        options.memory_limit = limits.into_iter().flatten().min();
    }
    options
}

/// Returns what a report says about the memory of the destinations.
pub(crate) fn note(destinations: &Destinations, options: &LoadOptions) -> Option<String> {
    let ordinal = destinations.shared_with()?.ordinal();
    let effect = match destinations.sharing() {
        Sharing::InPlace => "reads tensors where they were read to: nothing is copied",
        _ if options.trial.unified => {
            "files leave the page cache, and staging takes at most 64 MiB"
        }
        Sharing::Nothing | Sharing::Copied => "tensors, staging memory and the page cache share it",
    };
    Some(format!(
        "cuda:{ordinal} has no memory of its own, but the host's: {effect}"
    ))
}

/// Budgets of a load in memory that its host and its GPUs share, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SharedBudget {
    pub(crate) host: HostBudget,
    /// Bytes left for GPUs.
    left: u64,
    /// Largest regions of the GPUs whose budgets are not taken from it yet.
    needed: u64,
}

impl SharedBudget {
    /// Returns the budgets of a load to a GPU that shares the host's memory; `None` if it has no
    /// such GPU. `host` is the destination whose tensors live on the host, `budget` the budget of
    /// the host alone.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::OutOfMemory`] if the memory cannot hold at once what the load needs at once;
    /// [`ErrorKind::Device`].
    pub(crate) fn new(
        demand: &Demand<'_>,
        destinations: &Destinations,
        options: &LoadOptions,
        host: Option<usize>,
        budget: HostBudget,
    ) -> Result<Option<Self>> {
        let Some(context) = destinations.shared_with() else {
            return Ok(None);
        };
        let budget = if options.trial.unified {
            with_slots(budget, RING_BYTES_MAX / budget.slot.max(1))
        } else {
            budget
        };
        let largest_on = |index| demand.largest_region(index);
        let devices = destinations.indices_shared().map(largest_on).sum();
        let on_host = host.map_or(0, largest_on);
        let measured = destinations.indices_shared().next();
        let available = match measured.and_then(|index| destinations.free(index)) {
            Some(free) => free,
            None => context.available_memory()?,
        };
        let available = available.saturating_add(demand.kept);
        let fitted = Self::fit(budget, on_host, devices, available);
        let error = || {
            let index = host.into_iter().chain(destinations.indices_shared());
            let largest = index.max_by_key(|index| demand.largest_region(*index));
            let least = budget.without_room();
            let error = refusal(context.ordinal(), least, on_host + devices, available);
            match largest.filter(|index| largest_on(*index) > 0) {
                Some(index) => error.with_tensor(demand.largest_tensor(index).name()),
                None => error,
            }
        };
        fitted.ok_or_else(error).map(Some)
    }

    /// Fits `budget` into `available` bytes beside the largest regions of the host and of the
    /// `devices`; `None` if they do not fit.
    ///
    /// Slots lose their room to join tensors before the load is refused.
    ///
    /// Worked example: 100 MiB are available, of which the largest tensor on the GPU takes 60 and a
    /// slot 4. Of the other 36, the ring takes at most 9, so it has 3 slots; 88 are left for the
    /// GPU.
    fn fit(budget: HostBudget, host: u64, devices: u64, available: u64) -> Option<Self> {
        let fitted = |budget| Self::fit_slots(budget, host, devices, available);
        fitted(budget).or_else(|| fitted(budget.without_room()))
    }

    /// Fits `budget` with slots of this length.
    fn fit_slots(mut budget: HostBudget, host: u64, devices: u64, available: u64) -> Option<Self> {
        let slot = budget.slot * budget.slots.min(1);
        let least = host.checked_add(slot)?.checked_add(devices)?;
        let spare = available.checked_sub(least)? / SPARE_SHARE;
        let slots = 1 + spare.checked_div(budget.slot).unwrap_or(0);
        if slots < budget.slots {
            budget = with_slots(budget, slots);
        }
        if host > 0 {
            budget.pool = budget.pool.min(host + spare);
        }
        let on_host = budget.slots * budget.slot + if host > 0 { budget.pool } else { 0 };
        Some(Self {
            host: budget,
            left: available - on_host,
            needed: devices,
        })
    }

    /// Returns the free bytes of one GPU whose largest region has `largest` bytes: those that are
    /// left, without what the others need.
    pub(crate) fn free_for(&self, largest: u64) -> u64 {
        self.left - (self.needed - largest)
    }

    /// Takes the budget of that GPU.
    pub(crate) fn take(&mut self, largest: u64, budget: u64) {
        self.left -= budget.min(self.free_for(largest));
        self.needed -= largest;
    }
}

/// Returns the budget with at most `slots` slots, and at least one if it had any.
fn with_slots(budget: HostBudget, slots: u64) -> HostBudget {
    let slots = budget.slots.min(slots.max(1));
    HostBudget {
        slots,
        staging_max: slots * budget.slot,
        ..budget
    }
}

fn refusal(ordinal: usize, budget: HostBudget, regions: u64, available: u64) -> Error {
    let staged = budget.slot * budget.slots.min(1);
    let needed = regions.saturating_add(staged);
    let staging = if staged > 0 {
        format!(", {} of them to stage reads", format_bytes(staged))
    } else {
        String::new()
    };
    Error::new(
        ErrorKind::OutOfMemory,
        format!(
            "cuda:{ordinal} shares the host's memory, which has {} ({available} bytes) available; {} ({needed} bytes) \
             are needed at once{staging}",
            format_bytes(available),
            format_bytes(needed)
        ),
    )
    .with_hint("end other programs, or load fewer tensors")
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn budget(pool: u64, slots: u64) -> HostBudget {
        HostBudget {
            pool: pool * MIB,
            slot: if slots > 0 { 4 * MIB } else { 0 },
            window: if slots > 0 { 4 * MIB } else { 0 },
            slots,
            staging_max: 512 * MIB,
        }
    }

    /// Pool, slots and bytes left for GPUs, by the budget of the host alone, the largest regions of
    /// host and GPUs, and the available memory. All in MiB.
    #[test]
    fn host_and_gpus_fit_into_one_memory() {
        for (pool, slots, host, devices, available, expected) in [
            // Much memory changes nothing.
            (0, 30, 0, 60, 100_000, Some((0, 30, 99_880))),
            (512, 30, 16, 60, 100_000, Some((512, 30, 99_368))),
            // Less memory: the ring shortens first.
            (0, 30, 0, 60, 100, Some((0, 3, 88))),
            (0, 30, 0, 60, 64, Some((0, 1, 60))),
            (0, 30, 0, 60, 63, None),
            // The host's tensors shrink as well, down to the largest of them.
            (512, 30, 16, 60, 96, Some((20, 2, 68))),
            (512, 30, 16, 60, 80, Some((16, 1, 60))),
            (512, 30, 16, 60, 79, None),
            // Tensors that are read in place, which need no slot and no other memory.
            (512, 0, 16, 0, 2000, Some((512, 0, 1488))),
            (512, 0, 16, 0, 32, Some((20, 0, 12))),
            (512, 0, 16, 0, 15, None),
            // A limit for the host is no memory that it takes.
            (512, 2, 0, 60, 100, Some((512, 2, 92))),
            (0, 0, 0, 0, 0, Some((0, 0, 0))),
        ] {
            let case = (pool, slots, host, devices, available);
            let fitted = SharedBudget::fit(
                budget(pool, slots),
                host * MIB,
                devices * MIB,
                available * MIB,
            );
            let found = fitted.map(|it| (it.host.pool / MIB, it.host.slots, it.left / MIB));
            assert_eq!(found, expected, "{case:?}");
            let most = fitted.map_or(0, |it| it.left + it.host.slots * it.host.slot);
            assert!(most <= available * MIB, "{case:?}");
        }
        assert_eq!(
            SharedBudget::fit(budget(0, 1), u64::MAX, 1, u64::MAX),
            None,
            "no overflow"
        );
    }

    /// By the available memory: the length of the slot, and the bytes left for the GPU.
    #[test]
    fn room_to_join_tensors_is_given_up_before_the_load() {
        let roomy = HostBudget {
            window: 3 * MIB,
            ..budget(0, 1)
        };
        for (available, expected) in [(64, Some((4, 60))), (63, Some((3, 60))), (62, None)] {
            let fitted = SharedBudget::fit(roomy, 0, 60 * MIB, available * MIB);
            let found = fitted.map(|it| (it.host.slot / MIB, it.left / MIB));
            assert_eq!(found, expected, "{available}");
        }
    }

    /// Each of two GPUs sees what is left without the largest region of the other.
    #[test]
    fn several_gpus_take_from_one_memory() {
        let mut shared = SharedBudget::fit(budget(0, 1), 0, 50 * MIB, 104 * MIB).expect("fits");
        assert_eq!(shared.free_for(20 * MIB), 70 * MIB);
        shared.take(20 * MIB, 60 * MIB);
        assert_eq!(shared.free_for(30 * MIB), 40 * MIB);
        shared.take(30 * MIB, 512 * MIB);
        assert_eq!((shared.left, shared.needed), (0, 0));
    }

    #[test]
    fn options_adapt_to_shared_memory_if_tried() {
        let options = |unified, cache, align, memory_limit, device_memory_limit| {
            let mut options = LoadOptions::new().cache(cache);
            options.trial.unified = unified;
            options.align = align;
            options.memory_limit = memory_limit;
            options.device_memory_limit = device_memory_limit;
            options
        };
        let auto = CacheMode::Auto;
        let plain = options(true, auto, None, None, None);
        let drop = CacheMode::Drop;
        for (unified, sharing, cache, align) in [
            (true, Sharing::Nothing, auto, None),
            (true, Sharing::Copied, drop, None),
            (true, Sharing::InPlace, drop, Some(16)),
            (false, Sharing::Copied, auto, None),
            (false, Sharing::InPlace, auto, None),
        ] {
            let mut given = plain.clone();
            given.trial.unified = unified;
            let adapted = adapted(given, sharing);
            assert_eq!(
                (adapted.cache, adapted.align),
                (cache, align),
                "{sharing:?}"
            );
        }
        // The caller's choices stay.
        for cache in [CacheMode::Buffered, CacheMode::Direct, CacheMode::Map] {
            let given = options(true, cache, Some(64), Some(5), Some(3));
            let adapted = adapted(given, Sharing::InPlace);
            assert_eq!((adapted.cache, adapted.align), (cache, Some(64)));
            assert_eq!(adapted.memory_limit, Some(3), "the lower one");
        }
    }

    #[test]
    fn ring_is_short_but_has_a_slot() {
        let slots = |slot: u64, slots| {
            let budget = HostBudget {
                slot: slot * MIB,
                window: slot * MIB,
                ..budget(0, slots)
            };
            let short = with_slots(budget, RING_BYTES_MAX / budget.slot.max(1));
            (short.slots, short.staging_max / MIB)
        };
        assert_eq!(slots(4, 30), (16, 64));
        assert_eq!(slots(4, 3), (3, 12));
        assert_eq!(slots(100, 2), (1, 100));
        assert_eq!(slots(0, 0), (0, 0));
    }

    #[test]
    fn refusal_states_what_is_needed_and_found() {
        let error = refusal(0, budget(0, 30), 60 * MIB, 63 * MIB);
        assert_eq!(error.kind(), ErrorKind::OutOfMemory);
        assert_eq!(
            error.message(),
            "cuda:0 shares the host's memory, which has 63.0 MiB (66060288 bytes) available; 64.0 MiB (67108864 bytes) \
             are needed at once, 4.0 MiB of them to stage reads"
        );
        let error = refusal(1, budget(0, 0), 60 * MIB, 0);
        assert!(error.message().ends_with("at once"), "{}", error.message());
        assert!(error.hint().is_some());
    }
}
