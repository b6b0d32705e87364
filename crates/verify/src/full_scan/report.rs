//! Report of a verification, file by file.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use serde::{Serialize, Serializer};

use crate::error::{Comparison, Error, ErrorKind};

/// Result of a verification of a whole checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct VerifyReport {
    /// Location of the checkpoint, without secrets.
    pub location: String,
    /// Files by name, including missing ones that belong to the checkpoint.
    pub files: Vec<FileReport>,
    /// Bytes that were read.
    pub bytes: u64,
    /// Seconds from the call to the last comparison.
    pub seconds: f64,
    /// Path or URL of the manifest that was written.
    pub written: Option<String>,
    /// Bytes of the manifest, if one was to be written and nothing differs from what is expected.
    #[serde(skip)]
    pub manifest: Option<Vec<u8>>,
    /// Error of writing the manifest, though nothing differs from what is expected.
    pub not_written: Option<FileError>,
    /// Further notes: on files that were not searched for, on a manifest that conflicts with a
    /// signature.
    pub notes: Vec<String>,
}

/// Result for one file.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct FileReport {
    /// Path below the directory of the checkpoint.
    pub name: String,
    /// Length, bytes; `None` if the file could not be opened.
    pub bytes: Option<u64>,
    /// Outcome.
    pub outcome: FileOutcome,
    /// Authorities whose digests it was compared with, the strongest first.
    pub verified_by: Vec<String>,
    /// Reasons why other authorities state no digest.
    pub silent: Vec<String>,
    /// Differences from what is expected.
    pub mismatches: Vec<Mismatch>,
    /// Reason why the file could not be compared, or should not exist.
    pub error: Option<FileError>,
    /// True if the file holds tensors; false for an index.
    pub is_shard: bool,
}

/// Outcome for a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum FileOutcome {
    /// Its bytes match.
    Matches,
    /// Its bytes differ.
    Differs,
    /// The manifest or the index lists the file, and it does not exist.
    Missing,
    /// The manifest does not list the file, or it is not signed.
    Extra,
    /// No digest of it is known.
    Unverified,
    /// The file could not be read, or its header is invalid.
    Failed,
}

/// Bytes that differ from what is expected.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Mismatch {
    /// Name of the tensor; `None` if the bytes are not a tensor's or the tensor is not known.
    pub tensor: Option<String>,
    /// Byte range from the start of the file: it contains everything that differs.
    #[serde(serialize_with = "as_pair")]
    pub range: Range<u64>,
    /// Authority that states the expected value.
    pub by: String,
    /// Expected value: a checksum, or a length.
    pub expected: String,
    /// Value found.
    pub found: String,
}

/// Reason why a file could not be compared.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct FileError {
    /// Name of its [`ErrorKind`].
    pub kind: &'static str,
    /// Error with its causes.
    pub message: String,
    #[serde(skip)]
    error: Arc<Error>,
}

impl FileError {
    /// Describes `error`.
    pub fn new(error: Error) -> Self {
        Self {
            kind: error.kind().name(),
            message: error.chain(),
            error: Arc::new(error),
        }
    }

    /// Returns the error itself. Its causes are reduced to the system's error number, or to text.
    pub fn error(&self) -> Error {
        self.error.again()
    }
}

impl PartialEq for FileError {
    fn eq(&self, other: &Self) -> bool {
        (self.kind, &self.message) == (other.kind, &other.message)
    }
}

impl Eq for FileError {}

impl FileOutcome {
    /// Returns the name used in reports and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Matches => "matches",
            Self::Differs => "differs",
            Self::Missing => "missing",
            Self::Extra => "extra",
            Self::Unverified => "unverified",
            Self::Failed => "failed",
        }
    }
}

impl fmt::Display for FileOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl VerifyReport {
    /// Returns the number of files with this outcome.
    pub fn count(&self, outcome: FileOutcome) -> usize {
        let alike = self.files.iter().filter(|file| file.outcome == outcome);
        alike.count()
    }

    /// Returns whether every shard was compared with something and nothing differs from what is
    /// expected. An index without a known digest is accepted.
    pub fn ok(&self) -> bool {
        self.error().is_none()
    }

    /// Returns the reason why it is not [`Self::ok`]: [`ErrorKind::Corrupt`] for bytes and files
    /// that differ, else the error of a file that could not be read, else the error of writing the
    /// manifest, else [`ErrorKind::Unsupported`] for shards without a known digest.
    pub fn error(&self) -> Option<Error> {
        self.mismatch()
            .or_else(|| self.failure())
            .or_else(|| self.not_written.as_ref().map(FileError::error))
            .or_else(|| self.gap())
    }

    fn mismatch(&self) -> Option<Error> {
        let is_other = |file: &&FileReport| {
            matches!(
                file.outcome,
                FileOutcome::Differs | FileOutcome::Missing | FileOutcome::Extra
            )
        };
        let mut others = self.files.iter().filter(is_other);
        let first = others.next()?;
        let more = match others.count() {
            0 => String::new(),
            count => format!(" ({count} more of its files differ)"),
        };
        let error = |message: String| {
            Error::new(ErrorKind::Corrupt, format!("{message}{more}"))
                .with_location(format!("{} in {}", first.name, self.location))
                .with_hint(
                    "download the file again; if it was changed on purpose, write a new manifest",
                )
        };
        Some(match first.mismatches.first() {
            Some(mismatch) => {
                let error = error(format!(
                    "expected {} ({}), found {}",
                    mismatch.expected, mismatch.by, mismatch.found
                ))
                .with_range(mismatch.range.clone())
                .with_comparison(Comparison {
                    expected: mismatch.expected.clone(),
                    found: mismatch.found.clone(),
                    by: mismatch.by.clone(),
                });
                match &mismatch.tensor {
                    Some(tensor) => error.with_tensor(tensor),
                    None => error,
                }
            }
            None if first.outcome == FileOutcome::Extra => {
                let why = first.error.as_ref().map(FileError::error);
                let why =
                    why.unwrap_or_else(|| Error::new(ErrorKind::Corrupt, "does not belong there"));
                let error = error(why.message().to_owned());
                match why.marked_hint() {
                    Some(hint) => error.with_hint(hint),
                    None => error,
                }
            }
            None => error("is part of the checkpoint but missing".to_owned()),
        })
    }

    fn failure(&self) -> Option<Error> {
        let mut failed = self
            .files
            .iter()
            .filter(|file| file.outcome == FileOutcome::Failed);
        let error = failed.find_map(|file| file.error.as_ref());
        error.map(FileError::error)
    }

    fn gap(&self) -> Option<Error> {
        let is_open = |file: &&FileReport| file.is_shard && file.outcome == FileOutcome::Unverified;
        let mut open = self.files.iter().filter(is_open);
        let first = open.next()?;
        let more = match open.count() {
            0 => String::new(),
            count => format!(", nor for {count} more of its files"),
        };
        // A manifest is a local file, wherever the checkpoint is.
        let write = if self.location.contains("://") {
            "--write manifest.json"
        } else {
            "--write"
        };
        let command = format!("tload verify {} {write}", self.location);
        // A caller that has just written a manifest asked for nothing else.
        self.written.is_none().then(|| {
            Error::unsupported(format!("no digest is known for {:?}{more}", first.name))
                .with_location(&self.location)
                .with_hint(format!(
                    "if you trust the files, write a manifest: {command}"
                ))
        })
    }
}

fn as_pair<S: Serializer>(range: &Range<u64>, json: S) -> Result<S::Ok, S::Error> {
    [range.start, range.end].serialize(json)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn report_keeps_errno_and_fails_if_manifest_not_written() {
        let denied = || {
            let error = std::io::Error::from_raw_os_error(libc::EACCES);
            Error::from_io("cannot open", error).with_location("/m/a")
        };
        let mut report = VerifyReport {
            not_written: Some(FileError::new(denied())),
            ..VerifyReport::default()
        };
        let error = report.error().expect("not written");
        assert_eq!(error.chain(), denied().chain());
        assert_eq!(error.errno(), Some(libc::EACCES));
        report.not_written = None;
        assert!(report.ok());
    }
}
