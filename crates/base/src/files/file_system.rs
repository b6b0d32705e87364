//! Identifies the file system of a file and the properties that follow from it.

use std::os::fd::AsFd;
use std::path::Path;

use crate::error::{Error, Result};

/// A file system, as reported by `statfs` and `stat`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileSystem {
    /// Name: `"ext4"`, `"tmpfs"`, `"nfs"`, …; `"0x…"` for a magic number that is not in the table.
    pub name: String,
    /// Magic number of `statfs(2)`.
    pub magic: u64,
    /// Major and minor number of the device.
    pub device: (u32, u32),
    /// True if files live in memory: direct I/O has no meaning there, and threads copy faster than
    /// a ring.
    pub in_memory: bool,
    /// True if reads go over a network or to a user-space server.
    pub network: bool,
}

/// Magic numbers from `linux/magic.h` and the file systems' own headers (Lustre, GPFS, Ceph).
const NAMES: [(u64, &str); 22] = [
    (0xEF53, "ext4"),
    (0x5846_5342, "xfs"),
    (0x9123_683E, "btrfs"),
    (0x2FC1_2FC1, "zfs"),
    (0xF2F5_2010, "f2fs"),
    (0xE0F5_E1E2, "erofs"),
    (0x7371_7368, "squashfs"),
    (0x794C_7630, "overlay"),
    (0x0102_1994, "tmpfs"),
    (0x8584_58F6, "ramfs"),
    (0x9584_58F6, "hugetlbfs"),
    (0x6969, "nfs"),
    (0xFF53_4D42, "cifs"),
    (0xFE53_4D42, "smb2"),
    (0x6573_5546, "fuse"),
    (0x0BD0_0BD0, "lustre"),
    (0x00C3_6400, "ceph"),
    (0x4750_4653, "gpfs"),
    (0x0102_1997, "9p"),
    (0x1983_0326, "beegfs"),
    (0x5346_4846, "wekafs"),
    (0x5346_544E, "ntfs"),
];

const IN_MEMORY: [&str; 3] = ["tmpfs", "ramfs", "hugetlbfs"];
const NETWORK: [&str; 10] = [
    "nfs", "cifs", "smb2", "fuse", "lustre", "ceph", "gpfs", "9p", "beegfs", "wekafs",
];

impl FileSystem {
    /// Returns the file system of an open file.
    pub fn for_file(file: impl AsFd) -> Result<Self> {
        let stat = rustix::fs::fstat(&file)
            .map_err(|errno| Error::from_io("cannot read the file's status", errno.into()))?;
        let device = (
            rustix::fs::major(stat.st_dev),
            rustix::fs::minor(stat.st_dev),
        );
        Ok(Self::new(magic(&file)?, device))
    }

    fn new(magic: u64, device: (u32, u32)) -> Self {
        let known = NAMES
            .iter()
            .find(|(number, _)| *number == magic)
            .map(|(_, name)| *name);
        Self {
            name: known.map_or_else(|| format!("{magic:#x}"), str::to_owned),
            magic,
            device,
            in_memory: known.is_some_and(|name| IN_MEMORY.contains(&name)),
            network: known.is_some_and(|name| NETWORK.contains(&name)),
        }
    }
}

/// Returns the file system that a file or directory is on.
///
/// # Errors
///
/// The path cannot be opened, or its file system cannot be determined.
pub fn file_system(path: &Path) -> Result<FileSystem> {
    let file = super::open_plain(path)
        .map_err(|error| Error::from_io("cannot open", error).with_location(path.display()))?;
    FileSystem::for_file(&file).map_err(|error| error.with_location(path.display()))
}

/// Returns whether a path leads to a network file system or to one served from user space; false if
/// that cannot be determined.
#[cfg(target_os = "linux")]
pub fn is_network(path: &Path) -> bool {
    rustix::fs::statfs(path)
        .ok()
        .and_then(|statfs| u32::try_from(statfs.f_type & 0xFFFF_FFFF).ok())
        .is_some_and(|magic| FileSystem::new(u64::from(magic), (0, 0)).network)
}

/// Returns false: only Linux tells.
#[cfg(not(target_os = "linux"))]
pub fn is_network(_path: &Path) -> bool {
    false
}

#[cfg(target_os = "linux")]
fn magic(file: impl AsFd) -> Result<u64> {
    let statfs = rustix::fs::fstatfs(file)
        .map_err(|errno| Error::from_io("cannot read the file system's status", errno.into()))?;
    // The kernel's type is signed on some machines: the number is 32 bits wide everywhere.
    Ok(u64::from(
        u32::try_from(statfs.f_type & 0xFFFF_FFFF).unwrap_or(0),
    ))
}

#[cfg(not(target_os = "linux"))]
#[expect(clippy::unnecessary_wraps, reason = "the Linux version can fail")]
fn magic(_file: impl AsFd) -> Result<u64> {
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_the_magic() {
        assert_eq!(FileSystem::new(0xEF53, (8, 1)).name, "ext4");
        assert!(FileSystem::new(0x0102_1994, (0, 1)).in_memory);
        assert!(FileSystem::new(0x6969, (0, 1)).network);
        let unknown = FileSystem::new(0x1234, (0, 1));
        assert_eq!((unknown.name.as_str(), unknown.network), ("0x1234", false));
    }
}
