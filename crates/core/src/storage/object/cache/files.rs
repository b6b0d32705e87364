//! Opens and replaces the files of a cache. Follows no link.

use std::fs::File;
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt};
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::answers::read;
use super::entry::DESCRIPTION;

/// Opens a file of an entry like [`open_file`], and creates the directory if necessary.
pub(super) fn open_in(folder: &Path, name: &str) -> io::Result<(File, bool)> {
    let path = folder.join(name);
    match open_file(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let mut builder = std::fs::DirBuilder::new();
            builder.recursive(true).mode(0o700).create(folder)?;
            open_file(&path)
        }
        opened => opened,
    }
}

/// Opens a file for reading and writing, creating it if necessary; or for reading alone where
/// writing is not permitted. Returns whether it can be written to. Follows no link.
pub(super) fn open_file(path: &Path) -> io::Result<(File, bool)> {
    let flags = OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let mode = Mode::RUSR | Mode::WUSR;
    let opened = match rustix::fs::open(path, flags | OFlags::RDWR | OFlags::CREATE, mode) {
        Err(Errno::ACCESS | Errno::PERM | Errno::ROFS) => {
            (rustix::fs::open(path, flags | OFlags::RDONLY, mode)?, false)
        }
        opened => (opened?, true),
    };
    let file = File::from(opened.0);
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    Ok((file, opened.1))
}

/// Writes the description of an entry unless it has the same one.
pub(super) fn describe(folder: &Path, description: &str) -> io::Result<()> {
    let path = folder.join(DESCRIPTION);
    if read(&path).is_ok_and(|found| found == description.as_bytes()) {
        return Ok(());
    }
    replace(&path, description.as_bytes())
}

/// Writes a file so that readers see the old one or the new one.
pub(super) fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let temporary = path.with_extension(format!("{:016x}", fastrand::u64(..)));
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let mode = Mode::RUSR | Mode::WUSR;
    let file = File::from(rustix::fs::open(&temporary, flags, mode)?);
    let written = file.write_all_at(bytes, 0);
    let replaced = written.and_then(|()| std::fs::rename(&temporary, path));
    if replaced.is_err() {
        let _ = std::fs::remove_file(&temporary);
    }
    replaced
}

/// Switches direct I/O of an open file on or off; returns whether it is on.
#[cfg(target_os = "linux")]
pub(super) fn set_direct(file: &File, on: bool) -> bool {
    let Ok(flags) = rustix::fs::fcntl_getfl(file) else {
        return false;
    };
    let flags = if on {
        flags | OFlags::DIRECT
    } else {
        flags - OFlags::DIRECT
    };
    rustix::fs::fcntl_setfl(file, flags).is_ok() && on
}

/// Switches direct I/O on or off: only Linux has it as a flag of open files.
#[cfg(not(target_os = "linux"))]
pub(super) fn set_direct(_file: &File, _on: bool) -> bool {
    false
}
