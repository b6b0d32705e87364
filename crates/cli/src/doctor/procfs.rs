//! Presence of `/proc` and `/sys`. Loads run without them, but then neither loads nor this command
//! see limits.

use super::{Finding, Level, Urgency};
use crate::host::System;

pub(super) fn findings(system: &System) -> Vec<Finding> {
    vec![
        finding(
            system,
            ("proc", "/proc", "proc/self/status"),
            "memory limits are not visible, so a load may be killed; mounts and capabilities are unknown",
            "mount -t proc proc /proc",
        ),
        finding(
            system,
            ("sys", "/sys", "sys/kernel"),
            "cgroup limits, disks and NUMA nodes are not visible",
            "mount -t sysfs sysfs /sys",
        ),
    ]
}

fn finding(
    system: &System,
    (id, title, sign): (&'static str, &'static str, &str),
    effect: &str,
    command: &str,
) -> Finding {
    if system.path(sign).exists() {
        return Finding::ok(id, title, "mounted");
    }
    let advice = format!("{effect}: {command}, as root");
    Finding::ok(id, title, "not mounted")
        .advise(Level::Note, advice)
        .change(Urgency::Little, format!("{command} (as root)"))
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
