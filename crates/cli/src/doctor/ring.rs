//! `io_uring`: whether a ring can be set up here, and what forbids it.

use tload::{format_bytes, probe};

use super::{Finding, Level};
use crate::host::System;

pub(super) fn findings(system: &System) -> Vec<Finding> {
    let probed = probe::ring();
    let mut findings = vec![ring(&probed)];
    findings.extend(disabled(system));
    findings.push(seccomp(system, probed.available));
    findings
}

fn ring(ring: &probe::Ring) -> Finding {
    if !ring.available {
        let reason = ring.error.as_deref().unwrap_or("no reason given");
        let advice = ring.hint.clone().unwrap_or_else(|| {
            "loads use the engine pread instead, which costs more CPU; see io_uring_disabled and seccomp below"
                .to_owned()
        });
        let value = format!("not available: {reason}");
        return Finding::ok("io_uring", "io_uring", value).advise(Level::Warn, advice);
    }
    let mut value = "available".to_owned();
    if !ring.features.is_empty() {
        value = format!("{value}: {}", ring.features.join(", "));
    }
    if let Some(bytes) = ring.registered_bytes_max {
        value = format!("{value}; buffers up to {} register", format_bytes(bytes));
    }
    Finding::ok("io_uring", "io_uring", value)
}

/// Nothing on kernels before 6.6, which have no such switch.
fn disabled(system: &System) -> Option<Finding> {
    let switch = system.read("proc/sys/kernel/io_uring_disabled").ok()?;
    let finding = |value| Finding::ok("io_uring_disabled", "kernel.io_uring_disabled", value);
    Some(match switch.as_str() {
        "0" => finding("0: everyone may use io_uring"),
        "1" => finding("1: only root and the group of kernel.io_uring_group may").advise(
            Level::Note,
            "for other users: sysctl kernel.io_uring_disabled=0, or add them to that group",
        ),
        _ => finding("2: nobody may use io_uring")
            .advise(Level::Warn, "as root: sysctl kernel.io_uring_disabled=0"),
    })
}

/// A filter that lets rings through is nobody's business.
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
