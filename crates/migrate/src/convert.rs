//! The order of steps: open, parse, find out whether the key is right, lay out, copy, give the file
//! its name.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde::Serialize;
use tload_checkpoint::{FileSet, OpenOptions};
use tload_tensorizer::{Index, Secret, Tensor};

use super::keys::{Keys, missing};
use super::target::{Layout, Target};
use super::tensors::File;
use crate::error::{Error, ErrorKind, Result};
use crate::options::{Location, format_bytes};
use crate::storage::Source;
use crate::sync::parallel::parallel_map;

/// First read of a file, bytes: holds the index, for which 256 KiB are reserved.
const FIRST_BYTES: usize = 512 << 10;

/// Tensors that are copied at a time: a core each hashes about as fast as a disk reads.
const AT_A_TIME_MAX: usize = 8;

/// Tensors whose first boxes tell whether the key is right: one of them may be damaged.
const TRIED: usize = 3;

/// Conversion of one file to safetensors.
#[derive(Debug)]
pub struct Convert {
    source: Location,
    folder: PathBuf,
    opening: OpenOptions,
    secret: Option<Secret>,
    is_forced: bool,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    is_cancelled: AtomicBool,
    bytes_total: AtomicU64,
    bytes_done: AtomicU64,
}

/// Observes a conversion, and cancels it, from another thread.
#[derive(Clone, Debug)]
pub struct Control(Arc<Shared>);

/// Progress of a conversion.
#[derive(Clone, Copy, Debug, Default)]
pub struct Progress {
    /// Bytes to write; zero until the file is open.
    pub bytes_total: u64,
    /// Bytes written so far.
    pub bytes_done: u64,
}

/// Result of a conversion.
#[derive(Clone, Debug, Serialize)]
pub struct Converted {
    /// Location that was read.
    pub location: String,
    /// File that was written.
    pub path: String,
    /// Number of tensors.
    pub tensors: usize,
    /// Bytes of all tensors.
    pub bytes: u64,
    /// True if the file was encrypted.
    pub decrypted: bool,
    /// Names of tensors that have no bytes in the file, and are written as zeros.
    pub zeros: Vec<String>,
    /// Duration.
    pub seconds: f64,
}

impl Convert {
    /// Creates the conversion of the file at `source` to a file in `folder`.
    pub fn new(source: Location, folder: PathBuf) -> Self {
        Self {
            source,
            folder,
            opening: OpenOptions::default(),
            secret: None,
            is_forced: false,
            shared: Arc::default(),
        }
    }

    /// Sets the options for opening the file.
    #[must_use]
    pub fn opening(mut self, options: impl Into<OpenOptions>) -> Self {
        self.opening = options.into();
        self
    }

    /// Sets what the file is decrypted with.
    #[must_use]
    pub fn secret(mut self, secret: Option<Secret>) -> Self {
        self.secret = secret;
        self
    }

    /// Sets whether an existing file is replaced.
    #[must_use]
    pub fn force(mut self, is_forced: bool) -> Self {
        self.is_forced = is_forced;
        self
    }

    /// Returns a handle that observes and cancels the conversion.
    pub fn control(&self) -> Control {
        Control(Arc::clone(&self.shared))
    }

    /// Converts. Nothing is at the target's name unless this succeeds.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`] and [`ErrorKind::InvalidFormat`] for files that are not of
    /// Tensorizer, or damaged; [`ErrorKind::Corrupt`] for tensors that do not match their digests
    /// or authenticators; [`ErrorKind::PermissionDenied`] for a missing or wrong key;
    /// [`ErrorKind::InvalidRequest`] for a target that exists, and for a key of a file that is not
    /// encrypted; errors of reading and writing.
    pub fn run(self) -> Result<Converted> {
        let started = Instant::now();
        let (source, index) = self.open()?;
        let keys = Keys::new(self.secret.as_ref());
        let mut file = File {
            source: &*source,
            index: &index,
            keys: &keys,
            is_key_right: false,
        };
        self.require_key(&index)
            .map_err(|error| error.with_location(&self.source))?;
        if index.is_encrypted {
            file.is_key_right = is_key_right(&file)?;
        }
        let layout = Layout::new(&index.tensors);
        let layout = layout.map_err(|error| error.with_location(&self.source))?;
        let bytes = index.tensors.iter().map(|it| it.byte_len).sum();
        self.shared.bytes_total.store(bytes, Ordering::Relaxed);
        let target = Target::begin(&self.folder, self.is_forced, &layout)?;
        let items: Vec<(&Tensor, u64)> = index.tensors.iter().zip(layout.starts).collect();
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let has_failed = AtomicBool::new(false);
        let done = |bytes| {
            self.shared.bytes_done.fetch_add(bytes, Ordering::Relaxed);
            if self.shared.is_cancelled.load(Ordering::Relaxed) {
                return Err(Error::new(
                    ErrorKind::Cancelled,
                    "the conversion was cancelled",
                ));
            }
            Ok(())
        };
        let copied = parallel_map(&items, cores.min(AT_A_TIME_MAX), |(tensor, start)| {
            // After the first error nothing else is read.
            if has_failed.load(Ordering::Relaxed) {
                return Ok(());
            }
            let copied = file.copy(tensor, &target, *start, &done);
            has_failed.fetch_or(copied.is_err(), Ordering::Relaxed);
            copied
        });
        copied.into_iter().collect::<Result<()>>()?;
        source.verify_unchanged()?;
        let path = target.complete(self.is_forced)?;
        let zeros = index.tensors.iter().filter(|tensor| tensor.is_meta());
        Ok(Converted {
            location: self.source.to_string(),
            path: path.display().to_string(),
            tensors: index.tensors.len(),
            bytes,
            decrypted: index.is_encrypted,
            zeros: zeros.map(|tensor| tensor.name.clone()).collect(),
            seconds: started.elapsed().as_secs_f64(),
        })
    }

    fn open(&self) -> Result<(Arc<dyn Source>, Index)> {
        let (files, failed) = FileSet::find_or_empty(&self.source, &self.opening)?;
        if let Some(error) = failed {
            return Err(error);
        }
        let [only] = &files.shards[..] else {
            return Err(not_one_file(&self.source));
        };
        let (source, first) = files.open(only, FIRST_BYTES)?;
        source.require_versioned()?;
        let location = source.location();
        if files.is_folder || !tload_boxed::begins(&first) {
            return Err(not_one_file(location));
        }
        let (index, _) = tload_boxed::index_of(&*source, first)?;
        Ok((source, index))
    }

    fn require_key(&self, index: &Index) -> Result<()> {
        match (index.is_encrypted, &self.secret) {
            (true, None) => Err(missing()),
            // Someone may have replaced an encrypted file.
            (false, Some(_)) => Err(Error::invalid_request(
                "a key was given, and the file is not encrypted",
            )
            .with_hint("leave the key out if that is right")),
            (true, Some(_)) | (false, None) => Ok(()),
        }
    }
}

fn not_one_file(location: &Location) -> Error {
    Error::new(ErrorKind::Unsupported, "is not a file of Tensorizer")
        .with_location(location)
        .with_hint("pass one file, such as model.tensors; safetensors need no conversion")
}

/// Returns whether the key opens any of the first tensors. If it opens none, it is another one.
fn is_key_right(file: &File<'_>) -> Result<bool> {
    let with_bytes = file.index.tensors.iter().filter(|it| !it.range.is_empty());
    for tensor in with_bytes.take(TRIED) {
        if file.opens(tensor)? == Some(true) {
            return Ok(true);
        }
    }
    Ok(false)
}

impl Control {
    /// Cancels the conversion; it ends soon.
    pub fn cancel(&self) {
        self.0.is_cancelled.store(true, Ordering::Relaxed);
    }

    /// Returns the progress.
    pub fn progress(&self) -> Progress {
        Progress {
            bytes_total: self.0.bytes_total.load(Ordering::Relaxed),
            bytes_done: self.0.bytes_done.load(Ordering::Relaxed),
        }
    }

    /// Returns the error for a conversion that the caller ends because it took longer than
    /// `timeout`.
    pub fn timed_out(&self, timeout: Duration) -> Error {
        let Progress {
            bytes_total,
            bytes_done,
        } = self.progress();
        let message = format!(
            "converting took longer than its timeout of {timeout:?}; {} of {} were written",
            format_bytes(bytes_done),
            format_bytes(bytes_total)
        );
        Error::new(ErrorKind::TimedOut, message).with_hint("raise ‹timeout›")
    }
}
