//! What a verification found, file by file.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use serde::{Serialize, Serializer};

use crate::error::{Comparison, Error, ErrorKind};

/// What a verification of a whole checkpoint found.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct VerifyReport {
    /// The checkpoint, without secrets.
    pub location: String,
    /// The files, by name; what belongs to the checkpoint and is not there, too.
    pub files: Vec<FileReport>,
    /// Bytes that were read.
    pub bytes: u64,
    /// Seconds from the call to the last comparison.
    pub seconds: f64,
    /// The manifest that was written.
    pub written: Option<String>,
    /// Why it could not be written, though nothing is otherwise than expected.
    pub not_written: Option<FileError>,
    /// What else is to be known: what was not looked for, what the manifest gets in the way of.
    pub notes: Vec<String>,
}

/// One file of it.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct FileReport {
    /// Path below the folder of the checkpoint.
    pub name: String,
    /// Length, bytes; none if it could not be opened.
    pub bytes: Option<u64>,
    /// What came of it.
    pub outcome: FileOutcome,
    /// Whose checksums it was compared with, the strongest first.
    pub verified_by: Vec<String>,
    /// Why others say nothing of it.
    pub silent: Vec<String>,
    /// Where it is not as expected.
    pub mismatches: Vec<Mismatch>,
    /// Why it could not be compared, or should not be there.
    pub error: Option<FileError>,
    /// Whether tensors are in it; an index has none.
    pub is_shard: bool,
}

/// What came of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum FileOutcome {
    /// Its bytes are those that were expected.
    Matches,
    /// They are not.
    Differs,
    /// The manifest or the index has it, and it is not there.
    Missing,
    /// The manifest does not have it, or it is not signed.
    Extra,
    /// There was nothing to compare it with.
    Unverified,
    /// It could not be read, or is no checkpoint.
    Failed,
}

/// Bytes that are not as expected.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Mismatch {
    /// Whose bytes; none if they are no tensor's or it is not known which.
    pub tensor: Option<String>,
    /// Which, from the start of the file: they begin no later and end no earlier than what differs.
    #[serde(serialize_with = "as_pair")]
    pub range: Range<u64>,
    /// Who expects it.
    pub by: String,
    /// What was expected: a checksum, or a length.
    pub expected: String,
    /// What was found.
    pub found: String,
}

/// Why a file could not be compared.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct FileError {
    /// The name of its [`ErrorKind`].
    pub kind: &'static str,
    /// The error with its causes.
    pub message: String,
    #[serde(skip)]
    error: Arc<Error>,
}

impl FileError {
    pub(super) fn of(error: Error) -> Self {
        Self {
            kind: error.kind().name(),
            message: error.chain(),
            error: Arc::new(error),
        }
    }

    /// The error itself. Of its causes only the number of the system is kept, or the text.
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
    /// As reports and JSON show it.
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
    /// Files that came out like this.
    pub fn count(&self, outcome: FileOutcome) -> usize {
        let alike = self.files.iter().filter(|file| file.outcome == outcome);
        alike.count()
    }

    /// Whether every shard was compared with something and nothing is otherwise than expected. An index that nobody says anything
    /// of is no reason against it.
    pub fn ok(&self) -> bool {
        self.error().is_none()
    }

    /// Why it is not [`Self::ok`]: [`ErrorKind::Corrupt`] for bytes and files that are not as expected, else the error of a file that
    /// could not be read, else why a manifest could not be written, else [`ErrorKind::Unsupported`] for shards with nothing to compare with.
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
            count => format!(" ({count} more of its files are not as expected either)"),
        };
        let error = |message: String| {
            Error::new(ErrorKind::Corrupt, format!("{message}{more}"))
                .with_location(format!("{} in {}", first.name, self.location))
                .with_hint(
                    "get the file again; if it was changed on purpose, write the manifest again",
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
                match why.hint() {
                    Some(hint) => error.with_hint(hint),
                    None => error,
                }
            }
            None => error("belongs to the checkpoint and is not there".to_owned()),
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
            count => format!(", nor {count} more of its files"),
        };
        // Who has just written a manifest has asked for nothing else.
        self.written.is_none().then(|| {
            Error::new(
                ErrorKind::Unsupported,
                format!("there is nothing to compare {:?} with{more}", first.name),
            )
            .with_location(&self.location)
            .with_hint(
                "where the checkpoint is known to be good, make a manifest: tload verify --write",
            )
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
    fn an_error_stays_what_it_was_and_what_was_not_written_is_no_success() {
        let denied = || {
            let error = std::io::Error::from_raw_os_error(libc::EACCES);
            Error::from_io("cannot open", error).with_location("/m/a")
        };
        let mut report = VerifyReport {
            not_written: Some(FileError::of(denied())),
            ..VerifyReport::default()
        };
        let error = report.error().expect("not written");
        assert_eq!(error.chain(), denied().chain());
        assert_eq!(error.errno(), Some(libc::EACCES));
        report.not_written = None;
        assert!(report.ok());
    }
}
