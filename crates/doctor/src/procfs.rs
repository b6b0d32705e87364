//! Presence of `/proc` and `/sys`. Loads run without them, but then neither loads nor this command
//! see limits.

use super::{Finding, Level, Urgency};
use crate::host::System;

/// File system of the kernel.
struct KernelFiles {
    id: &'static str,
    title: &'static str,
    /// File or directory that it has when it is mounted.
    sign: &'static str,
    /// Consequence of its absence.
    effect: &'static str,
    /// Command that mounts it.
    command: &'static str,
}

const EXPECTED: [KernelFiles; 2] = [
    KernelFiles {
        id: "proc",
        title: "/proc",
        sign: "proc/self/status",
        effect: "memory limits are not visible, so a load may be killed; mounts and capabilities are unknown",
        command: "mount -t proc proc /proc",
    },
    KernelFiles {
        id: "sys",
        title: "/sys",
        sign: "sys/kernel",
        effect: "cgroup limits, disks and NUMA nodes are not visible",
        command: "mount -t sysfs sysfs /sys",
    },
];

pub(crate) fn findings(system: &System) -> Vec<Finding> {
    EXPECTED.iter().map(|files| files.finding(system)).collect()
}

impl KernelFiles {
    fn finding(&self, system: &System) -> Finding {
        if system.path(self.sign).exists() {
            return Finding::ok(self.id, self.title, "mounted");
        }
        let advice = format!("{}: {}, as root", self.effect, self.command);
        Finding::ok(self.id, self.title, "not mounted")
            .advise(Level::Note, advice)
            .change(Urgency::Little, format!("{} (as root)", self.command))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::testing::system;

    #[test]
    fn unmounted_proc_and_sys_are_reported() {
        let (_folder, bare) = system(&[]);
        for finding in findings(&bare) {
            assert_eq!(
                (finding.level, finding.value.as_str()),
                (Level::Note, "not mounted")
            );
            let command = finding.change.unwrap().command;
            assert!(command.starts_with("mount -t "), "{command}");
        }
        let (_folder, whole) = system(&[("proc/self/status", ""), ("sys/kernel/x", "")]);
        for finding in findings(&whole) {
            assert_eq!((finding.level, finding.change), (Level::Ok, None));
        }
    }
}
