//! Memory available to a load: that of the machine, limited by the control groups of this process.

use tload::internal::probe::{self, CgroupMemory};

use super::System;

/// Returns the bytes that can be allocated without swapping or being killed, if the kernel reports
/// them.
pub fn available(system: &System) -> Option<u64> {
    let free = system.field_bytes("proc/meminfo", "MemAvailable").ok();
    let group = limit(system).filter(|limit| limit.used.is_some());
    let left = group.map(|limit| limit.left());
    free.into_iter().chain(left).min()
}

/// Returns the limit of the control group with the least memory left, if there is one.
pub fn limit(system: &System) -> Option<CgroupMemory> {
    probe::cgroup_memory(&system.path(""))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::testing::system;

    #[test]
    fn available_memory_is_minimum_of_machine_and_cgroup() {
        let files = |free| {
            [
                ("proc/self/cgroup", "0::/a\n"),
                ("proc/meminfo", free),
                ("sys/fs/cgroup/a/memory.max", "1048576\n"),
                ("sys/fs/cgroup/a/memory.current", "48576\n"),
            ]
        };
        let (_folder, much) = system(&files("MemAvailable: 4096 kB\n"));
        assert_eq!(available(&much), Some(1_000_000));
        let (_folder, little) = system(&files("MemAvailable: 8 kB\n"));
        assert_eq!(available(&little), Some(8192));
    }
}
