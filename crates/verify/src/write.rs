//! Writes a manifest atomically, and never over an existing one unless requested.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;

use crate::error::{Error, ErrorKind, Result};

/// Suffix of the temporary file of a manifest.
const PARTIAL: &str = ".tload-partial";

/// Temporary file, removed on drop unless it was renamed.
struct Partial(PathBuf);

impl Drop for Partial {
    fn drop(&mut self) {
        // The error cannot be reported here, and the next attempt replaces the file.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Manifest to be written. Its temporary file exists, so the directory is writable.
pub(super) struct Begun {
    path: PathBuf,
    folder: PathBuf,
    partial: Partial,
}

impl Begun {
    /// Creates the temporary file for a manifest at `path`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidRequest`] if `path` is not the path of a file; errors of creating one.
    pub(super) fn at(path: &Path) -> Result<Self> {
        let (Some(name), Some(folder)) = (path.file_name(), path.parent()) else {
            return Err(Error::new(ErrorKind::InvalidRequest, "is not a file path")
                .with_location(path.display()));
        };
        let folder = if folder.as_os_str().is_empty() {
            Path::new(".")
        } else {
            folder
        };
        let mut hidden = std::ffi::OsString::from(".");
        hidden.push(name);
        hidden.push(PARTIAL);
        let begun = Self {
            path: path.to_owned(),
            folder: folder.to_owned(),
            partial: Partial(folder.join(hidden)),
        };
        begun.create()?;
        Ok(begun)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Creates a new file: never reuses one left by a crash or created by another process, and does
    /// not follow a link.
    fn create(&self) -> Result<File> {
        match std::fs::remove_file(&self.partial.0) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(self.failed(error)),
            _ => {}
        }
        let mut options = OpenOptions::new();
        let file = options.write(true).create_new(true).open(&self.partial.0);
        file.map_err(|error| self.failed(error))
    }

    fn failed(&self, error: io::Error) -> Error {
        Error::from_write("cannot write", error).with_location(self.path.display())
    }
}

/// Writes `text` to the path given to [`Begun::at`]; it is on disk when this returns.
///
/// # Errors
///
/// [`ErrorKind::InvalidRequest`] if the file exists, unless `replace`; errors of writing.
pub(super) fn write(begun: &Begun, text: &[u8], replace: bool) -> Result<()> {
    let failed = |error| begun.failed(error);
    let mut file = begun.create()?;
    file.write_all(text)
        .and_then(|()| file.sync_all())
        .map_err(failed)?;
    give_name(&begun.partial.0, &begun.path, replace)?;
    sync_folder(&begun.folder).map_err(failed)
}

/// Returns the error for a manifest that exists.
pub(super) fn is_there(path: &Path) -> Error {
    Error::new(ErrorKind::InvalidRequest, "already exists")
        .with_location(path.display())
        .with_hint("use ‹force› to replace it, or write to another path")
}

fn give_name(partial: &Path, path: &Path, replace: bool) -> Result<()> {
    let failed = |error| Error::from_write("cannot write", error).with_location(path.display());
    if replace {
        return std::fs::rename(partial, path).map_err(failed);
    }
    match renameat_with(CWD, partial, CWD, path, RenameFlags::NOREPLACE) {
        Ok(()) => Ok(()),
        Err(Errno::EXIST) => Err(is_there(path)),
        // Not every file system supports RENAME_NOREPLACE.
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
            if path.symlink_metadata().is_ok() {
                return Err(is_there(path));
            }
            std::fs::rename(partial, path).map_err(failed)
        }
        Err(errno) => Err(failed(errno.into())),
    }
}

/// Syncs the names in a directory to disk, on file systems that support it.
#[expect(
    clippy::disallowed_methods,
    reason = "a directory, whose contents are not read"
)]
fn sync_folder(folder: &Path) -> io::Result<()> {
    match File::open(folder)?.sync_all() {
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(()),
        synced => synced,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(path: &Path, text: &[u8], replace: bool) -> Result<()> {
        write(&Begun::at(path)?, text, replace)
    }

    #[test]
    fn unwritten_manifest_leaves_no_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let begun = Begun::at(&folder.path().join("m.json")).expect("can be written");
        let count = || std::fs::read_dir(folder.path()).expect("a folder").count();
        assert_eq!(count(), 1);
        drop(begun);
        assert_eq!(count(), 0);
    }

    #[test]
    fn manifest_is_written_atomically_and_replaced_only_if_forced() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("m.json");
        let names = || {
            let entries = std::fs::read_dir(folder.path()).expect("a folder");
            entries
                .map(|entry| entry.expect("listed").file_name())
                .collect::<Vec<_>>()
        };
        let text = || std::fs::read_to_string(&path).expect("there");
        std::fs::write(
            folder.path().join(".m.json.tload-partial"),
            "left by a crash",
        )
        .expect("a file");
        put(&path, b"one", false).expect("does not exist yet");
        assert_eq!((text().as_str(), names()), ("one", vec!["m.json".into()]));
        let error = put(&path, b"two", false).expect_err("exists");
        assert_eq!(error.kind(), ErrorKind::InvalidRequest);
        assert_eq!((text().as_str(), names()), ("one", vec!["m.json".into()]));
        put(&path, b"three", true).expect("replaces");
        assert_eq!((text().as_str(), names()), ("three", vec!["m.json".into()]));
        let error = put(&folder.path().join("none/m.json"), b"x", false).expect_err("no folder");
        assert_eq!(error.kind(), ErrorKind::NotFound);
    }

    #[test]
    fn links_are_not_followed() {
        let folder = tempfile::tempdir().expect("a folder");
        let (path, other) = (folder.path().join("m.json"), folder.path().join("other"));
        std::fs::write(&other, "other").expect("a file");
        std::os::unix::fs::symlink(&other, folder.path().join(".m.json.tload-partial"))
            .expect("a link");
        put(&path, b"text", false).expect("writes");
        assert_eq!(std::fs::read_to_string(&other).expect("there"), "other");
        assert!(!path.symlink_metadata().expect("there").is_symlink());
    }
}
