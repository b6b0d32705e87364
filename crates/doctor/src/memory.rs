//! Memory: amount, limits, locked memory and huge pages.

use tload::internal::format_bytes;
use tload::internal::probe::CgroupMemory;
use tload::{Checkpoint, TensorInfo};

use super::{Finding, Level, Urgency};
use crate::host::limits::{Limit, Limits};
use crate::host::{System, memory};

/// Bit of `CAP_IPC_LOCK` in a capability set, which lifts the memlock limit.
const IPC_LOCK: u32 = 14;
/// Limit below which registered buffers do not fit (loads with staging memory, whose buffers are
/// registered, begin with 16 MiB in flight).
const MEMLOCK_ENOUGH: u64 = 64 << 20;
/// Default budget of a load. It shrinks in a control group with less than twice as much left.
const BUDGET: u64 = 512 << 20;
/// Memory that a load needs in addition to its largest tensor.
const BESIDE: u64 = 64 << 20;

pub(crate) fn findings(
    system: &System,
    limits: &Limits,
    checkpoint: Option<&Checkpoint>,
) -> Vec<Finding> {
    let mut findings = vec![available(system)];
    let largest = checkpoint.map_or(0, largest);
    findings.extend(memory::limit(system).map(|limit| group(&limit, largest)));
    findings.push(memlock(system, limits.locked_memory));
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
        None => format!("{} in total", format_bytes(total)),
    });
    Finding::known("memory", "memory", value)
}

/// Returns the bytes of the largest tensor: a load needs memory for at least one.
fn largest(checkpoint: &Checkpoint) -> u64 {
    let tensors = checkpoint.tensors().iter();
    tensors.map(TensorInfo::byte_len).max().unwrap_or(0)
}

/// Compares the memory left in the control group with the `largest` tensor.
fn group(limit: &CgroupMemory, largest: u64) -> Finding {
    let (left, file) = (limit.left(), limit.file.display());
    let value = format!(
        "{}, {} left ({file})",
        format_bytes(limit.bytes),
        format_bytes(left)
    );
    let finding = Finding::ok("cgroup_memory", "cgroup memory limit", value);
    let least = largest + BESIDE;
    // A sufficient limit, rounded up to whole GiB.
    let used = limit.bytes - left;
    let wanted = (used + 2 * largest.max(BUDGET)).next_multiple_of(1 << 30);
    let command = format!(
        "docker run --memory {}g, or echo {wanted} > {file}",
        wanted >> 30
    );
    if left < least {
        let advice = format!(
            "a load needs at least {} and fails, or is killed if it sets --memory-limit itself: {command}",
            format_bytes(least)
        );
        return finding
            .advise(Level::Warn, advice)
            .change(Urgency::Failure, command);
    }
    if left < 2 * BUDGET {
        return finding.advise(
            Level::Note,
            "loads without --memory-limit use less than half of the remaining memory, which may cost \
             speed; kept tensors count against the limit",
        );
    }
    finding.advise(
        Level::Note,
        "kept tensors and page cache of written files count against the limit; keep --memory-limit well below it",
    )
}

fn memlock(system: &System, limit: Limit) -> Finding {
    let exempt = system
        .field("proc/self/status", "CapEff")
        .ok()
        .and_then(|set| u64::from_str_radix(&set, 16).ok())
        .is_some_and(|set| set >> IPC_LOCK & 1 == 1);
    let value = match limit.now {
        Some(bytes) if exempt => format!("{} (lifted by CAP_IPC_LOCK)", format_bytes(bytes)),
        Some(bytes) => format_bytes(bytes),
        None => "unlimited".to_owned(),
    };
    let finding = Finding::ok("memlock", "locked memory limit", value);
    if limit.has(MEMLOCK_ENOUGH) || exempt {
        return finding;
    }
    let kibibytes = MEMLOCK_ENOUGH / 1024;
    let command = if limit.may_have(MEMLOCK_ENOUGH) {
        format!("ulimit -l {kibibytes}")
    } else {
        format!(
            "as root: ulimit -l {kibibytes}, LimitMEMLOCK={MEMLOCK_ENOUGH} of the service, or docker run --ulimit memlock=-1"
        )
    };
    let advice = format!(
        "buffers beyond the limit are not registered, which takes about twice the CPU: {command}"
    );
    finding
        .advise(Level::Note, advice)
        .change(Urgency::Little, command)
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
        let command = "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled";
        let advice =
            format!("allocating memory for kept tensors takes several times longer: {command}");
        return finding
            .advise(Level::Warn, advice)
            .change(Urgency::Speed, command);
    }
    finding
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::testing::system;

    const MIB: u64 = 1 << 20;

    /// Returns the finding for a group with this limit and use.
    fn of_group(bytes: u64, used: u64, largest: u64) -> Finding {
        let (limit, used) = (format!("{bytes}\n"), format!("{used}\n"));
        let (_folder, system) = system(&[
            ("proc/self/cgroup", "0::/\n"),
            ("sys/fs/cgroup/memory.max", &limit),
            ("sys/fs/cgroup/memory.current", &used),
        ]);
        group(&memory::limit(&system).expect("has one"), largest)
    }

    #[test]
    fn cgroup_memory_below_largest_tensor_warns() {
        let small = of_group(256 * MIB, 56 * MIB, 100 * MIB);
        assert!(
            small.value.starts_with("256.0 MiB, 200.0 MiB left ("),
            "{}",
            small.value
        );
        assert_eq!((small.level, small.change), (Level::Note, None));
        let full = of_group(256 * MIB, 56 * MIB, 150 * MIB);
        assert_eq!(full.level, Level::Warn);
        let advice = full.advice.expect("says why");
        assert!(advice.contains("needs at least 214.0 MiB"), "{advice}");
        let change = full.change.expect("says what to do");
        assert_eq!(change.urgency, Urgency::Failure);
        assert!(
            change
                .command
                .starts_with("docker run --memory 2g, or echo 2147483648 > "),
            "{}",
            change.command
        );
        assert_eq!(of_group(64 << 30, 0, 150 * MIB).change, None);
    }

    #[test]
    fn disabled_huge_pages_advise_change() {
        let file = "sys/kernel/mm/transparent_hugepage/enabled";
        let (_folder, never) = system(&[(file, "always madvise [never]\n")]);
        let change = huge_pages(&never).change.expect("worth it");
        assert_eq!(change.urgency, Urgency::Speed);
        assert!(
            change.command.starts_with("echo madvise > /sys/"),
            "{}",
            change.command
        );
        let (_folder, healthy) = system(&[(file, "always [madvise] never\n")]);
        assert_eq!(huge_pages(&healthy).change, None);
    }

    #[test]
    fn small_memlock_limit_is_noted_unless_lifted() {
        let (_folder, user) = system(&[("proc/self/status", "CapEff:\t0000000000000000\n")]);
        let limit = |now, most| Limit {
            now: Some(now),
            most: Some(most),
        };
        let raised = memlock(&user, limit(64 << 10, 1 << 40));
        assert_eq!(
            (raised.level, raised.value.as_str()),
            (Level::Note, "64.0 KiB")
        );
        assert_eq!(
            raised.change.expect("can be raised").command,
            "ulimit -l 65536"
        );
        let fixed = memlock(&user, limit(8 << 20, 8 << 20))
            .change
            .expect("by root");
        assert!(
            fixed.command.contains("LimitMEMLOCK=67108864"),
            "{}",
            fixed.command
        );
        assert_eq!(memlock(&user, limit(64 << 20, 64 << 20)).level, Level::Ok);
        let (_folder, root) = system(&[("proc/self/status", "CapEff:\t000001ffffffffff\n")]);
        let lifted = memlock(&root, limit(64 << 10, 64 << 10));
        assert_eq!(lifted.level, Level::Ok);
        assert!(lifted.value.contains("CAP_IPC_LOCK"), "{}", lifted.value);
    }
}
