//! What there is to compare each source with, the strongest first: a manifest beside the checkpoint, the store's own checksum of an
//! object, what a hub says of a file, a model's signature.
//!
//! Small requests only, side by side. This file owns their order; what the answers mean is in `object`, `hub` and `signature`.

mod hub;
mod index;
mod nearby;
#[cfg(feature = "object")]
mod object;
mod signature;

use std::collections::BTreeMap;
use std::sync::Arc;

pub(super) use nearby::Nearby;
#[cfg(feature = "testing")]
pub(crate) use signature::read as parse_signature;
pub(super) use signature::{BYTES_MAX as SIGNATURE_BYTES_MAX, NAME as SIGNATURE_NAME};

use super::Verify;
use super::digest::Digest;
use super::expected::Expectation;
use super::manifest::{MANIFEST_BYTES_MAX, MANIFEST_NAME, Manifest, ManifestFile};
use super::statement::{Counting, Known, Statement};
use crate::checkpoint::{Checkpoint, Shard, ShardSource};
use crate::error::{Error, ErrorKind, Result};
use crate::side_by_side::side_by_side;
#[cfg(feature = "object")]
use crate::source::Protocol;
use crate::source::{Location, Source, StoreOptions};
use crate::within::Underway;

/// Requests at a time; each is small and takes a round trip.
const ASKED_AT_A_TIME: usize = 64;

/// A source that something is wanted to be known of.
#[derive(Debug)]
pub(super) struct Asked<'a> {
    pub(super) source: &'a ShardSource,
    /// The folder whose manifest and signature are about it.
    pub(super) folder: Location,
}

/// Whom to ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reach {
    /// For each source until one authority knows it.
    First,
    /// The same, for what counts; who cannot be asked is an error if nobody else knows.
    Needed(Counting),
    /// All of them, for every source.
    All,
    /// The same without signatures, for who has one that was checked.
    AllButSignatures,
}

impl Reach {
    /// Whether others are to be asked.
    fn goes_on(self, known: &Known) -> bool {
        match self {
            Self::First => !known.suffices(Counting::All),
            Self::Needed(counting) => !known.suffices(counting),
            Self::All | Self::AllButSignatures => true,
        }
    }
}

/// A manifest and where it was read.
#[derive(Debug)]
pub(super) struct FoundManifest {
    pub(super) location: Location,
    pub(super) manifest: Manifest,
}

impl FoundManifest {
    /// Returns its name, for people.
    fn by(&self) -> String {
        format!("manifest {}", self.location)
    }

    /// Returns what it says of a file of a checkpoint in `folder`.
    fn file(&self, file: &Location, folder: &Location) -> Option<&ManifestFile> {
        self.manifest.files.get(&file.below(folder)?)
    }
}

/// What there is to compare each file of a checkpoint with, in its order. Whatever is asked for is reached as
/// the checkpoint is.
///
/// # Errors
///
/// [`ErrorKind::InvalidFormat`] and [`ErrorKind::Unsupported`] for manifests and signatures that cannot be read,
/// [`ErrorKind::NotFound`] for a manifest that was asked for and is not there, [`ErrorKind::Corrupt`] for an index that is another
/// than a manifest says, and for a checkpoint without a file that a manifest lists that was asked for, [`ErrorKind::PermissionDenied`] for one that nobody named
/// and that is a link out of its folder, [`ErrorKind::Changed`] for objects that were replaced; if `choice` is strict and nobody else
/// knows, whatever kept a store from saying what it knows.
pub fn find(checkpoint: &Checkpoint, choice: &Verify) -> Result<Vec<Expectation>> {
    find_now(checkpoint, choice, false, &Underway::default())
}

/// Requires that `checkpoint` is made of the files that a manifest lists, if `choice` names one: its
/// index is the listed one, and no listed file with weights is missing. Nothing is required of a
/// checkpoint whose files were named one by one.
///
/// A load requires this by itself unless its tensors are selected by name. For callers that name the
/// tensors of a whole model by themselves.
///
/// # Errors
///
/// [`ErrorKind::Corrupt`] for an index that is another and for a missing file,
/// [`ErrorKind::InvalidRequest`] for an index that the manifest does not list, and whatever reading
/// the manifest runs into.
pub fn require_files(checkpoint: &Checkpoint, choice: &Verify) -> Result<()> {
    let (Verify::Manifest(location) | Verify::Sha256(Some(location))) = choice else {
        return Ok(());
    };
    let store = StoreOptions::default();
    let nearby = Nearby::of(checkpoint.shards().iter().map(Shard::source), &store)
        .following(checkpoint.follows_symlinks());
    let manifest = chosen(&Location::parse(location)?, &nearby)?;
    require_manifest_files(checkpoint, &manifest, checkpoint.is_whole())
}

fn require_manifest_files(
    checkpoint: &Checkpoint,
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

/// Does as [`find`], and tells `underway` what it waits for. Tensors that were selected `by_name` need
/// not be all that a manifest lists.
pub(super) fn find_now(
    checkpoint: &Checkpoint,
    choice: &Verify,
    by_name: bool,
    underway: &Underway,
) -> Result<Vec<Expectation>> {
    let shards = checkpoint.shards();
    let asked: Vec<_> = shards
        .iter()
        .map(|shard| Asked {
            source: shard.source(),
            folder: checkpoint.folder_of(shard),
        })
        .collect();
    let store = StoreOptions::default();
    let nearby = Nearby::of(asked.iter().map(|asked| asked.source), &store)
        .following(checkpoint.follows_symlinks())
        .telling(underway);
    let counting = Counting::of(choice);
    let what_there_is = |reach| {
        let manifests = manifests(&asked, &nearby)?;
        if let Some(index) = checkpoint.index() {
            let beside = manifests.first().and_then(Option::as_deref);
            index::compare_beside(index, beside, choice, &nearby)?;
        }
        gather(&asked, &manifests, reach, &nearby)
    };
    let known: Vec<_> = match choice {
        Verify::Off => {
            let why = "nothing was asked to be compared".to_owned();
            return Ok(vec![Expectation::Nothing { why }; shards.len()]);
        }
        Verify::Auto => what_there_is(Reach::First)?,
        Verify::Require | Verify::Sha256(None) => what_there_is(Reach::Needed(counting))?,
        Verify::Manifest(location) | Verify::Sha256(Some(location)) => {
            let found = chosen(&Location::parse(location)?, &nearby)?;
            require_manifest_files(checkpoint, &found, checkpoint.is_whole() && !by_name)?;
            let said = asked.iter().map(|asked| of_manifest(asked, Some(&found)));
            said.collect()
        }
    };
    let known = known.into_iter();
    Ok(known
        .map(|known| known.into_expectation(counting))
        .collect())
}

/// The manifest that somebody asked for.
pub(super) fn chosen(location: &Location, nearby: &Nearby<'_>) -> Result<FoundManifest> {
    let text = nearby.read(location, MANIFEST_BYTES_MAX)?;
    let text = text.ok_or_else(|| {
        Error::new(ErrorKind::NotFound, "there is no manifest")
            .with_location(location)
            .with_hint("check the path; tload verify --write makes one")
    })?;
    parsed(location.clone(), &text)
}

/// The manifest in a folder, if there is one.
pub(super) fn beside(folder: &Location, nearby: &Nearby<'_>) -> Result<Option<FoundManifest>> {
    let location = folder.join(MANIFEST_NAME);
    let text = nearby.read_in(folder, &location, MANIFEST_BYTES_MAX)?;
    text.map(|text| parsed(location, &text)).transpose()
}

fn parsed(location: Location, text: &[u8]) -> Result<FoundManifest> {
    let manifest = Manifest::parse(text).map_err(|error| error.with_location(&location))?;
    Ok(FoundManifest { location, manifest })
}

/// By source: the manifest in its folder.
pub(super) fn manifests(
    asked: &[Asked<'_>],
    nearby: &Nearby<'_>,
) -> Result<Vec<Option<Arc<FoundManifest>>>> {
    per_folder(asked, |folder| beside(folder, nearby))
}

/// What is found for each source's folder, in which it is looked for once.
fn per_folder<T: Send + Sync>(
    asked: &[Asked<'_>],
    find: impl Fn(&Location) -> Result<Option<T>> + Sync,
) -> Result<Vec<Option<Arc<T>>>> {
    let mut folders: Vec<&Location> = Vec::new();
    for asked in asked {
        if !folders.contains(&&asked.folder) {
            folders.push(&asked.folder);
        }
    }
    let found = side_by_side(&folders, ASKED_AT_A_TIME, |folder| {
        find(folder).map(|found| found.map(Arc::new))
    });
    let found = found.into_iter().collect::<Result<Vec<_>>>()?;
    let of_folder = |asked: &Asked<'_>| {
        let at = folders.iter().position(|folder| **folder == asked.folder);
        at.and_then(|at| found[at].clone())
    };
    Ok(asked.iter().map(of_folder).collect())
}

/// What is known of each source.
pub(super) fn gather(
    asked: &[Asked<'_>],
    manifests: &[Option<Arc<FoundManifest>>],
    reach: Reach,
    nearby: &Nearby<'_>,
) -> Result<Vec<Known>> {
    let manifests = asked.iter().zip(manifests);
    let mut known: Vec<_> = manifests
        .map(|(asked, manifest)| of_manifest(asked, manifest.as_deref()))
        .collect();
    let open = |known: &[Known]| -> Vec<usize> {
        let is_open = |at: &usize| reach.goes_on(&known[*at]);
        (0..known.len()).filter(is_open).collect()
    };
    let left = open(&known);
    let said = side_by_side(&left, ASKED_AT_A_TIME, |&at| {
        let source = asked[at].source;
        let ask = || of_place(source, nearby);
        nearby.underway().during(source.location(), ask)
    });
    let mut failures = Vec::new();
    for (at, said) in left.into_iter().zip(said) {
        match said {
            Ok(said) => known[at].take(said),
            Err(error) if error.kind() == ErrorKind::Changed => return Err(error),
            Err(error) => {
                let why = format!("its checksum cannot be asked for: {error}");
                known[at].take(Err(why));
                failures.push((at, error));
            }
        }
    }
    if reach == Reach::AllButSignatures {
        return Ok(known);
    }
    let left = open(&known);
    let signers: Vec<_> = left
        .iter()
        .map(|&at| Asked {
            source: asked[at].source,
            folder: asked[at].folder.clone(),
        })
        .collect();
    let signed = per_folder(&signers, |folder| signature::beside(folder, nearby))?;
    for (at, signed) in left.into_iter().zip(signed) {
        let (file, folder) = (asked[at].source.location(), &asked[at].folder);
        known[at].take(signature::of_file(file, folder, signed.as_deref()));
    }
    // Nobody said that there is nothing: it could not be asked.
    let needed = |at: usize| matches!(reach, Reach::Needed(_)) && reach.goes_on(&known[at]);
    match failures.into_iter().find(|(at, _)| needed(*at)) {
        Some((_, error)) => Err(error),
        None => Ok(known),
    }
}

/// What a manifest says of a source.
pub(super) fn of_manifest(asked: &Asked<'_>, manifest: Option<&FoundManifest>) -> Known {
    let mut known = Known::default();
    known.take(match manifest {
        None => Err(format!("there is no {MANIFEST_NAME}")),
        Some(found) => {
            let file = found.file(asked.source.location(), &asked.folder);
            file.map(|file| Statement::of_manifest(found.by(), file))
                .ok_or_else(|| format!("the manifest {} does not have it", found.location))
        }
    });
    known
}

/// What the place says that a source is in: an object store, a hub, a hub's cache. Or why it says nothing; an error if it could not be
/// asked.
#[cfg_attr(
    not(feature = "object"),
    expect(clippy::unnecessary_wraps, reason = "stores have to be asked")
)]
fn of_place(source: &ShardSource, nearby: &Nearby<'_>) -> Result<Result<Statement, String>> {
    match source {
        ShardSource::File(file) => Ok(hub::of_file(file, nearby)),
        #[cfg(feature = "object")]
        ShardSource::Object(object) if object.location().protocol() == Some(Protocol::Hub) => {
            let name = object.contents_name();
            let silent = || "the hub does not say what is in it".to_owned();
            Ok(name
                .ok_or_else(silent)
                .and_then(|name| hub::of_contents(name, "the hub")))
        }
        #[cfg(feature = "object")]
        ShardSource::Object(object) => {
            let stated = object.checksums()?;
            Ok(object::of_headers(object.location().protocol(), &stated))
        }
    }
}

/// Digests by name.
pub(super) type Named = BTreeMap<String, Digest>;

impl Known {
    fn take(&mut self, said: Result<Statement, String>) {
        match said {
            Ok(statement) => self.statements.push(statement),
            Err(silent) => self.silent.push(silent),
        }
    }
}
