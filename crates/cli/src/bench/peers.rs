//! Other loaders beside the load: which of them are installed, the files that each reads, and one
//! run of one of them, in a process of its own.

use std::path::{Path, PathBuf};

use tload::{Error, ErrorKind, Result};
use tload_against::{Outcome, Peer, PeerLoad, Python, Watch, default_program, time_limit};

use super::page_cache::{PageCache, Residency};
use super::target::Target;
use super::warnings::Warning;
use super::{Cell, Measurement, Mode};
use crate::args::BenchArgs;
use crate::interrupt::{Interrupt, Temporary};
use crate::output::error::file as file_error;
use tload_quantity::{gibibytes, rate};

/// Loaders to compare with, and the checkpoint that they load.
#[derive(Debug)]
pub(crate) struct Peers<'a> {
    pub(crate) python: Python,
    interrupt: &'a Interrupt,
    location: String,
    files: Vec<PathBuf>,
    bytes: u64,
    /// Directory with the converted checkpoint, once a loader needs it.
    converted: Option<Temporary<'a>>,
}

/// Looks for the loaders that users ask for, if any.
pub(crate) fn find(args: &BenchArgs, interrupt: &Interrupt) -> Result<Option<Python>> {
    if args.against.is_empty() {
        return Ok(None);
    }
    if args.device.device != "cpu" {
        return Err(refused("loads into CPU memory", "leave out --device"));
    }
    let check = || interrupt.check();
    let watch = Watch {
        check: &check,
        limit: time_limit(0),
    };
    let program = args.python.clone().unwrap_or_else(default_program);
    Python::find(&program, &args.against, &watch).map(Some)
}

fn refused(what: &str, hint: &str) -> Error {
    let message = format!("--against compares {what} only");
    Error::new(ErrorKind::Unsupported, message).with_hint(hint.to_owned())
}

impl<'a> Peers<'a> {
    pub(crate) fn new(
        python: Python,
        target: &Target<'_>,
        interrupt: &'a Interrupt,
    ) -> Result<Self> {
        let shards = target.checkpoint.shards().iter();
        let files: Option<_> = shards
            .map(|it| it.location().as_path().map(Into::into))
            .collect();
        let location = target.checkpoint.location();
        Ok(Self {
            python,
            interrupt,
            location: match location.as_path() {
                Some(path) => path.to_string_lossy().into_owned(),
                None => location.to_string(),
            },
            files: files.ok_or_else(|| refused("loads of files", "copy them first: tload cp"))?,
            bytes: target.checkpoint.total_bytes(),
            converted: None,
        })
    }

    /// Returns a warning for each loader that is not installed.
    pub(crate) fn warnings(&self) -> impl Iterator<Item = Warning> {
        let missing = self.python.missing();
        missing.map(|(peer, packages)| Warning::PeerMissing {
            name: peer.name,
            python: self.python.program().display().to_string(),
            packages,
        })
    }

    /// Returns the files that a loader reads, and writes them if it has a format of its own: on the
    /// disk of the checkpoint, or the comparison would be one of disks.
    pub(super) fn files(&mut self, peer: &Peer) -> Result<Vec<PathBuf>> {
        if !peer.has_own_format {
            return Ok(self.files.clone());
        }
        let name = format!("model.{}", peer.name);
        if let Some(folder) = &self.converted {
            return Ok(vec![folder.path().join(name)]);
        }
        let disk = self.files.first().and_then(|file| file.parent());
        let disk = disk.unwrap_or(Path::new("."));
        let folder = tempfile::Builder::new()
            .prefix(".tload-bench-")
            .tempdir_in(disk)
            .map_err(|error| file_error("cannot create a directory in", disk, error))?;
        // From here on the guard removes the directory, also on a signal.
        let folder = self.interrupt.temporary(folder.keep());
        let file = folder.path().join(name);
        let check = || self.interrupt.check();
        self.python
            .convert(&self.files, &file, &self.watch(&check))?;
        self.converted = Some(folder);
        Ok(vec![file])
    }

    /// Runs `peer` once. Calls `prepare` before its clock starts.
    pub(super) fn run(
        &self,
        peer: &Peer,
        cell: &Cell,
        files: &[PathBuf],
        prepare: impl FnOnce(&PageCache) -> Result<Residency>,
    ) -> Result<Measurement> {
        let job = PeerLoad {
            location: &self.location,
            files,
            keeps: cell.mode == Mode::Keep,
            again: cell.mode == Mode::Reload,
            bytes: self.bytes,
        };
        let page_cache = PageCache::new(files.to_vec());
        let check = || self.interrupt.check();
        let loaded = (self.python).load(peer, &job, &self.watch(&check), || prepare(&page_cache));
        let (residency, outcome) = loaded?;
        let Outcome { bytes, seconds, .. } = outcome;
        Ok(Measurement {
            residency,
            bytes,
            seconds,
            bytes_per_second: rate(bytes, seconds),
            cpu_seconds: Some(outcome.cpu_seconds),
            cpu_seconds_per_gib: (bytes > 0).then(|| outcome.cpu_seconds / gibibytes(bytes)),
            peak_rss_bytes: outcome.peak_rss_bytes,
            first_tensor_seconds: outcome.first_tensor_seconds,
            opening_seconds: None,
            engine: self.python.describe(peer),
            report: None,
        })
    }

    fn watch<'b>(&self, check: &'b dyn Fn() -> Result<()>) -> Watch<'b> {
        Watch {
            check,
            limit: time_limit(self.bytes),
        }
    }
}
