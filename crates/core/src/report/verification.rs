//! Report of the comparison of a load's bytes with known digests.

use std::fmt;

use serde::Serialize;

use super::Report;
use crate::error::{counted, printable};
use crate::options::format_bytes;

/// Comparison of a load's bytes with known digests.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct VerificationReport {
    /// Requested mode: `"auto"`, `"require"`, `"sha256"`, or the manifest.
    pub choice: String,
    /// Bytes that were compared and match. A tensor with a digest of its own counts once all of its
    /// bytes have arrived; a file counts once all of the file has arrived.
    pub bytes: u64,
    /// Sources of the digests, and the number of the load's files that each one covers.
    pub by: Vec<VerifiedBy>,
    /// Files that were not fully compared; the first few.
    pub unverified: Vec<Unverified>,
    /// Number of files that were not fully compared.
    pub unverified_files: u64,
}

/// Source of the digests of some files.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct VerifiedBy {
    /// Name of the source, for example `"manifest /m/tload-manifest.json"`.
    pub by: String,
    /// Algorithm: `"crc64nvme"`, `"crc32c"`, `"blake3"` or `"sha256"`; several are joined by
    /// `" and "`. CRCs detect damage but not deliberate changes.
    pub algorithm: String,
    /// Number of files.
    pub files: u64,
}

/// File that was not fully compared.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Unverified {
    /// Location of the file.
    pub location: String,
    /// Reason.
    pub why: String,
}

/// Maximum number of files that a report lists as not fully compared.
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
            write!(f, ", {files} with {algorithm} from {}", printable(by))?;
        }
        if let Some(Unverified { location, why }) = self.unverified.first() {
            write!(
                f,
                "; not fully verified: {} ({})",
                printable(location),
                printable(why)
            )?;
        }
        match self.unverified_files.saturating_sub(1) {
            0 => Ok(()),
            others => write!(f, " and {others} more"),
        }
    }
}

impl Report {
    /// Sets the result of the verification.
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
