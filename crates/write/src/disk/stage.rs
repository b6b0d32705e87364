//! Directory beside a destination in which its files are written: `.NAME.tload-0123456789ab`.
//!
//! It is locked while it is written, so that leftovers of a killed writer can be told from the
//! files of one that runs. Locks on networks may be those of one machine, and some file systems
//! have none: there, only what nothing has written to for a day is taken for a leftover. A
//! directory that was replaced has a name of its own, with `-old`: no program writes to it.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, XattrFlags, flock, fsetxattr};
use rustix::io::Errno;
use tload_base::files::file_system;

use super::{file_error, open_directory, sync_directory};
use crate::error::{Error, Result};
use crate::step;
use crate::write_id::WriteId;

/// Name of the attribute of what a write has made, with the write's identifier.
pub(crate) const ATTRIBUTE: &str = "user.tload.write";

/// End of the name of a directory that was replaced.
const REPLACED: &str = "-old";

/// Age from which a stage is taken for that of a killed writer where locks do not tell.
const AGE: Duration = Duration::from_secs(24 * 60 * 60);

/// Most that a writer waits for a lock: others of tload hold theirs for moments.
const LOCK_MAX: Duration = Duration::from_secs(10);

/// Directory of files that are not published yet. Dropping it removes them.
#[derive(Debug)]
pub(crate) struct Stage {
    path: PathBuf,
    directory: File,
    /// Those of a new directory. Until it is published, only its owner may look into it.
    permissions: Permissions,
    is_published: bool,
}

impl Stage {
    /// Creates the directory.
    pub(super) fn create(destination: &Path, id: &WriteId) -> Result<Self> {
        let name = file_name(destination);
        let path = destination.with_file_name(format!(".{name}.tload-{id}"));
        let failed = |error| file_error("cannot create the directory", &path, error);
        let (directory, permissions) = loop {
            fs::create_dir(&path).map_err(failed)?;
            step::reach();
            let directory = open_directory(&path).map_err(failed)?;
            // A file system without locks or attributes only tells less about leftovers.
            let _ = lock(&directory);
            let made = directory.metadata().map_err(failed)?;
            // A program that removes leftovers may have had the lock first.
            if fs::metadata(&path).is_ok_and(|now| now.ino() == made.ino()) {
                break (directory, made.permissions());
            }
        };
        let private = Permissions::from_mode(0o700);
        directory.set_permissions(private).map_err(failed)?;
        let id = id.to_string();
        let _ = fsetxattr(&directory, ATTRIBUTE, id.as_bytes(), XattrFlags::empty());
        Ok(Self {
            path,
            directory,
            permissions,
            is_published: false,
        })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Gives the directory that has its path now, since it was replaced, a name that says so.
    /// Returns its path.
    pub(super) fn keep_replaced(&self) -> PathBuf {
        let mut kept = self.path.clone().into_os_string();
        kept.push(REPLACED);
        match fs::rename(&self.path, &kept) {
            Ok(()) => kept.into(),
            Err(_) => self.path.clone(),
        }
    }

    /// Gives it these permissions, or those of a new directory, and waits until the names of its
    /// files are stored.
    pub(super) fn sync(&self, permissions: Option<Permissions>) -> Result<()> {
        let permissions = permissions.unwrap_or_else(|| self.permissions.clone());
        let set = self.directory.set_permissions(permissions);
        set.and_then(|()| self.directory.sync_all())
            .map_err(|error| file_error("cannot store the directory", &self.path, error))
    }

    /// Notes that the directory is at the destination, and another one has its name.
    pub(super) fn became_destination(&mut self) {
        self.is_published = true;
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        if self.is_published {
            // A forked child has the descriptor, too.
            let _ = flock(&self.directory, FlockOperation::Unlock);
            return;
        }
        if let Err(error) = fs::remove_dir_all(&self.path) {
            let path = self.path.display();
            tracing::warn!(%path, %error, "cannot remove an unfinished checkpoint");
        }
    }
}

/// Locks a file or directory, and waits for a moment if another program has the lock.
#[expect(
    clippy::disallowed_methods,
    reason = "the kernel has no lock with a deadline"
)]
pub(super) fn lock(file: &File) -> rustix::io::Result<()> {
    let until = Instant::now() + LOCK_MAX;
    loop {
        match flock(file, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) if Instant::now() < until => {
                std::thread::sleep(Duration::from_millis(5));
            }
            outcome => return outcome,
        }
    }
}

/// Returns the directories that writes of `destination` have left, and, unless a writer may still
/// write to one, what keeps it locked until it is removed.
pub(crate) fn leftovers(destination: &Path) -> Result<Vec<(PathBuf, Option<File>)>> {
    let prefix = format!(".{}.tload-", file_name(destination));
    let parent = destination.parent().unwrap_or(Path::new("."));
    let failed = |error| file_error("cannot list", parent, error);
    let mut found = Vec::new();
    for entry in fs::read_dir(parent).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name();
        let id = name.to_str().and_then(|name| name.strip_prefix(&prefix));
        let replaced = id.and_then(|id| id.strip_suffix(REPLACED));
        if replaced.or(id).and_then(WriteId::parse).is_none() {
            continue;
        }
        let path = entry.path();
        let directory = open_directory(&path)
            .map_err(|error| file_error("cannot open the directory", &path, error))?;
        let is_free = replaced.is_some()
            || match flock(&directory, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => is_local(&path) || is_old(&path),
                Err(Errno::WOULDBLOCK) => false,
                Err(_) => is_old(&path),
            };
        found.push((path, Some(directory).filter(|_| is_free)));
    }
    found.sort_by(|one, other| one.0.cmp(&other.0));
    Ok(found)
}

/// Returns whether the locks of a file system are known to be those of all its users.
fn is_local(path: &Path) -> bool {
    file_system(path).is_ok_and(|it| !it.network && !it.name.starts_with("0x"))
}

/// Returns whether nothing has been written to a directory for a day.
fn is_old(path: &Path) -> bool {
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    let mut paths = entries.map(|entry| entry.path()).chain([path.to_owned()]);
    paths.all(|path| {
        let written = fs::symlink_metadata(path).and_then(|it| it.modified());
        let age = written.ok().and_then(|it| it.elapsed().ok());
        age.is_some_and(|age| age >= AGE)
    })
}

/// Returns the last component of a path that has one, as text.
pub(super) fn file_name(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

/// Returns the path with links followed, also of something that does not exist yet, and creates the
/// directory that it is in.
pub(crate) fn resolved(path: &Path) -> Result<PathBuf> {
    let failed = |error| file_error("cannot open", path, error);
    if fs::symlink_metadata(path).is_ok() {
        return fs::canonicalize(path).map_err(failed);
    }
    let Some(name) = path.file_name() else {
        return Err(
            Error::invalid_request("is not the path of a directory to write")
                .with_location(path.display()),
        );
    };
    let parent = path.parent().filter(|it| !it.as_os_str().is_empty());
    let parent = parent.unwrap_or(Path::new("."));
    let is_new = |path: &&Path| !path.as_os_str().is_empty() && !path.exists();
    let new: Vec<_> = parent.ancestors().take_while(is_new).collect();
    fs::create_dir_all(parent)
        .map_err(|error| file_error("cannot create the directory", parent, error))?;
    for path in new.iter().rev() {
        let above = path.parent().filter(|above| !above.as_os_str().is_empty());
        sync_directory(above.unwrap_or(Path::new(".")))?;
    }
    Ok(fs::canonicalize(parent).map_err(failed)?.join(name))
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;

    #[test]
    fn stages_are_old_once_nothing_was_written_for_a_day() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("model.safetensors");
        fs::write(&file, "").expect("is written");
        assert!(!is_old(folder.path()));
        let hour = Duration::from_secs(60 * 60);
        for (of_file, of_folder, wanted) in [(25, 0, false), (23, 25, false), (25, 25, true)] {
            for (path, hours) in [(&*file, of_file), (folder.path(), of_folder)] {
                let then = SystemTime::now() - hour * hours;
                let opened = File::options().read(true).open(path);
                let opened = opened.expect("is opened");
                opened.set_modified(then).expect("is set");
            }
            assert_eq!(is_old(folder.path()), wanted, "{of_file} {of_folder}");
        }
    }
}
