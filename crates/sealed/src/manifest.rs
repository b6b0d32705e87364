//! Manifest of a sealed checkpoint, `sealed.manifest`: all files, with what identifies each. Sealed
//! itself, so that a file that is missing, older or of another checkpoint is an error.

use serde::{Deserialize, Serialize};
use tload_base::error::{Error, ErrorKind, Result};

/// Name of the file.
pub const MANIFEST_NAME: &str = "sealed.manifest";

/// Longest sealed manifest, bytes: 100,000 files need about 30 MB.
pub(crate) const MANIFEST_BYTES_MAX: u64 = 100 << 20;

/// All files of a checkpoint but the two that this crate adds.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Manifest {
    version: u64,
    /// Files, in the order of their names.
    files: Vec<ManifestEntry>,
}

/// One file of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ManifestEntry {
    /// Path below the checkpoint, with slashes.
    pub name: String,
    /// Length of the file, not sealed, bytes.
    pub bytes: u64,
    /// SHA-256 of the file, not sealed, in hexadecimal.
    pub sha256: String,
    /// Header of the sealed file in hexadecimal, whose salt is of this file only; none if the file
    /// is not sealed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub header: Option<String>,
}

impl Manifest {
    pub(crate) fn new(mut files: Vec<ManifestEntry>) -> Self {
        files.sort_by(|one, other| one.name.cmp(&other.name));
        Self { version: 1, files }
    }

    /// Reads a manifest that has been opened, so that its text is what was written.
    pub(crate) fn parse(text: &[u8]) -> Result<Self> {
        let invalid = |message: String| Error::new(ErrorKind::InvalidFormat, message);
        let manifest: Self = serde_json::from_slice(text)
            .map_err(|error| invalid(format!("is no manifest of a sealed checkpoint: {error}")))?;
        if manifest.version != 1 {
            let message = format!("is a manifest of version {}, not 1", manifest.version);
            return Err(Error::unsupported(message).with_hint("update tload"));
        }
        Ok(manifest)
    }

    pub(crate) fn to_text(&self) -> Vec<u8> {
        serde_json::to_vec_pretty(self).expect("only text and numbers")
    }

    /// Returns all files, in the order of their names.
    #[must_use]
    pub fn files(&self) -> &[ManifestEntry] {
        &self.files
    }

    /// Returns the file of this name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&ManifestEntry> {
        let files = &self.files;
        let at = files.binary_search_by(|file| (*file.name).cmp(name)).ok()?;
        Some(&files[at])
    }
}

/// Returns the associated data of a file, which binds it to its checkpoint and its name.
#[must_use]
pub fn associated(id: &str, name: &str) -> Vec<u8> {
    format!("tload-sealed/1\0{id}\0{name}").into_bytes()
}
