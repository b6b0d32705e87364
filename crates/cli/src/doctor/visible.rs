//! Whether `/proc` and `/sys` are there: loads do without, but then neither they nor this command see limits.

use super::{Finding, Level, Urgency};
use crate::host::System;

pub(super) fn findings(system: &System) -> Vec<Finding> {
    vec![
        finding(
            system,
            ("proc", "/proc", "proc/self/status"),
            "limits of memory are not seen, so that a load may be killed by one; mount and process limits are unknown here",
            "mount -t proc proc /proc",
        ),
        finding(
            system,
            ("sys", "/sys", "sys/kernel"),
            "limits of control groups, disks and memory nodes are not seen",
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
    fn what_is_not_mounted_is_named() {
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
