//! Writes a manifest atomically, and never over an existing one unless requested.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;

use tload_partial::Partial;

use crate::error::{Error, ErrorKind, Result};

/// Manifest to be written. Its temporary file exists, so the directory is writable.
pub(super) struct Begun {
    partial: Partial,
    file: File,
}

impl Begun {
    /// Creates the temporary file for a manifest at `path`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidRequest`] if `path` is not the path of a file; errors of creating one.
    pub(super) fn at(path: &Path) -> Result<Self> {
        let mut partial = Partial::new(path)?;
        let file = partial.create_file()?;
        Ok(Self { partial, file })
    }
}

/// Writes `text` to the path given to [`Begun::at`], which this returns: it is on disk then.
///
/// # Errors
///
/// [`ErrorKind::InvalidRequest`] if the file exists, unless `replace`; errors of writing.
pub(super) fn write(mut begun: Begun, text: &[u8], replace: bool) -> Result<String> {
    let path = begun.partial.path().display().to_string();
    let written = begun.file.write_all(text);
    written.map_err(|error| Error::from_write("cannot write", error).with_location(&path))?;
    begun.partial.complete(replace)?;
    Ok(path)
}

/// Returns the error for a manifest that exists.
pub(super) fn is_there(path: &Path) -> Error {
    Error::new(ErrorKind::InvalidRequest, "already exists")
        .with_location(path.display())
        .with_hint("use ‹force› to replace it, or write to another path")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(path: &Path, text: &[u8], replace: bool) -> Result<String> {
        write(Begun::at(path)?, text, replace)
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
}
