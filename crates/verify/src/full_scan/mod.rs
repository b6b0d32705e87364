//! Verifies a whole checkpoint: reads every byte of it once, compares all known digests, and
//! reports the outcome for each file.
//!
//! A bad file does not keep the others from being verified. `files` finds the files and the digests
//! stated for them, `compute` reads, `compare` compares, `report` holds the result, and `text`
//! shows it. This is not a load: it creates no tensors, its memory does not depend on the length of
//! tensors, and it compares a file with a broken header like any other.

mod compare;
mod compute;
mod files;
mod report;
mod signed;
mod text;
mod walk;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

pub use report::{FileError, FileOutcome, FileReport, Mismatch, VerifyReport};
pub use signed::{SignatureText, SignedFiles, read_signature};

use super::manifest::{MANIFEST_NAME, Manifest, ManifestFile};
use super::write::{Begun, is_there, write};
use crate::checkpoint::OpenOptions;
use crate::error::{Error, ErrorKind, Result};
use crate::options::{Location, format_bytes, with_setters};
use crate::sync::lock::Mutex;
use crate::sync::parallel::parallel_map;
use files::{Found, Subject};

/// Maximum number of files read concurrently: each is worth two cores, and has its own memory.
const FILES_MAX: usize = 8;

/// Destination of the manifest to write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ManifestTarget {
    /// Beside the checkpoint, which must be on a file system.
    Beside,
    /// At this path.
    Path(PathBuf),
    /// At this location, by the caller, who writes [`VerifyReport::manifest`] there.
    Caller(Location),
}

with_setters! {
/// Options of a verification.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct VerifyOptions {
    /// Manifest to compare with. Default: `tload-manifest.json` beside the checkpoint, if it
    /// exists.
    pub manifest: Option<Location>,
    /// Destination for a manifest of what was read, written only if nothing differs from what is
    /// expected. The verification does not compare with a manifest that it is going to replace.
    /// Default: none.
    pub write: Option<ManifestTarget>,
    /// Replaces an existing manifest. Default: no.
    pub force: bool,
    /// Contents of a signature that the caller has checked. In a directory, every signed file is
    /// compared, and unsigned files are refused; the `model.sig` beside it is ignored. Default: the
    /// digests of a `model.sig` beside the checkpoint are compared like others, whatever its
    /// signer.
    pub signed: Option<SignedFiles>,
}
}

/// Verification of a whole checkpoint.
///
/// # Examples
///
/// Writes a manifest, and compares with it later:
///
/// ```
/// # mod tload {
/// #     pub use tload_base::{error::*, options::*};
/// #     pub mod verify { pub use tload_verify::*; }
/// # }
/// # let folder = tempfile::tempdir().unwrap();
/// # let path = folder.path();
/// # std::fs::write(path.join("model.safetensors"), b"\x02\0\0\0\0\0\0\0{}").unwrap();
/// use tload::verify::{ManifestTarget, Verification, VerifyOptions};
///
/// let write = VerifyOptions::default().write(ManifestTarget::Beside);
/// Verification::new(path).options(write).run()?;
///
/// let report = Verification::new(path).run()?;
/// for file in &report.files {
///     println!("{}: {}", file.name, file.outcome);
/// }
/// assert!(report.error().is_none());
/// # Ok::<(), tload::Error>(())
/// ```
#[derive(Debug)]
pub struct Verification {
    location: Location,
    options: VerifyOptions,
    opening: OpenOptions,
    shared: Arc<Shared>,
}

/// Observes a verification, and cancels it, from another thread.
#[derive(Clone, Debug)]
pub struct VerifyControl {
    shared: Arc<Shared>,
    location: Location,
}

/// Progress of a verification.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct VerifyProgress {
    /// Bytes to read; zero until the files are open.
    pub bytes_total: u64,
    /// Bytes read so far.
    pub bytes_done: u64,
}

/// Cancellation flag, progress, and notes on what was read.
#[derive(Debug, Default)]
struct Shared {
    cancelled: AtomicBool,
    bytes_total: AtomicU64,
    bytes_done: AtomicU64,
    notes: Mutex<Vec<String>>,
}

impl Shared {
    fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }

    fn done(&self, bytes: u64) {
        self.bytes_done.fetch_add(bytes, Ordering::Relaxed);
    }
}

impl VerifyControl {
    /// Cancels the verification; it ends soon.
    pub fn cancel(&self) {
        self.shared.cancelled.store(true, Ordering::Relaxed);
    }

    /// Returns the progress.
    pub fn progress(&self) -> VerifyProgress {
        VerifyProgress {
            bytes_total: self.shared.bytes_total.load(Ordering::Relaxed),
            bytes_done: self.shared.bytes_done.load(Ordering::Relaxed),
        }
    }

    /// Returns the error for a verification that the caller ends because it took longer than
    /// `timeout`.
    pub fn timed_out(&self, timeout: Duration) -> Error {
        let now = self.progress();
        let far = match now.bytes_total {
            0 => "its files were still being opened".to_owned(),
            total => format!(
                "{} of {} had been read",
                format_bytes(now.bytes_done),
                format_bytes(total)
            ),
        };
        let message = format!("verifying took longer than its timeout of {timeout:?}; {far}");
        Error::new(ErrorKind::TimedOut, message)
            .with_location(&self.location)
            .with_hint("raise ‹timeout›, or check the storage: tload doctor LOCATION")
    }
}

impl Verification {
    /// Creates a verification of the checkpoint at `location`: a file, a directory or an index, on
    /// a file system or in an object store.
    pub fn new(location: impl Into<Location>) -> Self {
        Self {
            location: location.into(),
            options: VerifyOptions::default(),
            opening: OpenOptions::default(),
            shared: Arc::default(),
        }
    }

    /// Sets the options.
    #[must_use]
    pub fn options(mut self, options: VerifyOptions) -> Self {
        self.options = options;
        self
    }

    /// Sets the options for opening the checkpoint: [`OpenOptions`], or
    /// [`StoreOptions`](crate::options::StoreOptions) alone.
    #[must_use]
    pub fn opening(mut self, options: impl Into<OpenOptions>) -> Self {
        self.opening = options.into();
        self
    }

    /// Returns a handle that observes and cancels the verification.
    pub fn control(&self) -> VerifyControl {
        VerifyControl {
            shared: Arc::clone(&self.shared),
            location: self.location.clone(),
        }
    }

    /// Reads and compares. Bad files are listed in the report; [`VerifyReport::error`] returns an
    /// error if there are any.
    ///
    /// # Errors
    ///
    /// Conditions that keep the verification from starting or finishing: [`ErrorKind::NotFound`]
    /// and [`ErrorKind::PermissionDenied`] for the location, [`ErrorKind::InvalidFormat`] and
    /// [`ErrorKind::Unsupported`] for a manifest or signature that cannot be read,
    /// [`ErrorKind::InvalidRequest`] for an existing manifest that is not to be replaced,
    /// [`ErrorKind::Cancelled`].
    pub fn run(self) -> Result<VerifyReport> {
        let started = Instant::now();
        if self.options.write.is_some() && self.opening.key.is_some() {
            let message = "a manifest would show the names of the tensors that are sealed";
            return Err(Error::invalid_request(message).with_location(&self.location));
        }
        let found = Found::find(&self.location, &self.options, &self.opening)?;
        // Begin the manifest before everything is read, so that an unwritable target fails early.
        let begun = found.target.as_deref().map(Begun::at).transpose()?;
        let bytes = found.subjects.iter().map(Subject::bytes_to_read).sum();
        self.shared.bytes_total.store(bytes, Ordering::Relaxed);
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let looked = parallel_map(&found.subjects, cores.min(FILES_MAX), |subject| {
            subject.look(&self.shared)
        });
        let looked = looked.into_iter().collect::<Result<Vec<_>>>()?;
        let mut entries = BTreeMap::new();
        let mut files = Vec::with_capacity(looked.len());
        for (file, entry) in looked {
            entries.extend(entry.map(|entry| (file.name.clone(), entry)));
            files.push(file);
        }
        files.extend(found.unsigned.into_iter().map(FileReport::unsigned));
        files.sort_by(|one, other| one.name.cmp(&other.name));
        let mut notes = found.notes;
        notes.append(&mut self.shared.notes.lock());
        let mut report = VerifyReport {
            location: self.location.to_string(),
            files,
            bytes: self.shared.bytes_done.load(Ordering::Relaxed),
            notes,
            ..VerifyReport::default()
        };
        if self.options.write.is_some()
            && let Err(error) = self.write(begun, &mut report, entries)
        {
            report.not_written = Some(FileError::new(error));
        }
        report.seconds = started.elapsed().as_secs_f64();
        Ok(report)
    }

    /// Writes the manifest if every file matches or is unverified.
    fn write(
        &self,
        begun: Option<Begun>,
        report: &mut VerifyReport,
        files: BTreeMap<String, ManifestFile>,
    ) -> Result<()> {
        let is_good = |file: &FileReport| {
            matches!(file.outcome, FileOutcome::Matches | FileOutcome::Unverified)
        };
        if !report.files.iter().all(is_good) {
            return Ok(());
        }
        let text = Manifest { files }.render();
        // A manifest that could not be parsed is not written: it would hold a name that manifests
        // forbid.
        Manifest::parse(&text).map_err(|error| error.with_location(&report.location))?;
        if let Some(begun) = begun {
            report.written = Some(write(begun, &text, self.options.force)?);
        }
        report.manifest = Some(text);
        Ok(())
    }
}

/// Returns the path of the manifest to write, if one was requested.
fn target(
    options: &VerifyOptions,
    location: &Location,
    folder: &Location,
) -> Result<Option<PathBuf>> {
    let path = match &options.write {
        None | Some(ManifestTarget::Caller(_)) => return Ok(None),
        Some(ManifestTarget::Path(path)) => path.clone(),
        // Files of a hub's cache belong to `huggingface_hub`, so no manifest is written there.
        Some(ManifestTarget::Beside) => match location.as_path().and(folder.as_path()) {
            Some(folder) => folder.join(MANIFEST_NAME),
            None => {
                return Err(Error::invalid_request("a manifest cannot be written there")
                    .with_location(location)
                    .with_hint("pass a local path for it: --write PATH (write=PATH)"));
            }
        },
    };
    if !options.force && path.symlink_metadata().is_ok() {
        return Err(is_there(&path));
    }
    Ok(Some(path))
}

fn cancelled() -> Error {
    Error::new(ErrorKind::Cancelled, "the verification was cancelled")
}
