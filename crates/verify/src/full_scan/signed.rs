//! Files that a signature covers: these files, and no others in the directory. The caller of the
//! verification checks the signature itself and passes its contents here. So a `model.sig` that
//! changes afterwards has no effect.

use std::collections::BTreeMap;

use super::walk::below;
use crate::checkpoint::{FileSet, OpenOptions};
use crate::claims::Claim;
use crate::digest::{Algorithm, Digest};
use crate::discover::{SIGNATURE_BYTES_MAX, SIGNATURE_NAME, Sidecars};
use crate::error::{Error, ErrorKind, Result};
use crate::manifest::wrong_name;
use crate::options::Location;

/// Files covered by a checked signature.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SignedFiles {
    /// SHA-256 digests, by path below the directory of the checkpoint.
    pub files: BTreeMap<String, Digest>,
    /// Paths below the directory that need not be signed, with everything below them.
    pub ignored: Vec<String>,
}

/// Signature that has not been checked yet.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SignatureText {
    /// Location it was read from.
    pub location: Location,
    /// Contents of the file.
    pub text: Vec<u8>,
}

/// Reads the signature beside a checkpoint, `model.sig`, for a caller that checks it and then fills
/// [`SignedFiles`] from it.
///
/// # Errors
///
/// [`ErrorKind::NotFound`] if there is none; errors of finding the checkpoint and of reading the
/// file.
pub fn read_signature(
    location: &Location,
    opening: impl Into<OpenOptions>,
) -> Result<SignatureText> {
    let opening = opening.into();
    let (file_set, _) = FileSet::find_or_empty(location, &opening)?;
    let location = file_set.folder.join(SIGNATURE_NAME);
    let sidecars = Sidecars::new([], &opening.store).following(file_set.follows_symlinks());
    match sidecars.read_in(&file_set.folder, &location, SIGNATURE_BYTES_MAX)? {
        Some(text) => Ok(SignatureText { location, text }),
        None => Err(Error::new(ErrorKind::NotFound, "there is no signature")
            .with_location(location)
            .with_hint(
                "sign the model (model_signing sign), or get the signature that belongs to it",
            )),
    }
}

impl SignedFiles {
    /// Checks names and digests.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidFormat`] for names that lead out of the directory and for digests that
    /// are not secure.
    pub(super) fn check(&self) -> Result<()> {
        for (name, digest) in &self.files {
            let invalid = |message| Err(Error::new(ErrorKind::InvalidFormat, message));
            if let Some(wrong) = wrong_name(name) {
                return invalid(format!("the signed file name {name:?} {wrong}"));
            }
            if digest.algorithm() != Algorithm::Sha256 {
                return invalid(format!(
                    "the signed file {name:?} has the digest {digest}, wanted SHA-256"
                ));
            }
        }
        Ok(())
    }

    /// Returns the signed digest of a file.
    pub(super) fn claim_for(&self, name: &str, file_set: &FileSet) -> Option<Claim> {
        let by = format!("signature {}", file_set.folder.join(SIGNATURE_NAME));
        let digest = self.files.get(name)?;
        Some(Claim::from_whole(by, vec![*digest]))
    }

    /// Returns the files in the directory that should be signed and are not, and a note if the list
    /// may be incomplete.
    pub(super) fn others(&self, file_set: &FileSet) -> Result<(Vec<String>, Option<String>)> {
        if !file_set.is_folder {
            let note = "only the files of the checkpoint were compared with the signature: pass the directory to compare all of its files";
            return Ok((Vec::new(), Some(note.to_owned())));
        }
        let is_known = |name: &str| self.is_ignored(name);
        let (mut names, note) = below(file_set, &is_known)?;
        names.retain(|name| !self.files.contains_key(name));
        Ok((names, note))
    }

    fn is_ignored(&self, name: &str) -> bool {
        self.ignored.iter().any(|ignored| {
            let ignored = ignored
                .strip_prefix("./")
                .unwrap_or(ignored)
                .trim_end_matches('/');
            let rest = name.strip_prefix(ignored);
            matches!(ignored, "" | ".")
                || rest.is_some_and(|it| it.is_empty() || it.starts_with('/'))
        })
    }
}

/// Returns the error for a file that exists and is not signed.
pub(super) fn unsigned() -> Error {
    Error::new(ErrorKind::Corrupt, "is not signed").with_hint(
        "remove it, or sign the model again; model-signing's --ignore-paths (ignore_paths) leaves files out",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignored_path_covers_its_subtree_only() {
        let signed = SignedFiles {
            ignored: vec![
                ".git/".to_owned(),
                "./model.sig".to_owned(),
                "a/b".to_owned(),
            ],
            ..SignedFiles::default()
        };
        for (name, ignored) in [
            (".git", true),
            (".git/config", true),
            (".gitattributes", false),
            ("model.sig", true),
            ("model.sigs", false),
            ("a/b/c", true),
            ("a/bc", false),
            ("a", false),
        ] {
            assert_eq!(signed.is_ignored(name), ignored, "{name}");
        }
    }

    #[test]
    fn names_outside_directory_and_weak_digests_are_rejected() {
        let sha = Digest::new(Algorithm::Sha256, &[1; 32]).expect("32 bytes");
        let crc = Digest::new(Algorithm::Crc64Nvme, &[1; 8]).expect("8 bytes");
        for (name, digest, wanted) in [
            ("../a", sha, "leaves the directory"),
            ("/a", sha, "absolute"),
            ("a", crc, "wanted SHA-256"),
        ] {
            let files = [(name.to_owned(), digest)].into();
            let signed = SignedFiles {
                files,
                ..SignedFiles::default()
            };
            let error = signed.check().expect_err(wanted);
            assert_eq!(error.kind(), ErrorKind::InvalidFormat);
            assert!(error.message().contains(wanted), "{error}");
        }
    }
}
