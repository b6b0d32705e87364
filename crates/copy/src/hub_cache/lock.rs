//! Lock of one repository in a hub's cache: one process of tload writes to it at a time. The others
//! wait while it writes, say whom they wait for, and go on without the cache if it stands still.

use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;

use super::{STAGING, cannot};
use crate::cancel::Stop;
use crate::cancel::cancelled;
use crate::error::{Error, ErrorKind, Result};
use crate::storage::guarded_dir::{DEPTH_MAX, GuardedDir, Trust};
use crate::sync::per_process::process_id;

/// File whose lock says that a process writes to the cache of a repository.
const LOCK: &str = ".tload.lock";

/// Interval between attempts to lock the cache of a repository.
const LOCK_RETRY: Duration = Duration::from_millis(50);

/// Interval between two looks at what another process has written, and time after which it is said
/// whom this one waits for.
const LOOK_EACH: Duration = Duration::from_secs(1);

/// Time after which nothing waits for a process that has written nothing: it may be stopped, or
/// have left a lock on a network file system. A server that stalls may send nothing for as long.
pub(super) const LOCK_PATIENCE: Duration = Duration::from_secs(60);

/// Longest name of a process in the lock's file.
const HOLDER_BYTES_MAX: u64 = 20;

/// Exclusive lock of the cache of one repository.
pub(super) struct CacheLock(File);

impl CacheLock {
    /// Waits until no other process writes to the cache of the repository, or `stop` is set.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::TimedOut`] if the other process has written nothing for `patience`.
    pub(super) fn take(folder: &GuardedDir, stop: &Stop, patience: Duration) -> Result<Self> {
        let path = folder.path().join(LOCK);
        let mode = folder.trust().permissions();
        let opened = folder.file_with(LOCK, OFlags::RDWR | OFlags::CREATE, mode);
        let file = opened.map_err(|error| cannot(&path, error))?;
        let mut waiting = None;
        loop {
            let seen = stop.changes().count();
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {
                    // The text tells waiting processes whom they wait for. It is not written to a
                    // file with several links: others who may write to the repository could give
                    // any file this name.
                    if file.metadata().is_ok_and(|file| file.nlink() == 1) {
                        let _ = file.set_len(0);
                        let _ = file.write_all_at(process_id().to_string().as_bytes(), 0);
                    }
                    return Ok(Self(file));
                }
                Err(Errno::WOULDBLOCK) if stop.is_cancelled() => return Err(cancelled()),
                Err(Errno::WOULDBLOCK) => {
                    let waiting = waiting.get_or_insert_with(|| Waiting::new(folder));
                    if waiting.lasts_for(folder) >= patience {
                        let holder = holder(folder);
                        let message = format!(
                            "{holder} holds the lock of the hub's cache and has written nothing for {} s",
                            patience.as_secs()
                        );
                        return Err(Error::new(ErrorKind::TimedOut, message)
                            .with_location(path.display())
                            .with_hint("end that process if it is stopped"));
                    }
                    let _ = stop.changes().wait_past_for(seen, LOCK_RETRY);
                }
                Err(errno) => return Err(cannot(&path, errno.into())),
            }
        }
    }
}

/// Wait for a process that writes to the cache of a repository.
struct Waiting {
    /// Space that the files take which are being copied, and the last time of a change.
    written: (u64, i64),
    /// Time at which that was first seen.
    since: Instant,
    looked: Instant,
    is_said: bool,
}

impl Waiting {
    fn new(folder: &GuardedDir) -> Self {
        let now = Instant::now();
        Self {
            written: written(folder, STAGING, DEPTH_MAX),
            since: now,
            looked: now,
            is_said: false,
        }
    }

    /// Returns for how long the other process has written nothing.
    fn lasts_for(&mut self, folder: &GuardedDir) -> Duration {
        if self.looked.elapsed() >= LOOK_EACH {
            self.looked = Instant::now();
            if !std::mem::replace(&mut self.is_said, true) {
                let (holder, path) = (holder(folder), folder.path().display());
                tracing::warn!(%path, "waits for {holder}, which writes to the hub's cache");
            }
            let written = written(folder, STAGING, DEPTH_MAX);
            if written != self.written {
                (self.written, self.since) = (written, self.looked);
            }
        }
        self.since.elapsed()
    }
}

/// Returns the space of all files up to this depth below a directory of this name, and the last
/// time of a change.
fn written(folder: &GuardedDir, name: &str, depth: usize) -> (u64, i64) {
    let Ok(stat) = folder.stat(name) else {
        return (0, 0);
    };
    let own = (u64::try_from(stat.st_blocks).unwrap_or(0), stat.st_mtime);
    let Some(depth) = depth.checked_sub(1) else {
        return own;
    };
    // Below the trusted directory, files get the permissions of a copy.
    let below = folder
        .trusting(Trust::All)
        .and_then(|folder| folder.below(name));
    let names = below
        .as_ref()
        .map(GuardedDir::names)
        .ok()
        .and_then(Result::ok)
        .unwrap_or_default();
    let each = names
        .iter()
        .map(|name| below.as_ref().map_or((0, 0), |it| written(it, name, depth)));
    each.fold(own, |all, one| (all.0 + one.0, all.1.max(one.1)))
}

/// Names the process that has written its number to the lock's file.
fn holder(folder: &GuardedDir) -> String {
    let found = folder.read(LOCK, HOLDER_BYTES_MAX).unwrap_or_default();
    let digits = std::str::from_utf8(&found).unwrap_or_default();
    match digits.parse::<u32>() {
        Ok(process) => format!("process {process}"),
        Err(_) => "another process".to_owned(),
    }
}

impl Drop for CacheLock {
    fn drop(&mut self) {
        // Unlock explicitly, because a child that was forked meanwhile holds the lock too.
        let _ = flock(&self.0, FlockOperation::Unlock);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A process that was forked meanwhile has the file open for as long as it runs.
    #[test]
    fn lock_ends_with_its_guard_though_a_child_has_the_file_open() {
        let folder = tempfile::tempdir().expect("a folder");
        let folder = GuardedDir::open(folder.path(), Trust::Own).expect("opens");
        let stop = Stop::default();
        let lock = CacheLock::take(&folder, &stop, LOCK_PATIENCE).expect("locks");
        let of_child = lock.0.try_clone().expect("duplicates");
        let other = folder.file(LOCK, OFlags::RDONLY).expect("opens");
        let locked = || flock(&other, FlockOperation::NonBlockingLockExclusive);
        assert!(locked().is_err());
        drop(lock);
        locked().expect("is free");
        drop(of_child);
        stop.cancel();
        let error = CacheLock::take(&folder, &stop, LOCK_PATIENCE).map(drop);
        assert_eq!(error.expect_err("is locked").kind(), ErrorKind::Cancelled);
    }

    #[test]
    fn process_that_writes_nothing_is_named_and_not_waited_for() {
        let folder = tempfile::tempdir().expect("a folder");
        let folder = GuardedDir::open(folder.path(), Trust::Own).expect("opens");
        let stop = Stop::default();
        let _lock = CacheLock::take(&folder, &stop, LOCK_PATIENCE).expect("locks");
        let error = CacheLock::take(&folder, &stop, Duration::ZERO).map(drop);
        let error = error.expect_err("is locked");
        assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
        let process = format!("process {}", process_id());
        assert!(error.message().contains(&process), "{error}");
    }

    #[test]
    fn file_with_another_name_is_not_written_to() {
        let folder = tempfile::tempdir().expect("a folder");
        let other = folder.path().join("thesis");
        std::fs::write(&other, "mine").expect("writes");
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(&other, mode).expect("is ours");
        std::fs::hard_link(&other, folder.path().join(LOCK)).expect("links");
        let opened = GuardedDir::open(folder.path(), Trust::Own).expect("opens");
        CacheLock::take(&opened, &Stop::default(), LOCK_PATIENCE).expect("locks");
        assert_eq!(std::fs::read_to_string(&other).expect("reads"), "mine");
    }

    #[test]
    fn all_that_another_process_copies_counts_as_written() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join(STAGING).join("commit/deep");
        let folder = GuardedDir::open(folder.path(), Trust::Own).expect("opens");
        let look = |depth| written(&folder, STAGING, depth);
        let none = look(DEPTH_MAX);
        assert_eq!(none, (0, 0));
        std::fs::create_dir_all(&path).expect("creates");
        let begun = look(DEPTH_MAX);
        assert_ne!(begun, none);
        let file = File::create(path.join("a")).expect("creates");
        file.write_all_at(&vec![1; 1 << 20], 0).expect("writes");
        file.sync_all().expect("syncs");
        assert!(look(DEPTH_MAX).0 > begun.0);
        // Other users may nest directories without end.
        let all = look(DEPTH_MAX).0;
        for (depth, sees_all) in [(0, false), (2, false), (3, true)] {
            let found = look(depth).0;
            assert_eq!(found == all, sees_all, "{depth}");
        }
    }
}
