//! Looks up expected digests for each source, the strongest authority first: a manifest beside the
//! checkpoint, digests in the file itself, the store's own checksum of an object, the digest that a
//! hub states, a model's signature.
//!
//! Sends small requests only, in parallel. This file owns their order; `object`, `hub`, `signature`
//! and `tensorizer` interpret the responses.

mod hub;
mod index;
mod object;
mod sidecar;
mod signature;
mod tensorizer;

use std::collections::BTreeMap;
use std::sync::Arc;

pub(super) use sidecar::Sidecars;
pub use signature::read as parse_signature;
pub(super) use signature::{BYTES_MAX as SIGNATURE_BYTES_MAX, NAME as SIGNATURE_NAME};

use super::Verify;
use super::claims::{Claim, Claims, Counting};
use super::digest::{Algorithm, Digest};
use super::expected::Expectation;
use super::manifest::{MANIFEST_BYTES_MAX, MANIFEST_NAME, Manifest, ManifestFile};
use crate::checkpoint::{OpenedCheckpoint, Shard};
use crate::error::{Error, ErrorKind, Result, nearest_name};
use crate::options::{Location, Protocol, StoreOptions};
use crate::storage::Source;
use crate::sync::detached::PendingOps;
use crate::sync::parallel::parallel_map;

/// Number of concurrent requests; each is small and takes a round trip.
const ASKED_AT_A_TIME: usize = 64;

/// Source to look up.
#[derive(Clone, Debug)]
pub(super) struct Lookup<'a> {
    pub(super) source: &'a Arc<dyn Source>,
    /// Directory with the manifest and the signature that cover the source.
    pub(super) folder: Location,
}

/// Scope of a lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LookupScope {
    /// Asks for each source until one authority knows it.
    First,
    /// Like `First`, counting only accepted algorithms; an unreachable authority is an error unless
    /// another one answers.
    Needed(Counting),
    /// Asks all authorities for every source.
    All,
    /// Like `All`, without signatures, for callers with a signature that was already checked.
    AllButSignatures,
}

impl LookupScope {
    /// Returns whether further authorities are to be asked.
    fn goes_on(self, known: &Claims) -> bool {
        match self {
            Self::First => !known.suffices(Counting::All),
            Self::Needed(counting) => !known.suffices(counting),
            Self::All | Self::AllButSignatures => true,
        }
    }
}

/// Manifest and the location it was read from.
#[derive(Debug)]
pub(super) struct FoundManifest {
    pub(super) location: Location,
    pub(super) manifest: Manifest,
}

impl FoundManifest {
    /// Returns the display name of the manifest.
    fn by(&self) -> String {
        format!("manifest {}", self.location)
    }

    /// Returns the entry of a file of a checkpoint in `folder`.
    fn file(&self, file: &Location, folder: &Location) -> Option<&ManifestFile> {
        self.manifest.files.get(&file.below(folder)?)
    }
}

/// Looks up the expectation for each file of a checkpoint, in its order. Reaches other files the
/// way the checkpoint itself is reached.
///
/// # Errors
///
/// - [`ErrorKind::InvalidFormat`] and [`ErrorKind::Unsupported`] for manifests and signatures that
///   cannot be read.
/// - [`ErrorKind::NotFound`] for a requested manifest that does not exist.
/// - [`ErrorKind::Corrupt`] for an index that differs from the manifest's, and for a checkpoint
///   that lacks a file that a requested manifest lists.
/// - [`ErrorKind::PermissionDenied`] for a manifest or signature that the caller did not name and
///   that is a link out of its directory.
/// - [`ErrorKind::Changed`] for objects that were replaced.
/// - If `choice` is strict and no other authority has a digest, the error that kept a store from
///   stating its checksum.
pub fn find(checkpoint: &OpenedCheckpoint, choice: &Verify) -> Result<Vec<Expectation>> {
    find_now(checkpoint, choice, false, &PendingOps::default())
}

/// Requires that `checkpoint` consists of the files that a manifest lists, if `choice` names one:
/// its index is the listed one, and no listed file with weights is missing. Nothing is required of
/// a checkpoint whose files were named one by one.
///
/// A load requires this by itself unless its tensors are selected by name. Callers that name all
/// tensors of a model call this function.
///
/// # Errors
///
/// [`ErrorKind::Corrupt`] for an index that differs and for a missing file,
/// [`ErrorKind::InvalidRequest`] for an index that the manifest does not list, and errors of
/// reading the manifest.
pub fn require_files(checkpoint: &OpenedCheckpoint, choice: &Verify) -> Result<()> {
    let (Verify::Manifest(location) | Verify::Sha256(Some(location))) = choice else {
        return Ok(());
    };
    let store = StoreOptions::default();
    let sidecars = Sidecars::new(checkpoint.shards().iter().map(Shard::source), &store)
        .following(checkpoint.follows_symlinks());
    let manifest = chosen(&Location::parse(location)?, &sidecars)?;
    require_manifest_files(checkpoint, &manifest, checkpoint.is_whole())
}

fn require_manifest_files(
    checkpoint: &OpenedCheckpoint,
    manifest: &FoundManifest,
    is_whole: bool,
) -> Result<()> {
    if let Some(index) = checkpoint.index() {
        index::compare(index, manifest)?;
    }
    if is_whole {
        index::require_listed(checkpoint, manifest)?;
    }
    Ok(())
}

/// Implements [`find`], and records in `pending` what it waits for. Tensors that were selected
/// `by_name` need not be all that a manifest lists.
pub fn find_now(
    checkpoint: &OpenedCheckpoint,
    choice: &Verify,
    by_name: bool,
    pending: &PendingOps,
) -> Result<Vec<Expectation>> {
    let shards = checkpoint.shards();
    let lookup: Vec<_> = shards
        .iter()
        .map(|shard| Lookup {
            source: shard.source(),
            folder: checkpoint.folder_of(shard),
        })
        .collect();
    let store = StoreOptions::default();
    let sidecars = Sidecars::new(lookup.iter().map(|lookup| lookup.source), &store)
        .following(checkpoint.follows_symlinks())
        .telling(pending);
    let counting = Counting::new(choice);
    let what_there_is = |scope| {
        let manifests = manifests(&lookup, &sidecars)?;
        if let Some(index) = checkpoint.index() {
            let beside = manifests.first().and_then(Option::as_deref);
            index::compare_beside(index, beside, choice, &sidecars)?;
        }
        gather(&lookup, &manifests, scope, &sidecars)
    };
    let known: Vec<_> = match choice {
        Verify::Off => {
            let why = "verification is off".to_owned();
            return Ok(vec![Expectation::Nothing { why }; shards.len()]);
        }
        Verify::Auto => what_there_is(LookupScope::First)?,
        Verify::Require | Verify::Sha256(None) => what_there_is(LookupScope::Needed(counting))?,
        Verify::Manifest(location) | Verify::Sha256(Some(location)) => {
            let found = chosen(&Location::parse(location)?, &sidecars)?;
            require_manifest_files(checkpoint, &found, checkpoint.is_whole() && !by_name)?;
            let said = |lookup| from_manifest(lookup, Some(&found));
            lookup.iter().map(said).collect()
        }
    };
    let expect = |known: Claims| known.into_expectation(counting);
    Ok(known.into_iter().map(expect).collect())
}

/// Reads the manifest that the caller requested.
pub(super) fn chosen(location: &Location, sidecars: &Sidecars<'_>) -> Result<FoundManifest> {
    let text = sidecars.read(location, MANIFEST_BYTES_MAX);
    let text = text.map_err(|error| {
        if error.kind() == ErrorKind::InvalidRequest {
            error.with_hint(format!(
                "pass the manifest itself, a file such as {MANIFEST_NAME}"
            ))
        } else {
            error
        }
    })?;
    let text = text.ok_or_else(|| {
        let name = location.to_string();
        let hint = match nearest_name(&name, Verify::NAMES) {
            Some(mode) => {
                format!("did you mean ‹verify={mode}›? Other texts are locations of manifests")
            }
            None => "check the path; tload verify LOCATION --write creates one".to_owned(),
        };
        Error::new(ErrorKind::NotFound, "there is no manifest")
            .with_location(location)
            .with_hint(hint)
    })?;
    parsed(location.clone(), &text)
}

/// Reads the manifest in a directory, if there is one.
pub(super) fn beside(folder: &Location, sidecars: &Sidecars<'_>) -> Result<Option<FoundManifest>> {
    let location = folder.join(MANIFEST_NAME);
    let text = sidecars.read_in(folder, &location, MANIFEST_BYTES_MAX)?;
    text.map(|text| parsed(location, &text)).transpose()
}

fn parsed(location: Location, text: &[u8]) -> Result<FoundManifest> {
    let manifest = Manifest::parse(text).map_err(|error| error.with_location(&location))?;
    Ok(FoundManifest { location, manifest })
}

/// Reads the manifest in the directory of each source.
pub(super) fn manifests(
    lookup: &[Lookup<'_>],
    sidecars: &Sidecars<'_>,
) -> Result<Vec<Option<Arc<FoundManifest>>>> {
    per_folder(lookup, |folder| beside(folder, sidecars))
}

/// Calls `find` once for each distinct directory, and returns its result for each source.
fn per_folder<T: Send + Sync>(
    lookup: &[Lookup<'_>],
    find: impl Fn(&Location) -> Result<Option<T>> + Sync,
) -> Result<Vec<Option<Arc<T>>>> {
    let mut folders: Vec<&Location> = Vec::new();
    for lookup in lookup {
        // Files beside sealed ones are sealed too, and only the checkpoint has the key.
        if lookup.source.stored().is_none() && !folders.contains(&&lookup.folder) {
            folders.push(&lookup.folder);
        }
    }
    let found = parallel_map(&folders, ASKED_AT_A_TIME, |folder| {
        find(folder).map(|found| found.map(Arc::new))
    });
    let found = found.into_iter().collect::<Result<Vec<_>>>()?;
    let of_folder = |lookup: &Lookup<'_>| {
        let at = folders.iter().position(|folder| **folder == lookup.folder);
        at.and_then(|at| found[at].clone())
    };
    Ok(lookup.iter().map(of_folder).collect())
}

/// Collects the claims about each source.
pub(super) fn gather(
    lookup: &[Lookup<'_>],
    manifests: &[Option<Arc<FoundManifest>>],
    scope: LookupScope,
    sidecars: &Sidecars<'_>,
) -> Result<Vec<Claims>> {
    let manifests = lookup.iter().zip(manifests);
    let mut known: Vec<_> = manifests
        .map(|(lookup, manifest)| from_manifest(lookup, manifest.as_deref()))
        .collect();
    let open = |known: &[Claims]| -> Vec<usize> {
        (0..known.len())
            .filter(|at| scope.goes_on(&known[*at]))
            .collect()
    };
    for at in open(&known) {
        let own = tensorizer::in_file(&**lookup[at].source)?;
        let sealed = sealed(lookup[at].source).filter(|_| scope != LookupScope::First);
        known[at].claims.extend(own.into_iter().chain(sealed));
    }
    let left = open(&known);
    let said = parallel_map(&left, ASKED_AT_A_TIME, |&at| {
        let source = lookup[at].source;
        let ask = || for_source(&**source, sidecars);
        let stage = "requesting its checksum";
        sidecars.pending().during(source.location(), stage, ask)
    });
    let mut failures = Vec::new();
    for (at, said) in left.into_iter().zip(said) {
        match said {
            Ok(said) => known[at].take(said),
            Err(error) if error.kind() == ErrorKind::Changed => return Err(error),
            Err(error) => {
                let why = format!("its checksum could not be requested: {error}");
                known[at].take(Err(why));
                failures.push((at, error));
            }
        }
    }
    if scope == LookupScope::AllButSignatures {
        return Ok(known);
    }
    let left = open(&known);
    let signers: Vec<_> = left.iter().map(|&at| lookup[at].clone()).collect();
    let signed = per_folder(&signers, |folder| signature::beside(folder, sidecars))?;
    for (at, signed) in left.into_iter().zip(signed) {
        let (file, folder) = (lookup[at].source.location(), &lookup[at].folder);
        known[at].take(signature::for_file(file, folder, signed.as_deref()));
    }
    // A failed request does not mean that there is no digest.
    let needed = |at: usize| matches!(scope, LookupScope::Needed(_)) && scope.goes_on(&known[at]);
    match failures.into_iter().find(|(at, _)| needed(*at)) {
        Some((_, error)) => Err(error),
        None => Ok(known),
    }
}

/// Returns what a sealed manifest states about a source. Loads do not ask unless digests are
/// required: what is sealed is authenticated as it is opened.
fn sealed(source: &Arc<dyn Source>) -> Option<Claim> {
    let (_, transform) = source.stored()?;
    let sha256 = Digest::from_hex(Algorithm::Sha256, transform.sha256()?)?;
    Some(Claim::from_whole("the sealed manifest", vec![sha256]))
}

/// Returns the claim of a manifest about a source.
pub(super) fn from_manifest(lookup: &Lookup<'_>, manifest: Option<&FoundManifest>) -> Claims {
    let mut known = Claims::default();
    known.take(match manifest {
        None => Err(format!("there is no {MANIFEST_NAME}")),
        Some(found) => {
            let file = found.file(lookup.source.location(), &lookup.folder);
            file.map(|file| Claim::from_manifest(found.by(), file))
                .ok_or_else(|| format!("the manifest {} does not list it", found.location))
        }
    });
    known
}

/// Returns the claim of the place that holds a source: an object store, a hub, a hub's cache.
/// Returns a text if the place states no digest, and an error if the request failed.
fn for_source(source: &dyn Source, sidecars: &Sidecars<'_>) -> Result<Result<Claim, String>> {
    if let Some(file) = source.as_file() {
        return Ok(hub::for_file(file, sidecars));
    }
    let Some(object) = source.as_object() else {
        return Ok(Err("nothing states a digest of it".to_owned()));
    };
    let protocol = object.location().protocol();
    let (by, silent) = match protocol {
        Some(Protocol::Hub) => ("the hub", "the hub provides no digest of it"),
        Some(Protocol::Oci) => (
            "the registry's manifest",
            "the registry states no SHA-256 of it",
        ),
        Some(
            Protocol::S3 | Protocol::Gcs | Protocol::Azure | Protocol::Http | Protocol::Custom,
        )
        | None => return Ok(object::from_headers(protocol, &object.checksums()?)),
    };
    let name = object.contents_name().ok_or_else(|| silent.to_owned());
    Ok(name.and_then(|name| hub::from_contents(name, by)))
}

/// Digests by file name.
pub(super) type Named = BTreeMap<String, Digest>;

impl Claims {
    fn take(&mut self, said: Result<Claim, String>) {
        match said {
            Ok(claim) => self.claims.push(claim),
            Err(silent) => self.silent.push(silent),
        }
    }
}
