//! Files of a checkpoint to verify: finds them, looks up their digests, and verifies each.

use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::compare::{self, Computed, Wanted};
use super::compute::compute;
use super::report::{FileError, FileOutcome, FileReport, Mismatch};
use super::signed::unsigned;
use super::{ManifestTarget, Shared, SignedFiles, VerifyOptions, cancelled, target};
use crate::checkpoint::{FileSet, OpenOptions, read_header};
use crate::claims::Claims;
use crate::digest::Algorithm;
use crate::discover::{
    FoundManifest, Lookup, LookupScope, SIGNATURE_NAME, Sidecars, beside, chosen, gather,
};
use crate::error::{Error, ErrorKind, Result};
use crate::format::Header;
use crate::manifest::{MANIFEST_NAME, ManifestFile, ManifestHeader, ManifestTensor};
use crate::options::{Location, StoreOptions};
use crate::storage::{ObjectSource, Source, unversioned_note};
use crate::sync::parallel::parallel_map;

/// Length of the first read of a file, bytes: holds most headers.
const FIRST_BYTES: usize = 256 << 10;

/// Number of files opened concurrently.
const OPENED_AT_A_TIME: usize = 16;

/// Algorithms that a manifest has for every file, for every tensor, and for headers.
const OF_FILES: [Algorithm; 2] = [Algorithm::Crc64Nvme, Algorithm::Sha256];
const OF_TENSORS: [Algorithm; 3] = [Algorithm::Crc64Nvme, Algorithm::Sha256, Algorithm::Blake3];
const OF_HEADERS: [Algorithm; 1] = [Algorithm::Blake3];

/// Everything to verify.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) subjects: Vec<Subject>,
    /// Path of the manifest to write.
    pub(super) target: Option<PathBuf>,
    /// Files that should not exist, and are not read.
    pub(super) unsigned: Vec<String>,
    pub(super) notes: Vec<String>,
}

/// File to verify.
#[derive(Debug)]
pub(super) struct Subject {
    name: String,
    is_shard: bool,
    /// Reason why the file should not exist: the manifest does not list it, or it is not signed.
    extra: Option<FileError>,
    /// True if the file goes into the manifest to write.
    is_recorded: bool,
    opened: Result<Open, FileError>,
    known: Claims,
}

/// File that could be opened.
#[derive(Debug)]
struct Open {
    source: Arc<dyn Source>,
    /// Header; `None` for an index.
    header: Option<Result<Header, FileError>>,
}

/// Files by their names.
type Named = BTreeMap<String, Belonging>;

/// File that belongs to the checkpoint.
#[derive(Debug)]
struct Belonging {
    location: Location,
    /// True if the file holds tensors.
    is_shard: bool,
    /// True if manifests list the file; false if it is only signed.
    is_recorded: bool,
}

impl Found {
    pub(super) fn find(
        location: &Location,
        options: &VerifyOptions,
        opening: &OpenOptions,
    ) -> Result<Self> {
        let (file_set, failed) = FileSet::find_or_empty(location, opening)?;
        let follows = file_set.follows_symlinks();
        let sidecars = Sidecars::new([], &opening.store).following(follows);
        let target = target(options, location, &file_set.folder)?;
        let manifest = manifest(&file_set, options, target.as_deref(), &sidecars)?;
        let named = named(&file_set, manifest.as_deref(), options.signed.as_ref());
        if let Some(error) = failed.filter(|_| named.is_empty()) {
            return Err(error);
        }
        let mut unsigned = Vec::new();
        let mut notes: Vec<_> = file_set.note.iter().cloned().collect();
        if let Some(signed) = &options.signed {
            signed.check()?;
            let (others, note) = signed.others(&file_set)?;
            unsigned.extend(others);
            unsigned.retain(|name| !named.contains_key(name));
            notes.extend(note);
        }
        notes.extend(file_set.listing_notes());
        notes.extend(in_the_way(&file_set, target.as_deref()));
        let about = About {
            manifest: manifest.as_ref(),
            signed: options.signed.as_ref(),
            is_written: options.write.is_some(),
        };
        let subjects = subjects(&file_set, named, &about, &opening.store)?;
        if let [only] = &subjects[..]
            && let Some(error) = only.not_found(&file_set, &about)
        {
            return Err(error);
        }
        let objects = subjects.iter().filter_map(Subject::object);
        notes.extend(unversioned_note(objects));
        Ok(Self {
            subjects,
            target,
            unsigned,
            notes,
        })
    }
}

/// Returns a note if the manifest will be written beside a signature.
fn in_the_way(file_set: &FileSet, target: Option<&Path>) -> Option<String> {
    let own = canonical(file_set.folder.as_path()?)?;
    let is_beside = canonical(target?.parent()?)? == own;
    let is_signed = own.join(SIGNATURE_NAME).symlink_metadata().is_ok();
    (is_beside && is_signed).then(|| {
        format!(
            "the model has a {SIGNATURE_NAME}, and model-signing refuses files that it does not list: sign the model again, or write the manifest elsewhere (--write PATH, write=PATH)"
        )
    })
}

/// Returns the path of a directory without symbolic links.
fn canonical(folder: &Path) -> Option<PathBuf> {
    let is_here = folder.as_os_str().is_empty();
    let folder = if is_here { Path::new(".") } else { folder };
    folder.canonicalize().ok()
}

/// Authorities on the files, in addition to those that are asked for each file.
struct About<'a> {
    manifest: Option<&'a Arc<FoundManifest>>,
    signed: Option<&'a SignedFiles>,
    /// True if a manifest will be written.
    is_written: bool,
}

impl About<'_> {
    /// Returns the reason why a file should not exist, if there is one.
    fn extra(&self, name: &str) -> Option<FileError> {
        if self.signed.is_some_and(|it| !it.files.contains_key(name)) {
            return Some(FileError::new(unsigned()));
        }
        let manifest = self.manifest.map(|found| &found.manifest);
        manifest
            // Manifests do not list files that are only signed.
            .filter(|it| !it.files.contains_key(name) && self.signed.is_none())
            .map(|_| FileError::new(Error::new(ErrorKind::Corrupt, "is not in the manifest")))
    }
}

/// Reads the manifest to compare with, unless it is going to be replaced.
fn manifest(
    file_set: &FileSet,
    options: &VerifyOptions,
    target: Option<&Path>,
    sidecars: &Sidecars<'_>,
) -> Result<Option<Arc<FoundManifest>>> {
    if let Some(location) = &options.manifest {
        return chosen(location, sidecars).map(|found| Some(Arc::new(found)));
    }
    // The paths are canonicalized, because one directory may be spelled in several ways.
    let is_own = |target: &Path| {
        let own = file_set.folder.as_path().and_then(canonical);
        let folder = target.parent().and_then(canonical);
        target.file_name() == Some(OsStr::new(MANIFEST_NAME)) && own.is_some() && own == folder
    };
    let beside_it = ManifestTarget::Caller(file_set.folder.join(MANIFEST_NAME));
    let is_replaced = target.is_some_and(is_own) || options.write == Some(beside_it);
    // That of a sealed checkpoint is sealed, and the sealed manifest has the digests of its files.
    if is_replaced || file_set.is_sealed() {
        return Ok(None);
    }
    beside(&file_set.folder, sidecars).map(|found| found.map(Arc::new))
}

/// Returns the files that belong to the checkpoint: its own, and, for a directory, those of the
/// manifest and the signature.
fn named(
    file_set: &FileSet,
    manifest: Option<&FoundManifest>,
    signed: Option<&SignedFiles>,
) -> Named {
    let name = |file: &Location| {
        let below = file.below(&file_set.folder);
        below.unwrap_or_else(|| file.file_name().to_owned())
    };
    let shards = file_set.shards.iter().map(|file| (file, true));
    let index = file_set.index.iter().map(|file| (file, false));
    let mut named: Named = shards
        .chain(index)
        .map(|(file, is_shard)| (name(file), Belonging::new(file.clone(), is_shard)))
        .collect();
    if file_set.is_folder {
        for (name, file) in manifest.iter().flat_map(|found| &found.manifest.files) {
            let is_shard = !file.tensors.is_empty();
            named
                .entry(name.clone())
                .or_insert_with(|| Belonging::new(file_set.folder.join(name), is_shard));
        }
        for name in signed.iter().flat_map(|signed| signed.files.keys()) {
            named.entry(name.clone()).or_insert_with(|| Belonging {
                location: file_set.folder.join(name),
                is_shard: false,
                is_recorded: false,
            });
        }
    }
    named
}

impl Belonging {
    fn new(location: Location, is_shard: bool) -> Self {
        Self {
            location,
            is_shard,
            is_recorded: true,
        }
    }
}

/// Opens all files and looks up their digests, many at a time.
fn subjects(
    file_set: &FileSet,
    named: Named,
    about: &About<'_>,
    store: &StoreOptions,
) -> Result<Vec<Subject>> {
    let files: Vec<_> = named.into_iter().collect();
    let opened = parallel_map(&files, OPENED_AT_A_TIME, |(_, file)| {
        open(file_set, &file.location, file.is_shard)
    });
    let sources = opened.iter().flatten().map(|open| &open.source);
    let lookup: Vec<_> = sources
        .map(|source| Lookup {
            source,
            folder: file_set.folder.clone(),
        })
        .collect();
    let sidecars = Sidecars::new(lookup.iter().map(|lookup| lookup.source), store)
        .following(file_set.follows_symlinks());
    let manifests = vec![about.manifest.cloned(); lookup.len()];
    let scope = match about.signed {
        Some(_) => LookupScope::AllButSignatures,
        None => LookupScope::All,
    };
    let mut known = gather(&lookup, &manifests, scope, &sidecars)?.into_iter();
    let each = files.into_iter().zip(opened);
    let subjects = each.map(|((name, file), opened)| {
        let mut known = match &opened {
            Ok(_) => known.next().unwrap_or_default(),
            Err(_) => Claims::default(),
        };
        let signed = about.signed.and_then(|it| it.claim_for(&name, file_set));
        known.claims.extend(signed);
        Subject {
            is_shard: file.is_shard,
            extra: about.extra(&name),
            is_recorded: about.is_written && file.is_recorded,
            known,
            name,
            opened,
        }
    });
    Ok(subjects.collect())
}

fn open(file_set: &FileSet, location: &Location, is_shard: bool) -> Result<Open, FileError> {
    let (source, first) = file_set
        .open(location, FIRST_BYTES)
        .map_err(FileError::new)?;
    let header = is_shard.then(|| header_of(&*source, first));
    Ok(Open { source, header })
}

fn header_of(source: &dyn Source, first: Vec<u8>) -> Result<Header, FileError> {
    let read = read_header(source, first);
    read.map(|(header, _)| header).map_err(FileError::new)
}

impl Subject {
    /// Returns the error for the only file, if it is missing and nothing but the caller names it.
    fn not_found(&self, file_set: &FileSet, about: &About<'_>) -> Option<Error> {
        let manifest = about.manifest.map(|found| &found.manifest);
        let is_listed = manifest.is_some_and(|it| it.files.contains_key(&self.name))
            || (about.signed).is_some_and(|it| it.files.contains_key(&self.name));
        let is_named = file_set.is_folder || file_set.index.is_some() || is_listed;
        let error = self.opened.as_ref().err().filter(|_| !is_named)?;
        (error.kind == ErrorKind::NotFound.name()).then(|| error.error())
    }

    fn object(&self) -> Option<&ObjectSource> {
        self.opened.as_ref().ok()?.source.as_object()
    }

    /// Returns the number of bytes to read for the comparison.
    pub(super) fn bytes_to_read(&self) -> u64 {
        match &self.opened {
            Ok(open) if self.is_read(open) => open.source.len(),
            _ => 0,
        }
    }

    /// Returns whether there is anything to compute: not if the length differs already.
    fn is_read(&self, open: &Open) -> bool {
        let is_long = compare::lengths(open.source.len(), &self.known).is_empty();
        is_long && !self.wanted(open).is_empty()
    }

    fn wanted(&self, open: &Open) -> Wanted {
        let mut wanted = Wanted::new(&self.known);
        if self.is_recorded {
            wanted.add_whole(OF_FILES);
            if let Some(Ok(header)) = &open.header {
                wanted.span(&(0..header.bytes), OF_HEADERS);
            }
            for tensor in open.tensors() {
                wanted.span(&tensor.range, OF_TENSORS);
            }
        }
        wanted
    }

    /// Reads and compares the file. Also returns its manifest entry, if a manifest is to be
    /// written.
    ///
    /// # Errors
    ///
    /// Only [`ErrorKind::Cancelled`].
    pub(super) fn look(&self, shared: &Shared) -> Result<(FileReport, Option<ManifestFile>)> {
        if shared.is_cancelled() {
            return Err(cancelled());
        }
        let mut report = FileReport {
            name: self.name.clone(),
            bytes: None,
            outcome: FileOutcome::Unverified,
            verified_by: Vec::new(),
            silent: self.known.silent.clone(),
            mismatches: Vec::new(),
            error: None,
            is_shard: self.is_shard,
        };
        let open = match &self.opened {
            Ok(open) => open,
            Err(error) => {
                let is_missing = error.kind == ErrorKind::NotFound.name();
                report.outcome = FileOutcome::Missing;
                if !is_missing {
                    report.fail(error.clone());
                }
                return Ok((report, None));
            }
        };
        report.bytes = Some(open.source.len());
        let claims = self.known.claims.iter();
        report.verified_by = claims.map(|claim| claim.by.clone()).collect();
        let mut entry = None;
        report.mismatches = compare::lengths(open.source.len(), &self.known);
        let (mut open, again) = (open, OnceCell::new());
        if self.is_read(open) {
            let mut compared = self.compare(open, shared);
            if matches!(&compared, Ok((_, mismatches)) if !mismatches.is_empty())
                && open.source.clear_cached()
            {
                // The cache has forgotten the object, so its origin decides.
                open = again.get_or_init(|| open.again());
                compared = self.compare_again(open, shared);
            }
            match compared {
                Ok((computed, mismatches)) => {
                    report.mismatches = mismatches;
                    entry = self.is_recorded.then(|| open.entry(&computed));
                }
                Err(error) if error.kind() == ErrorKind::Cancelled => return Err(error),
                Err(error) => {
                    report.fail(FileError::new(error));
                    return Ok((report, None));
                }
            }
        }
        self.judge(open, &mut report);
        Ok((report, entry.flatten()))
    }

    fn compare(&self, open: &Open, shared: &Shared) -> Result<(Computed, Vec<Mismatch>)> {
        let computed = compute(&*open.source, &self.wanted(open), shared)?;
        let mismatches = compare::contents(open.source.len(), &self.known, &computed);
        Ok((computed, mismatches))
    }

    /// Compares the bytes of the origin after different ones that the cache may have had.
    fn compare_again(&self, open: &Open, shared: &Shared) -> Result<(Computed, Vec<Mismatch>)> {
        let more = open.source.len();
        shared.bytes_total.fetch_add(more, Ordering::Relaxed);
        let (computed, mismatches) = self.compare(open, shared)?;
        if mismatches.is_empty() {
            let name = &self.name;
            shared.notes.lock().push(format!(
                "{name}: the cache had wrong bytes, which it has forgotten; those of the origin match"
            ));
        }
        Ok((computed, mismatches))
    }

    fn judge(&self, open: &Open, report: &mut FileReport) {
        report.outcome = if !report.mismatches.is_empty() {
            FileOutcome::Differs
        } else if let Some(why) = &self.extra {
            report.error = Some(why.clone());
            FileOutcome::Extra
        } else if let Some(Err(error)) = &open.header {
            return report.fail(error.clone());
        } else if self.known.claims.is_empty() {
            FileOutcome::Unverified
        } else {
            FileOutcome::Matches
        };
    }
}

impl FileReport {
    /// Reports a file that exists, is not signed and was not read.
    pub(super) fn unsigned(name: String) -> Self {
        Self {
            name,
            bytes: None,
            outcome: FileOutcome::Extra,
            verified_by: Vec::new(),
            silent: Vec::new(),
            mismatches: Vec::new(),
            error: Some(FileError::new(unsigned())),
            is_shard: false,
        }
    }

    fn fail(&mut self, error: FileError) {
        self.outcome = FileOutcome::Failed;
        self.error = Some(error);
    }
}

impl Open {
    /// Reads the header again.
    fn again(&self) -> Self {
        let source = Arc::clone(&self.source);
        let header = self.header.as_ref().map(|_| {
            let first = source.fetch(0, FIRST_BYTES).map_err(FileError::new)?;
            header_of(&*source, first)
        });
        Self { source, header }
    }

    fn tensors(&self) -> &[crate::format::Entry] {
        match &self.header {
            Some(Ok(header)) => &header.tensors,
            Some(Err(_)) | None => &[],
        }
    }

    /// Returns the manifest entry; `None` if a digest was not computed.
    fn entry(&self, computed: &Computed) -> Option<ManifestFile> {
        let of = |digests: &[crate::digest::Digest], algorithm| {
            let mut alike = digests
                .iter()
                .filter(|digest| digest.algorithm() == algorithm);
            alike.next().copied()
        };
        let tensors = self.tensors().iter().map(|tensor| {
            let digests = computed
                .spans
                .get(&(tensor.range.start, tensor.range.end))?;
            let said = ManifestTensor {
                range: tensor.range.clone(),
                crc64nvme: of(digests, Algorithm::Crc64Nvme)?,
                sha256: of(digests, Algorithm::Sha256)?,
                blake3: of(digests, Algorithm::Blake3),
            };
            Some((tensor.name.clone(), said))
        });
        let header = self.header.as_ref().and_then(|header| {
            let bytes = header.as_ref().ok()?.bytes;
            let blake3 = of(computed.spans.get(&(0, bytes))?, Algorithm::Blake3)?;
            Some(ManifestHeader { bytes, blake3 })
        });
        Some(ManifestFile {
            bytes: self.source.len(),
            crc64nvme: of(&computed.whole, Algorithm::Crc64Nvme)?,
            sha256: of(&computed.whole, Algorithm::Sha256)?,
            header,
            tensors: tensors.collect::<Option<_>>()?,
        })
    }
}
