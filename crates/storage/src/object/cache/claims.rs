//! Claims: the load that requests tiles holds a lock on their numbers, so that others wait for them
//! instead of requesting them too.
//!
//! A lock belongs to an open file (`F_OFD_SETLK`), and the kernel releases it when the last process
//! that has the file open closes it or ends, however it does. Children that a killed process had
//! forked keep its claims: others wait until nothing has been written for a while. Loads that go on
//! at the same time have a file each, also those of one opening; the requests of one load share it,
//! since neighbours share a tile. Claims save requests and say nothing about bytes: a tile is there
//! if its stamp says so. Where the file system or the system has no such locks, every claim
//! succeeds, and several loads request the same tiles.
//!
//! An opening that waits for claims of another one announces it with a shared lock behind all
//! tiles: what the others request should not be left out of the cache now.

use std::fs::File;
use std::ops::Range;
use std::sync::Arc;

/// Behind all tiles: locked by openings that wait for claims of others.
const WAITING: Range<u64> = i64::MAX as u64 - 1..i64::MAX as u64;

/// Announces that this opening waits for what others request, or that it no longer does.
pub(super) fn announce(file: &File, waits: bool) {
    let lock = if waits { Lock::Shared } else { Lock::Unlocked };
    if let Err(error) = lock::set(file, &WAITING, lock) {
        tracing::debug!(%error, "the cache's file system has no locks");
    }
}

/// Returns whether another opening has announced that it waits.
pub(super) fn is_waited_for(file: &File) -> bool {
    lock::is_refused(file, &WAITING).unwrap_or(false)
}

/// Kind of a lock of an open file.
#[derive(Clone, Copy)]
enum Lock {
    Exclusive,
    Shared,
    Unlocked,
}

/// Tiles that this load requests, until it is dropped.
#[derive(Debug)]
pub(super) struct Claim {
    file: Option<Arc<File>>,
    tiles: Range<u64>,
}

impl Claim {
    /// Claims tiles; `None` if another load has claimed any of them.
    pub(super) fn try_new(file: &Arc<File>, tiles: Range<u64>) -> Option<Self> {
        match lock::set(file, &tiles, Lock::Exclusive) {
            Ok(true) => Some(Self {
                file: Some(Arc::clone(file)),
                tiles,
            }),
            Ok(false) => None,
            Err(error) => {
                tracing::debug!(%error, "the cache's file system has no locks");
                Some(Self::without_lock(tiles))
            }
        }
    }

    /// Claims tiles whatever other loads do.
    pub(super) fn without_lock(tiles: Range<u64>) -> Self {
        Self { file: None, tiles }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if let Some(file) = &self.file {
            let _ = lock::set(file, &self.tiles, Lock::Unlocked);
        }
    }
}

#[cfg(target_os = "linux")]
mod lock {
    use std::fs::File;
    use std::io;
    use std::ops::Range;

    use nix::errno::Errno;
    use nix::fcntl::{FcntlArg, fcntl};

    use super::Lock;

    /// Locks a range of a file or unlocks it. Returns false if the locks of others exclude this.
    pub(super) fn set(file: &File, range: &Range<u64>, lock: Lock) -> io::Result<bool> {
        match fcntl(file, FcntlArg::F_OFD_SETLK(&asked(range, lock)?)) {
            Ok(_) => Ok(true),
            Err(Errno::EAGAIN | Errno::EACCES) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Returns whether the locks of others exclude an exclusive one.
    pub(super) fn is_refused(file: &File, range: &Range<u64>) -> io::Result<bool> {
        let mut found = asked(range, Lock::Exclusive)?;
        fcntl(file, FcntlArg::F_OFD_GETLK(&mut found))?;
        Ok(i32::from(found.l_type) != libc::F_UNLCK)
    }

    fn asked(range: &Range<u64>, lock: Lock) -> io::Result<libc::flock> {
        let offset = |at: u64| i64::try_from(at).map_err(io::Error::other);
        let kind = match lock {
            Lock::Exclusive => libc::F_WRLCK,
            Lock::Shared => libc::F_RDLCK,
            Lock::Unlocked => libc::F_UNLCK,
        };
        Ok(libc::flock {
            l_type: i16::try_from(kind).map_err(io::Error::other)?,
            l_whence: i16::try_from(libc::SEEK_SET).map_err(io::Error::other)?,
            l_start: offset(range.start)?,
            l_len: offset(range.end - range.start)?,
            l_pid: 0,
        })
    }
}

#[cfg(not(target_os = "linux"))]
mod lock {
    use std::fs::File;
    use std::io;
    use std::ops::Range;

    use super::Lock;

    /// Fails: only Linux has locks of open files.
    pub(super) fn set(_file: &File, _range: &Range<u64>, _lock: Lock) -> io::Result<bool> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Fails, as [`set`].
    pub(super) fn is_refused(_file: &File, _range: &Range<u64>) -> io::Result<bool> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn claims_exclude_other_openings_until_they_are_dropped() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("claims");
        std::fs::write(&path, "").expect("writes");
        let open = || {
            let mut options = File::options();
            Arc::new(options.read(true).write(true).open(&path).expect("opens"))
        };
        let (one, other) = (open(), open());
        let first = Claim::try_new(&one, 3..10).expect("it is free");
        let second = Claim::try_new(&one, 10..20).expect("it is free");
        for tiles in [0..4, 9..10, 5..6, 9..12, 19..30] {
            assert!(Claim::try_new(&other, tiles.clone()).is_none(), "{tiles:?}");
        }
        let beside = Claim::try_new(&other, 0..3).expect("it is free");
        drop(first);
        assert!(Claim::try_new(&other, 3..10).is_some());
        assert!(Claim::try_new(&other, 10..11).is_none());
        drop((second, beside));
        // A process that ends closes its files, and that releases what they had.
        let mut third = Claim::try_new(&one, 0..50).expect("all is free");
        third.file = None;
        assert!(Claim::try_new(&other, 7..8).is_none());
        drop((third, one));
        assert!(Claim::try_new(&other, 7..8).is_some());
    }

    #[test]
    fn opening_that_waits_is_seen_by_the_others() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("claims");
        std::fs::write(&path, "").expect("writes");
        let open = || {
            let mut options = File::options();
            options.read(true).write(true).open(&path).expect("opens")
        };
        let (one, other, third) = (open(), open(), open());
        assert!(!is_waited_for(&one));
        announce(&other, true);
        announce(&third, true);
        assert!(is_waited_for(&one));
        assert!(is_waited_for(&other));
        drop(third);
        assert!(is_waited_for(&one));
        assert!(!is_waited_for(&other));
        announce(&other, false);
        assert!(!is_waited_for(&one));
    }
}
