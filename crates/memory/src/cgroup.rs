//! Memory that the control groups of this process have left. A process that exceeds its group's
//! limit is killed, without an error.
//!
//! Read from `/proc` and `/sys` when a load begins. Nothing here fails: a machine that shows no
//! limit has none. `budget.rs` derives limits from the result, and `tload doctor` shows it.

use std::path::{Path, PathBuf};

/// Value above which a limit counts as none: version 1 writes "no limit" as the largest multiple of
/// a page that fits a signed word.
const UNLIMITED: u64 = 1 << 62;

/// Fields of `memory.stat` (version 2, and version 1 with the groups below) for memory that is
/// charged to a group but that the kernel reclaims by itself before it kills: clean file pages, and
/// its own caches.
const RECLAIMABLE: [&str; 5] = [
    "active_file",
    "inactive_file",
    "slab_reclaimable",
    "total_active_file",
    "total_inactive_file",
];

/// The memory limit of a control group.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CgroupMemory {
    /// The limit, in bytes.
    pub bytes: u64,
    /// Bytes that count against the limit and cannot be reclaimed, if the kernel tells.
    pub used: Option<u64>,
    /// The file that holds the limit.
    pub file: PathBuf,
}

impl CgroupMemory {
    /// Returns the bytes that can still be allocated.
    pub fn left(&self) -> u64 {
        self.bytes.saturating_sub(self.used.unwrap_or(0))
    }
}

/// File names of one version of the kernel's interface.
struct Version {
    root: &'static str,
    /// The kernel kills processes above the first. Above the second, if there is one, it slows them
    /// down until they have returned memory, which a load cannot.
    limits: &'static [&'static str],
    used: &'static str,
    /// Prefix of the fields of `memory.stat` that count the group with all groups below it.
    prefix: &'static str,
}

const ONE: Version = Version {
    root: "sys/fs/cgroup/memory",
    limits: &["memory.limit_in_bytes"],
    used: "memory.usage_in_bytes",
    prefix: "total_",
};

const TWO: Version = Version {
    root: "sys/fs/cgroup",
    limits: &["memory.max", "memory.high"],
    used: "memory.current",
    prefix: "",
};

/// Returns the limit with the least memory left, among those of the groups in `proc/self/cgroup`
/// and of their ancestors; none if there is no limit. `root` contains `proc` and `sys`: `/`, except
/// in tests.
pub fn cgroup_memory(root: &Path) -> Option<CgroupMemory> {
    let groups = std::fs::read_to_string(root.join("proc/self/cgroup")).ok()?;
    let limits = groups.lines().flat_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        match (fields.next(), fields.next()) {
            (Some(""), Some(group)) => limits_of(root, &TWO, group),
            (Some(controllers), Some(group)) if controllers.split(',').any(|it| it == "memory") => {
                limits_of(root, &ONE, group)
            }
            _ => Vec::new(),
        }
    });
    limits.min_by_key(CgroupMemory::left)
}

/// Returns the limits of a group and its ancestors. A container sees its own group as the root, so
/// the root is included whatever `group` says.
fn limits_of(root: &Path, version: &Version, group: &str) -> Vec<CgroupMemory> {
    let mut limits = Vec::new();
    let mut group = group.trim_matches('/');
    loop {
        let folder = root.join(version.root).join(group);
        let number = |name: &str| -> Option<u64> {
            let text = std::fs::read_to_string(folder.join(name)).ok()?;
            text.trim().parse().ok()
        };
        for name in version.limits {
            let Some(bytes) = number(name).filter(|bytes| *bytes < UNLIMITED) else {
                continue;
            };
            let used = number(version.used);
            limits.push(CgroupMemory {
                bytes,
                used: used.map(|used| used.saturating_sub(reclaimable(&folder, version))),
                file: Path::new("/").join(version.root).join(group).join(name),
            });
        }
        if group.is_empty() {
            return limits;
        }
        group = group.rsplit_once('/').map_or("", |(above, _)| above);
    }
}

fn reclaimable(folder: &Path, version: &Version) -> u64 {
    let stat = std::fs::read_to_string(folder.join("memory.stat")).unwrap_or_default();
    let fields = stat.lines().filter_map(|line| line.split_once(' '));
    fields
        .filter(|(name, _)| {
            let counted = name.starts_with("total_") != version.prefix.is_empty();
            counted && RECLAIMABLE.contains(name)
        })
        .filter_map(|(_, value)| value.trim().parse::<u64>().ok())
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Limit found on a machine with these files.
    fn limit(files: &[(&str, &str)]) -> Option<CgroupMemory> {
        let folder = tempfile::tempdir().expect("a folder");
        for (path, text) in files {
            let path = folder.path().join(path);
            std::fs::create_dir_all(path.parent().expect("below")).expect("a folder");
            std::fs::write(path, text).expect("a file");
        }
        cgroup_memory(folder.path())
    }

    #[test]
    fn cgroup_v2_limit_with_least_left_wins() {
        let found = limit(&[
            ("proc/self/cgroup", "0::/a/b\n"),
            ("sys/fs/cgroup/a/b/memory.max", "max\n"),
            ("sys/fs/cgroup/a/memory.max", "1048576\n"),
            ("sys/fs/cgroup/a/memory.current", "48576\n"),
            ("sys/fs/cgroup/memory.max", "999999\n"),
        ]);
        let found = found.expect("limits");
        assert_eq!((found.bytes, found.used), (999_999, None));
        assert_eq!(found.file, Path::new("/sys/fs/cgroup/memory.max"));
    }

    #[test]
    fn lower_one_of_the_two_limits_of_a_group_counts() {
        let found = |max: &str, high: &str| {
            let found = limit(&[
                ("proc/self/cgroup", "0::/a\n"),
                ("sys/fs/cgroup/a/memory.max", max),
                ("sys/fs/cgroup/a/memory.high", high),
                ("sys/fs/cgroup/a/memory.current", "1000\n"),
            ]);
            let found = found.expect("limits");
            let name = found.file.file_name().expect("a file").to_owned();
            (found.left(), name.into_string().expect("ASCII"))
        };
        let (max, high) = ("memory.max".to_owned(), "memory.high".to_owned());
        assert_eq!(found("5000\n", "max\n"), (4000, max.clone()));
        assert_eq!(found("5000\n", "4000\n"), (3000, high.clone()));
        assert_eq!(found("max\n", "4000\n"), (3000, high));
        assert_eq!(found("5000\n", "6000\n"), (4000, max));
    }

    /// The kernel can reclaim 300,000 of the 900,000 used bytes: 400,000 are left, not 100,000.
    #[test]
    fn reclaimable_pages_do_not_count_as_used() {
        let stat =
            "anon 600000\nactive_file 100000\ninactive_file 150000\nslab_reclaimable 50000\n";
        let found = limit(&[
            ("proc/self/cgroup", "0::/a\n"),
            ("sys/fs/cgroup/a/memory.max", "1000000\n"),
            ("sys/fs/cgroup/a/memory.current", "900000\n"),
            ("sys/fs/cgroup/a/memory.stat", stat),
        ]);
        assert_eq!(found.expect("a limit").left(), 400_000);
        let stat = "active_file 1\ninactive_file 1\ntotal_active_file 100000\ntotal_inactive_file 200000\n";
        let found = limit(&[
            ("proc/self/cgroup", "4:memory:/job\n0::/\n"),
            (
                "sys/fs/cgroup/memory/job/memory.limit_in_bytes",
                "1000000\n",
            ),
            ("sys/fs/cgroup/memory/job/memory.usage_in_bytes", "900000\n"),
            ("sys/fs/cgroup/memory/job/memory.stat", stat),
        ]);
        assert_eq!(found.expect("a limit").left(), 400_000);
    }

    #[test]
    fn cgroup_v1_unlimited_or_unreadable_has_no_limit() {
        assert_eq!(
            limit(&[
                ("proc/self/cgroup", "8:pids:/\n4:cpu,memory:/job\n0::/\n"),
                (
                    "sys/fs/cgroup/memory/job/memory.limit_in_bytes",
                    "9223372036854771712\n",
                ),
            ]),
            None
        );
        assert_eq!(limit(&[("proc/self/cgroup", "nonsense\n4:memory\n")]), None);
        assert_eq!(limit(&[]), None);
    }
}
