//! Writer of a model's files: under temporary names, flushed and dropped from the page cache, and
//! renamed when all are there; removed on failure.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use serde_json::{Value, json};
use tload::internal::{format_bytes, probe};
use tload::verify::MANIFEST_NAME;
use tload::{Error, ErrorKind, Result};
use tload_base::sync::threads::Builder;

use super::random::Numbers;
use super::safetensors::Layout;
use super::{Entry, Model, shards};
use crate::host::{Host, Temporary, file_error};

/// Random bytes generated and written at a time: few enough to stay in a core's cache in between.
pub(crate) const BUFFER_BYTES: usize = 1 << 20;
/// Maximum number of files written at once. A few keep the disk busy while the numbers of another
/// are generated; more only compete.
const WRITERS_MAX: usize = 4;
/// Space for headers, index and the file system, in addition to the tensors.
const OVERHEAD_BYTES: u64 = 16 << 20;

/// End of a temporary name.
const PARTIAL: &str = ".partial";
const INDEX_NAME: &str = "model.safetensors.index.json";
pub(crate) const CONFIG_NAME: &str = "config.json";

/// Model, distributed over files.
#[derive(Debug)]
pub struct Synth<'a> {
    pub(crate) model: &'a Model,
    pub(crate) shards: Vec<&'a [Entry]>,
    pub(crate) seed: u64,
}

impl<'a> Synth<'a> {
    /// Distributes `model` over `shards` files, by default one per GiB.
    pub fn new(model: &'a Model, shards: Option<u32>, seed: u64) -> Result<Self> {
        let count = shards.unwrap_or_else(|| shards::default_count(model.bytes()));
        Ok(Self {
            model,
            shards: shards::deal(&model.entries, count)?,
            seed,
        })
    }

    /// Returns the number of files with tensors.
    pub fn shard_count(&self) -> u64 {
        self.shards.len() as u64
    }

    /// Writes all files into `directory`, or leaves none of them.
    ///
    /// Refuses a directory that is not empty, unless `force` is set: then the checkpoint in it, and
    /// its manifest, are replaced once all files of the new one are written.
    pub fn write(&self, directory: &Path, force: bool, host: &dyn Host) -> Result<()> {
        let made = prepare(directory, force)?;
        let directory_guard = made.then(|| host.temporary(directory.to_owned()));
        let writing = Writing {
            synth: self,
            directory,
            host,
        };
        let mut guards = writing.shards()?;
        let mut names: Vec<_> = (0..self.shards.len())
            .map(|it| self.shard_name(it))
            .collect();
        for (name, text) in self.companions() {
            let partial = temporary_name(&directory.join(name));
            guards.push(host.temporary(partial.clone()));
            create(&partial)
                .and_then(|mut file| file.write_all(text.as_bytes()).and(file.sync_data()))
                .map_err(|error| file_error("cannot write", &partial, error))?;
            names.push(name.to_owned());
        }
        remove(directory, |name| is_ours(name) || name == MANIFEST_NAME)?;
        for path in names.into_iter().map(|name| directory.join(name)) {
            guards.push(host.temporary(path.clone()));
            fs::rename(temporary_name(&path), &path)
                .map_err(|error| file_error("cannot rename to", &path, error))?;
        }
        for guard in guards {
            guard.keep();
        }
        if let Some(guard) = directory_guard {
            guard.keep();
        }
        Ok(())
    }

    /// Returns `model.safetensors`, or `model-00001-of-00004.safetensors`.
    fn shard_name(&self, index: usize) -> String {
        match self.shards.len() {
            1 => "model.safetensors".to_owned(),
            count => format!("model-{:05}-of-{count:05}.safetensors", index + 1),
        }
    }

    /// Returns name and text of the files beside the shards.
    fn companions(&self) -> Vec<(&'static str, String)> {
        let mut files = vec![(CONFIG_NAME, pretty(&self.model.config))];
        if self.shards.len() > 1 {
            let mut weight_map = BTreeMap::new();
            for (index, shard) in self.shards.iter().enumerate() {
                for entry in *shard {
                    weight_map.insert(entry.name.as_str(), self.shard_name(index));
                }
            }
            let metadata = json!({"total_size": self.model.bytes()});
            let index = json!({"metadata": metadata, "weight_map": weight_map});
            files.push((INDEX_NAME, pretty(&index)));
        }
        files
    }
}

/// One call of [`Synth::write`].
struct Writing<'a> {
    synth: &'a Synth<'a>,
    directory: &'a Path,
    host: &'a dyn Host,
}

impl<'a> Writing<'a> {
    /// Writes all shards under temporary names, several at a time, and returns their guards.
    fn shards(&self) -> Result<Vec<Box<dyn Temporary + 'a>>> {
        let next = AtomicUsize::new(0);
        let guards = Mutex::new(Vec::new());
        let write_some = || -> Result<()> {
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                let Some(shard) = self.synth.shards.get(index) else {
                    return Ok(());
                };
                match self.shard(index, shard) {
                    Ok(guard) => guards.lock().expect("no writer panics").push(guard),
                    Err(error) => {
                        // Leaves no shard for the other writers.
                        next.store(self.synth.shards.len(), Ordering::Relaxed);
                        return Err(error);
                    }
                }
            }
        };
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let writers = self.synth.shards.len().min(cores).min(WRITERS_MAX);
        thread::scope(|scope| {
            // This thread is one of them, so all is written even if no other can be started.
            let start = |_| Builder::new().spawn_scoped(scope, write_some).ok();
            let others: Vec<_> = (1..writers).filter_map(start).collect();
            let own = write_some();
            let outcomes = others
                .into_iter()
                .map(|writer| writer.join().expect("no writer panics"));
            outcomes.fold(own, Result::and)
        })?;
        Ok(guards.into_inner().expect("no writer panics"))
    }

    fn shard(&self, index: usize, entries: &[Entry]) -> Result<Box<dyn Temporary + 'a>> {
        let partial = temporary_name(&self.directory.join(self.synth.shard_name(index)));
        let guard = self.host.temporary(partial.clone());
        self.shard_bytes(&partial, entries)?;
        // If the page cache cannot be dropped (tmpfs), the checkpoint is still valid.
        drop(probe::evict(&partial));
        Ok(guard)
    }

    fn shard_bytes(&self, path: &Path, entries: &[Entry]) -> Result<()> {
        let failed = |error: io::Error| file_error("cannot write", path, error);
        let layout = Layout::new(entries);
        let mut file = create(path).map_err(failed)?;
        file.write_all(&layout.header()).map_err(failed)?;
        let mut buffer = vec![0; BUFFER_BYTES];
        for entry in layout.entries() {
            let mut numbers = Numbers::new(self.synth.seed, &entry.name, entry.dtype);
            let mut left = entry.byte_len();
            while left > 0 {
                self.host.check()?;
                let len = usize::try_from(left)
                    .unwrap_or(usize::MAX)
                    .min(BUFFER_BYTES);
                numbers.fill(&mut buffer[..len]);
                file.write_all(&buffer[..len]).map_err(failed)?;
                left -= len as u64;
                self.host.advance(len as u64);
            }
        }
        file.sync_data().map_err(failed)
    }
}

/// Creates a file where there is none: another user who may write to the directory could have made
/// a link to another file.
fn create(path: &Path) -> io::Result<File> {
    File::options().write(true).create_new(true).open(path)
}

/// Returns the temporary name beside the final one: `.model.safetensors.partial`.
fn temporary_name(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}{PARTIAL}"))
}

/// Makes sure that `directory` exists, and is empty unless `force` is set. Removes what killed
/// writers have left. Returns whether it was created.
fn prepare(directory: &Path, force: bool) -> Result<bool> {
    if directory.is_file() {
        return Err(Error::new(ErrorKind::InvalidRequest, "is a file")
            .with_location(directory.display())
            .with_hint("name a directory; it is created if it does not exist"));
    }
    if !directory.exists() {
        fs::create_dir_all(directory)
            .map_err(|error| file_error("cannot create the directory", directory, error))?;
        return Ok(true);
    }
    if !force && !listed(directory)?.is_empty() {
        return Err(
            Error::new(ErrorKind::InvalidRequest, "the directory is not empty")
                .with_location(directory.display())
                .with_hint("name another directory, or replace the checkpoint in it with --force"),
        );
    }
    let partial = |name: &str| name.strip_prefix('.')?.strip_suffix(PARTIAL).map(is_ours);
    remove(directory, |name| partial(name) == Some(true))?;
    Ok(false)
}

fn listed(directory: &Path) -> Result<Vec<PathBuf>> {
    fs::read_dir(directory)
        .and_then(|entries| entries.map(|entry| Ok(entry?.path())).collect())
        .map_err(|error| file_error("cannot list", directory, error))
}

/// Removes the files in `directory` that have such a name; others stay.
fn remove(directory: &Path, is_meant: impl Fn(&str) -> bool) -> Result<()> {
    for path in listed(directory)? {
        if is_meant(&path.file_name().unwrap_or_default().to_string_lossy()) {
            fs::remove_file(&path).map_err(|error| file_error("cannot replace", &path, error))?;
        }
    }
    Ok(())
}

/// Returns whether [`Synth`] writes files of this name.
fn is_ours(name: &str) -> bool {
    [INDEX_NAME, CONFIG_NAME, "model.safetensors"].contains(&name)
        || (name.starts_with("model-") && name.ends_with(".safetensors"))
}

/// Returns an error if there is no space for `bytes`. `directory` need not exist yet.
pub fn check_room(directory: &Path, bytes: u64) -> Result<()> {
    let existing = directory.ancestors().find(|ancestor| ancestor.exists());
    let free = free_bytes(existing.unwrap_or(Path::new(".")))?;
    if free < bytes.saturating_add(OVERHEAD_BYTES) {
        return Err(Error::new(
            ErrorKind::OutOfMemory,
            format!(
                "{} are free, {} are needed",
                format_bytes(free),
                format_bytes(bytes)
            ),
        )
        .with_location(directory.display())
        .with_hint("free some space, use a smaller --size, or name another directory"));
    }
    Ok(())
}

/// Returns the bytes that this user may still write to the file system of `directory`.
pub fn free_bytes(directory: &Path) -> Result<u64> {
    let stat = rustix::fs::statvfs(directory)
        .map_err(|error| file_error("cannot query free space", directory, error.into()))?;
    Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
}

pub(crate) fn pretty(value: &Value) -> String {
    format!("{value:#}\n")
}
