//! Ownership of files in progress: locked against other copies, and of this process's user.

use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{AtFlags, FlockOperation, OFlags, Stat, flock, fstat, openat, statat, unlinkat};
use rustix::io::Errno;
use rustix::process::geteuid;

use super::paths;
use super::record::{READ_WRITE, is_regular};
use super::target::cannot_write;
use crate::error::{Error, ErrorKind, Result};

/// Requires that `file` is this process's alone: locked, and still the file with that name.
pub(super) fn own(folder: &OwnedFd, called: &str, file: &OwnedFd, path: &Path) -> Result<()> {
    let busy = || {
        Error::invalid_request("is being copied by another process")
            .with_location(path.display())
            .with_hint("wait until it is done")
    };
    match flock(file, FlockOperation::NonBlockingLockExclusive) {
        // Lustre and others have locks only if they are mounted with them. Without locks, users
        // must not run two copies to the same place at a time.
        Ok(()) | Err(Errno::NOSYS | Errno::OPNOTSUPP | Errno::NOLCK) => {}
        Err(Errno::WOULDBLOCK) => return Err(busy()),
        Err(errno) => {
            return Err(
                Error::from_write("cannot lock the file in progress for", errno.into())
                    .with_location(path.display()),
            );
        }
    }
    let stat = |found: Result<Stat, Errno>| found.map_err(|_| busy());
    let opened = stat(fstat(file))?;
    let named = stat(statat(folder, called, AtFlags::SYMLINK_NOFOLLOW))?;
    if (opened.st_dev, opened.st_ino) != (named.st_dev, named.st_ino) {
        // Another process completed and renamed the file between the open and the lock of this
        // process.
        return Err(busy());
    }
    if !is_regular(&opened) || opened.st_nlink > 1 {
        return Err(Error::invalid_request(format!(
            "{called:?}, its file in progress, has hard links, or is not a regular file"
        ))
        .with_location(path.display())
        .with_hint("remove it"));
    }
    Ok(())
}

/// Requires that an existing file in progress belongs to this user: another owner may have it open,
/// and write to it after it has its name.
pub(super) fn require_own(folder: &OwnedFd, name: &str, file: &OwnedFd, path: &Path) -> Result<()> {
    let stat = fstat(file).map_err(|errno| cannot_write(path, 0, errno.into()))?;
    if !is_foreign(folder, name, &stat) {
        return Ok(());
    }
    let user = geteuid().as_raw();
    Err(Error::new(
        ErrorKind::PermissionDenied,
        format!(
            "{:?}, its file in progress, belongs to another user: uid {}, wanted {user}",
            paths::partial(name),
            stat.st_uid
        ),
    )
    .with_location(path.display())
    .with_hint("remove it, or copy into a directory that you own"))
}

/// Returns whether an existing file in progress belongs to another user.
pub(super) fn is_foreign(folder: &OwnedFd, name: &str, stat: &Stat) -> bool {
    stat.st_uid != geteuid().as_raw() && owner_of_new(folder, name) != Some(stat.st_uid)
}

/// Returns the owner that new files of this process get in `folder`: not the process's user on NFS
/// with `root_squash`, or on file systems that are mounted with one owner for all files.
fn owner_of_new(folder: &OwnedFd, name: &str) -> Option<u32> {
    let name = paths::next_journal(name);
    let _ = unlinkat(folder, &name, AtFlags::empty());
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let file = openat(folder, &name, flags, READ_WRITE).ok()?;
    let _ = unlinkat(folder, &name, AtFlags::empty());
    fstat(&file).ok().map(|stat| stat.st_uid)
}
