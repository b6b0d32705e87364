//! Options of a copy, and their limits.

use crate::error::{Error, Result};
use crate::options::with_setters;

/// Maximum length of a request, bytes. Shorter than the maximum of a load: a file of few requests
/// would not keep all connections busy.
pub(crate) const RANGE_BYTES: u64 = 16 << 20;

/// Requests in flight, as in a load from an object store.
pub(crate) const DEPTH: usize = 16;
const DEPTH_MAX: usize = 4096;

with_setters! {
/// Options of a copy.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CopyOptions {
    /// Exactly the files at these paths below the source. Default: `None`, which selects all.
    pub names: Option<Vec<String>>,
    /// Globs, of which one must match a file's path below the source, or its last component.
    /// Default: empty, which selects all.
    pub include: Vec<String>,
    /// Globs of files to exclude. Default: none.
    pub exclude: Vec<String>,
    /// Includes files and directories whose names begin with a dot. Default: no.
    pub hidden: bool,
    /// Copies existing files again, and discards incomplete ones. Default: no.
    pub force: bool,
    /// Succeeds although names at the source that cannot be those of files were left out; see
    /// [`CopyReport::unusable`](crate::CopyReport::unusable). Default: no.
    pub skip_unusable: bool,
    /// Decides what to do with each file, and does not do it: writes nothing. Default: no.
    pub dry_run: bool,
    /// Requests (for files: reads) in flight, over all files; 1 to 4096. Default: 16.
    pub depth: usize,
    /// Maximum length of a request, bytes; at least 4096. Default: 16 MiB.
    pub range_bytes: u64,
}
}

impl Default for CopyOptions {
    fn default() -> Self {
        Self {
            names: None,
            include: Vec::new(),
            exclude: Vec::new(),
            hidden: false,
            force: false,
            skip_unusable: false,
            dry_run: false,
            depth: DEPTH,
            range_bytes: RANGE_BYTES,
        }
    }
}

impl CopyOptions {
    /// Rejects values outside of their limits.
    #[doc(hidden)]
    pub fn validate(&self) -> Result<()> {
        let invalid = |message| Err(Error::invalid_request(message));
        if !(1..=DEPTH_MAX).contains(&self.depth) {
            return invalid(format!(
                "‹depth› is {}; it must lie between 1 and {DEPTH_MAX}",
                self.depth
            ));
        }
        if self.range_bytes < 4096 {
            return invalid(format!(
                "‹range_bytes› is {}; it must be at least 4096",
                self.range_bytes
            ));
        }
        Ok(())
    }
}
