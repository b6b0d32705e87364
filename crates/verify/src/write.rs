//! Writes a manifest atomically, and never over an existing one unless requested.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;

use crate::error::{Error, ErrorKind, Result};
use crate::manifest::{MANIFEST_BYTES_MAX, MANIFEST_NAME, Manifest};

/// Manifest to be written. Its temporary file exists, so the directory is writable.
pub(super) struct Begun(tload_partial::Partial, File);

impl Begun {
    /// Creates the temporary file for a manifest at `path`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidRequest`] if `path` is not the path of a file, or of something that is
    /// neither a manifest nor a file with the name of one; errors of creating a file.
    pub(super) fn at(path: &Path) -> Result<Self> {
        let mut partial = tload_partial::Partial::new(path)?;
        let text = tload_base::files::read_small(path, MANIFEST_BYTES_MAX);
        // A damaged manifest is replaced, too.
        let is_one = |it: Vec<u8>| path.ends_with(MANIFEST_NAME) || Manifest::parse(&it).is_ok();
        if path.is_symlink() || !text.is_ok_and(is_one) {
            partial.refuse_existing()?;
        }
        partial.create_file().map(|file| Self(partial, file))
    }
}

/// Writes `text` to the path given to [`Begun::at`], which this returns: it is on disk then.
///
/// # Errors
///
/// [`ErrorKind::InvalidRequest`] if the file exists, unless `replace`; errors of writing.
pub(super) fn write(mut begun: Begun, text: &[u8], replace: bool) -> Result<String> {
    let path = begun.0.path().display().to_string();
    let written = begun.1.write_all(text);
    written.map_err(|error| Error::from_write("cannot write", error).with_location(&path))?;
    begun.0.complete(replace).map(|()| path)
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
        let [one, two] =
            ["", "\n"].map(|end| format!("{{\"tload_manifest\": 1, \"files\": {{}}}}{end}"));
        put(&path, one.as_bytes(), false).expect("does not exist yet");
        assert_eq!((text(), names()), (one.clone(), vec!["m.json".into()]));
        let error = put(&path, two.as_bytes(), false).expect_err("exists");
        assert_eq!(error.kind(), ErrorKind::InvalidRequest);
        assert_eq!((text(), names()), (one, vec!["m.json".into()]));
        put(&path, two.as_bytes(), true).expect("replaces");
        assert_eq!((text(), names()), (two, vec!["m.json".into()]));
        let error = put(&folder.path().join("none/m.json"), b"x", false).expect_err("no folder");
        assert_eq!(error.kind(), ErrorKind::NotFound);
    }
}
