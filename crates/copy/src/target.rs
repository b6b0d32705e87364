//! Target directory of a copy: finds existing files, and writes missing ones, without ever leaving
//! the directory.
//!
//! Nothing below the directory is opened through a symbolic link: see [`GuardedDir`].

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{
    AtFlags, FlockOperation, Mode, OFlags, Stat, StatVfs, Timespec, Timestamps, UTIME_OMIT, flock,
    fstat, fstatvfs, futimens, mkdirat, openat, renameat, statat, statvfs, unlinkat,
};
use rustix::io::Errno;
use rustix::process::geteuid;

use super::journal::{Journal, Origin, Ranges};
use super::ownership::{is_foreign, own, require_own};
use super::paths;
use super::record::{READ_WRITE, Record, is_regular};
use crate::error::{Error, ErrorKind, Result};
use crate::options::format_bytes;
use crate::storage::guarded_dir::{GuardedDir, Trust, open_below};
use crate::sync::lock::Mutex;

const FOLDER: Mode = Mode::from_raw_mode(0o777);

/// Unit of `st_blocks`, bytes, whatever the file system (stat(2)).
const STAT_UNIT: u64 = 512;

/// Maximum length of a journal, bytes: thousands of ranges of a file of terabytes.
const JOURNAL_BYTES_MAX: u64 = 16 << 20;

/// Target directory.
#[derive(Debug)]
pub(super) struct TargetDir {
    folder: GuardedDir,
    /// Set if no other process copies into the directory: files in progress that belong to other
    /// users are then left over, and removed.
    is_locked: bool,
}

/// File in progress, locked against other writers.
#[derive(Debug)]
pub(super) struct Partial {
    folder: OwnedFd,
    /// Last component of the path.
    name: String,
    /// Final path, for errors.
    path: PathBuf,
    file: Arc<File>,
    /// Serializes writes of the journal.
    recording: Mutex<()>,
}

impl TargetDir {
    /// Opens the directory, and creates it if it does not exist.
    pub(super) fn open(path: &Path) -> Result<Self> {
        let failed = |error: io::Error| {
            Error::from_write("cannot create or open the directory", error)
                .with_location(path.display())
        };
        require_directory(path)?;
        let folder = GuardedDir::create(path, Trust::All);
        folder.map(Self::unlocked).map_err(failed)
    }

    /// Takes a directory that is open, and into which this process alone copies.
    pub(super) fn locked(folder: GuardedDir) -> Self {
        Self {
            folder,
            is_locked: true,
        }
    }

    fn unlocked(folder: GuardedDir) -> Self {
        Self {
            folder,
            is_locked: false,
        }
    }

    /// Opens the directory. `None` if it does not exist.
    pub(super) fn find(path: &Path) -> Result<Option<Self>> {
        require_directory(path)?;
        match GuardedDir::open(path, Trust::All) {
            Ok(found) => Ok(Some(Self::unlocked(found))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => {
                Err(Error::from_io("cannot open the directory", error)
                    .with_location(path.display()))
            }
        }
    }

    /// Requires that `needed` bytes may still be written. File systems that do not report this
    /// (ramfs, some FUSE) have no size either.
    pub(super) fn require_space(&self, needed: u64) -> Result<()> {
        let free = free_bytes(fstatvfs(self.folder.folder()), self.folder.path())?;
        let Some(free) = free.filter(|&free| needed > free) else {
            return Ok(());
        };
        Err(Error::new(
            ErrorKind::OutOfMemory,
            format!(
                "the copy needs {} ({needed} bytes) of disk space, {} are free",
                format_bytes(needed),
                format_bytes(free)
            ),
        )
        .with_location(self.folder.path().display())
        .with_hint("free some space, or copy to another disk"))
    }

    /// Returns whether the file system takes a name, and those of the files beside it while it is
    /// copied. Its limit may depend on the characters (UTF-16, encryption), so it is asked for each
    /// name.
    pub(super) fn takes(&self, name: &str) -> Result<bool> {
        let components = paths::components(name)?;
        let longest = components.last().map(|last| paths::next_journal(last));
        let mut names = components.into_iter().chain(longest.as_deref());
        let is_too_long = |name: &str| {
            let found = statat(self.folder.folder(), name, AtFlags::SYMLINK_NOFOLLOW);
            found.is_err_and(|errno| errno == Errno::NAMETOOLONG)
        };
        Ok(!names.any(is_too_long))
    }

    /// Returns the names in a subdirectory, or in the directory itself for `""`: none if it cannot
    /// be listed.
    pub(super) fn names(&self, below: &str) -> Vec<String> {
        let path: Vec<_> = below.split('/').filter(|name| !name.is_empty()).collect();
        let folder = self.folder.deep(&path, false);
        folder.and_then(|folder| folder.names()).unwrap_or_default()
    }

    /// Returns the source of a file that a copy finished and recorded, and that has not changed
    /// since. An unreadable file does not count, nor does a symbolic link.
    pub(super) fn held(&self, name: &str) -> Result<Option<Origin>> {
        let Some((folder, last)) = self.folder_of(name, false)? else {
            return Ok(None);
        };
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let Ok(file) = openat(&folder, last, flags, Mode::empty()) else {
            return Ok(None);
        };
        let failed = |errno| self.failed("cannot stat", name, errno);
        let stat = fstat(&file).map_err(failed)?;
        let owner = fstat(&folder).map_err(failed)?.st_uid;
        // In a directory writable by all (`/tmp`), other users can create files with any name and
        // any record. The directory's owner could replace the file afterwards as well.
        let trusted = [geteuid().as_raw(), 0, owner].contains(&stat.st_uid);
        if !is_regular(&stat) || !trusted {
            return Ok(None);
        }
        let record = Record::read(&file, &stat, &folder, last);
        Ok(record.and_then(|record| record.origin_of(&stat)))
    }

    /// Returns the bytes on disk of an earlier copy that was not completed.
    pub(super) fn begun_bytes(&self, name: &str) -> Result<u64> {
        let found = self.stat_of_partial(name)?;
        let units = found.map_or(0, |stat| u64::try_from(stat.st_blocks).unwrap_or(0));
        Ok(units.saturating_mul(STAT_UNIT))
    }

    /// Returns the bytes of `origin` that a copy would not request again: none of another user's
    /// file in progress, which it would refuse. The owner that new files get is not looked for, as
    /// that would create one.
    pub(super) fn resumable_bytes(&self, name: &str, origin: &Origin) -> Result<u64> {
        let Some((folder, last)) = self.folder_of(name, false)? else {
            return Ok(0);
        };
        let Some(stat) = self.stat_of_partial(name)? else {
            return Ok(0);
        };
        if !is_regular(&stat) || stat.st_nlink > 1 || stat.st_uid != geteuid().as_raw() {
            return Ok(0);
        }
        let len = u64::try_from(stat.st_size).unwrap_or(0);
        let journal = read_journal(&folder, last, stat.st_uid);
        let done = journal.and_then(|journal| journal.resume(origin, len));
        Ok(done.map_or(0, |done| done.bytes()))
    }

    fn stat_of_partial(&self, name: &str) -> Result<Option<Stat>> {
        let Some((folder, last)) = self.folder_of(name, false)? else {
            return Ok(None);
        };
        match statat(&folder, paths::partial(last), AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(stat)),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(self.failed("cannot stat", name, errno)),
        }
    }

    /// Returns the directory of a file, and the file's own name. `None` if the directory does not
    /// exist and `make` is false.
    fn folder_of<'a>(&self, name: &'a str, make: bool) -> Result<Option<(OwnedFd, &'a str)>> {
        let mut components = paths::components(name)?;
        let last = components.pop().expect("split gives one at least");
        let mut folder = self
            .folder
            .folder()
            .try_clone()
            .map_err(|error| Error::from_io("cannot open the directory", error))?;
        for component in components {
            if make {
                match mkdirat(&folder, component, FOLDER) {
                    Ok(()) => sync_folder(&folder)
                        .map_err(|error| cannot_write(&self.folder.path().join(name), 0, error))?,
                    Err(Errno::EXIST) => {}
                    Err(errno) => {
                        return Err(self.failed("cannot create the directory of", name, errno));
                    }
                }
            }
            folder = match open_below(&folder, component) {
                Ok(below) => below,
                Err(Errno::NOENT) if !make => return Ok(None),
                Err(Errno::LOOP | Errno::NOTDIR) => {
                    return Err(self.in_the_way(&folder, component, name));
                }
                Err(errno) => return Err(self.failed("cannot open the directory of", name, errno)),
            };
        }
        Ok(Some((folder, last)))
    }

    fn in_the_way(&self, folder: &OwnedFd, component: &str, name: &str) -> Error {
        let stat = statat(folder, component, AtFlags::SYMLINK_NOFOLLOW);
        let is_link = stat.is_ok_and(|stat| {
            rustix::fs::FileType::from_raw_mode(stat.st_mode) == rustix::fs::FileType::Symlink
        });
        let what = if is_link {
            "a symbolic link, which may lead out of the directory,"
        } else {
            "a file"
        };
        Error::invalid_request(format!(
            "cannot write {name:?}: {what} is where its directory {component:?} should be"
        ))
        .with_location(self.folder.path().display())
        .with_hint("remove it, or copy into an empty directory")
    }

    fn failed(&self, what: &str, name: &str, errno: Errno) -> Error {
        Error::from_write(what, errno.into()).with_location(self.folder.path().join(name).display())
    }

    /// Opens or creates the file in progress for `name`, and returns the ranges of `origin` that it
    /// holds already.
    pub(super) fn begin(
        &self,
        name: &str,
        origin: &Origin,
        anew: bool,
    ) -> Result<(Partial, Ranges)> {
        let (folder, last) = self
            .folder_of(name, true)?
            .expect("a directory that is made is there");
        let called = paths::partial(last);
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let anew_flags = flags | OFlags::CREATE | OFlags::EXCL;
        let mut made = openat(&folder, &called, anew_flags, READ_WRITE);
        if self.is_locked && matches!(made, Err(Errno::EXIST)) {
            // Look at the file before opening it, which its owner may not permit.
            let found = statat(&folder, &called, AtFlags::SYMLINK_NOFOLLOW);
            if found.is_ok_and(|stat| is_foreign(&folder, last, &stat)) {
                self.remove_partial(&folder, last, name)?;
                made = openat(&folder, &called, anew_flags, READ_WRITE);
            }
        }
        let is_made = made.is_ok();
        let file = match made {
            Err(Errno::EXIST) => openat(&folder, &called, flags, READ_WRITE),
            made => made,
        };
        let file = file
            .map_err(|errno| self.failed("cannot create the file in progress for", name, errno))?;
        let path = self.folder.path().join(name);
        own(&folder, &called, &file, &path)?;
        if !is_made {
            require_own(&folder, last, &file, &path)?;
        }
        let partial = Partial {
            folder,
            name: last.to_owned(),
            path,
            file: Arc::new(File::from(file)),
            recording: Mutex::new(()),
        };
        let stat =
            fstat(&*partial.file).map_err(|errno| self.failed("cannot stat", name, errno))?;
        let owner = stat.st_uid;
        let found = (!anew)
            .then(|| read_journal(&partial.folder, last, owner))
            .flatten();
        if found.as_ref().is_some_and(Journal::is_of_other_form) {
            let file = partial.path.display();
            tracing::warn!(%file, "copied from the start: another version of tload began the copy");
        }
        let len = partial.len()?;
        let done = found.and_then(|journal| journal.resume(origin, len));
        if let Some(done) = done {
            return Ok((partial, done));
        }
        partial.clear()?;
        Ok((partial, Ranges::default()))
    }

    /// Removes the file in progress of another user, and its journal.
    fn remove_partial(&self, folder: &OwnedFd, last: &str, name: &str) -> Result<()> {
        for left in [paths::journal(last), paths::partial(last)] {
            match unlinkat(folder, &left, AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(errno) => {
                    let what = "cannot remove another user's file in progress for";
                    return Err(self.failed(what, name, errno));
                }
            }
        }
        Ok(())
    }
}

/// Returns the number of bytes that may be written at `path`, which need not exist yet.
pub(super) fn free_bytes_at(path: &Path) -> Result<Option<u64>> {
    let existing = path
        .ancestors()
        .find(|path| path.exists())
        .unwrap_or(Path::new("."));
    free_bytes(statvfs(existing), existing)
}

fn free_bytes(found: Result<StatVfs, Errno>, path: &Path) -> Result<Option<u64>> {
    let found = found.map_err(|errno| {
        Error::from_io("cannot query free space", errno.into()).with_location(path.display())
    })?;
    let free = found.f_bavail.saturating_mul(found.f_frsize);
    Ok((found.f_blocks > 0).then_some(free))
}

fn require_directory(path: &Path) -> Result<()> {
    if path.exists() && !path.is_dir() {
        return Err(Error::invalid_request("is not a directory")
            .with_location(path.display())
            .with_hint("pass the directory to copy into"));
    }
    Ok(())
}

impl Partial {
    /// Returns the file to write to.
    pub(super) fn file(&self) -> &Arc<File> {
        &self.file
    }

    /// Returns its final path.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    fn len(&self) -> Result<u64> {
        let metadata = self.file.metadata();
        metadata
            .map(|metadata| metadata.len())
            .map_err(|error| cannot_write(&self.path, 0, error))
    }

    /// Truncates the file to zero. The journal is removed first, durably: it must never claim bytes
    /// of another source.
    fn clear(&self) -> Result<()> {
        if self.unlink(&paths::journal(&self.name))? {
            self.sync_folder()?;
        }
        self.file
            .set_len(0)
            .map_err(|error| cannot_write(&self.path, 0, error))
    }

    /// Records in the journal that `done` is on disk, after syncing it.
    pub(super) fn record(&self, origin: &Origin, done: &Ranges) -> Result<()> {
        let failed = |error| cannot_write(&self.path, origin.len - done.bytes(), error);
        let _one = self.recording.lock();
        self.file.sync_data().map_err(failed)?;
        let name = paths::journal(&self.name);
        let fresh = paths::next_journal(&self.name);
        // Create a new journal, because an existing file may be a hard link to another file, or a
        // pipe.
        self.unlink(&fresh)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let text = serde_json::to_vec(&Journal::new(origin.clone(), done))
            .expect("numbers and strings are JSON");
        let mut file = openat(&self.folder, &fresh, flags, READ_WRITE)
            .map(File::from)
            .map_err(|errno| failed(errno.into()))?;
        file.write_all(&text)
            .and_then(|()| file.sync_data())
            .map_err(failed)?;
        renameat(&self.folder, &fresh, &self.folder, &name).map_err(|errno| failed(errno.into()))
    }

    /// Gives the complete file its name, replacing an older file, and the source's modification
    /// time if that is known. Records the source.
    pub(super) fn finish(&self, origin: &Origin) -> Result<()> {
        let failed = |error| cannot_write(&self.path, 0, error);
        let len = self.len()?;
        if len != origin.len {
            return Err(Error::new(
                ErrorKind::Io,
                format!("the copy has {len} bytes, the source {}", origin.len),
            )
            .with_location(self.path.display())
            .with_hint("copy again"));
        }
        if let Some((tv_sec, tv_nsec)) = origin.last_change() {
            let times = Timestamps {
                last_access: Timespec {
                    tv_sec: 0,
                    tv_nsec: UTIME_OMIT,
                },
                last_modification: Timespec { tv_sec, tv_nsec },
            };
            futimens(&self.file, &times).map_err(|errno| failed(errno.into()))?;
        }
        self.file.sync_all().map_err(failed)?;
        // Read the status last, because network file systems may set the time on write.
        let stat = fstat(&self.file).map_err(|errno| failed(errno.into()))?;
        let record = Record::new(origin, &stat);
        let is_attached = record.attach(&self.file);
        let partial = paths::partial(&self.name);
        renameat(&self.folder, partial, &self.folder, &self.name)
            .map_err(|errno| failed(errno.into()))?;
        if is_attached {
            Record::remove_beside(&self.folder, &self.name).map_err(failed)?;
        } else {
            record
                .put_beside(&self.folder, &self.name)
                .map_err(failed)?;
        }
        self.unlink_journals()?;
        self.sync_folder()
    }

    /// Removes a file of which nothing has arrived.
    pub(super) fn discard(&self) -> Result<()> {
        self.unlink_journals()?;
        self.unlink(&paths::partial(&self.name)).map(drop)
    }

    /// Removes the journal, and one that a crash left unfinished.
    fn unlink_journals(&self) -> Result<()> {
        self.unlink(&paths::next_journal(&self.name))?;
        self.unlink(&paths::journal(&self.name)).map(drop)
    }

    /// Removes a file. Returns whether it existed.
    fn unlink(&self, name: &str) -> Result<bool> {
        match unlinkat(&self.folder, name, AtFlags::empty()) {
            Ok(()) => Ok(true),
            Err(Errno::NOENT) => Ok(false),
            Err(errno) => Err(cannot_write(&self.path, 0, errno.into())),
        }
    }

    fn sync_folder(&self) -> Result<()> {
        sync_folder(&self.folder).map_err(|error| cannot_write(&self.path, 0, error))
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        // Unlock explicitly, because a child that was forked meanwhile holds the lock too. This
        // fails on file systems without locks.
        let _ = flock(&*self.file, FlockOperation::Unlock);
    }
}

/// Reads the journal of the file called `name` in `folder`. `None` if there is none that can be
/// read: then the copy starts over. It also starts over with a journal that does not belong to
/// `owner`, the user of the file in progress: it could claim bytes that are not on disk.
fn read_journal(folder: &OwnedFd, name: &str, owner: u32) -> Option<Journal> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = openat(folder, paths::journal(name), flags, Mode::empty()).ok()?;
    let stat = fstat(&file).ok()?;
    if !is_regular(&stat) || stat.st_uid != owner {
        return None;
    }
    let mut text = Vec::new();
    File::from(file)
        .take(JOURNAL_BYTES_MAX)
        .read_to_end(&mut text)
        .ok()?;
    serde_json::from_slice(&text).ok()
}

/// Syncs the names in a directory to disk, on file systems that support it.
fn sync_folder(folder: &OwnedFd) -> io::Result<()> {
    match File::from(folder.try_clone()?).sync_all() {
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(()),
        synced => synced,
    }
}

/// Returns the error for a failed write; `missing` bytes of the file have not arrived yet.
pub(super) fn cannot_write(path: &Path, missing: u64, error: io::Error) -> Error {
    let full = [
        io::ErrorKind::StorageFull,
        io::ErrorKind::QuotaExceeded,
        io::ErrorKind::FileTooLarge,
    ];
    if !full.contains(&error.kind()) {
        return Error::from_write("cannot write", error).with_location(path.display());
    }
    Error::new(
        ErrorKind::OutOfMemory,
        format!(
            "the disk is full, or the file is too large for it: {} ({missing} bytes) more are needed",
            format_bytes(missing)
        ),
    )
    .with_source(error)
    .with_location(path.display())
    .with_hint("free some space and copy again: the copy resumes where it stopped")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_disk_is_out_of_memory_error() {
        let error =
            |errno| cannot_write(Path::new("a"), 3 << 20, io::Error::from_raw_os_error(errno));
        let full = error(libc::ENOSPC);
        assert_eq!(full.kind(), ErrorKind::OutOfMemory);
        assert!(
            full.message().contains("3.0 MiB (3145728 bytes) more"),
            "{full}"
        );
        assert!(full.hint().is_some());
        assert_eq!(error(libc::EIO).kind(), ErrorKind::Io);
    }

    fn origin() -> Origin {
        Origin {
            source: "x".to_owned(),
            len: 4,
            e_tag: None,
            version: None,
            modified: (5, 6),
            is_settled: true,
            file: None,
        }
    }

    #[test]
    fn journals_are_separate_and_removed() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = |name: &str| folder.path().join(name);
        let fresh = path("a/.x.tload-partial.json.new");
        let left = || {
            let files = std::fs::read_dir(path("a")).expect("a folder");
            let names = files.map(|file| file.expect("a file").file_name());
            let mut names: Vec<_> = names
                .map(|name| name.to_string_lossy().into_owned())
                .collect();
            names.sort();
            names
        };
        std::fs::write(path("elsewhere"), "mine").expect("writes");
        let root = TargetDir::open(folder.path()).expect("opens");
        let (partial, _) = root.begin("a/x", &origin(), false).expect("begins");
        std::fs::hard_link(path("elsewhere"), &fresh).expect("links");
        let mut done = Ranges::default();
        done.add(0..2);
        partial.record(&origin(), &done).expect("records");
        let elsewhere = std::fs::read_to_string(path("elsewhere")).expect("is there");
        assert_eq!(elsewhere, "mine");
        assert_eq!(left(), [".x.tload-partial", ".x.tload-partial.json"]);

        std::fs::write(&fresh, "left by a crash").expect("writes");
        partial.discard().expect("discards");
        assert!(left().is_empty(), "{:?}", left());
        let (partial, _) = root.begin("a/x", &origin(), false).expect("begins");
        std::fs::write(&fresh, "left by a crash").expect("writes");
        partial.file().set_len(4).expect("grows");
        partial.finish(&origin()).expect("finishes");
        let record = ".x.tload-copied";
        assert!(left() == ["x"] || left() == [record, "x"], "{:?}", left());
    }

    #[test]
    fn file_in_progress_of_another_user_is_removed_if_no_other_copy_runs() {
        use std::os::unix::fs::{MetadataExt as _, chown};

        /// User who owns no files.
        const OTHER: u32 = 65534;

        if !geteuid().is_root() {
            return;
        }
        let folder = tempfile::tempdir().expect("a folder");
        let names = [paths::partial("x"), paths::journal("x")];
        let [begun, journal] = names.map(|name| folder.path().join(name));
        let root = TargetDir::open(folder.path()).expect("opens");
        let (partial, _) = root.begin("x", &origin(), false).expect("begins");
        partial.file().set_len(4).expect("grows");
        let mut done = Ranges::default();
        done.add(0..2);
        partial.record(&origin(), &done).expect("records");
        drop(partial);
        let resumable = || root.resumable_bytes("x", &origin()).expect("looks");
        assert_eq!(resumable(), 2);
        for path in [&begun, &journal] {
            chown(path, Some(OTHER), None).expect("root may");
        }
        assert_eq!(resumable(), 0);
        let inode = || std::fs::metadata(&begun).expect("is there").ino();
        let of_other = File::options().read(true).open(&begun).expect("opens");
        let error = root.begin("x", &origin(), false).expect_err("of another");
        assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
        assert_eq!(inode(), of_other.metadata().expect("is open").ino());

        let opened = GuardedDir::open(folder.path(), Trust::All).expect("opens");
        let locked = TargetDir::locked(opened);
        let (partial, done) = locked.begin("x", &origin(), false).expect("begins anew");
        assert_eq!((done.bytes(), partial.len().expect("is open")), (0, 0));
        assert_ne!(inode(), of_other.metadata().expect("is open").ino());
        assert!(!journal.exists());
    }

    #[test]
    fn concurrent_copies_of_one_file_are_rejected() {
        let folder = tempfile::tempdir().expect("a folder");
        let root = TargetDir::open(folder.path()).expect("opens");
        let origin = origin();
        let (first, _) = root.begin("deep/a", &origin, false).expect("begins");
        let error = root.begin("deep/a", &origin, false).expect_err("is locked");
        assert!(error.message().contains("another process"), "{error}");
        first.file().set_len(4).expect("grows");
        assert_eq!(root.held("deep/a").expect("looks"), None);
        first.finish(&origin).expect("finishes");
        assert_eq!(root.held("deep/a").expect("looks"), Some(origin));
        std::fs::write(folder.path().join("deep/a"), "changed").expect("writes");
        assert_eq!(root.held("deep/a").expect("looks"), None);
        assert_eq!(root.held("none/a").expect("looks"), None);
    }

    /// A process that was forked meanwhile has the file open for as long as it runs.
    #[test]
    fn lock_ends_with_the_copy_though_a_child_has_the_file_open() {
        let folder = tempfile::tempdir().expect("a folder");
        let root = TargetDir::open(folder.path()).expect("opens");
        let (first, _) = root.begin("a", &origin(), false).expect("begins");
        let of_child = first.file().try_clone().expect("duplicates");
        drop(first);
        root.begin("a", &origin(), false).expect("is not locked");
        drop(of_child);
    }
}
