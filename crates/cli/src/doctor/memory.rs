//! Memory: how much there is, what limits it, what may be locked, and huge pages.

use tload::format_bytes;

use super::{Finding, Level};
use crate::host::{System, memory};

/// Bit of `CAP_IPC_LOCK` in a capability set, which lifts the memlock limit.
const IPC_LOCK: u32 = 14;
/// Below this, registered buffers do not fit (a load's default window is up to 16 MiB in flight).
const MEMLOCK_ENOUGH: u64 = 64 << 20;

pub(super) fn findings(system: &System) -> Vec<Finding> {
    let mut findings = vec![available(system)];
    findings.extend(limit(system));
    findings.push(memlock(system));
    findings.push(huge_pages(system));
    findings
}

fn available(system: &System) -> Finding {
    let total = system.field_bytes("proc/meminfo", "MemTotal");
    let value = total.map(|total| match memory::available(system) {
        Some(available) => {
            format!(
                "{} of {} available",
                format_bytes(available),
                format_bytes(total)
            )
        }
        None => format!("{} in all", format_bytes(total)),
    });
    Finding::known("memory", "memory", value)
}

fn limit(system: &System) -> Option<Finding> {
    let limit = memory::limit(system)?;
    let value = format!("{} ({})", format_bytes(limit.bytes), limit.file);
    Some(
        Finding::ok("cgroup_memory", "control group limit", value).advise(
            Level::Note,
            "tensors that are kept count against it, and so do pages of files that were written; \
         keep --memory-limit well below",
        ),
    )
}

fn memlock(system: &System) -> Finding {
    let limit = system.read("proc/self/limits").map(|limits| {
        let line = limits
            .lines()
            .find_map(|line| line.strip_prefix("Max locked memory"));
        line.and_then(|line| line.split_whitespace().next())
            .unwrap_or("unlimited")
            .to_owned()
    });
    let bytes = limit
        .as_ref()
        .ok()
        .and_then(|limit| limit.parse::<u64>().ok());
    let exempt = system
        .field("proc/self/status", "CapEff")
        .ok()
        .and_then(|set| u64::from_str_radix(&set, 16).ok())
        .is_some_and(|set| set >> IPC_LOCK & 1 == 1);
    let value = limit.map(|limit| match bytes {
        Some(bytes) if exempt => format!("{} (lifted by CAP_IPC_LOCK)", format_bytes(bytes)),
        Some(bytes) => format_bytes(bytes),
        None => limit,
    });
    let finding = Finding::known("memlock", "locked memory limit", value);
    if bytes.is_some_and(|bytes| bytes < MEMLOCK_ENOUGH) && !exempt {
        return finding.advise(
            Level::Note,
            format!(
                "buffers beyond it are read into without registration, at about twice the CPU; raise it with \
                 ulimit -l {} or LimitMEMLOCK=",
                MEMLOCK_ENOUGH / 1024
            ),
        );
    }
    finding
}

fn huge_pages(system: &System) -> Finding {
    let setting = system.read("sys/kernel/mm/transparent_hugepage/enabled");
    let never = setting
        .as_ref()
        .is_ok_and(|setting| setting.contains("[never]"));
    let chosen = setting.map(|setting| {
        let chosen = setting
            .split_once('[')
            .and_then(|(_, rest)| rest.split_once(']'));
        chosen
            .map_or(setting.as_str(), |(chosen, _)| chosen)
            .to_owned()
    });
    let finding = Finding::known("huge_pages", "transparent huge pages", chosen);
    if never {
        return finding.advise(
            Level::Warn,
            "fresh memory for kept tensors costs several times more: \
             echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
        );
    }
    finding
}
