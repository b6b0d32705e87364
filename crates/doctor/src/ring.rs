//! `io_uring`: availability of rings, and the settings that forbid them.

use tload::internal::{format_bytes, probe};

use super::{Finding, Level, Urgency};
use crate::host::System;

/// `EPERM`, and `ENOSYS`, which a filter may return instead.
const NOT_PERMITTED: i32 = 1;
const NO_SUCH_CALL: i32 = 38;

/// Fix for container runtimes, whose profile is one JSON file with system calls.
const PROFILE: &str = "docker run --security-opt seccomp=tload.json: the default profile with io_uring_setup, io_uring_enter and \
     io_uring_register, from https://github.com/tload/tload/tree/main/deploy/seccomp";

pub(crate) fn findings(system: &System) -> Vec<Finding> {
    found(system, &probe::ring())
}

fn found(system: &System, probed: &probe::Ring) -> Vec<Finding> {
    let mut findings = vec![ring(system, probed)];
    findings.extend(disabled(system));
    findings.push(seccomp(system, probed.available));
    findings
}

/// Returns the setting that forbids rings, and a fix; `None` if the kernel has no rings.
fn remedy(system: &System, errno: Option<i32>) -> Option<(&'static str, String)> {
    let switch = system.read("proc/sys/kernel/io_uring_disabled");
    if errno == Some(NOT_PERMITTED) && switch.as_ref().is_ok_and(|it| it != "0") {
        let sysctl = "sysctl -w kernel.io_uring_disabled=0 (as root)";
        return Some(("sysctl kernel.io_uring_disabled", sysctl.to_owned()));
    }
    let filtered = system
        .field("proc/self/status", "Seccomp")
        .is_ok_and(|mode| mode != "0");
    let refused = matches!(errno, Some(NOT_PERMITTED | NO_SUCH_CALL));
    if refused && filtered {
        return Some(("a seccomp filter", PROFILE.to_owned()));
    }
    // Without /proc, filters are invisible; nothing else explains the error.
    (errno == Some(NOT_PERMITTED)).then(|| ("a seccomp filter, probably", PROFILE.to_owned()))
}

fn ring(system: &System, ring: &probe::Ring) -> Finding {
    if !ring.available {
        let reason = ring.error.as_deref().unwrap_or("no reason given");
        let hint = ring
            .hint
            .as_deref()
            .unwrap_or("see io_uring_disabled and seccomp below");
        let loads = "loads use the engine pread instead, which costs more CPU";
        let remedy = remedy(system, ring.errno);
        let by = remedy
            .as_ref()
            .map_or_else(String::new, |(who, _)| format!(", blocked by {who}"));
        let value = format!("not available: {reason}{by}");
        let finding = Finding::ok("io_uring", "io_uring", value)
            .advise(Level::Warn, format!("{loads}; {hint}"));
        return match remedy {
            Some((_, command)) => finding.change(Urgency::Speed, command),
            None => finding,
        };
    }
    let mut value = "available".to_owned();
    if !ring.features.is_empty() {
        value = format!("{value}: {}", ring.features.join(", "));
    }
    if let Some(bytes) = ring.registered_bytes_max {
        value = format!(
            "{value}; buffers of up to {} can be registered",
            format_bytes(bytes)
        );
    }
    Finding::ok("io_uring", "io_uring", value)
}

/// Returns the finding about the sysctl; `None` on kernels before 6.6, which do not have it.
fn disabled(system: &System) -> Option<Finding> {
    let switch = system.read("proc/sys/kernel/io_uring_disabled").ok()?;
    let finding = |value| Finding::ok("io_uring_disabled", "kernel.io_uring_disabled", value);
    Some(match switch.as_str() {
        "0" => finding("0: all processes may use io_uring"),
        "1" => finding("1: only root and the group of kernel.io_uring_group may").advise(
            Level::Note,
            "for other users: sysctl kernel.io_uring_disabled=0, or add them to that group",
        ),
        _ => finding("2: no process may use io_uring")
            .advise(Level::Warn, "as root: sysctl kernel.io_uring_disabled=0"),
    })
}

/// Returns the finding about seccomp. A filter that permits rings needs no advice.
fn seccomp(system: &System, ring_available: bool) -> Finding {
    let mode = system
        .field("proc/self/status", "Seccomp")
        .map(|mode| match mode.as_str() {
            "0" => "off".to_owned(),
            "1" => "strict".to_owned(),
            "2" => "a filter is active".to_owned(),
            other => format!("mode {other}"),
        });
    let filtered = mode.as_ref().is_ok_and(|mode| mode != "off");
    let finding = Finding::known("seccomp", "seccomp", mode);
    if filtered && !ring_available {
        return finding.advise(
            Level::Note,
            "container runtimes block io_uring by default; to allow it, run with a profile that permits \
             io_uring_setup, io_uring_enter and io_uring_register",
        );
    }
    finding
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::testing::system;

    /// Returns the cause of a refusal and its fix on a machine with these files.
    fn blamed(files: &[(&str, &str)], errno: i32) -> Option<(&'static str, String)> {
        let (_folder, system) = system(files);
        remedy(&system, Some(errno))
    }

    #[test]
    fn ring_refusal_names_its_cause() {
        let switch = |text| ("proc/sys/kernel/io_uring_disabled", text);
        let filter = |text| ("proc/self/status", text);
        let (on, off) = (filter("Seccomp:\t2\n"), filter("Seccomp:\t0\n"));
        for text in ["1\n", "2\n"] {
            let (who, command) = blamed(&[switch(text), off], NOT_PERMITTED).expect("a remedy");
            assert_eq!(who, "sysctl kernel.io_uring_disabled");
            assert!(
                command.starts_with("sysctl -w kernel.io_uring_disabled=0"),
                "{command}"
            );
        }
        for errno in [NOT_PERMITTED, NO_SUCH_CALL] {
            let (who, command) = blamed(&[switch("0\n"), on], errno).expect("a remedy");
            assert_eq!(who, "a seccomp filter");
            assert!(command.contains("io_uring_setup"), "{command}");
        }
        let (who, _) = blamed(&[], NOT_PERMITTED).expect("a remedy");
        assert_eq!(who, "a seccomp filter, probably");
        // An old kernel, or too little memory: no setting helps.
        assert_eq!(blamed(&[off], NO_SUCH_CALL), None);
        assert_eq!(blamed(&[on], 12), None);
    }
}
