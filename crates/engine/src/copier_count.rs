//! Number of threads that copy from memory for GPUs, by cores, by the kind of pages, and by the
//! CPUs of the ranks of a machine.
//!
//! A copy of small pages waits for memory and the address translation between them, so that two
//! threads of one core are faster than one. A copy of large pages keeps a core busy: more threads
//! than cores only take time from lanes.

use std::collections::{BTreeMap, BTreeSet};

use tload_numa::Cpus;

use crate::storage::ReadFile;

/// Maximum number of threads for each GPU: a bus of 55 GB/s is full with fewer.
const PER_GPU_MAX: usize = 16;

/// Cores that are left to the lane and to the caller while small pages are copied.
const LEFT: usize = 2;

/// Kind of pages in which files are in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pages {
    /// A few KiB each, as those of a tmpfs.
    Small,
    /// Many pages in a row, as in the page cache of a disk.
    Large,
}

impl Pages {
    /// Returns the kind of the pages of most `files`. The large pages of a tmpfs cannot be told
    /// from others.
    #[must_use]
    pub fn of(files: &[ReadFile]) -> Self {
        let is_small = |file: &&ReadFile| file.source().file_system().in_memory;
        if 2 * files.iter().filter(is_small).count() >= files.len() {
            Self::Small
        } else {
            Self::Large
        }
    }
}

/// Numbers of cores that this process may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cores {
    /// Cores as the system counts them: several of them may be threads of one.
    pub logical: usize,
    /// Cores, however many threads each of them has.
    pub physical: usize,
}

impl Cores {
    /// Returns those of this machine.
    #[must_use]
    pub fn here() -> Self {
        let logical = std::thread::available_parallelism().map_or(2, usize::from);
        let cpus = std::fs::read_dir("/sys/devices/system/cpu")
            .into_iter()
            .flatten()
            .flatten();
        // All threads of a core have the same list. Entries other than CPUs have none.
        let lists = cpus.filter_map(|cpu| {
            std::fs::read_to_string(cpu.path().join("topology/thread_siblings_list")).ok()
        });
        Self::from_siblings(logical, lists)
    }

    /// Returns the numbers for `logical` of the machine's CPUs, given the list of each CPU of those
    /// that are threads of the same core.
    fn from_siblings(logical: usize, lists: impl Iterator<Item = String>) -> Self {
        let lists: Vec<_> = lists.collect();
        let cores = lists.iter().collect::<BTreeSet<_>>().len();
        let physical = (logical * cores).checked_div(lists.len());
        Self {
            logical,
            physical: physical.unwrap_or(logical).max(1),
        }
    }
}

/// Returns the number of threads that copy files in `pages` for the lanes of `gpus` GPUs.
#[must_use]
pub fn by_pages(cores: Cores, pages: Pages, gpus: usize) -> usize {
    let useful = match pages {
        Pages::Small => cores.logical.saturating_sub(LEFT),
        Pages::Large => cores.physical,
    };
    useful.min(PER_GPU_MAX * gpus).max(2)
}

/// Returns the number of threads that copy on this many CPUs without taking those of lanes and
/// callers.
#[must_use]
pub fn useful(cpus: usize) -> usize {
    cpus - cpus / 4
}

/// Returns the number of threads that copy for a rank which may use the CPUs `own`, beside `others`
/// of its machine. Each CPU is divided by the ranks that may use it, so a rank that was bound to
/// its part of the machine has all of that part.
///
/// CPUs of a rank that are not known count as the same as this rank's. `parallelism` is the number
/// of CPUs that the process can keep busy. If it is smaller than `own`, a cgroup sets a quota of
/// time, which counts as that of all ranks together: they cannot tell whether each has its own. A
/// quota for more CPUs than `own` is not seen.
///
/// Worked example: of 64 CPUs, a rank is bound to 0–15, and seven others are unbound. The rank
/// shares each of its CPUs with all of them: 12 copiers for 16 CPUs, divided by 8, are 1. Bound to
/// 8 CPUs each, all ranks have 6.
#[must_use]
pub fn of_rank(own: Option<&Cpus>, others: &[Option<Cpus>], parallelism: usize) -> usize {
    let by_time = useful(parallelism) / (others.len() + 1);
    let Some(own) = own else {
        return by_time.max(1);
    };
    let mut by_ranks = BTreeMap::<usize, usize>::new();
    for cpu in own.iter() {
        let is_used = |other: &&Option<Cpus>| other.as_ref().is_none_or(|it| it.contains(cpu));
        let ranks = 1 + others.iter().filter(is_used).count();
        *by_ranks.entry(ranks).or_default() += 1;
    }
    let by_cpus = by_ranks.iter().map(|(ranks, cpus)| useful(*cpus) / ranks);
    let by_cpus: usize = by_cpus.sum();
    let has_quota = parallelism < own.len();
    let copiers = if has_quota {
        by_cpus.min(by_time)
    } else {
        by_cpus
    };
    copiers.max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the copiers of each rank, given the list of its CPUs and the CPUs that the quota of
    /// a cgroup allows.
    fn copiers(lists: &[&str], quota: usize) -> Vec<usize> {
        let sets: Vec<Option<Cpus>> = lists.iter().map(|list| list.parse().ok()).collect();
        let of = |rank: usize| {
            let mut others = sets.clone();
            let own = others.remove(rank);
            let parallelism = own.as_ref().map_or(16, Cpus::len).min(quota);
            of_rank(own.as_ref(), &others, parallelism)
        };
        (0..sets.len()).map(of).collect()
    }

    #[test]
    fn ranks_divide_the_cpus_that_they_share() {
        let none = usize::MAX;
        for (case, lists, quota, expected) in [
            ("alone", &["0-15"][..], none, &[12][..]),
            ("unbound", &["0-15"; 4], none, &[3; 4]),
            ("unbound, many", &["0-3"; 8], none, &[1; 8]),
            ("two on two cores", &["0-1"; 2], none, &[1; 2]),
            (
                "bound to equal parts",
                &["0-3", "4-7", "8-11", "12-15"],
                none,
                &[3; 4],
            ),
            (
                "bound to halves, two in each",
                &["0-7", "0-7", "8-15", "8-15"],
                none,
                &[3; 4],
            ),
            (
                "bound to more than a part",
                &["0-7", "4-11", "8-15", "0-3,12-15"],
                none,
                &[3; 4],
            ),
            ("bound to fewer", &["0", "4", "8", "12"], none, &[1; 4]),
            ("one bound, the other not", &["0-7", "0-15"], none, &[3, 9]),
            ("one cpuset for all", &["8-15"; 2], none, &[3; 2]),
            (
                "one cpuset for all, and bound",
                &["8-11", "12-15"],
                none,
                &[3; 2],
            ),
            ("quota for all", &["0-15"; 2], 8, &[3; 2]),
            ("quota, bound", &["0-7", "8-15"], 4, &[1; 2]),
            ("quota larger than the part", &["0-3", "4-7"], 8, &[3; 2]),
            ("one does not know", &["0-15", "?"], none, &[6; 2]),
            ("no rank knows", &["?", "?"], none, &[6; 2]),
        ] {
            assert_eq!(copiers(lists, quota), expected, "{case}");
        }
    }

    #[test]
    fn copiers_are_counted_by_cores_and_pages() {
        // Logical and physical cores, GPUs: copiers of small and of large pages.
        let table = [
            ((16, 8, 1), (14, 8)),
            ((16, 16, 1), (14, 16)),
            ((8, 4, 1), (6, 4)),
            ((2, 1, 1), (2, 2)),
            ((1, 1, 1), (2, 2)),
            ((128, 64, 1), (16, 16)),
            ((128, 64, 8), (126, 64)),
        ];
        for ((logical, physical, gpus), expected) in table {
            let cores = Cores { logical, physical };
            let [small, large] =
                [Pages::Small, Pages::Large].map(|pages| by_pages(cores, pages, gpus));
            assert_eq!((small, large), expected, "{cores:?}, {gpus} GPUs");
        }
    }

    #[test]
    fn physical_cores_are_those_with_their_own_threads() {
        let cores = |logical, lists: &[&str]| {
            Cores::from_siblings(logical, lists.iter().map(|it| (*it).to_owned())).physical
        };
        let two_threads = ["0,2", "1,3", "0,2", "1,3"];
        assert_eq!(cores(4, &two_threads), 2);
        assert_eq!(cores(2, &two_threads), 1, "half of the machine");
        assert_eq!(cores(1, &two_threads), 1);
        assert_eq!(cores(4, &["0", "1", "2", "3"]), 4);
        assert_eq!(cores(6, &[]), 6, "the system does not tell");
    }
}
