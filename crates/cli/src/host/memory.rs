//! How much memory a load may take: what is available, and the limits of the control groups this process is in.

use super::System;

/// Bytes that can be taken without swapping or being killed, as far as the kernel says.
pub(crate) fn available(system: &System) -> Option<u64> {
    let free = system.field_bytes("proc/meminfo", "MemAvailable").ok();
    let room = limit(system).and_then(|limit| Some(limit.bytes.saturating_sub(limit.used?)));
    free.into_iter().chain(room).min()
}

/// The tightest memory limit of a control group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Limit {
    pub(crate) bytes: u64,
    /// What the group uses now, page cache included.
    pub(crate) used: Option<u64>,
    /// The file that holds it.
    pub(crate) file: String,
}

/// The tightest limit of the groups that `/proc/self/cgroup` names and of their ancestors; `None` when there is none.
pub(crate) fn limit(system: &System) -> Option<Limit> {
    let groups = system.read("proc/self/cgroup").ok()?;
    let mut limits = Vec::new();
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(group)) =
            (fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        let version = if controllers.is_empty() {
            ("sys/fs/cgroup", "memory.max", "memory.current")
        } else if controllers
            .split(',')
            .any(|controller| controller == "memory")
        {
            (
                "sys/fs/cgroup/memory",
                "memory.limit_in_bytes",
                "memory.usage_in_bytes",
            )
        } else {
            continue;
        };
        limits.extend(limits_of(system, group, version));
    }
    limits.into_iter().min_by_key(|limit| limit.bytes)
}

/// A container sees its own group as the root, so ancestors are asked up to the root whatever `group` says.
fn limits_of(
    system: &System,
    group: &str,
    (root, limit_name, used_name): (&str, &str, &str),
) -> Vec<Limit> {
    /// Version 1 writes "no limit" as the largest multiple of a page that fits a signed word.
    const UNLIMITED: u64 = 1 << 62;
    let mut limits = Vec::new();
    let mut group = group.trim_matches('/');
    loop {
        let file = format!("{root}/{group}/{limit_name}").replace("//", "/");
        let number = |file: &str| system.read(file).ok()?.parse::<u64>().ok();
        if let Some(bytes) = number(&file).filter(|bytes| *bytes < UNLIMITED) {
            let used = number(&format!("{root}/{group}/{used_name}"));
            limits.push(Limit {
                bytes,
                used,
                file: format!("/{file}"),
            });
        }
        if group.is_empty() {
            return limits;
        }
        group = group.rsplit_once('/').map_or("", |(parent, _)| parent);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::testing::system;

    #[test]
    fn the_tightest_group_of_version_2_counts() {
        let (_folder, system) = system(&[
            ("proc/self/cgroup", "0::/a/b\n"),
            ("proc/meminfo", "MemAvailable: 4096 kB\n"),
            ("sys/fs/cgroup/a/b/memory.max", "max\n"),
            ("sys/fs/cgroup/a/memory.max", "1048576\n"),
            ("sys/fs/cgroup/a/memory.current", "48576\n"),
        ]);
        let limit = limit(&system).unwrap();
        assert_eq!((limit.bytes, limit.used), (1_048_576, Some(48_576)));
        assert_eq!(limit.file, "/sys/fs/cgroup/a/memory.max");
        assert_eq!(available(&system), Some(1_000_000));
    }

    #[test]
    fn version_1_without_a_limit_has_none() {
        let (_folder, system) = system(&[
            ("proc/self/cgroup", "8:pids:/\n4:memory:/job\n0::/\n"),
            ("proc/meminfo", "MemAvailable: 1 kB\n"),
            (
                "sys/fs/cgroup/memory/job/memory.limit_in_bytes",
                "9223372036854771712\n",
            ),
        ]);
        assert_eq!(limit(&system), None);
        assert_eq!(available(&system), Some(1024));
    }
}
