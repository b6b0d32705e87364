//! Writes a manifest: whole or not at all, and never over another one unless asked to.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;

use crate::error::{Error, ErrorKind, Result};

/// What the name of a manifest in progress ends with.
const PARTIAL: &str = ".tload-partial";

/// Removed again unless it got its name.
struct Partial(PathBuf);

impl Drop for Partial {
    fn drop(&mut self) {
        // There is nobody to tell, and the next attempt replaces it.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Puts `text` at `path`, on disk when this returns.
///
/// # Errors
///
/// [`ErrorKind::InvalidRequest`] for one that is there unless `replace`, and what writing runs into.
pub(super) fn write(path: &Path, text: &[u8], replace: bool) -> Result<()> {
    let failed = |error| Error::from_io("cannot write", error).with_location(path.display());
    let (Some(name), Some(folder)) = (path.file_name(), path.parent()) else {
        return Err(
            Error::new(ErrorKind::InvalidRequest, "is no path of a file")
                .with_location(path.display()),
        );
    };
    let folder = if folder.as_os_str().is_empty() {
        Path::new(".")
    } else {
        folder
    };
    let mut hidden = std::ffi::OsString::from(".");
    hidden.push(name);
    hidden.push(PARTIAL);
    let partial = Partial(folder.join(hidden));
    // Left by a crash, or a link that leads elsewhere: a file of our own is made.
    match std::fs::remove_file(&partial.0) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
        _ => {}
    }
    let mut options = OpenOptions::new();
    let file = options.write(true).create_new(true).open(&partial.0);
    let mut file = file.map_err(failed)?;
    file.write_all(text)
        .and_then(|()| file.sync_all())
        .map_err(failed)?;
    give_name(&partial.0, path, replace)?;
    sync_folder(folder).map_err(failed)
}

/// The error for a manifest that is there already.
pub(super) fn is_there(path: &Path) -> Error {
    Error::new(ErrorKind::InvalidRequest, "is there already")
        .with_location(path.display())
        .with_hint("use --force (force=True) to replace it, or write to another path")
}

fn give_name(partial: &Path, path: &Path, replace: bool) -> Result<()> {
    let failed = |error| Error::from_io("cannot write", error).with_location(path.display());
    if replace {
        return std::fs::rename(partial, path).map_err(failed);
    }
    match renameat_with(CWD, partial, CWD, path, RenameFlags::NOREPLACE) {
        Ok(()) => Ok(()),
        Err(Errno::EXIST) => Err(is_there(path)),
        // Not every file system can look and rename at once.
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
            if path.symlink_metadata().is_ok() {
                return Err(is_there(path));
            }
            std::fs::rename(partial, path).map_err(failed)
        }
        Err(errno) => Err(failed(errno.into())),
    }
}

/// Has the names in a folder written to disk, on file systems that can be asked to.
#[expect(
    clippy::disallowed_methods,
    reason = "a folder, of which nothing is read"
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

    #[test]
    fn a_manifest_is_written_whole_and_replaced_only_when_asked() {
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
        write(&path, b"one", false).expect("is not there yet");
        assert_eq!((text().as_str(), names()), ("one", vec!["m.json".into()]));
        let error = write(&path, b"two", false).expect_err("is there");
        assert_eq!(error.kind(), ErrorKind::InvalidRequest);
        assert_eq!((text().as_str(), names()), ("one", vec!["m.json".into()]));
        write(&path, b"three", true).expect("replaces");
        assert_eq!((text().as_str(), names()), ("three", vec!["m.json".into()]));
        let error = write(&folder.path().join("none/m.json"), b"x", false).expect_err("no folder");
        assert_eq!(error.kind(), ErrorKind::NotFound);
    }

    #[test]
    fn links_are_not_followed() {
        let folder = tempfile::tempdir().expect("a folder");
        let (path, other) = (folder.path().join("m.json"), folder.path().join("other"));
        std::fs::write(&other, "other").expect("a file");
        std::os::unix::fs::symlink(&other, folder.path().join(".m.json.tload-partial"))
            .expect("a link");
        write(&path, b"text", false).expect("writes");
        assert_eq!(std::fs::read_to_string(&other).expect("there"), "other");
        assert!(!path.symlink_metadata().expect("there").is_symlink());
    }
}
