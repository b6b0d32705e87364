//! Paths to write to, which are local.

use std::path::Path;

use tload::{Error, ErrorKind, Result};

/// Rejects a URL where a path is wanted: as a path, it names a local directory `s3:`.
pub(super) fn require_local(path: &Path) -> Result<()> {
    if path.to_string_lossy().contains("://") {
        // Without the URL: it may contain credentials.
        let message = "the target is a URL; only local files and directories can be written";
        return Err(Error::new(ErrorKind::Unsupported, message));
    }
    Ok(())
}
