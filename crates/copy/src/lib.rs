//! Copies a checkpoint with everything beside it, from any source, into a local directory.
//!
//! Programs depend on the crate `tload`, which re-exports what they need of this one. The crates
//! are released together, and anything else here may change in any release.
//!
//! Owns the order of steps: list, filter, skip existing files, read the rest. `list` finds the
//! files, `paths` checks and maps their names, and `fetch` reads them; `target` writes, `journal`
//! and `record` persist the state, `recording` says when, `executor` keeps many requests in flight,
//! and `cancel` cancels them. `control` shows progress to other threads. `plan` is the dry run,
//! `beside` reads one small file without copying it, and `hub_cache` writes into the cache of
//! `huggingface_hub`. The copy does not parse tensors.

mod beside;
mod cancel;
mod control;
mod executor;
mod fetch;
mod hub_cache;
mod journal;
mod list;
mod ownership;
mod paths;
mod plan;
mod record;
mod recording;
mod target;
mod unusable;

// Paths that the crates of tload share.
pub(crate) use tload_base::{error, options, sync};
pub(crate) use tload_format as format;
pub(crate) use tload_storage as storage;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use serde::Serialize;

pub use beside::read_beside;
pub use control::{CopyControl, CopyProgress};
pub use hub_cache::fill_all;
pub use paths::components;
pub use plan::{CopyAction, CopyPlan, PlannedFile};

use crate::error::{Error, ErrorKind, Result};
use crate::format::Precedence;
use crate::options::{Location, Protocol, StoreOptions, with_setters};
use crate::storage::StoreClient;
use crate::storage::guarded_dir::GuardedDir;
use control::Ongoing;
use fetch::Sources;
use list::{Entry, Listing};
use paths::Filter;
use target::TargetDir;

/// Maximum length of a request, bytes. Shorter than the maximum of a load: a file of few requests
/// would not keep all connections busy.
const RANGE_BYTES: u64 = 16 << 20;

/// Requests in flight, as in a load from an object store.
const DEPTH: usize = 16;
const DEPTH_MAX: usize = 4096;

with_setters! {
/// Options of a copy.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CopyOptions {
    /// Exactly the files at these paths below the source. Default: `None`, which selects all.
    pub names: Option<Vec<String>>,
    /// Globs, of which one must match a file's path below the source, or its last component.
    /// Default: empty, which selects all.
    pub include: Vec<String>,
    /// Globs of files to exclude. Default: none.
    pub exclude: Vec<String>,
    /// Includes files and directories whose names begin with a dot. Default: no.
    pub hidden: bool,
    /// Copies existing files again, and discards incomplete ones. Default: no.
    pub force: bool,
    /// Succeeds although names at the source that cannot be those of files were left out; see
    /// [`CopyReport::unusable`]. Default: no.
    pub skip_unusable: bool,
    /// Decides what to do with each file, and does not do it: writes nothing. Default: no.
    pub dry_run: bool,
    /// Requests (for files: reads) in flight, over all files; 1 to 4096. Default: 16.
    pub depth: usize,
    /// Maximum length of a request, bytes; at least 4096. Default: 16 MiB.
    pub range_bytes: u64,
}
}

impl Default for CopyOptions {
    fn default() -> Self {
        Self {
            names: None,
            include: Vec::new(),
            exclude: Vec::new(),
            hidden: false,
            force: false,
            skip_unusable: false,
            dry_run: false,
            depth: DEPTH,
            range_bytes: RANGE_BYTES,
        }
    }
}

/// Copy of a checkpoint's directory with all files below it, or of a single file, into a local
/// directory.
///
/// A file appears under its name when it is complete and on disk, never before. An incomplete file
/// stays as `.NAME.tload-partial`, with a journal beside it; the next copy resumes it if the source
/// has not changed. The journal is written with a file's first bytes, every two seconds, and when
/// the copy fails or is cancelled: a process that is killed loses a few seconds of progress.
///
/// A file is skipped if an earlier copy created it from the same source in the same state, and it
/// has not been changed since. Each finished file has a record of that: a digest of its source's
/// location, with length, `ETag`, version and modification time, in the extended attribute
/// `user.tload.copied`, or in a hidden file `.NAME.tload-copied` where the file system has no such
/// attributes. A source without anything that distinguishes its states is copied every time; so is
/// one with only a modification time that was less than a minute ago when it was copied.
///
/// # Examples
///
/// ```no_run
/// # mod tload {
/// #     pub use tload_base::{error::Result, options::Location};
/// #     pub mod copy { pub use tload_copy::*; }
/// # }
/// # fn main() -> tload::Result<()> {
/// use tload::Location;
/// use tload::copy::{CopyJob, CopyOptions};
///
/// // The source may be a path, or a location of any kind.
/// let weights = CopyOptions::default().include(vec!["*.safetensors".to_owned()]);
/// let source = Location::parse("s3://bucket/model")?;
/// let report = CopyJob::new(source, "/models/model").options(weights).run()?;
/// println!("{} files, {} bytes", report.copied_files, report.copied_bytes);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct CopyJob {
    source: Location,
    target: PathBuf,
    /// The target, if it is open already.
    opened: Option<GuardedDir>,
    options: CopyOptions,
    store: StoreOptions,
    client: StoreClient,
    ongoing: Arc<Ongoing>,
}

/// Report of a copy. After a dry run, the counters say what the copy would do.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct CopyReport {
    /// Location of the source, without secrets.
    pub location: String,
    /// Target directory.
    pub target: String,
    /// Files that were completed by this copy.
    pub copied_files: u64,
    /// Bytes that this copy read.
    pub copied_bytes: u64,
    /// Bytes that earlier copies had fetched.
    pub resumed_bytes: u64,
    /// Files that existed already.
    pub skipped_files: u64,
    /// Bytes of the skipped files.
    pub skipped_bytes: u64,
    /// Requests to object stores, without list requests, and including those of a download into a
    /// hub's cache.
    pub requests: u64,
    /// Requests that were retried.
    pub retries: u64,
    /// Copied files whose store sends neither `ETag` nor Last-Modified (`allow_unversioned`): their
    /// length, first and last bytes were compared once more at the end.
    pub unversioned_files: u64,
    /// Names at the source that cannot be those of files in a directory, and were left out: keys of
    /// stores with empty components, dots or control characters, names that are not UTF-8, names
    /// that are too long for the target's file system (files in progress have 24 bytes more), and
    /// files with the name of a folder. Never copied; a copy that is not a dry run fails after it
    /// has copied everything else, unless [`CopyOptions::skip_unusable`] is set.
    pub unusable: Vec<String>,
    /// Seconds from the call to the last byte on disk.
    pub seconds: f64,
    /// Steps of the copy, file by file, with [`CopyOptions::dry_run`]; else `None`.
    pub plan: Option<CopyPlan>,
}

/// File below a source.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ListedFile {
    /// Path below the source, with `/`; the file's own name when the source is a file.
    pub name: String,
    /// Length, bytes; `None` if only opening the file would tell (web servers, which list nothing).
    pub bytes: Option<u64>,
}

/// Lists all files below a source by name, including hidden ones. Returns none for a prefix that no
/// object of a store begins with.
///
/// # Errors
///
/// Errors of listing the source: [`ErrorKind::NotFound`] for a path that does not exist,
/// [`ErrorKind::PermissionDenied`], [`ErrorKind::Remote`].
///
/// # Examples
///
/// ```
/// # mod tload {
/// #     pub use tload_base::error::Error;
/// #     pub use tload_base::options::StoreOptions;
/// #     pub mod copy { pub use tload_copy::*; }
/// # }
/// # let folder = tempfile::tempdir().unwrap();
/// # let path = folder.path();
/// # std::fs::write(path.join("model.safetensors"), b"\x02\0\0\0\0\0\0\0{}").unwrap();
/// use tload::StoreOptions;
/// use tload::copy::list_files;
///
/// let files = list_files(path, &StoreOptions::new())?;
/// assert_eq!(files[0].name, "model.safetensors");
/// # Ok::<(), tload::Error>(())
/// ```
pub fn list_files(source: impl Into<Location>, store: &StoreOptions) -> Result<Vec<ListedFile>> {
    let source = &source.into();
    let options = CopyOptions {
        hidden: true,
        ..CopyOptions::default()
    };
    let (filter, sources) = (
        Filter::new(&options)?,
        Sources::new(store, &StoreClient::default()),
    );
    let ongoing = Arc::default();
    let mut listed = Vec::new();
    let Listing {
        entries, unusable, ..
    } = list::find(source, &filter, &sources, &ongoing)?;
    if !unusable.is_empty() {
        tracing::info!(target: "tload::notes", "{}", unusable::error(&unusable, source).message());
    }
    for entry in entries {
        let mut bytes = entry.listed.map(|listed| listed.len);
        if bytes.is_none() && entry.location == *source {
            // Nothing is below the source, so open it to find out whether it is an object itself.
            match sources.open(source, &ongoing) {
                Ok(opened) => bytes = Some(opened.origin()?.len),
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                Err(error) => return Err(error),
            }
        }
        listed.push(ListedFile {
            name: entry.name,
            bytes,
        });
    }
    Ok(listed)
}

impl CopyJob {
    /// Creates a copy of `source` into the directory `target`, which is created if it does not
    /// exist.
    pub fn new(source: impl Into<Location>, target: impl Into<PathBuf>) -> Self {
        Self {
            source: source.into(),
            target: target.into(),
            opened: None,
            options: CopyOptions::default(),
            store: StoreOptions::default(),
            client: StoreClient::default(),
            ongoing: Arc::default(),
        }
    }

    /// Sets the options.
    #[must_use]
    pub fn options(mut self, options: CopyOptions) -> Self {
        self.options = options;
        self
    }

    /// Sets the options for the object store of the source.
    #[must_use]
    pub fn store(mut self, store: StoreOptions) -> Self {
        self.store = store;
        self
    }

    /// Sets the client whose threads and connections the copy uses. Default: that of the process.
    #[must_use]
    pub fn client(mut self, client: StoreClient) -> Self {
        self.client = client;
        self
    }

    /// Returns a handle that observes and cancels the copy.
    ///
    /// # Examples
    ///
    /// ```
    /// # mod tload {
    /// #     pub use tload_base::error::Error;
    /// #     pub use tload_base::options::StoreOptions;
    /// #     pub mod copy { pub use tload_copy::*; }
    /// # }
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let path = folder.path();
    /// # std::fs::write(path.join("model.safetensors"), b"\x02\0\0\0\0\0\0\0{}").unwrap();
    /// # let other = tempfile::tempdir().unwrap();
    /// # let target = other.path().join("copy");
    /// use tload::copy::CopyJob;
    ///
    /// let job = CopyJob::new(path, &target);
    /// let control = job.control();
    /// // Run the job on another thread, and call `control.cancel()` to end it early.
    /// let report = job.run()?;
    /// assert_eq!(control.progress().bytes_done, report.copied_bytes);
    /// # Ok::<(), tload::Error>(())
    /// ```
    pub fn control(&self) -> CopyControl {
        CopyControl {
            ongoing: Arc::clone(&self.ongoing),
            source: self.source.clone(),
            target: self.target.clone(),
        }
    }

    /// Runs the copy.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidRequest`] for names that cannot be those of files in the target, after
    /// all other files were copied ([`CopyOptions::skip_unusable`]);
    /// [`ErrorKind::OutOfMemory`] for a full disk; [`ErrorKind::Changed`] for a source that was
    /// replaced meanwhile; [`ErrorKind::Cancelled`]; and errors of opening and reading sources.
    /// After an error, the bytes that have arrived are kept for the next copy.
    pub fn run(mut self) -> Result<CopyReport> {
        let started = Instant::now();
        self.validate()?;
        self.refuse_own_directory()?;
        let filter = Filter::new(&self.options)?;
        let sources = Sources::new(&self.store, &self.client);
        self.fill_hub_cache(&filter, &sources)?;
        let Listing {
            entries,
            mut unusable,
            ..
        } = list::find(&self.source, &filter, &sources, &self.ongoing)?;
        let (entries, others) = unusable::split(entries);
        unusable.extend(others);
        if entries.is_empty() && !unusable.is_empty() {
            return Err(unusable::error(&unusable, &self.source));
        }
        if entries.is_empty() {
            return Err(Error::new(ErrorKind::NotFound, "there is nothing to copy")
                .with_location(&self.source)
                .with_hint(
                    "check the path and the patterns; hidden files are excluded by default, and web servers list nothing",
                ));
        }
        for name in self.options.names.iter().flatten() {
            // Binary search works because the entries are sorted.
            let found = entries.binary_search_by(|entry| entry.name.as_str().cmp(name));
            if found.is_err() {
                return Err(Error::new(
                    ErrorKind::NotFound,
                    format!("it contains no file {name:?}"),
                )
                .with_location(&self.source)
                .with_hint("names are paths below the source"));
            }
        }
        if self.options.dry_run {
            let existing = self.target.ancestors().find(|path| path.is_dir());
            let here = existing.filter(|path| !path.as_os_str().is_empty());
            let root = TargetDir::find(here.unwrap_or(Path::new(".")))?;
            let entries = match root {
                Some(root) => self.fitting(&root, entries, &mut unusable)?,
                None => entries,
            };
            let plan = plan::plan(
                entries,
                &self.target,
                &sources,
                &self.options,
                &self.ongoing,
            )?;
            return Ok(self.report(started, Some(plan), unusable));
        }
        let root = self.open_target()?;
        let fitting = self.fitting(&root, entries, &mut unusable)?;
        let entries = self.absent(fitting, &root)?;
        executor::run(entries, &root, &sources, &self.options, &self.ongoing)?;
        if unusable.is_empty() || self.options.skip_unusable {
            return Ok(self.report(started, None, unusable));
        }
        Err(unusable::error(&unusable, &self.source))
    }

    /// Returns the entries with names that the file system of the target takes.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidRequest`] if there are none.
    fn fitting(
        &self,
        root: &TargetDir,
        entries: Vec<Entry>,
        unusable: &mut Vec<String>,
    ) -> Result<Vec<Entry>> {
        let (entries, others) = unusable::split_at(root, entries)?;
        unusable.extend(others);
        if entries.is_empty() {
            return Err(unusable::error(unusable, &self.source));
        }
        Ok(entries)
    }

    fn open_target(&mut self) -> Result<TargetDir> {
        match self.opened.take() {
            Some(opened) => Ok(TargetDir::locked(opened)),
            None => TargetDir::open(&self.target),
        }
    }

    /// Puts the selected files of a hub's model into the cache of `huggingface_hub`, if the options
    /// say so: they are then copied from there.
    fn fill_hub_cache(&self, filter: &Filter, sources: &Sources) -> Result<()> {
        let is_asked = self.store.flag("hf_cache") == Some(true) && !self.options.dry_run;
        if !is_asked || self.source.protocol() != Some(Protocol::Hub) {
            return Ok(());
        }
        let listing = list::find(&self.source, filter, sources, &self.ongoing)?;
        let names: Vec<_> = listing.entries.into_iter().map(|it| it.name).collect();
        let download = hub_cache::Download {
            depth: self.options.depth,
            range_bytes: self.options.range_bytes,
            precedence: Precedence::default(),
            client: self.client.clone(),
            ongoing: self.ongoing.begin_download(),
        };
        hub_cache::fill(&self.source, &self.store, &names, download)?;
        self.ongoing.end_download();
        Ok(())
    }

    /// Refuses to copy files over themselves, which would replace them by others of equal contents
    /// under their users.
    fn refuse_own_directory(&self) -> Result<()> {
        let Some(source) = self.source.as_path() else {
            return Ok(());
        };
        let folder = if source.is_file() {
            source
                .parent()
                .filter(|folder| !folder.as_os_str().is_empty())
        } else {
            Some(source)
        };
        let folder = folder.unwrap_or(Path::new("."));
        let message = match (folder.canonicalize(), canonical(&self.target)) {
            (Ok(from), Ok(to)) if from == to => "source and target are the same directory",
            (Ok(from), Ok(to)) if to.starts_with(&from) && folder == source => {
                "the target is below the source: the next copy would copy it too"
            }
            _ => return Ok(()),
        };
        Err(Error::invalid_request(message)
            .with_location(&self.source)
            .with_hint("name another directory to copy to"))
    }

    fn validate(&self) -> Result<()> {
        let invalid = |message| Err(Error::invalid_request(message));
        if !(1..=DEPTH_MAX).contains(&self.options.depth) {
            return invalid(format!(
                "‹depth› is {}; it must lie between 1 and {DEPTH_MAX}",
                self.options.depth
            ));
        }
        if self.target.to_string_lossy().contains("://") {
            // The URL is not shown, because it may contain credentials.
            return Err(Error::unsupported(
                "the target is a URL; checkpoints are copied into local directories only",
            ));
        }
        if self.options.range_bytes < 4096 {
            return invalid(format!(
                "‹range_bytes› is {}; it must be at least 4096",
                self.options.range_bytes
            ));
        }
        Ok(())
    }

    /// Returns the files to copy, and requires enough disk space for them.
    fn absent(&self, entries: Vec<Entry>, root: &TargetDir) -> Result<Vec<Entry>> {
        let mut absent = Vec::new();
        let mut needed = 0u64;
        for entry in entries {
            let Some(listed) = &entry.listed else {
                absent.push(entry);
                continue;
            };
            let mut held = None;
            if !self.options.force {
                held = root.held(&entry.name)?;
            }
            if held.as_ref().is_some_and(|held| held.is_same_state(listed)) {
                self.ongoing.skip(listed.len);
                continue;
            }
            Ongoing::add(&self.ongoing.bytes_total, listed.len);
            // If opening the source may show that the file is there already, the file counts as
            // needing no space.
            if held.is_none_or(|held| !held.may_be(listed)) {
                let begun = root.begun_bytes(&entry.name)?;
                needed = needed.saturating_add(listed.len.saturating_sub(begun));
            }
            absent.push(entry);
        }
        root.require_space(needed)?;
        Ok(absent)
    }

    fn report(
        &self,
        started: Instant,
        plan: Option<CopyPlan>,
        unusable: Vec<String>,
    ) -> CopyReport {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let ongoing = &self.ongoing;
        CopyReport {
            location: self.source.to_string(),
            target: self.target.display().to_string(),
            copied_files: load(&ongoing.copied_files),
            copied_bytes: load(&ongoing.bytes_read),
            resumed_bytes: load(&ongoing.bytes_resumed),
            skipped_files: load(&ongoing.skipped_files),
            skipped_bytes: load(&ongoing.skipped_bytes),
            requests: load(&ongoing.requests),
            retries: load(&ongoing.retries),
            unversioned_files: load(&ongoing.unversioned_files),
            unusable,
            seconds: started.elapsed().as_secs_f64(),
            plan,
        }
    }
}

fn cancelled() -> Error {
    Error::new(ErrorKind::Cancelled, "the copy was cancelled")
}

/// Returns the path without symbolic links of a directory that may not exist yet.
fn canonical(path: &Path) -> std::io::Result<PathBuf> {
    match path.canonicalize() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
                return Err(error);
            };
            let is_here = parent.as_os_str().is_empty();
            let parent = if is_here { Path::new(".") } else { parent };
            Ok(canonical(parent)?.join(name))
        }
        found => found,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rustix::fs::{Mode, OFlags};

    use super::*;

    #[test]
    fn cancelled_copy_keeps_what_was_recorded() {
        let source = Location::from_path("model");
        let control = CopyJob::new(&source, "target").control();
        Ongoing::add(&control.ongoing.bytes_recorded, 7);
        assert_eq!(control.progress().bytes_kept, 0);
        control.cancel();
        assert_eq!(control.progress().bytes_kept, 7);
        Ongoing::add(&control.ongoing.bytes_kept, 9);
        assert_eq!(control.progress().bytes_kept, 9);
    }

    #[test]
    fn copy_goes_on_from_its_target_after_a_failed_download() {
        let copy = CopyJob::new(Location::from_path("model"), "target");
        let (ongoing, control) = (&copy.ongoing, copy.control());
        let download = ongoing.begin_download();
        Ongoing::add(&download.bytes_total, 100);
        for counter in [
            &download.bytes_read,
            &download.bytes_kept,
            &download.requests,
        ] {
            Ongoing::add(counter, 30);
        }
        Ongoing::add(&download.bytes_recorded, 30);
        Ongoing::add(&download.retries, 2);
        let hint = || {
            control
                .timed_out(Duration::from_secs(1))
                .hint()
                .map(str::to_owned)
        };
        assert!(hint().is_some_and(|hint| hint.contains("the hub's cache")));
        ongoing.end_download();
        Ongoing::add(&ongoing.bytes_total, 100);
        Ongoing::add(&ongoing.bytes_read, 100);
        let progress = control.progress();
        assert_eq!((progress.bytes_done, progress.bytes_total), (130, 130));
        control.cancel();
        assert_eq!(control.progress().bytes_kept, 0);
        Ongoing::add(&ongoing.bytes_kept, 9);
        assert!(
            hint().is_some_and(|hint| hint.contains("9 B are kept in target")),
            "{:?}",
            hint()
        );
        let report = copy.report(Instant::now(), None, Vec::new());
        assert_eq!((report.requests, report.retries), (30, 2));
    }

    /// Listings of some stores lack what only opening an object tells.
    #[test]
    fn files_that_may_be_there_need_no_space() {
        let target = tempfile::tempdir().expect("a folder");
        let root = TargetDir::open(target.path()).expect("opens");
        let source = Location::parse("s3://bucket/model").expect("a location");
        let origin = journal::Origin {
            source: source.join("a.bin").digest(""),
            len: 8 << 40,
            e_tag: Some("\"x\"".to_owned()),
            version: None,
            modified: (1, 0),
            is_settled: true,
            file: None,
        };
        let file = std::fs::File::create(target.path().join("a.bin")).expect("creates");
        let stat = rustix::fs::fstat(&file).expect("stats");
        let record = record::Record::new(&origin, &stat);
        if !record.attach(&file) {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY;
            let folder = rustix::fs::open(target.path(), flags, Mode::empty()).expect("opens");
            record.put_beside(&folder, "a.bin").expect("writes");
        }
        let absent = |listed: journal::Origin, force| {
            let options = CopyOptions {
                force,
                ..CopyOptions::default()
            };
            let entry = Entry {
                name: "a.bin".to_owned(),
                location: source.join("a.bin"),
                listed: Some(listed),
                opened: None,
            };
            let copy = CopyJob::new(&source, target.path()).options(options);
            let absent = copy.absent(vec![entry], &root);
            absent
                .map(|absent| absent.len())
                .map_err(|error| error.kind())
        };
        let without_tag = journal::Origin {
            e_tag: None,
            ..origin.clone()
        };
        let changed = journal::Origin {
            e_tag: Some("\"y\"".to_owned()),
            ..origin.clone()
        };
        assert_eq!(absent(origin, false), Ok(0));
        assert_eq!(absent(without_tag.clone(), false), Ok(1));
        assert_eq!(absent(without_tag, true), Err(ErrorKind::OutOfMemory));
        assert_eq!(absent(changed, false), Err(ErrorKind::OutOfMemory));
    }
}
