//! Size of the regions of GPU memory that tensors share, and the budget that holds them. Pure.
//!
//! An allocation costs time however small it is, and a region stays in the budget until the caller
//! has received all of its tensors. So regions are as large as the budget allows: while some are
//! filled, others are received.

use crate::Packing;

/// Size of regions for a caller that keeps all tensors, bytes: nothing is kept that would otherwise
/// be freed. (H100: memory in pieces of 64 MiB takes 3 ms per GiB to allocate, of 256 MiB 0.4;
/// 2026-11, `benches/results/16core-h100-2026-11-28`.)
const KEPT_REGION_BYTES: u64 = 256 << 20;

/// Minimum number of regions that a budget holds.
const REGIONS_MIN: u64 = 8;

/// Minimum number of regions that the free memory of a GPU holds: those of the budget, one that the
/// caller has received and not dropped, and one for the steps in which allocators take memory.
const REGIONS_FREE_MIN: u64 = REGIONS_MIN + 2;

/// Size that many sources do not push regions below, bytes: one read still runs at the full speed
/// of a disk.
const SHARED_BYTES: u64 = 1 << 20;

/// Requests of a load for its regions, and the facts that limit them.
#[derive(Clone, Copy, Debug)]
pub struct RegionNeed {
    /// Requested size of regions, bytes.
    pub region_bytes: Option<u64>,
    /// Requested alignment of tensors, bytes; a power of two.
    pub alignment: Option<usize>,
    /// Requested budget of a GPU, bytes. It is never raised.
    pub limit: Option<u64>,
    /// Default budget of a GPU for regions of the default size, bytes.
    pub budget: u64,
    /// Another rank reads for this one, so memory that more regions need brings nothing.
    pub is_received: bool,
    /// Sources that may be read at once, each into a region of its own.
    pub sources: u64,
    /// The caller keeps all tensors.
    pub keeps_all: bool,
}

impl RegionNeed {
    /// Returns the default budget of a GPU, bytes.
    #[must_use]
    pub fn default_budget(&self) -> u64 {
        let regions = self.wanted().saturating_mul(REGIONS_MIN);
        if self.is_received {
            self.budget
        } else {
            self.budget.max(regions)
        }
    }

    /// Returns the packing of tensors on a GPU with `free` free bytes, if that is known.
    ///
    /// Worked example: 512 MiB hold 8 regions of 64 MiB. If 16 files are read at once, their
    /// regions are 16 MiB, so that they take half of the budget.
    #[must_use]
    pub fn packing(&self, free: Option<u64>) -> Packing {
        let budget = self.limit.unwrap_or_else(|| self.default_budget());
        let by_sources = budget / (2 * self.sources.max(1));
        // One that the caller has received and not dropped is beside the budget, unless the budget
        // has to shrink anyway.
        let beside = free.filter(|free| *free >= budget);
        let beside = beside.map_or(u64::MAX, |free| (free - budget).max(SHARED_BYTES));
        let region_bytes = self
            .wanted()
            .min(budget / REGIONS_MIN)
            .min(free.map_or(u64::MAX, |free| free / REGIONS_FREE_MIN))
            .min(beside)
            .min(by_sources.max(SHARED_BYTES));
        Packing {
            region_bytes: region_bytes.max(1),
            alignment: self.alignment.unwrap_or(Packing::ALIGNMENT),
        }
    }

    fn wanted(&self) -> u64 {
        self.region_bytes.unwrap_or(if self.keeps_all {
            KEPT_REGION_BYTES
        } else {
            Packing::REGION_BYTES
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    const NEED: RegionNeed = RegionNeed {
        region_bytes: None,
        alignment: None,
        limit: None,
        budget: 512 * MIB,
        is_received: false,
        sources: 4,
        keeps_all: false,
    };

    fn bytes(need: RegionNeed, free: u64) -> u64 {
        need.packing(Some(free)).region_bytes
    }

    #[test]
    fn budgets_hold_at_least_eight_regions() {
        let kept = RegionNeed {
            keeps_all: true,
            ..NEED
        };
        let received = RegionNeed {
            budget: 128 * MIB,
            is_received: true,
            ..kept
        };
        let much = 80 << 30;
        for (need, region_bytes, limit, expected, budget) in [
            (NEED, None, None, 64 * MIB, 512 * MIB),
            (kept, None, None, 256 * MIB, 2048 * MIB),
            (received, None, None, 16 * MIB, 128 * MIB),
            (NEED, Some(100 * MIB), None, 100 * MIB, 800 * MIB),
            (NEED, Some(1), None, 1, 512 * MIB),
            // A limit is never raised.
            (NEED, None, Some(256 * MIB), 32 * MIB, 512 * MIB),
            (kept, None, Some(800 * MIB), 100 * MIB, 2048 * MIB),
            (NEED, Some(100 * MIB), Some(80 * MIB), 10 * MIB, 800 * MIB),
            (NEED, None, Some(1000), 125, 512 * MIB),
            (NEED, None, Some(1), 1, 512 * MIB),
        ] {
            let need = RegionNeed {
                region_bytes,
                limit,
                ..need
            };
            assert_eq!(bytes(need, much), expected, "{need:?}");
            assert_eq!(need.default_budget(), budget, "{need:?}");
        }
    }

    #[test]
    fn regions_shrink_with_free_memory() {
        assert_eq!(bytes(NEED, 640 * MIB), 64 * MIB);
        assert_eq!(bytes(NEED, 100 * MIB), 10 * MIB);
        assert_eq!(NEED.packing(None).region_bytes, 64 * MIB);
    }

    #[test]
    fn regions_of_sources_read_at_once_take_half_of_the_budget() {
        let of = |sources| bytes(RegionNeed { sources, ..NEED }, 1 << 40);
        assert_eq!([0, 1, 4].map(of), [64 * MIB; 3]);
        assert_eq!([16, 64, 1000].map(of), [16 * MIB, 4 * MIB, MIB]);
    }
}
