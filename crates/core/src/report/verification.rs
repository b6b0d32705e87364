//! What of a load was compared with digests that somebody had made of it.

use std::fmt;

use serde::Serialize;

use super::Report;
use crate::error::{counted, printable};
use crate::request::format_bytes;

/// What was compared with digests that somebody had made of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct VerificationReport {
    /// What was asked for: `"auto"`, `"require"`, `"sha256"`, or the manifest.
    pub choice: String,
    /// Bytes that were compared, and are right: of tensors with a digest of their own when all of one has come, of files when all of
    /// the file has.
    pub bytes: u64,
    /// Who says what the bytes should be, and of how many files of the load.
    pub by: Vec<VerifiedBy>,
    /// Files of which something was not compared; the first few.
    pub unverified: Vec<Unverified>,
    /// How many there are.
    pub unverified_files: u64,
}

/// Who says what the bytes of some files should be.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct VerifiedBy {
    /// For example `"manifest /m/tload-manifest.json"`.
    pub by: String,
    /// By which algorithm: `"crc64nvme"`, `"crc32c"` or `"sha256"`; several with `" and "` between them. CRCs find damage, and do not stop
    /// somebody who changes bytes on purpose.
    pub algorithm: String,
    /// Files.
    pub files: u64,
}

/// A file of which something was not compared.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Unverified {
    /// The file.
    pub location: String,
    /// Why.
    pub why: String,
}

/// Most files that a report names because something of them was not compared.
const UNVERIFIED_MAX: usize = 8;

impl fmt::Display for VerificationReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "verify   {}", format_bytes(self.bytes))?;
        for VerifiedBy {
            by,
            algorithm,
            files,
        } in &self.by
        {
            let files = counted(*files, "file");
            write!(f, ", {files} by {algorithm} of {}", printable(by))?;
        }
        if let Some(Unverified { location, why }) = self.unverified.first() {
            write!(
                f,
                "; not all of {}: {}",
                printable(location),
                printable(why)
            )?;
        }
        match self.unverified_files.saturating_sub(1) {
            0 => Ok(()),
            others => write!(f, " (and of {others} more)"),
        }
    }
}

impl Report {
    /// Takes over what was compared.
    pub(crate) fn set_verification(
        &mut self,
        choice: &str,
        bytes: u64,
        by: &[(String, String, u64)],
        unverified: &[(String, String)],
    ) {
        let by = by.iter().cloned();
        let named = unverified.iter().take(UNVERIFIED_MAX).cloned();
        self.verification = Some(VerificationReport {
            choice: choice.to_owned(),
            bytes,
            by: by
                .map(|(by, algorithm, files)| VerifiedBy {
                    by,
                    algorithm,
                    files,
                })
                .collect(),
            unverified: named
                .map(|(location, why)| Unverified { location, why })
                .collect(),
            unverified_files: unverified.len() as u64,
        });
    }
}
