//! What a verification found, file by file.

use std::fmt;
use std::ops::Range;

use serde::{Serialize, Serializer};

use crate::error::{Error, ErrorKind};

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
    /// Why it could not be compared.
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
    /// The manifest does not have it.
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
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct FileError {
    /// The name of its [`ErrorKind`].
    pub kind: &'static str,
    /// The error with its causes.
    pub message: String,
}

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
    /// could not be read, else [`ErrorKind::Unsupported`] for shards with nothing to compare with.
    pub fn error(&self) -> Option<Error> {
        self.mismatch()
            .or_else(|| self.failure())
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
                .with_range(mismatch.range.clone());
                match &mismatch.tensor {
                    Some(tensor) => error.with_tensor(tensor),
                    None => error,
                }
            }
            None if first.outcome == FileOutcome::Extra => {
                error("is not in the manifest".to_owned())
            }
            None => error("belongs to the checkpoint and is not there".to_owned()),
        })
    }

    fn failure(&self) -> Option<Error> {
        let error = self.files.iter().find_map(|file| file.error.as_ref())?;
        let kind = ErrorKind::ALL
            .into_iter()
            .find(|kind| kind.name() == error.kind);
        Some(Error::new(
            kind.unwrap_or(ErrorKind::Io),
            error.message.clone(),
        ))
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
