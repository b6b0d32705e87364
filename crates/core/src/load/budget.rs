//! Memory budget of a load, on the host and on each GPU: known and checked before the first read.
//! Pure.

use crate::error::{Error, ErrorKind, Result};
use crate::memory::Mapping;
use crate::memory::cgroup::CgroupMemory;
use crate::options::{LoadOptions, format_bytes};
use crate::plan::{Plan, RegionPlan};
use crate::tensor::TensorInfo;

/// Default budget in bytes: room for the tensors of several shards of a dense model side by side. A
/// checkpoint with tensors near that size or above gets room for its largest tensor and more: a
/// quarter of that, or the maximum in flight if that is larger. (A load over 16 connections of 20
/// MB/s each lost a tenth of its time with less: connections idled at the end of each large tensor,
/// 2026-11.)
pub(crate) const MEMORY_LIMIT: u64 = 512 << 20;

/// Default budget of a rank that another one reads for, in bytes: there are as many of them as the
/// node has GPUs, and what they wait for is in memory.
pub(crate) const RANK_MEMORY_LIMIT: u64 = 128 << 20;

/// Default maximum of staging memory, in bytes: pinning more takes longer than the first reads.
const STAGING_BYTES_MAX: u64 = 512 << 20;

/// Divisor of the memory that the control group has left: without a limit of its own, a load takes
/// at most this share. The caller keeps what it receives, and needs memory for other things too.
/// (An estimate of 2026-11.)
const ROOM_SHARE: u64 = 2;

/// Divisor of the group's limit that gives the step of budgets: a loader reuses its memory only for
/// loads with the same budget.
const ROOM_STEPS: u64 = 16;

/// Bytes for the threads, rings and plan of a load, in addition to its budget. (An estimate of
/// 2026-11.)
const BESIDE_BYTES: u64 = 16 << 20;

/// Memory requirements of a load.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Demand<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) tensors: &'a [TensorInfo],
    /// Default budget for tensors in host memory, in bytes, unless one of them is large.
    pub(crate) default: u64,
    /// Default budget for tensors on each GPU, in bytes, unless one of them is large.
    pub(crate) device_default: u64,
    /// Bytes that may be in flight.
    pub(crate) in_flight: u64,
    /// Bytes in flight that staging memory should have room for.
    pub(crate) staged: u64,
    /// Number of reads of the largest size that may be in flight.
    pub(crate) reads: usize,
    /// Bytes that each staging slot has behind its window, if the caller sets no limit and the
    /// control group has them.
    pub(crate) room: usize,
    /// The limit of this process's control group, if it has one.
    pub(crate) group: Option<&'a CgroupMemory>,
    /// Bytes that earlier loads have left for this one: the control group counts them as used.
    pub(crate) kept: u64,
    /// Number of equal parts of the caller's limit, of which this load has one.
    pub(crate) limit_divisor: u64,
    /// Number of equal parts of the control group's memory, of which this load has one: others
    /// begin at the same time.
    pub(crate) group_divisor: u64,
    /// Tensors are views of files, which take no memory, unless they must be aligned.
    pub(crate) has_views: bool,
}

/// Host memory budget of a load, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct HostBudget {
    /// For tensors that live on the host.
    pub(crate) pool: u64,
    /// Length of a staging slot; 0 when nothing is staged.
    pub(crate) slot: u64,
    /// Part of it that the longest window takes; the rest is room to join tensors.
    pub(crate) window: u64,
    /// Staging slots.
    pub(crate) slots: u64,
    /// Maximum size of staging memory that is reused from an earlier load.
    pub(crate) staging_max: u64,
}

impl HostBudget {
    /// Returns the budget without room to join tensors.
    pub(crate) fn without_room(self) -> Self {
        Self {
            slot: self.window,
            ..self
        }
    }

    /// Returns the bytes of shared memory that a rank may keep registered although no region uses
    /// them: what its slots leave of its budget, since the leader may have freed that memory.
    pub(crate) fn idle_registered(&self, options: &LoadOptions) -> u64 {
        if options.memory_limit.is_some() {
            self.pool
        } else {
            RANK_MEMORY_LIMIT.saturating_sub(self.slot * self.slots)
        }
    }
}

impl Demand<'_> {
    /// Returns the host memory budget. `host` is the destination whose tensors live on the host;
    /// `staged` tells whether other tensors pass through staging memory.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::OutOfMemory`] if the caller's limit, or the memory that the control group has
    /// left, is too small, with the size that would suffice.
    pub(crate) fn host(
        &self,
        host: Option<usize>,
        staged: bool,
        options: &LoadOptions,
    ) -> Result<HostBudget> {
        // A destination whose tensors have no bytes needs no memory.
        let host = host.filter(|host| self.regions_of(*host).next().is_some());
        let largest = host.map_or(0, |host| self.largest_region(host));
        // Room to join tensors only saves time: a load that has no memory for it does without.
        let (window, roomy) = if staged && !self.plan.extents.is_empty() {
            let window = self.plan.window_bytes_max();
            [0, self.room]
                .map(|room| Mapping::charge(window + room) as u64)
                .into()
        } else {
            (0, 0)
        };
        let needed = largest + window;
        let pool_default = if host.is_some() {
            self.default_for(self.default, largest)
        } else {
            0
        };
        let room_wanted = self.slots_wanted(roomy, options.trial.ring) * roomy;
        let wanted = pool_default.saturating_add(room_wanted);
        let limit = match (options.memory_limit, self.group) {
            (Some(limit), _) => limit,
            (None, Some(group)) => self.within(group, host, needed, wanted)?,
            (None, None) => wanted,
        };
        if needed > limit && !self.plan.regions.is_empty() {
            return Err(match host.filter(|_| largest > 0) {
                Some(host) => self.too_large(host, needed, limit, "memory_limit", "host memory"),
                None => self.slot_too_large(window, limit),
            });
        }
        let has_room = options.memory_limit.is_none() && largest.saturating_add(roomy) <= limit;
        let slot = if has_room { roomy } else { window };
        let slots_wanted = self.slots_wanted(slot, options.trial.ring);
        let slots = (limit - largest.min(limit))
            .checked_div(slot)
            .map_or(0, |room| room.min(slots_wanted).max(1));
        let staging_max = if options.memory_limit.is_some() || limit < wanted {
            slots * slot
        } else {
            (slots * slot).max(STAGING_BYTES_MAX)
        };
        Ok(HostBudget {
            pool: limit - slots * slot,
            slot,
            window,
            slots,
            staging_max,
        })
    }

    /// Returns the part of `wanted` that fits into the control group: a process that exceeds its
    /// limit is killed without an error.
    ///
    /// Worked example: 240 of 256 MiB are left and 512 are wanted. Half of the 240 is 120; in steps
    /// of 16, that is 112 MiB. Of two loads that begin together, each gets 56.
    fn within(
        &self,
        group: &CgroupMemory,
        host: Option<usize>,
        needed: u64,
        wanted: u64,
    ) -> Result<u64> {
        let left = (group.left() + self.kept).min(group.bytes);
        let share = share(group, left) / self.group_divisor;
        if wanted <= share {
            return Ok(wanted);
        }
        if needed == 0 || needed + BESIDE_BYTES <= left {
            return Ok(share.clamp(needed, wanted));
        }
        let error = Error::new(
            ErrorKind::OutOfMemory,
            format!(
                "{} ({needed} bytes) are needed at once; the cgroup has {} of {} left ({})",
                format_bytes(needed),
                format_bytes(left),
                format_bytes(group.bytes),
                group.file.display()
            ),
        );
        let error = match host.filter(|host| self.region_bytes_max(*host) > 0) {
            Some(host) => error.with_tensor(self.largest_tensor(host).name()),
            None => error,
        };
        Err(error.with_hint(format!(
            "give the container more memory, free some, or set ‹memory_limit› to at least {} bytes to try anyway",
            needed * self.limit_divisor
        )))
    }

    /// Returns the regions of a destination that take memory.
    pub(crate) fn regions_of(&self, destination: usize) -> impl Iterator<Item = &RegionPlan> {
        let regions = self.plan.regions_of(destination);
        regions.filter(|region| self.takes_memory(region))
    }

    fn takes_memory(&self, region: &RegionPlan) -> bool {
        !self.has_views || self.plan.is_realigned(region)
    }

    /// Returns the bytes of memory that the largest region of a destination takes.
    pub(crate) fn largest_region(&self, destination: usize) -> u64 {
        Mapping::charge(self.region_bytes_max(destination)) as u64
    }

    fn region_bytes_max(&self, destination: usize) -> usize {
        let regions = self.regions_of(destination);
        regions.map(|region| region.bytes).max().unwrap_or(0)
    }

    /// Returns enough slots for all bytes in flight plus one for each read: while some slots are
    /// being filled, others are being copied out.
    fn slots_wanted(&self, slot: u64, ring: Option<u64>) -> u64 {
        let most = ring.unwrap_or(STAGING_BYTES_MAX);
        let most = most.checked_div(slot).unwrap_or(0).max(1);
        let in_flight = self.staged.checked_div(slot).unwrap_or(0);
        (in_flight + self.reads as u64)
            .min(self.plan.extents.len() as u64)
            .clamp(1, most)
    }

    /// Returns the budget of GPU `ordinal`, which holds the tensors of `destination`, given that
    /// `free` bytes are free.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::OutOfMemory`] if the caller's limit is too small, or if the GPU has less free
    /// memory than required.
    pub(crate) fn device(
        &self,
        destination: usize,
        ordinal: usize,
        free: u64,
        options: &LoadOptions,
    ) -> Result<u64> {
        let largest = self.region_bytes_max(destination) as u64;
        let regions = self.regions_of(destination);
        let total: u64 = regions.map(|region| region.bytes as u64).sum();
        let given = options.device_memory_limit;
        let limit = given.unwrap_or_else(|| self.default_for(self.device_default, largest));
        if largest > limit {
            let place = format!("cuda:{ordinal}");
            // A limit of GPU memory is per rank, not per node.
            let alone = Self {
                limit_divisor: 1,
                ..*self
            };
            let option = "device_memory_limit";
            return Err(alone.too_large(destination, largest, limit, option, &place));
        }
        let wanted = limit.min(total);
        if wanted <= free {
            return Ok(limit);
        }
        if given.is_none() && largest <= free {
            // The caller may hold what it has received while the next tensor is allocated;
            // allocators take memory in steps.
            let room = (free - free / 64).saturating_sub(largest);
            return Ok(room.max(largest));
        }
        // The error states the minimum that is needed, or the limit that was set.
        let wanted = if given.is_none() { largest } else { wanted };
        Err(Error::new(
            ErrorKind::OutOfMemory,
            format!(
                "cuda:{ordinal} has {} ({free} bytes) free; {} ({wanted} bytes) are needed at once",
                format_bytes(free),
                format_bytes(wanted)
            ),
        )
        .with_tensor(self.largest_tensor(destination).name())
        .with_hint(if given.is_none() {
            "free memory of the GPU, or load fewer tensors"
        } else {
            "free memory of the GPU, or lower ‹device_memory_limit›"
        }))
    }

    fn default_for(&self, default: u64, largest: u64) -> u64 {
        let spare = self.in_flight.max(largest / 4);
        default.max(largest.saturating_add(spare))
    }

    fn too_large(
        &self,
        destination: usize,
        needed: u64,
        limit: u64,
        option: &str,
        place: &str,
    ) -> Error {
        Error::new(
            ErrorKind::OutOfMemory,
            format!(
                "{} ({needed} bytes) are needed at once to load it into {place}; {} is {} ({limit} bytes)",
                format_bytes(needed),
                self.limit_name(),
                format_bytes(limit)
            ),
        )
        .with_tensor(self.largest_tensor(destination).name())
        // The hint states the exact number of bytes, because a rounded limit could fail again.
        .with_hint(format!("set ‹{option}› to at least {} bytes", needed * self.limit_divisor))
    }

    fn slot_too_large(&self, slot: u64, limit: u64) -> Error {
        Error::new(
            ErrorKind::OutOfMemory,
            format!(
                "staging takes at least one read of {} ({slot} bytes); {} is {} ({limit} bytes)",
                format_bytes(slot),
                self.limit_name(),
                format_bytes(limit)
            ),
        )
        .with_hint(format!(
            "set ‹memory_limit› to at least {} bytes, or lower ‹extent_bytes›",
            slot * self.limit_divisor
        ))
    }

    fn limit_name(&self) -> &'static str {
        if self.limit_divisor == 1 {
            "the memory limit"
        } else {
            "this rank's part of the memory limit"
        }
    }

    /// Returns the largest of the tensors in the largest region, which small tensors may share.
    pub(crate) fn largest_tensor(&self, destination: usize) -> &TensorInfo {
        let bytes = self.region_bytes_max(destination);
        let in_largest = |tensor: &usize| {
            let place = self.plan.targets[*tensor].place;
            place.is_some_and(|(region, _)| {
                let region = &self.plan.regions[region];
                region.destination == destination
                    && region.bytes == bytes
                    && self.takes_memory(region)
            })
        };
        (0..self.tensors.len())
            .filter(in_largest)
            .map(|index| &self.tensors[index])
            .max_by_key(|tensor| tensor.byte_len())
            .expect("every region holds a tensor")
    }
}

/// Returns the bytes of `wanted` that reads without tensors may take in a control group.
pub(crate) fn raw_bytes(group: Option<&CgroupMemory>, wanted: usize) -> usize {
    let most = group.map(|group| share(group, group.left()));
    most.and_then(|most| usize::try_from(most).ok())
        .map_or(wanted, |most| most.min(wanted))
}

/// Returns the share that one load takes of the bytes that a group has left.
fn share(group: &CgroupMemory, left: u64) -> u64 {
    let step = (group.bytes / ROOM_STEPS).max(1);
    left / ROOM_SHARE / step * step
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::{Dtype, Entry};
    use crate::memory::cgroup::cgroup_memory;
    use crate::plan::{Arrangement, Layout, Packing, Wanted, build};

    const MIB: u64 = 1 << 20;

    fn tensors(sizes: &[u64]) -> Vec<TensorInfo> {
        let mut offset = 4096;
        let infos = sizes.iter().enumerate().map(|(index, size)| {
            let range = offset..offset + size;
            offset += size;
            let entry = Entry {
                name: format!("t{index}"),
                dtype: Dtype::U8,
                shape: vec![usize::try_from(*size).expect("small")],
                range,
            };
            TensorInfo::new(entry, 0)
        });
        infos.collect()
    }

    /// Plan for these tensors, the first `host` of them in place, the others packed.
    fn plan(tensors: &[TensorInfo], host: usize) -> Plan {
        let wanted: Vec<_> = tensors
            .iter()
            .enumerate()
            .map(|(index, info)| Wanted {
                source: 0,
                range: info.file_range(),
                strides: None,
                alignment: 1,
                destination: usize::from(index >= host),
            })
            .collect();
        let layout = Layout {
            extent_bytes: MIB,
            alignment: 4096,
            gap_bytes: 0,
        };
        let packing = Packing {
            region_bytes: MIB,
            ..Packing::default()
        };
        build(
            &wanted,
            &[layout],
            &[Arrangement::InPlace, Arrangement::Packed(packing)],
        )
    }

    fn options(memory: Option<u64>, device: Option<u64>) -> LoadOptions {
        let mut options = LoadOptions::new();
        options.memory_limit = memory;
        options.device_memory_limit = device;
        options
    }

    fn with<T>(sizes: &[u64], host: usize, ask: impl Fn(&Demand<'_>) -> T) -> T {
        let tensors = tensors(sizes);
        let plan = plan(&tensors, host);
        ask(&Demand {
            plan: &plan,
            tensors: &tensors,
            default: MEMORY_LIMIT,
            device_default: MEMORY_LIMIT,
            in_flight: 8 * MIB,
            staged: 8 * MIB,
            reads: 8,
            room: 0,
            group: None,
            kept: 0,
            limit_divisor: 1,
            group_divisor: 1,
            has_views: false,
        })
    }

    fn group(bytes: u64, used: u64) -> CgroupMemory {
        let folder = tempfile::tempdir().expect("a folder");
        let write = |path: &str, text: String| {
            let path = folder.path().join(path);
            std::fs::create_dir_all(path.parent().expect("below")).expect("a folder");
            std::fs::write(path, text).expect("a file");
        };
        write("proc/self/cgroup", "0::/\n".to_owned());
        write("sys/fs/cgroup/memory.max", bytes.to_string());
        write("sys/fs/cgroup/memory.current", used.to_string());
        cgroup_memory(folder.path()).expect("a limit")
    }

    #[test]
    fn default_budget_stays_within_control_group() {
        let budget = |sizes: &[u64], group: &CgroupMemory, kept, limit| {
            with(sizes, sizes.len(), |demand| {
                let demand = Demand {
                    group: Some(group),
                    kept,
                    ..*demand
                };
                demand.host(Some(0), false, &options(limit, None))
            })
        };
        let pool = |group: &CgroupMemory, kept, limit| {
            budget(&[32 * MIB, MIB], group, kept, limit)
                .expect("fits")
                .pool
        };
        let small = group(256 * MIB, 16 * MIB);
        assert_eq!(pool(&small, 0, None), 112 * MIB);
        // The next load of the same loader gets the same budget, and so uses the same memory.
        assert_eq!(
            pool(&group(256 * MIB, 130 * MIB), 112 * MIB, None),
            112 * MIB
        );
        assert_eq!(pool(&group(256 * MIB, 200 * MIB), 0, None), 32 * MIB);
        assert_eq!(pool(&group(64 << 30, 0), 0, None), MEMORY_LIMIT);
        // An explicit limit overrides the default.
        assert_eq!(pool(&small, 0, Some(300 * MIB)), 300 * MIB);

        let error = budget(&[32 * MIB, MIB], &group(256 * MIB, 220 * MIB), 0, None);
        let error = error.expect_err("would be killed");
        assert_eq!(error.kind(), ErrorKind::OutOfMemory);
        assert_eq!(error.tensor(), Some("t0"));
        assert_eq!(
            error.message(),
            "32.0 MiB (33554432 bytes) are needed at once; the cgroup has 36.0 MiB of 256.0 MiB left \
             (/sys/fs/cgroup/memory.max)"
        );
        let hinted = error.hint().expect("says what to do");
        assert!(hinted.contains("at least 33554432 bytes"), "{hinted}");
        assert_eq!(raw_bytes(Some(&small), 1 << 30), 112 << 20);
        assert_eq!(raw_bytes(Some(&small), 1 << 20), 1 << 20);
        assert_eq!(raw_bytes(None, 1 << 30), 1 << 30);
        let nothing = budget(&[], &group(MIB, MIB), 0, None).expect("needs nothing");
        assert_eq!(nothing.pool, 0);
    }

    /// Half of the 240 MiB that are left is 112 MiB in steps of a sixteenth of 256. Four ranks
    /// that share nothing take a quarter of that each. If they share, the leader's reads take a
    /// half, and the ranks an eighth each.
    #[test]
    fn loads_that_begin_together_divide_memory_of_control_group() {
        let group = group(256 * MIB, 16 * MIB);
        let pool = |group_divisor| {
            with(&[4 * MIB, MIB], 2, |demand| {
                let demand = Demand {
                    group: Some(&group),
                    group_divisor,
                    ..*demand
                };
                let budget = demand.host(Some(0), false, &options(None, None));
                budget.expect("fits").pool
            })
        };
        assert_eq!(
            [1, 2, 4, 8].map(pool),
            [112 * MIB, 56 * MIB, 28 * MIB, 14 * MIB]
        );
        assert_eq!(pool(1000), 4 * MIB, "no less than the largest tensor");
    }

    #[test]
    fn unlimited_bytes_in_flight_do_not_overflow() {
        with(&[MIB, MIB], 1, |demand| {
            let demand = Demand {
                in_flight: u64::MAX,
                staged: u64::MAX,
                ..*demand
            };
            let budget = demand.host(Some(0), true, &options(None, None));
            let budget = budget.expect("without a limit");
            assert_eq!(budget.pool, u64::MAX - budget.slots * budget.slot);
        });
    }

    #[test]
    fn ring_bounds_slots() {
        // By the bytes of the ring, the slots of 1 MiB for 8 MiB in flight.
        for (ring, slots) in [
            (None, 16),
            (Some(4 * MIB), 4),
            (Some(9 * MIB + 1), 9),
            (Some(1), 1),
        ] {
            let found = with(&[MIB; 40], 0, |demand| {
                let mut options = options(None, None);
                options.trial.ring = ring;
                demand
                    .host(None, true, &options)
                    .expect("without a limit")
                    .slots
            });
            assert_eq!(found, slots, "{ring:?}");
        }
    }

    /// The limit is for the node, of which a rank sees a part.
    #[test]
    fn hint_of_a_rank_is_for_the_whole_limit() {
        let error = with(&[32 * MIB], 1, |demand| {
            let demand = Demand {
                limit_divisor: 4,
                ..*demand
            };
            demand.host(Some(0), false, &options(Some(16 * MIB), None))
        });
        let error = error.expect_err("too little");
        assert_eq!(
            (error.message(), error.hint()),
            (
                "32.0 MiB (33554432 bytes) are needed at once to load it into host memory; this rank's part of \
                 the memory limit is 16.0 MiB (16777216 bytes)",
                Some("set memory_limit to at least 134217728 bytes")
            )
        );
    }

    #[test]
    fn staging_stays_within_control_group() {
        with(&[512 * MIB], 0, |demand| {
            let group = group(64 * MIB, 0);
            let demand = Demand {
                group: Some(&group),
                staged: 256 * MIB,
                ..*demand
            };
            let budget = demand.host(None, true, &options(None, None)).expect("fits");
            assert_eq!(budget.slots * budget.slot, 32 * MIB);
            assert_eq!((budget.pool, budget.staging_max), (0, 32 * MIB));
        });
    }

    /// Length and number of slots, by the limit of the control group and the bytes that it has
    /// left. A slot has 1 MiB for a window, and 512 KiB to join tensors.
    #[test]
    fn room_to_join_tensors_is_given_up_before_the_load() {
        let roomy = MIB + MIB / 2;
        with(&[32 * MIB], 0, |demand| {
            for (bytes, left, expected) in [
                (1 << 30, 1 << 30, Some((roomy, 13))),
                (64 * MIB, BESIDE_BYTES + MIB, Some((roomy, 5))),
                (1 << 30, BESIDE_BYTES + roomy, Some((MIB, 1))),
                (1 << 30, BESIDE_BYTES + MIB, Some((MIB, 1))),
                (1 << 30, BESIDE_BYTES + MIB - 1, None),
            ] {
                let group = group(bytes, bytes - left);
                let demand = Demand {
                    group: Some(&group),
                    room: usize::try_from(MIB / 2).expect("small"),
                    ..*demand
                };
                let budget = demand.host(None, true, &options(None, None));
                let slots = budget.ok().map(|budget| (budget.slot, budget.slots));
                assert_eq!(slots, expected, "{left} bytes of {bytes}");
            }
        });
    }

    #[test]
    fn staging_slots_cover_reads_and_copies_within_limit() {
        with(&[32 * MIB], 0, |demand| {
            let free = demand.host(None, true, &options(None, None)).expect("fits");
            assert_eq!((free.pool, free.slot, free.slots), (0, MIB, 16));
            let some = demand.host(None, true, &options(Some(5 * MIB + 1), None));
            let some = some.expect("fits");
            assert_eq!((some.slots, some.staging_max), (5, 5 * MIB));
            let error = demand
                .host(None, true, &options(Some(MIB - 1), None))
                .expect_err("no slot fits");
            assert_eq!(error.kind(), ErrorKind::OutOfMemory);
        });
    }

    #[test]
    fn host_tensors_and_slots_share_the_limit() {
        with(&[3 * MIB, 5 * MIB], 1, |demand| {
            let limits = options(Some(6 * MIB), None);
            let both = demand.host(Some(0), true, &limits).expect("fits");
            assert_eq!(both.pool + both.slots * both.slot, 6 * MIB);
            assert!(both.pool >= 3 * MIB && both.slots >= 2);
            let error = demand
                .host(Some(0), true, &options(Some(4 * MIB - 1), None))
                .expect_err("tensor and slot do not fit");
            assert_eq!(error.tensor(), Some("t0"));
        });
    }

    #[test]
    fn device_budget_fits_free_memory() {
        with(&[4 * MIB, 6 * MIB], 0, |demand| {
            let device = |free, limit| demand.device(1, 3, free, &options(None, limit));
            assert_eq!(device(100 * MIB, Some(6 * MIB)).expect("fits"), 6 * MIB);
            // The default is more than the load needs.
            assert!(device(10 * MIB, None).expect("all of it fits") >= 10 * MIB);
            // Less than both tensors: room is left for one that the caller holds.
            assert_eq!(device(8 * MIB, None).expect("shrinks"), 6 * MIB);
            assert_eq!(device(6 * MIB, None).expect("the largest fits"), 6 * MIB);
            for (free, limit) in [
                (100 * MIB, Some(6 * MIB - 1)),
                (5 * MIB, None),
                (7 * MIB, Some(8 * MIB)),
            ] {
                let error = device(free, limit).expect_err("too little");
                assert_eq!(error.kind(), ErrorKind::OutOfMemory, "{error}");
                assert_eq!(error.tensor(), Some("t1"));
                assert!(error.to_string().contains("cuda:3"), "{error}");
            }
        });
    }
}
