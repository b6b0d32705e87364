//! Number of threads that copy from memory for GPUs, by cores and by the kind of pages.
//!
//! A copy of small pages waits for memory and the address translation between them, so that two
//! threads of one core are faster than one. A copy of large pages keeps a core busy: more threads
//! than cores only take time from lanes.

use std::collections::BTreeSet;

use crate::storage::ReadFile;

/// Maximum number of threads for each GPU: a bus of 55 GB/s is full with fewer.
const PER_GPU_MAX: usize = 16;

/// Cores that are left to the lane and to the caller while small pages are copied.
const LEFT: usize = 2;

/// Kind of pages in which files are in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pages {
    /// A few KiB each, as those of a tmpfs.
    Small,
    /// Many pages in a row, as in the page cache of a disk.
    Large,
}

impl Pages {
    /// Returns the kind of the pages of most `files`. The large pages of a tmpfs cannot be told
    /// from others.
    pub(super) fn of(files: &[ReadFile]) -> Self {
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
pub(super) struct Cores {
    /// Cores as the system counts them: several of them may be threads of one.
    pub(super) logical: usize,
    pub(super) physical: usize,
}

impl Cores {
    /// Returns those of this machine.
    pub(super) fn here() -> Self {
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
pub(super) fn by_pages(cores: Cores, pages: Pages, gpus: usize) -> usize {
    let useful = match pages {
        Pages::Small => cores.logical.saturating_sub(LEFT),
        Pages::Large => cores.physical,
    };
    useful.min(PER_GPU_MAX * gpus).max(2)
}

#[cfg(test)]
mod tests {
    use super::*;

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
