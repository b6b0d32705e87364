//! Digests that a hub states for a file: on the hub itself, in the cache of its own tools, or
//! beside a file that they downloaded elsewhere.
//!
//! The cache (`huggingface_hub` 2.4, `file_download.py`) has `snapshots/COMMIT/NAME` as a symbolic
//! link to `blobs/ETAG`. A download into a directory (`_local_folder.py`) leaves
//! `.cache/huggingface/download/NAME.metadata`, with commit, `ETag` and time in three lines. The
//! `ETag` of a large file is its SHA-256; that of a small one is git's SHA-1, which does not cover
//! the bytes alone.

use std::path::{Path, PathBuf};

use super::sidecar::Sidecars;
use crate::claims::Claim;
use crate::digest::{Algorithm, Digest};
use crate::options::Location;
use crate::storage::{FileSource, Source};

/// Maximum length of a metadata file, bytes: three short lines.
const METADATA_BYTES_MAX: u64 = 4096;

/// Hexadecimal digits of git's SHA-1.
const GIT_DIGITS: usize = 40;

/// Tolerance by which a file may be younger than the time in its metadata, seconds: file systems
/// round, and so does `huggingface_hub`.
const ROUNDED_SECONDS: f64 = 1.0;

/// Returns the digest that `huggingface_hub` recorded for a local file, or the reason why there is
/// none.
pub(super) fn for_file(file: &FileSource, sidecars: &Sidecars<'_>) -> Result<Claim, String> {
    let path = file.location().as_path().unwrap_or(Path::new(""));
    if let Some(blob) = blob(path) {
        return from_contents(&blob, "the name of its blob in the hub's cache");
    }
    let Some((location, text)) = metadata(path, sidecars)? else {
        return Err(
            "it is neither in a huggingface_hub cache nor a download of huggingface_hub".to_owned(),
        );
    };
    let (modified, nanoseconds) = file.identity().modified;
    let Some((etag, downloaded)) = parsed(&text) else {
        return Err(format!("{location} cannot be read"));
    };
    if seconds(modified, nanoseconds) - ROUNDED_SECONDS > downloaded {
        return Err(format!(
            "it was changed after the download that {location} records"
        ));
    }
    from_contents(etag, &format!("{location}"))
}

/// Interprets the name that a hub gives to the contents of a file.
pub(super) fn from_contents(name: &str, by: &str) -> Result<Claim, String> {
    if let Some(digest) = Digest::from_hex(Algorithm::Sha256, name) {
        return Ok(Claim::from_whole(by, vec![digest]));
    }
    let is_git = name.len() == GIT_DIGITS && name.bytes().all(|byte| byte.is_ascii_hexdigit());
    Err(if is_git {
        format!("{by} is git's SHA-1, which only small files have and which is not compared")
    } else {
        format!("{by} is not a SHA-256")
    })
}

/// Returns the name of the blob to which a file of a snapshot links.
fn blob(path: &Path) -> Option<String> {
    let target = std::fs::read_link(path).ok()?;
    let folder = target.parent()?.file_name()?;
    (folder == "blobs").then_some(())?;
    Some(target.file_name()?.to_str()?.to_owned())
}

/// Reads the metadata of a download: from the directory of the file, or from one above it. Returns
/// the reason if the metadata there cannot be read.
fn metadata(path: &Path, sidecars: &Sidecars<'_>) -> Result<Option<(Location, String)>, String> {
    let Ok(path) = std::path::absolute(path) else {
        return Ok(None);
    };
    let in_folder = |folder: &Path| {
        let mut name = path.strip_prefix(folder).ok()?.as_os_str().to_owned();
        name.push(".metadata");
        let place: PathBuf = [
            folder,
            Path::new(".cache/huggingface/download"),
            Path::new(&name),
        ]
        .iter()
        .collect();
        // Most directories have no metadata.
        place.symlink_metadata().ok()?;
        let (folder, location) = (Location::from_path(folder), Location::from_path(place));
        match sidecars.read_in(&folder, &location, METADATA_BYTES_MAX) {
            Ok(Some(text)) => Some(Ok((location, String::from_utf8(text).ok()?))),
            Ok(None) => None,
            Err(error) => Some(Err(format!(
                "{location} cannot be read: {}",
                error.message()
            ))),
        }
    };
    path.ancestors().skip(1).find_map(in_folder).transpose()
}

/// Returns the `ETag` and the time of the download, seconds since 1970.
fn parsed(text: &str) -> Option<(&str, f64)> {
    let mut lines = text.lines().map(str::trim);
    let (_commit, etag, time) = (lines.next()?, lines.next()?, lines.next()?);
    let time: f64 = time.parse().ok()?;
    time.is_finite().then_some((etag, time))
}

#[expect(
    clippy::cast_precision_loss,
    reason = "compared to a second; 53 bits hold those of 285 million years"
)]
fn seconds(whole: i64, nanoseconds: i64) -> f64 {
    whole as f64 + nanoseconds as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    const SHA: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
    const GIT: &str = "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391";

    fn said(path: &Path) -> Result<(String, Vec<String>), String> {
        let file = FileSource::open(&Location::from_path(path)).expect("opens");
        let store = crate::options::StoreOptions::default();
        let claim = for_file(&file, &Sidecars::new([], &store))?;
        let digests = claim.whole.iter().map(ToString::to_string).collect();
        Ok((claim.by, digests))
    }

    fn write(path: &Path, text: &str) {
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        std::fs::write(path, text).expect("a file");
    }

    #[test]
    fn blob_link_yields_sha256() {
        let folder = tempfile::tempdir().expect("a folder");
        let storage = folder.path().join("models--org--name");
        for (blob, wanted) in [
            (SHA, Ok(format!("sha256:{SHA}"))),
            (GIT, Err("git's SHA-1")),
            ("unnamed", Err("is not a SHA-256")),
        ] {
            write(&storage.join("blobs").join(blob), "");
            let link = storage.join("snapshots/c/sub").join(blob);
            std::fs::create_dir_all(link.parent().expect("a folder")).expect("a folder");
            symlink(format!("../../../blobs/{blob}"), &link).expect("a link");
            match (said(&link), wanted) {
                (Ok((by, digests)), Ok(wanted)) => {
                    assert_eq!(digests, [wanted]);
                    assert!(by.contains("blob"), "{by}");
                }
                (Err(why), Err(wanted)) => assert!(why.contains(wanted), "{why}"),
                (said, _) => panic!("{blob}: {said:?}"),
            }
        }
        let elsewhere = storage.join("snapshots/c/link");
        symlink(storage.join("blobs").join(SHA), &elsewhere).expect("a link");
        assert!(said(&elsewhere).is_ok(), "absolute links lead there too");
        let other = folder.path().join("other").join(SHA);
        write(&other, "");
        let link = folder.path().join("link");
        symlink(&other, &link).expect("a link");
        assert!(said(&link).is_err(), "not a directory of blobs");
    }

    #[test]
    fn metadata_counts_unless_the_file_is_younger() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("deep/model.safetensors");
        write(&file, "");
        assert!(said(&file).expect_err("none").contains("nor a download"));
        let metadata = folder
            .path()
            .join(".cache/huggingface/download/deep/model.safetensors.metadata");
        let source = FileSource::open(&Location::from_path(&file)).expect("opens");
        let now = seconds(source.identity().modified.0, 0);
        for (etag, time, wanted) in [
            (SHA, format!("{}", now + 2.0), None),
            (SHA, format!("{now}"), None),
            (
                SHA,
                format!("{}", now - 5.0),
                Some("changed after the download"),
            ),
            (SHA, "nan".to_owned(), Some("cannot be read")),
            (SHA, "soon".to_owned(), Some("cannot be read")),
            (GIT, format!("{}", now + 2.0), Some("git's SHA-1")),
            ("", format!("{}", now + 2.0), Some("is not a SHA-256")),
        ] {
            write(&metadata, &format!("commit\n{etag}\n{time}\n"));
            match (said(&file), wanted) {
                (Ok((by, digests)), None) => {
                    assert_eq!(digests, [format!("sha256:{SHA}")]);
                    assert!(by.ends_with(".metadata"), "{by}");
                }
                (Err(why), Some(wanted)) => assert!(why.contains(wanted), "{why}"),
                (said, wanted) => panic!("{etag} {time}: {said:?} {wanted:?}"),
            }
        }
        write(&metadata, "commit\n");
        assert!(said(&file).expect_err("short").contains("cannot be read"));
        // Links that stay in the directory are followed, others are not.
        let good = format!("commit\n{SHA}\n{}\n", now + 2.0);
        let elsewhere = tempfile::tempdir().expect("a folder");
        for (at, is_read) in [
            (folder.path().join("here"), true),
            (elsewhere.path().join("there"), false),
        ] {
            write(&at, &good);
            std::fs::remove_file(&metadata).expect("there");
            symlink(&at, &metadata).expect("a link");
            match said(&file) {
                Ok(_) => assert!(is_read, "read {}", at.display()),
                Err(why) => assert!(!is_read && why.contains("leads out of"), "{why}"),
            }
        }
    }
}
