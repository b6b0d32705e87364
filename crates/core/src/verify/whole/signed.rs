//! What somebody has signed: these files, and no others beside them. The signature itself is checked by who asks for the verification;
//! here is only what it is about. So whatever stands in a `model.sig` by now changes nothing.

use std::collections::BTreeMap;

use super::super::digest::{Algorithm, Digest};
use super::super::find::{Nearby, SIGNATURE_BYTES_MAX, SIGNATURE_NAME};
use super::super::manifest::wrong_name;
use super::super::statement::Statement;
use super::below::below;
use super::files::outline_of;
use crate::checkpoint::{OpenOptions, Outline};
use crate::error::{Error, ErrorKind, Result};
use crate::source::Location;

/// The files that a checked signature is about.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SignedFiles {
    /// Their SHA-256, by path below the folder of the checkpoint.
    pub files: BTreeMap<String, Digest>,
    /// Paths below the folder that may be there unsigned, with all that is below them.
    pub ignored: Vec<String>,
}

/// A signature, not checked yet.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SignatureText {
    /// Where it was read.
    pub location: Location,
    /// All of the file.
    pub text: Vec<u8>,
}

/// Reads the signature beside a checkpoint, `model.sig`, for who checks it: then [`SignedFiles`] is what it says.
///
/// # Errors
///
/// [`ErrorKind::NotFound`] if there is none; what finding the checkpoint and reading the file run into.
pub fn read_signature(
    location: &Location,
    opening: impl Into<OpenOptions>,
) -> Result<SignatureText> {
    let opening = opening.into();
    let (outline, _) = outline_of(location, &opening)?;
    let location = outline.folder.join(SIGNATURE_NAME);
    let nearby = Nearby::of([], &opening.store).following(opening.follow_symlinks);
    match nearby.read_in(&outline.folder, &location, SIGNATURE_BYTES_MAX)? {
        Some(text) => Ok(SignatureText { location, text }),
        None => Err(Error::new(ErrorKind::NotFound, "there is no signature")
            .with_location(location)
            .with_hint(
                "sign the model (model_signing sign), or get the signature that belongs to it",
            )),
    }
}

impl SignedFiles {
    /// # Errors
    ///
    /// [`ErrorKind::InvalidFormat`] for names that lead out of the folder and digests that protect against nobody.
    pub(super) fn check(&self) -> Result<()> {
        for (name, digest) in &self.files {
            let invalid = |message| Err(Error::new(ErrorKind::InvalidFormat, message));
            if let Some(wrong) = wrong_name(name) {
                return invalid(format!("the name of the signed file {name:?} {wrong}"));
            }
            if digest.algorithm() != Algorithm::Sha256 {
                return invalid(format!(
                    "the signed file {name:?} has the digest {digest}, wanted SHA-256"
                ));
            }
        }
        Ok(())
    }

    /// What is said of a file.
    pub(super) fn of_file(&self, name: &str, outline: &Outline) -> Option<Statement> {
        let by = format!("signature {}", outline.folder.join(SIGNATURE_NAME));
        let digest = self.files.get(name)?;
        Some(Statement::of_whole(by, vec![*digest]))
    }

    /// The files in the folder that are not signed and should be, and why they may not be all.
    pub(super) fn others(&self, outline: &Outline) -> Result<(Vec<String>, Option<String>)> {
        if !outline.is_folder {
            let note = "only the files of the checkpoint were compared with the signature: give the folder to have it compared with all of its files";
            return Ok((Vec::new(), Some(note.to_owned())));
        }
        let is_known = |name: &str| self.is_ignored(name);
        let (mut names, note) = below(outline, &is_known)?;
        names.retain(|name| !self.files.contains_key(name));
        Ok((names, note))
    }

    fn is_ignored(&self, name: &str) -> bool {
        self.ignored.iter().any(|ignored| {
            let ignored = ignored.strip_prefix("./").unwrap_or(ignored);
            let ignored = ignored.trim_end_matches('/');
            let rest = name.strip_prefix(ignored);
            matches!(ignored, "" | ".")
                || rest.is_some_and(|it| it.is_empty() || it.starts_with('/'))
        })
    }
}

/// The error for a file that is there and not signed.
pub(super) fn unsigned() -> Error {
    Error::new(ErrorKind::Corrupt, "is not signed").with_hint(
        "remove it, or sign the model again; model-signing's --ignore-paths (ignore_paths) leaves files out",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_ignored_is_ignored_with_all_below_it_and_nothing_that_begins_alike() {
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
    fn names_that_lead_out_and_weak_digests_are_refused() {
        let sha = Digest::new(Algorithm::Sha256, &[1; 32]).expect("32 bytes");
        let crc = Digest::new(Algorithm::Crc64Nvme, &[1; 8]).expect("8 bytes");
        for (name, digest, wanted) in [
            ("../a", sha, "leaves the folder"),
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
