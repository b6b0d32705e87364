//! Directory that tload writes to, or whose files it trusts: the cache of objects, downloads into a
//! hub's cache, targets of copies.
//!
//! The path that the caller gives is resolved with its links: `~/.cache` may be one. Below it,
//! nothing follows links: each component is opened on its own, from the one above, and files are
//! created, renamed and removed relative to an open directory. So another user who may write there
//! cannot redirect tload, not even while it runs.
//!
//! What tload trusts must also belong to this process's user or to root, and no other user may be
//! able to write to it ([`Trust::Own`]). The permissions of the caller's directory itself do not
//! matter then: a user who may write to it can only replace what is below, and that is checked.

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, Dir, FileType, Mode, OFlags, Stat, Timespec, Timestamps, UTIME_NOW, fstat, mkdirat,
    open, openat, renameat, statat, symlinkat, unlinkat, utimensat,
};
use rustix::io::Errno;
use rustix::process::geteuid;

/// Deepest nesting that `GuardedDir::clear` removes, and that other walks over files of all users
/// follow.
pub const DEPTH_MAX: usize = 64;

/// The part of a directory's permissions that its files get.
const OF_FILES: Mode = Mode::from_raw_mode(0o666);

/// Returns whether an error of the file system is that the process or the system lacks descriptors
/// or memory: it says nothing about the file.
pub(crate) fn is_scarcity(error: &io::Error) -> bool {
    let scarce = [Errno::MFILE, Errno::NFILE, Errno::NOMEM];
    Errno::from_io_error(error).is_some_and(|errno| scarce.contains(&errno))
}

/// Users whose files are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trust {
    /// This process's user and root, if no other user may write to them.
    Own,
    /// All users: nothing is trusted, or the caller has said so.
    All,
}

impl Trust {
    /// Returns the permissions of a new directory, before the umask.
    pub fn permissions(self) -> Mode {
        match self {
            Self::Own => Mode::RWXU,
            Self::All => Mode::RWXU | Mode::RWXG | Mode::RWXO,
        }
    }
}

/// Open directory, and the path that led to it.
#[derive(Debug)]
pub struct GuardedDir {
    folder: OwnedFd,
    path: PathBuf,
    trust: Trust,
}

impl GuardedDir {
    /// Opens the directory at a path that the caller gave, which may be or contain links.
    ///
    /// # Errors
    ///
    /// Errors of the file system, as in all functions here.
    pub fn open(path: &Path, trust: Trust) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self {
            folder: open(path, flags, Mode::empty())?,
            path: path.to_owned(),
            trust,
        })
    }

    /// Opens the directory at a path like [`Self::open`], and creates it with all above it if there
    /// is none.
    pub fn create(path: &Path, trust: Trust) -> io::Result<Self> {
        let mode = match trust {
            Trust::Own => 0o700,
            Trust::All => 0o777,
        };
        let mut builder = std::fs::DirBuilder::new();
        builder.recursive(true).mode(mode).create(path)?;
        Self::open(path, trust)
    }

    /// Path of the directory, for messages.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns whose directories it trusts.
    pub fn trust(&self) -> Trust {
        self.trust
    }

    /// Returns the open directory.
    pub fn folder(&self) -> &OwnedFd {
        &self.folder
    }

    /// Opens a directory directly below this one.
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::PermissionDenied`] if it is not to be trusted.
    pub fn below(&self, name: &str) -> io::Result<Self> {
        let folder = open_below(&self.folder, name).map_err(|errno| self.explained(name, errno))?;
        let path = self.path.join(name);
        self.require_trusted(&fstat(&folder)?, &path)?;
        Ok(Self {
            folder,
            path,
            trust: self.trust,
        })
    }

    /// Opens a directory directly below this one like [`Self::below`], and creates it with these
    /// permissions if there is none.
    pub fn make_with(&self, name: &str, mode: Mode) -> io::Result<Self> {
        match self.below(name) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            opened => return opened,
        }
        match mkdirat(&self.folder, name, mode) {
            Ok(()) | Err(Errno::EXIST) => self.below(name),
            Err(errno) => Err(self.explained(name, errno)),
        }
    }

    /// Like [`Self::make_with`], with the permissions of this directory.
    pub(crate) fn make(&self, name: &str) -> io::Result<Self> {
        self.make_with(name, self.mode()?)
    }

    /// Opens the directory at a path of several components below this one.
    pub fn deep(&self, names: &[&str], make: bool) -> io::Result<Self> {
        let mut folder = self.again()?;
        for name in names {
            folder = if make {
                folder.make(name)?
            } else {
                folder.below(name)?
            };
        }
        Ok(folder)
    }

    fn again(&self) -> io::Result<Self> {
        self.trusting(self.trust)
    }

    /// Opens the directory once more, for files of these users.
    pub fn trusting(&self, trust: Trust) -> io::Result<Self> {
        Ok(Self {
            folder: self.folder.try_clone()?,
            path: self.path.clone(),
            trust,
        })
    }

    /// Returns the permissions of the directory.
    fn mode(&self) -> io::Result<Mode> {
        Ok(Mode::from_raw_mode(fstat(&self.folder)?.st_mode) & Mode::from_raw_mode(0o777))
    }

    /// Opens a regular file in this directory. One that is created has the permissions of the
    /// directory, as far as files have them.
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::PermissionDenied`] if it is not to be trusted.
    pub fn file(&self, name: &str, flags: OFlags) -> io::Result<File> {
        let is_new = flags.contains(OFlags::CREATE);
        let mode = if is_new { self.mode()? } else { Mode::empty() };
        self.file_with(name, flags, mode)
    }

    /// Like [`Self::file`], with these permissions.
    pub fn file_with(&self, name: &str, flags: OFlags, mode: Mode) -> io::Result<File> {
        let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let file = openat(&self.folder, name, flags, mode & OF_FILES)
            .map_err(|errno| self.explained(name, errno))?;
        let stat = fstat(&file)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            let path = self.path.join(name);
            let message = format!("{} is not a regular file", path.display());
            return Err(io::Error::other(message));
        }
        self.require_trusted(&stat, &self.path.join(name))?;
        Ok(File::from(file))
    }

    /// Reads a file, up to a length.
    pub fn read(&self, name: &str, bytes_max: u64) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let file = self.file(name, OFlags::RDONLY)?;
        file.take(bytes_max).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    /// Writes a file so that readers see the old one or the new one.
    pub(crate) fn replace(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let temporary = format!("{name}.{:016x}", fastrand::u64(..));
        self.write_new(&temporary, bytes)?;
        let replaced = self.rename(&temporary, self, name);
        if replaced.is_err() {
            let _ = self.remove_file(&temporary);
        }
        replaced
    }

    /// Writes a file of which there is none.
    pub fn write_new(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
        let written = self.file(name, flags)?.write_all(bytes);
        if written.is_err() {
            let _ = self.remove_file(name);
        }
        written
    }

    /// Moves a file or directory into another directory, in place of a file there.
    pub fn rename(&self, name: &str, to: &Self, new: &str) -> io::Result<()> {
        Ok(renameat(&self.folder, name, &to.folder, new)?)
    }

    /// Creates a symbolic link.
    pub fn symlink(&self, target: &Path, name: &str) -> io::Result<()> {
        Ok(symlinkat(target, &self.folder, name)?)
    }

    /// Returns the status of a file, directory or link here.
    pub fn stat(&self, name: &str) -> io::Result<Stat> {
        Ok(statat(&self.folder, name, AtFlags::SYMLINK_NOFOLLOW)?)
    }

    /// Sets the time of the last modification of a file to now, and that of the last access: only
    /// its owner may set one of them alone (utimensat(2)), all who may write to it both.
    pub(crate) fn touch(&self, name: &str) -> io::Result<()> {
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: UTIME_NOW,
        };
        let times = Timestamps {
            last_access: now,
            last_modification: now,
        };
        Ok(utimensat(
            &self.folder,
            name,
            &times,
            AtFlags::SYMLINK_NOFOLLOW,
        )?)
    }

    /// Removes a file or a link.
    pub fn remove_file(&self, name: &str) -> io::Result<()> {
        Ok(unlinkat(&self.folder, name, AtFlags::empty())?)
    }

    /// Removes an empty directory.
    pub fn remove_dir(&self, name: &str) -> io::Result<()> {
        Ok(unlinkat(&self.folder, name, AtFlags::REMOVEDIR)?)
    }

    /// Removes all that is in the directory, as far as that is permitted.
    pub(crate) fn clear(&self) {
        for name in entries(&self.folder).unwrap_or_default() {
            let _ = remove_all(&self.folder, &name, DEPTH_MAX);
        }
    }

    /// Returns the names in the directory. Names that are not UTF-8 are of other programs, and left
    /// out.
    pub fn names(&self) -> io::Result<Vec<String>> {
        let names = entries(&self.folder)?.into_iter();
        Ok(names.filter_map(|name| name.into_string().ok()).collect())
    }

    /// Requires that only this process's user and root own and can change what has this status.
    fn require_trusted(&self, stat: &Stat, path: &Path) -> io::Result<()> {
        let user = geteuid().as_raw();
        let others = Mode::from_raw_mode(stat.st_mode) & (Mode::WGRP | Mode::WOTH);
        let what = if self.trust == Trust::All {
            return Ok(());
        } else if stat.st_uid != user && stat.st_uid != 0 {
            format!(
                "belongs to another user: uid {}, wanted {user}",
                stat.st_uid
            )
        } else if !others.is_empty() {
            let mode = Mode::from_raw_mode(stat.st_mode);
            let whence = if mode.contains(Mode::SGID | Mode::WGRP) {
                ", perhaps by fsGroup in Kubernetes"
            } else {
                ""
            };
            format!(
                "can be changed by other users: mode {:o}{whence}",
                stat.st_mode & 0o7777
            )
        } else {
            return Ok(());
        };
        Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            format!("{} {what} (store option cache_shared)", path.display()),
        ))
    }

    /// Returns the error for a component that cannot be opened, which names a link, or another user
    /// who permits nothing.
    fn explained(&self, name: &str, errno: Errno) -> io::Error {
        let is_link = |stat: Stat| FileType::from_raw_mode(stat.st_mode) == FileType::Symlink;
        if matches!(errno, Errno::LOOP | Errno::NOTDIR | Errno::EXIST)
            && self.stat(name).is_ok_and(is_link)
        {
            let path = self.path.join(name);
            let message = format!(
                "{} is a symbolic link, which may lead elsewhere",
                path.display()
            );
            return io::Error::other(message);
        }
        if errno == Errno::ACCESS
            && let Ok(stat) = self.stat(name)
            && stat.st_uid != geteuid().as_raw()
            && let Err(error) = self.require_trusted(&stat, &self.path.join(name))
        {
            return error;
        }
        errno.into()
    }
}

/// Opens a directory directly below another one, which must not be a link.
pub fn open_below(folder: &OwnedFd, name: &str) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(folder, name, flags, Mode::empty())
}

/// Returns the names in a directory, without `.` and `..`.
fn entries(folder: &OwnedFd) -> io::Result<Vec<CString>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(folder)? {
        let name = CString::from(entry?.file_name());
        if name.as_bytes() != b"." && name.as_bytes() != b".." {
            names.push(name);
        }
    }
    Ok(names)
}

/// Removes a file, a link, or a directory with all below it.
fn remove_all(folder: &OwnedFd, name: &CStr, depth: usize) -> io::Result<()> {
    match unlinkat(folder, name, AtFlags::empty()) {
        // For a directory, `unlink` fails with EPERM in POSIX and with EISDIR on Linux.
        Err(Errno::ISDIR | Errno::PERM) if depth > 0 => {}
        removed => return Ok(removed?),
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let below = openat(folder, name, flags, Mode::empty())?;
    for name in entries(&below)? {
        remove_all(&below, &name, depth - 1)?;
    }
    Ok(unlinkat(folder, name, AtFlags::REMOVEDIR)?)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::os::unix::fs::{PermissionsExt as _, chown, symlink};

    use super::*;

    /// User who owns no files.
    const OTHER: u32 = 65534;

    /// Returns a directory with `below/deep/file`, and one elsewhere with the same names.
    fn folders() -> [tempfile::TempDir; 2] {
        let folders = [(); 2].map(|()| tempfile::tempdir().expect("a directory"));
        for folder in &folders {
            let deep = folder.path().join("below/deep");
            std::fs::create_dir_all(&deep).expect("creates");
            std::fs::write(deep.join("file"), "bytes").expect("writes");
            for path in ["below/deep/file", "below/deep", "below"] {
                let path = folder.path().join(path);
                let mode = if path.is_dir() { 0o700 } else { 0o600 };
                let mode = std::fs::Permissions::from_mode(mode);
                std::fs::set_permissions(path, mode).expect("is ours");
            }
        }
        folders
    }

    fn tree(folder: &Path) -> BTreeMap<PathBuf, Option<String>> {
        let mut found = BTreeMap::new();
        let mut folders = vec![folder.to_owned()];
        while let Some(next) = folders.pop() {
            for entry in std::fs::read_dir(next).expect("a directory").flatten() {
                let (path, kind) = (entry.path(), entry.file_type().expect("its kind"));
                let bytes = kind
                    .is_file()
                    .then(|| std::fs::read_to_string(&path).expect("reads"));
                if kind.is_dir() {
                    folders.push(path.clone());
                }
                found.insert(path, bytes);
            }
        }
        found
    }

    fn read(root: &Path, trust: Trust) -> io::Result<Vec<u8>> {
        let root = GuardedDir::open(root, trust)?;
        root.deep(&["below", "deep"], true)?.read("file", 100)
    }

    #[test]
    fn components_below_are_no_links_and_of_no_other_user() {
        let is_root = geteuid().is_root();
        for component in ["below", "below/deep", "below/deep/file"] {
            for change in ["none", "link", "owner", "group", "mode"] {
                let [folder, elsewhere] = folders();
                let path = folder.path().join(component);
                let target = elsewhere.path().join(component);
                let mode = std::fs::metadata(&path)
                    .expect("is there")
                    .permissions()
                    .mode();
                let set = |mode| {
                    let mode = std::fs::Permissions::from_mode(mode);
                    std::fs::set_permissions(&path, mode).expect("is ours");
                };
                match change {
                    "link" => {
                        std::fs::rename(&path, folder.path().join("away")).expect("moves");
                        symlink(&target, &path).expect("links");
                    }
                    "owner" if is_root => chown(&path, Some(OTHER), None).expect("root may"),
                    "owner" => continue,
                    "group" => set(mode | 0o020),
                    "mode" => set(mode | 0o002),
                    _ => {}
                }
                let before = tree(elsewhere.path());
                let case = format!("{component}: {change}");
                let found = read(folder.path(), Trust::Own);
                assert_eq!(found.is_ok(), change == "none", "{case}: {found:?}");
                let found = read(folder.path(), Trust::All);
                assert_eq!(found.is_ok(), change != "link", "{case}: {found:?}");
                if let Err(error) = found {
                    assert!(
                        error.to_string().contains("symbolic link"),
                        "{case}: {error}"
                    );
                }
                // Neither writes nor removals lead elsewhere.
                for trust in [Trust::Own, Trust::All] {
                    let root = GuardedDir::open(folder.path(), trust).expect("opens");
                    if let Ok(deep) = root.deep(&["below", "deep"], true) {
                        let _ = deep.replace("file", b"other");
                        let _ = deep.touch("file");
                        let _ = deep.write_new("new", b"other");
                    }
                    root.clear();
                    assert!(tree(folder.path()).is_empty(), "{case}");
                }
                assert_eq!(tree(elsewhere.path()), before, "{case}");
            }
        }
    }

    /// Runs `work` on a thread of another user, if this process may change users.
    #[cfg(target_os = "linux")]
    fn as_other<T: Send>(work: impl FnOnce() -> T + Send) -> Option<T> {
        use rustix::process::Uid;

        if !geteuid().is_root() {
            return None;
        }
        let other = Uid::from_raw(OTHER);
        let work = || {
            rustix::thread::set_thread_res_uid(other, other, other).expect("root may");
            work()
        };
        std::thread::scope(|scope| Some(scope.spawn(work).join().expect("ends")))
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn owner_who_permits_nothing_is_named() {
        let [folder, _] = folders();
        let set = |path: &str, owner: u32, mode: u32| {
            let path = folder.path().join(path);
            chown(&path, Some(owner), None).expect("root may");
            let mode = std::fs::Permissions::from_mode(mode);
            std::fs::set_permissions(path, mode).expect("root may");
        };
        let found = |trust| as_other(|| read(folder.path(), trust).map_err(|it| it.to_string()));
        if !geteuid().is_root() {
            return;
        }
        set("", 0, 0o755);
        set("below", OTHER, 0o700);
        for (owner, wanted) in [
            (1, "belongs to another user: uid 1"),
            (0, "ermission denied"),
        ] {
            for (component, mode) in [("below/deep", 0o700), ("below/deep/file", 0o600)] {
                set("below/deep", OTHER, 0o700);
                set(component, owner, mode);
                let error = found(Trust::Own).map(|it| it.expect_err(component));
                let error = error.unwrap_or_default();
                assert!(error.contains(wanted), "{component}: {error}");
                let error = found(Trust::All).map(|it| it.expect_err(component));
                let error = error.unwrap_or_default();
                assert!(error.contains("ermission denied"), "{component}: {error}");
            }
        }
    }

    /// Otherwise the most used entries of a shared cache would be evicted first.
    #[cfg(target_os = "linux")]
    #[test]
    fn users_who_may_write_to_a_file_may_touch_it() {
        let [folder, _] = folders();
        let path = folder.path().join("below/deep/file");
        let old = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1 << 30);
        let file = File::options().write(true).open(&path).expect("opens");
        let parent = path.parent().expect("below");
        let searchable = std::fs::Permissions::from_mode(0o711);
        std::fs::set_permissions(parent, searchable).expect("is ours");
        let deep = GuardedDir::open(parent, Trust::All).expect("opens");
        for (mode, is_touched) in [(0o600, false), (0o666, true)] {
            let mode = std::fs::Permissions::from_mode(mode);
            std::fs::set_permissions(&path, mode).expect("is ours");
            file.set_modified(old).expect("is ours");
            let Some(touched) = as_other(|| deep.touch("file")) else {
                return;
            };
            assert_eq!(touched.is_ok(), is_touched, "{touched:?}");
            let modified = file.metadata().and_then(|it| it.modified());
            assert_eq!(modified.expect("a time") > old, is_touched);
        }
    }

    /// `~/.cache` may be a link, a volume of a container belong to another user, and `/tmp` be
    /// writable to all.
    #[test]
    fn path_of_the_caller_may_be_a_link_and_anyones() {
        let [folder, links] = folders();
        let link = links.path().join("link");
        symlink(folder.path(), &link).expect("links");
        let mode = std::fs::Permissions::from_mode(0o777);
        std::fs::set_permissions(folder.path(), mode).expect("is ours");
        if geteuid().is_root() {
            chown(folder.path(), Some(OTHER), None).expect("root may");
        }
        assert_eq!(read(&link, Trust::Own).expect("is found"), b"bytes");
        let created = GuardedDir::create(&link, Trust::Own).expect("opens");
        let private = created.make_with("new", Trust::Own.permissions());
        let private = private.and_then(|folder| folder.mode());
        assert_eq!(private.expect("is new"), Mode::RWXU);
        assert!(folder.path().join("new").is_dir());
    }

    #[test]
    fn new_files_have_the_permissions_of_their_directory() {
        let [folder, _] = folders();
        let root = GuardedDir::open(folder.path(), Trust::Own).expect("opens");
        let below = root
            .below("below")
            .expect("opens")
            .make("new")
            .expect("creates");
        below.write_new("file", b"bytes").expect("writes");
        assert!(below.write_new("file", b"other").is_err(), "there is one");
        assert_eq!(below.read("file", 4).expect("reads"), b"byte");
        let mode = |stat: Stat| stat.st_mode & 0o777;
        assert_eq!(mode(below.stat("file").expect("is there")), 0o600);
        below.replace("file", b"other").expect("replaces");
        assert_eq!(below.names().expect("lists"), ["file"]);
        below.remove_file("file").expect("removes");
        root.below("below")
            .expect("opens")
            .remove_dir("new")
            .expect("is empty");
    }
}
