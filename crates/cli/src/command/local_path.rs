//! Paths to write to, which are local.

use std::path::Path;

use tload::{Error, ErrorKind, Location, Result};

/// Rejects a URL where a path is wanted: as a path, it names a local directory `s3:`.
pub(super) fn require_local(path: &Path) -> Result<()> {
    if path.to_string_lossy().contains("://") {
        // Without the URL: it may contain credentials.
        let message = "the target is a URL; only local files and directories can be written";
        return Err(Error::new(ErrorKind::Unsupported, message));
    }
    Ok(())
}

/// Rejects a target in the directory that is read: programs would take it for a part of that.
pub(super) fn require_outside(source: &Location, target: &Path) -> Result<()> {
    let folder = target.parent().filter(|it| !it.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new(".")).canonicalize();
    let source = source.as_path().map(Path::canonicalize);
    match (folder, source) {
        (Ok(folder), Some(Ok(source))) if folder.starts_with(&source) => {
            Err(Error::invalid_request("the target is below the source")
                .with_location(target.display())
                .with_hint("name a directory elsewhere"))
        }
        _ => Ok(()),
    }
}
