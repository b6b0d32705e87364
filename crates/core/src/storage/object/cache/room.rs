//! Space that a cache may take: its limit, which eviction of the least recently used entries makes
//! room for, and the free space of the disk, of which it leaves some. Answers do not count: they
//! have a limit of their own.

use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rustix::fs::{
    AtFlags, CWD, FlockOperation, Mode, OFlags, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT, flock,
    statvfs, utimensat,
};
use rustix::io::Errno;

use super::TOTALS;
use super::entry::STAMPS;
use super::open_entries::OpenEntry;
use crate::options::format_bytes;
use crate::sync::lock::{Condvar, Mutex};

/// Bytes that are written before space is measured again: other processes write to the disk too.
/// With a small limit, it is this fraction of it. Each opening may exceed the limit by as much.
const MEASURED_BYTES: u64 = 64 << 20;

/// See [`MEASURED_BYTES`].
const LIMIT_DIVISOR: u64 = 16;

/// Free space that is left: this fraction of the file system, but no more than
/// [`LEFT_BYTES_MAX`].
const LEFT_DIVISOR: u64 = 20;

/// See [`LEFT_DIVISOR`].
const LEFT_BYTES_MAX: u64 = 2 << 30;

/// Name of the directory that entries are moved to before they are removed.
const TRASH: &str = "removed";

/// Space of a cache.
#[derive(Debug)]
pub(super) struct Room {
    folder: PathBuf,
    limit: Option<u64>,
    left: Mutex<Left>,
    /// A write has ended.
    written: Condvar,
}

#[derive(Debug, Default)]
struct Left {
    /// Bytes that may be written before the next measurement.
    bytes: u64,
    /// Bytes that are being written: a measurement sees some of them.
    writing: u64,
}

/// Space of a write, until it has ended.
pub(super) struct Taken<'a> {
    room: &'a Room,
    bytes: u64,
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        self.room.left.lock().writing -= self.bytes;
        self.room.written.notify_all();
    }
}

/// Entry on disk.
#[derive(Debug)]
pub(super) struct Occupied {
    pub(super) path: PathBuf,
    /// Bytes on disk.
    pub(super) bytes: u64,
    pub(super) used: SystemTime,
}

impl Room {
    /// Describes the space of the cache whose entries are below `folder`.
    pub(super) fn new(folder: &Path, limit: Option<u64>) -> Self {
        Self {
            folder: folder.to_owned(),
            limit,
            left: Mutex::default(),
            written: Condvar::default(),
        }
    }

    /// Takes space for a write.
    ///
    /// # Errors
    ///
    /// The reason why there is none.
    pub(super) fn take(&self, bytes: u64) -> Result<Taken<'_>, String> {
        let mut left = self.left.lock();
        while left.bytes < bytes {
            match self.measure(bytes + left.writing) {
                Ok(room) => left.bytes = room - left.writing,
                // There may be room for this write alone.
                Err(_) if left.writing > 0 => left = self.written.wait(left),
                Err(reason) => return Err(reason),
            }
        }
        left.bytes -= bytes;
        left.writing += bytes;
        Ok(Taken { room: self, bytes })
    }

    /// Returns how many bytes may be written, at least `wanted`.
    fn measure(&self, wanted: u64) -> Result<u64, String> {
        let (mut free, kept) = self.free()?;
        let limit = self.limit.map_or(u64::MAX, |limit| limit / LIMIT_DIVISOR);
        let most = MEASURED_BYTES.min(limit).max(wanted);
        if self.limit.is_some() && free.saturating_sub(kept) < wanted {
            // The disk is smaller than the limit, or others write to it: older entries make way.
            let used = self.make_room(u64::MAX);
            self.make_room(used.saturating_sub(most + kept.saturating_sub(free)));
            (free, _) = self.free()?;
        }
        let room = free.saturating_sub(kept).min(most);
        if room < wanted {
            return Err(format!(
                "the disk is nearly full: {} are free, and {} of them are left alone",
                format_bytes(free),
                format_bytes(kept)
            ));
        }
        let Some(limit) = self.limit else {
            return Ok(room);
        };
        let used = self.make_room(limit.saturating_sub(room));
        let room = limit.saturating_sub(used).min(room);
        if room < wanted {
            let limit = format_bytes(limit);
            return Err(format!(
                "its limit of {limit} is reached, and its other entries are in use or cannot be removed"
            ));
        }
        Ok(room)
    }

    /// Returns the free bytes of the disk, and how many of them are left alone.
    fn free(&self) -> Result<(u64, u64), String> {
        let disk =
            statvfs(&self.folder).map_err(|error| format!("no free space known: {error}"))?;
        let size = disk.f_blocks.saturating_mul(disk.f_frsize);
        let free = disk.f_bavail.saturating_mul(disk.f_frsize);
        Ok((free, (size / LEFT_DIVISOR).min(LEFT_BYTES_MAX)))
    }

    /// Evicts entries, the least recently used ones first, until the others take at most `most`
    /// bytes or are in use. Returns the bytes that they take.
    pub(super) fn make_room(&self, most: u64) -> u64 {
        empty_trash(&self.folder);
        let entries = occupied_in_order(&self.folder);
        let mut used = entries.iter().map(|entry| entry.bytes).sum::<u64>();
        for entry in entries {
            if used <= most {
                break;
            }
            match remove(&self.folder, &entry.path) {
                Ok(true) => {
                    used -= entry.bytes;
                    TOTALS.lock().evicted_bytes += entry.bytes;
                }
                Ok(false) => {}
                Err(error) => tracing::debug!(%error, "cannot evict an entry of the cache"),
            }
        }
        used
    }
}

/// Returns the entries below `folder`, the least recently used ones first.
///
/// A time in the future is that of a clock that was wrong. It counts as now, and becomes that:
/// otherwise its entry would outlive all others.
pub(super) fn occupied_in_order(folder: &Path) -> Vec<Occupied> {
    let mut entries = occupied(folder);
    let now = SystemTime::now();
    for entry in entries.iter_mut().filter(|entry| entry.used > now) {
        touch(&entry.path.join(STAMPS));
        entry.used = now;
    }
    entries.sort_by_key(|entry| entry.used);
    entries
}

/// Sets the time of the last use of a file to now.
pub(super) fn touch(path: &Path) {
    let time = |tv_nsec| Timespec { tv_sec: 0, tv_nsec };
    let times = Timestamps {
        last_access: time(UTIME_OMIT),
        last_modification: time(UTIME_NOW),
    };
    // A cache that cannot be written to is not shrunk either.
    let _ = utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW);
}

/// Returns whether a name consists of `len` hexadecimal digits.
pub(super) fn is_hex(name: &str, len: usize) -> bool {
    name.len() == len && name.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Returns the entries below `folder`.
pub(super) fn occupied(folder: &Path) -> Vec<Occupied> {
    let list = |folder: &Path| {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        // Links are not followed.
        let folders = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        folders.map(|entry| entry.path()).collect::<Vec<_>>()
    };
    let is_name = |path: &Path, len: usize| {
        let name = path.file_name().and_then(|name| name.to_str());
        name.is_some_and(|name| is_hex(name, len))
    };
    let mut occupied = Vec::new();
    for group in list(folder).into_iter().filter(|path| is_name(path, 2)) {
        for path in list(&group).into_iter().filter(|path| is_name(path, 64)) {
            let files = std::fs::read_dir(&path).into_iter().flatten().flatten();
            let bytes = files.filter_map(|file| Some(file.metadata().ok()?.blocks() * 512));
            let bytes = bytes.sum();
            let stamps = std::fs::symlink_metadata(path.join(STAMPS));
            let used = stamps.and_then(|stamps| stamps.modified());
            occupied.push(Occupied {
                path,
                bytes,
                used: used.unwrap_or(SystemTime::UNIX_EPOCH),
            });
        }
    }
    occupied
}

/// Removes an entry. Returns false if it stays because it is in use. It disappears from its place
/// before its files are removed: no process sees half of it.
///
/// # Errors
///
/// Errors of the file system.
pub(super) fn remove(folder: &Path, entry: &Path) -> io::Result<bool> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let path = entry.join(STAMPS);
    let stamps = match rustix::fs::open(&path, flags, Mode::RUSR | Mode::WUSR).map(File::from) {
        Ok(stamps) => {
            // Any other error is that of a file system without locks. Then other processes may read
            // the entry, which stays readable.
            let locked = flock(&stamps, FlockOperation::NonBlockingLockExclusive);
            let inode = |found: io::Result<Metadata>| found.map_or(0, |it| it.ino());
            // Another process may have evicted the entry between the two calls, and a third one
            // made it anew.
            let is_other = inode(stamps.metadata()) != inode(path.symlink_metadata());
            if locked == Err(Errno::WOULDBLOCK) || is_other {
                return Ok(false);
            }
            Some(stamps)
        }
        // They are opened before anything else of an entry: one where they are no file is not in
        // use.
        Err(Errno::LOOP | Errno::ISDIR | Errno::NXIO) => None,
        // Another process was faster.
        Err(Errno::NOENT) => return Ok(true),
        Err(error) => return Err(error.into()),
    };
    // This process may have it open, where its lock says nothing.
    let removing = stamps.as_ref().map(OpenEntry::removing).transpose()?;
    if matches!(removing, Some(None)) {
        return Ok(false);
    }
    let trash = folder.join(TRASH);
    match std::fs::DirBuilder::new().mode(0o700).create(&trash) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let moved = trash.join(format!("{:016x}", fastrand::u64(..)));
    match std::fs::rename(entry, &moved) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        // Another process was faster.
        Ok(()) | Err(_) => {}
    }
    empty_trash(folder);
    Ok(true)
}

/// Removes the files of entries that were moved away: also those that a killed process left there,
/// which no list of entries has.
pub(super) fn empty_trash(folder: &Path) {
    let trash = std::fs::read_dir(folder.join(TRASH));
    for left in trash.into_iter().flatten().flatten() {
        let _ = std::fs::remove_dir_all(left.path());
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn entry_that_cannot_be_moved_is_not_removed() {
        use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

        let folder = tempfile::tempdir().expect("a folder");
        let limit = c"size=1M,nr_inodes=16";
        let mounted = mount("tmpfs", folder.path(), "tmpfs", MountFlags::empty(), limit);
        let mounted = mounted.map_err(|errno| format!("cannot mount a tmpfs: {errno}"));
        if tload_testbed::require_named("mount", mounted).is_none() {
            return;
        }
        let entry = folder.path().join("aa").join("a".repeat(64));
        std::fs::create_dir_all(&entry).expect("a directory");
        std::fs::write(entry.join(STAMPS), "").expect("a file");
        // No inode is left for the directory that entries are moved to.
        let mut numbers = 0..64;
        let is_full = numbers.any(|it| std::fs::write(entry.join(it.to_string()), "").is_err());
        let removed = remove(folder.path(), &entry);
        let is_there = entry.exists();
        let _ = unmount(folder.path(), UnmountFlags::DETACH);
        assert!(is_full && is_there);
        let error = removed.expect_err("nothing is removed");
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
    }
}
