//! Space that a cache may take: its limit, which eviction of the least recently used entries makes
//! room for, and the free space of the disk, of which it leaves some. Answers do not count: they
//! have a separate limit.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustix::fs::{FileType, FlockOperation, OFlags, Stat, flock, fstatvfs};
use rustix::io::Errno;

use super::TOTALS;
use super::entry::STAMPS;
use super::files::{Root, components};
use super::open_entries::OpenEntry;
use crate::guarded_dir::{GuardedDir, is_scarcity};
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
    root: Arc<Root>,
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
    /// 64 hexadecimal digits.
    pub(super) name: String,
    /// Bytes on disk.
    pub(super) bytes: u64,
    pub(super) used: SystemTime,
}

impl Room {
    /// Describes the space of a cache.
    pub(super) fn new(root: &Arc<Root>, limit: Option<u64>) -> Self {
        Self {
            root: Arc::clone(root),
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
                // This write may fit once the writes in progress have ended.
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
            // The disk is smaller than the limit, or other programs fill it: evict older entries.
            let used = self.make_room(u64::MAX)?;
            self.make_room(used.saturating_sub(most + kept.saturating_sub(free)))?;
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
        let used = self.make_room(limit.saturating_sub(room))?;
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
        let folder = self.root.look();
        let disk = folder.and_then(|folder| Ok(fstatvfs(folder.folder())?));
        let disk = disk.map_err(|error| format!("no free space known: {error}"))?;
        let size = disk.f_blocks.saturating_mul(disk.f_frsize);
        let free = disk.f_bavail.saturating_mul(disk.f_frsize);
        Ok((free, (size / LEFT_DIVISOR).min(LEFT_BYTES_MAX)))
    }

    /// Evicts entries, the least recently used ones first, until the others take at most `most`
    /// bytes or are in use. Returns the bytes that they take.
    ///
    /// # Errors
    ///
    /// The bytes cannot be counted.
    fn make_room(&self, most: u64) -> Result<u64, String> {
        let listed = |error| format!("its entries cannot be listed: {error}");
        let Some(root) = unless_scarce(self.root.look()).map_err(listed)? else {
            return Ok(0);
        };
        empty_trash(&root);
        let entries = occupied_in_order(&root).map_err(listed)?;
        let mut used = entries.iter().map(|entry| entry.bytes).sum::<u64>();
        for entry in entries {
            if used <= most {
                break;
            }
            match remove(&root, &entry.name) {
                Ok(true) => {
                    used -= entry.bytes;
                    TOTALS.lock().evicted_bytes += entry.bytes;
                }
                Ok(false) => {}
                Err(error) => tracing::debug!(%error, "cannot evict an entry of the cache"),
            }
        }
        Ok(used)
    }
}

/// Returns the entries of a cache, the least recently used ones first.
///
/// A time in the future is that of a clock that was wrong. It counts as now, and becomes that:
/// otherwise its entry would outlive all others.
///
/// # Errors
///
/// As [`occupied`].
pub(super) fn occupied_in_order(root: &GuardedDir) -> io::Result<Vec<Occupied>> {
    let mut entries = occupied(root)?;
    let now = SystemTime::now();
    for entry in entries.iter_mut().filter(|entry| entry.used > now) {
        // A cache that cannot be written to is not shrunk either.
        let folder = root.deep(&components(&entry.name), false);
        let _ = folder.and_then(|folder| folder.touch(STAMPS));
        entry.used = now;
    }
    entries.sort_by_key(|entry| entry.used);
    Ok(entries)
}

/// Returns the bytes that a file takes on disk.
pub(super) fn disk_bytes(stat: &Stat) -> u64 {
    // `st_blocks` counts units of 512 bytes on every file system (stat(2)).
    u64::try_from(stat.st_blocks)
        .unwrap_or(0)
        .saturating_mul(512)
}

/// Returns the time of a file's last modification; that of 1970 if it is earlier.
pub(super) fn modified(stat: &Stat) -> SystemTime {
    let seconds = u64::try_from(stat.st_mtime).unwrap_or(0);
    let nanoseconds = u32::try_from(stat.st_mtime_nsec).unwrap_or(0);
    let since = Duration::new(seconds, nanoseconds.min(999_999_999));
    let time = SystemTime::UNIX_EPOCH.checked_add(since);
    time.unwrap_or(SystemTime::UNIX_EPOCH)
}

pub(super) fn is_file(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
}

/// Returns whether a name consists of `len` hexadecimal digits.
pub(super) fn is_hex(name: &str, len: usize) -> bool {
    name.len() == len && name.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Returns the entries of a cache. Links are not followed. Those that cannot be opened are left
/// out: they may belong to another user, or be gone by now.
///
/// # Errors
///
/// The process or the system lacks what opens them.
pub(super) fn occupied(root: &GuardedDir) -> io::Result<Vec<Occupied>> {
    let list = |folder: &GuardedDir, len: usize| {
        let names = unless_scarce(folder.names())?.unwrap_or_default();
        io::Result::Ok(names.into_iter().filter(move |name| is_hex(name, len)))
    };
    let mut occupied = Vec::new();
    for group in list(root, 2)? {
        let Some(group) = unless_scarce(root.below(&group))? else {
            continue;
        };
        for name in list(&group, 64)? {
            let Some(folder) = unless_scarce(group.below(&name))? else {
                continue;
            };
            let files = unless_scarce(folder.names())?.unwrap_or_default();
            let bytes = files
                .iter()
                .flat_map(|file| folder.stat(file))
                .map(|stat| disk_bytes(&stat))
                .sum();
            let stamps = folder.stat(STAMPS);
            let used = stamps.map_or(SystemTime::UNIX_EPOCH, |stamps| modified(&stamps));
            occupied.push(Occupied { name, bytes, used });
        }
    }
    Ok(occupied)
}

/// Returns `None` for a failure that is about the file, and not a lack of descriptors or memory.
pub(super) fn unless_scarce<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Err(error) if is_scarcity(&error) => Err(error),
        result => Ok(result.ok()),
    }
}

/// Removes an entry. Returns false if it stays because it is in use. It disappears from its place
/// before its files are removed: no process sees half of it.
///
/// # Errors
///
/// Errors of the file system.
pub(super) fn remove(root: &GuardedDir, name: &str) -> io::Result<bool> {
    let [group, name] = components(name);
    let group = match root.below(group) {
        // Another process has removed the entry.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(true),
        group => group?,
    };
    let entry = match group.below(name) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(true),
        entry => entry?,
    };
    let stamps = match entry.file(STAMPS, OFlags::RDWR | OFlags::CREATE) {
        Ok(stamps) => {
            // EWOULDBLOCK means that the entry is in use. Any other error means that the file
            // system has no locks: other processes may then read the entry while it is evicted, and
            // it stays readable for them.
            let locked = flock(&stamps, FlockOperation::NonBlockingLockExclusive);
            // Between opening and locking, another process may have evicted the entry, and a third
            // one may have created it again.
            let there = match group.below(name).and_then(|entry| entry.stat(STAMPS)) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => None,
                there => Some(there?.st_ino),
            };
            let is_other = there != Some(stamps.metadata()?.ino());
            if locked == Err(Errno::WOULDBLOCK) || is_other {
                return Ok(false);
            }
            Some(stamps)
        }
        // Another process has removed the entry.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(true),
        // An opening starts with the stamps. If they are not a file, the entry cannot be in use.
        Err(_) if entry.stat(STAMPS).is_ok_and(|stat| !is_file(&stat)) => None,
        Err(error) => return Err(error),
    };
    // Locks do not exclude other openings of this process.
    let removing = stamps.as_ref().map(OpenEntry::removing).transpose()?;
    if matches!(removing, Some(None)) {
        return Ok(false);
    }
    let trash = root.make(TRASH)?;
    let moved = format!("{:016x}", fastrand::u64(..));
    match group.rename(name, &trash, &moved) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        // Another process has removed the entry.
        Ok(()) | Err(_) => {}
    }
    trash.clear();
    Ok(true)
}

/// Removes the files of entries that were moved away: also those that a killed process left there,
/// which no list of entries has.
pub(super) fn empty_trash(root: &GuardedDir) {
    if let Ok(trash) = root.below(TRASH) {
        trash.clear();
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use crate::guarded_dir::Trust;

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
        let removed = GuardedDir::open(folder.path(), Trust::All)
            .and_then(|root| remove(&root, &"a".repeat(64)));
        let is_there = entry.exists();
        let _ = unmount(folder.path(), UnmountFlags::DETACH);
        assert!(is_full && is_there);
        let error = removed.expect_err("nothing is removed");
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
    }
}
