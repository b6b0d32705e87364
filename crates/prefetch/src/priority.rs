//! Keeps the reader out of the command's way: a low priority, and few CPUs. Best effort: what the
//! system refuses is left as it is.

use std::fs;

use rustix::process::nice;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Added to the priority of this process, which may have been started with a low one: a tenth of
/// its weight. The kernel derives the priority of reads from it
/// (`ioprio_get(2)`). With 19, a seventieth, the reader got nowhere in a group that shared two CPUs
/// with other work: 20 MiB in 18 s (2026-11), since a group's weight follows its threads to their
/// CPUs.
const NICE: i32 = 10;

/// One of this many CPUs is for the reader, but at least one. Imports take one CPU; a CPU receives,
/// checks and stores more than 0.5 GB/s.
const SHARE: usize = 8;

/// Lowers the calling thread, and those that it starts from then on.
pub(crate) fn lower() {
    let niced = nice(NICE);
    // A session has a group of its own where the kernel groups tasks by session, and the priorities
    // of tasks count within a group only. That of a new session begins at 0.
    let grouped = fs::write("/proc/self/autogroup", NICE.to_string());
    let bound = sched_getaffinity(None).and_then(|all| sched_setaffinity(None, &few(&all)));
    tracing::debug!(?niced, ?grouped, ?bound, "lowered the priority");
}

/// Returns the last of the CPUs.
fn few(all: &CpuSet) -> CpuSet {
    let mut few = CpuSet::new();
    let there = (0..CpuSet::MAX_CPU).rev().filter(|cpu| all.is_set(*cpu));
    let wanted = usize::try_from(all.count()).unwrap_or(1) / SHARE;
    there.take(wanted.max(1)).for_each(|cpu| few.set(cpu));
    few
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_eighth_of_the_cpus_is_used_and_at_least_one() {
        let set = |cpus: &[usize]| {
            let mut set = CpuSet::new();
            for cpu in cpus {
                set.set(*cpu);
            }
            set
        };
        assert_eq!(few(&set(&[0, 1])), set(&[1]));
        assert_eq!(few(&set(&[5])), set(&[5]));
        let many: Vec<_> = (0..32).map(|cpu| cpu * 2).collect();
        assert_eq!(few(&set(&many)), set(&[56, 58, 60, 62]));
    }
}
