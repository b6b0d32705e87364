//! Report of a copy.

use serde::Serialize;

use crate::plan::CopyPlan;

/// Report of a copy. After a dry run, the counters say what the copy would do.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct CopyReport {
    /// Location of the source, without secrets.
    pub location: String,
    /// Target directory.
    pub target: String,
    /// Files that were completed by this copy.
    pub copied_files: u64,
    /// Bytes that this copy read.
    pub copied_bytes: u64,
    /// Bytes that earlier copies had fetched.
    pub resumed_bytes: u64,
    /// Files that existed already.
    pub skipped_files: u64,
    /// Bytes of the skipped files.
    pub skipped_bytes: u64,
    /// Requests to object stores, without list requests, and including those of a download into a
    /// hub's cache.
    pub requests: u64,
    /// Requests that were retried.
    pub retries: u64,
    /// Copied files whose store sends neither `ETag` nor Last-Modified (`allow_unversioned`): their
    /// length, first and last bytes were compared once more at the end.
    pub unversioned_files: u64,
    /// Names at the source that cannot be those of files in a directory, and were left out: keys of
    /// stores with empty components, dots or control characters, names that are not UTF-8, names
    /// that are too long for the target's file system (files in progress have 24 bytes more), and
    /// files with the name of a folder. Never copied; a copy that is not a dry run fails after it
    /// has copied everything else, unless
    /// [`CopyOptions::skip_unusable`](crate::CopyOptions::skip_unusable) is set.
    pub unusable: Vec<String>,
    /// Seconds from the call to the last byte on disk.
    pub seconds: f64,
    /// Steps of the copy, file by file, with [`CopyOptions::dry_run`](crate::CopyOptions::dry_run);
    /// else `None`.
    pub plan: Option<CopyPlan>,
}
