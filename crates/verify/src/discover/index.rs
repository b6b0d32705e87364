//! Compares the index of a checkpoint with a manifest or a signature, and the files of the
//! checkpoint with those that a manifest lists.
//!
//! An index decides which files and which of their tensors exist. If it were not compared, anyone
//! who can write it could remove shards, or point a tensor at another file, while every file still
//! matches.

use std::collections::HashSet;

use super::sidecar::Sidecars;
use super::{FoundManifest, signature};
use crate::Verify;
use crate::checkpoint::{IndexFile, OpenedCheckpoint};
use crate::claims::Claim;
use crate::corrupt::{HINT, corrupt};
use crate::digest::{Algorithm, Digest};
use crate::error::{Comparison, Error, ErrorKind, Result, counted};
use crate::format::SUFFIX;
use crate::manifest::clipped;
use crate::options::Location;

/// Suffix of index files of safetensors checkpoints.
const INDEX: &str = ".safetensors.index.json";

/// Hint for a manifest that lists too few or too many files.
const ANEW: &str = "download the checkpoint again; if it was changed on purpose, write a new manifest: tload verify LOCATION --write --force";

/// Compares the index with a manifest that the caller named.
///
/// # Errors
///
/// [`ErrorKind::InvalidRequest`] for a manifest that does not list it, [`ErrorKind::Corrupt`] for
/// an index that differs.
pub(super) fn compare(index: &IndexFile, manifest: &FoundManifest) -> Result<()> {
    let said = from_manifest(index, manifest).ok_or_else(|| {
        let message = format!(
            "cannot be verified as requested: it is an index, which decides what is loaded, \
             and the manifest {} does not list it",
            manifest.location
        );
        Error::invalid_request(message)
            .with_location(index.location())
            .with_hint(ANEW)
    })?;
    compare_with(index, &said)
}

/// Compares the index with the manifest `beside` it, or else, if the choice is strict, with a
/// signature. It is not an error if neither knows it.
///
/// # Errors
///
/// [`ErrorKind::Corrupt`] for an index that differs; errors of reading a signature.
pub(super) fn compare_beside(
    index: &IndexFile,
    beside: Option<&FoundManifest>,
    choice: &Verify,
    sidecars: &Sidecars<'_>,
) -> Result<()> {
    let mut said = beside.and_then(|manifest| from_manifest(index, manifest));
    if said.is_none() && choice.is_strict() {
        let folder = index.location().parent();
        let signed = signature::beside(&folder, sidecars)?;
        said = signature::for_file(index.location(), &folder, signed.as_ref()).ok();
    }
    said.map_or(Ok(()), |said| compare_with(index, &said))
}

fn from_manifest(index: &IndexFile, manifest: &FoundManifest) -> Option<Claim> {
    let file = manifest.file(index.location(), &index.location().parent())?;
    Some(Claim::from_manifest(manifest.by(), file))
}

/// Compares the length and all digests.
fn compare_with(index: &IndexFile, said: &Claim) -> Result<()> {
    if let Some(wanted) = said.len.filter(|&wanted| wanted != index.byte_len()) {
        let (found, by) = (counted(index.byte_len(), "byte"), &said.by);
        let message = format!("has {found}, and {by} says {wanted}");
        return Err(Error::new(ErrorKind::Corrupt, message)
            .with_location(index.location())
            .with_comparison(Comparison {
                expected: counted(wanted, "byte"),
                found,
                by: by.clone(),
            })
            .with_hint(HINT));
    }
    let digests = index.digests();
    let found = |algorithm: Algorithm| match algorithm.polynomial() {
        Some(polynomial) => Some(Digest::from_crc(algorithm, digests.crcs.get(polynomial))),
        None => Digest::new(algorithm, &digests.sha256),
    };
    for expected in &said.whole {
        let found = found(expected.algorithm()).expect("as long as the algorithm has it");
        if found != *expected {
            return Err(corrupt(&said.by, *expected, found).with_location(index.location()));
        }
    }
    Ok(())
}

/// Requires that the checkpoint has every file with weights that a manifest lists, and the index.
///
/// # Errors
///
/// [`ErrorKind::Corrupt`] for a file that it lacks.
pub(super) fn require_listed(
    checkpoint: &OpenedCheckpoint,
    manifest: &FoundManifest,
) -> Result<()> {
    let shards = checkpoint.shards();
    let Some(folder) = shards.first().map(|shard| checkpoint.folder_of(shard)) else {
        return Ok(());
    };
    let files = shards
        .iter()
        .map(|shard| shard.source().location())
        .chain(checkpoint.index().map(IndexFile::location));
    // An index that was replaced by one of fewer shards must not make the others optional.
    let by_name = checkpoint.index().is_none();
    let files = files.chain(checkpoint.left_out().iter().filter(|_| by_name));
    let there: HashSet<String> = files
        .filter_map(|file: &Location| file.below(&folder))
        .collect();
    let mut listed = manifest.manifest.files.iter();
    let missing = listed.find(|(name, file)| {
        let is_weights =
            !file.tensors.is_empty() || name.ends_with(SUFFIX) || name.ends_with(INDEX);
        is_weights && !there.contains(*name)
    });
    let Some((name, _)) = missing else {
        return Ok(());
    };
    let name = clipped(name);
    let what = match checkpoint.index() {
        Some(index) => format!("the index {} does not list it", index.location()),
        None => "it is missing".to_owned(),
    };
    let message = format!(
        "the manifest {} lists {name:?}, which is not a file of the checkpoint: {what}",
        manifest.location
    );
    Err(Error::new(ErrorKind::Corrupt, message)
        .with_location(checkpoint.location())
        .with_hint(ANEW))
}
