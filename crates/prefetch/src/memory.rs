//! Memory that the reader may fill with pages of files, and whether memory is short.

use std::path::{Path, PathBuf};

use tload::internal::probe::cgroup_memory;

/// Memory is short if less than one of this many bytes is available.
const LEFT_SHARE: u64 = 8;

/// Memory is short if less is available: the reader itself takes most of this.
const LEFT_MIN: u64 = 1 << 30;

/// Pages of files take at most one of this many available bytes. The engine needs the rest, and the
/// kernel gives pages up for it, which would then have been read for nothing.
const PAGES_SHARE: u64 = 2;

/// Memory of this machine and of the control groups of this process.
#[derive(Debug)]
pub(crate) struct Memory {
    /// Directory of `proc` and `sys`: `/`, except in tests.
    root: PathBuf,
    /// Bytes that have to stay available.
    least: u64,
    /// Most bytes of pages.
    pub(crate) pages_max: u64,
}

impl Memory {
    /// Looks at the memory that is available now; `None` if it is short, or if the system does not
    /// tell.
    pub(crate) fn look(root: &Path) -> Option<Self> {
        let (total, available) = sizes(root)?;
        let least = (total / LEFT_SHARE).max(LEFT_MIN);
        (available >= least).then(|| Self {
            root: root.to_owned(),
            least,
            pages_max: available / PAGES_SHARE,
        })
    }

    /// Returns whether memory has become short, also if the kernel would have to take pages that
    /// were read: `page_bytes` of them. Pages count as available.
    pub(crate) fn is_short(&self, page_bytes: u64) -> bool {
        sizes(&self.root).is_none_or(|(_, available)| available < self.least.max(page_bytes))
    }
}

/// Returns the bytes of memory that there are, and those that are available.
fn sizes(root: &Path) -> Option<(u64, u64)> {
    let text = std::fs::read_to_string(root.join("proc/meminfo")).ok()?;
    let total = field(&text, "MemTotal:")?;
    let available = field(&text, "MemAvailable:")?;
    Some(match cgroup_memory(root) {
        Some(group) => (total.min(group.bytes), available.min(group.left())),
        None => (total, available),
    })
}

/// Returns the bytes of a line such as `MemTotal:  100 kB`.
fn field(text: &str, name: &str) -> Option<u64> {
    let value = text.lines().find_map(|line| line.strip_prefix(name))?;
    let kilobytes: u64 = value.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kilobytes.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const GIB: u64 = 1 << 30;

    fn write(root: &Path, name: &str, text: &str) {
        let path = root.join(name);
        fs::create_dir_all(path.parent().expect("below")).expect("a folder");
        fs::write(path, text).expect("is written");
    }

    fn machine(root: &Path, total: u64, available: u64) {
        let text = format!(
            "MemTotal: {} kB\nMemFree: 5 kB\nMemAvailable:  {} kB\n",
            total / 1024,
            available / 1024
        );
        write(root, "proc/meminfo", &text);
    }

    #[test]
    fn half_of_what_is_available_may_be_filled_unless_an_eighth_is_left() {
        let folder = tempfile::tempdir().expect("a folder");
        let root = folder.path();
        assert!(Memory::look(root).is_none(), "the system tells nothing");
        machine(root, 64 * GIB, 40 * GIB);
        let memory = Memory::look(root).expect("is there");
        assert_eq!(memory.pages_max, 20 * GIB);
        assert!(!memory.is_short(0) && !memory.is_short(40 * GIB));
        assert!(memory.is_short(41 * GIB), "pages would be given up");
        machine(root, 64 * GIB, 8 * GIB - 1024);
        assert!(memory.is_short(0) && Memory::look(root).is_none());
        machine(root, 2 * GIB, GIB - 1024);
        assert!(Memory::look(root).is_none(), "the reader needs some too");
    }

    #[test]
    fn control_group_counts_as_machine() {
        let folder = tempfile::tempdir().expect("a folder");
        let root = folder.path();
        machine(root, 64 * GIB, 40 * GIB);
        write(root, "proc/self/cgroup", "0::/a\n");
        write(root, "sys/fs/cgroup/a/memory.max", &(8 * GIB).to_string());
        write(root, "sys/fs/cgroup/a/memory.current", &GIB.to_string());
        let memory = Memory::look(root).expect("is there");
        assert_eq!(memory.pages_max, 7 * GIB / 2);
        write(
            root,
            "sys/fs/cgroup/a/memory.current",
            &(7 * GIB).to_string(),
        );
        assert!(!memory.is_short(0));
        write(
            root,
            "sys/fs/cgroup/a/memory.current",
            &(7 * GIB + 1).to_string(),
        );
        assert!(memory.is_short(0));
    }
}
