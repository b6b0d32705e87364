//! One copy, step by step: list, filter, skip existing files, read the rest.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use crate::control::{CopyControl, Ongoing};
use crate::copy_options::CopyOptions;
use crate::copy_report::CopyReport;
use crate::error::{Error, ErrorKind, Result};
use crate::fetch::Sources;
use crate::format::Precedence;
use crate::list::{self, Entry, Listing};
use crate::near::suggest_near;
use crate::options::{Location, Protocol, StoreOptions};
use crate::paths::Filter;
use crate::plan::{self, CopyPlan};
use crate::storage::StoreClient;
use crate::storage::guarded_dir::GuardedDir;
use crate::target::TargetDir;
use crate::{executor, hub_cache, unusable};
use tload_listing::require_one_model;

#[cfg(test)]
mod tests;

/// Copy of a checkpoint's directory with all files below it, or of a single file, into a local
/// directory.
///
/// A file appears under its name when it is complete and on disk, never before. An incomplete file
/// stays as `.NAME.tload-partial`, with a journal beside it; the next copy resumes it if the source
/// has not changed. The journal is written soon after a file's first bytes, every two seconds, and
/// when the copy fails or is cancelled: a process that is killed loses a few seconds of progress.
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
    pub(crate) opened: Option<GuardedDir>,
    options: CopyOptions,
    store: StoreOptions,
    client: StoreClient,
    pub(crate) ongoing: Arc<Ongoing>,
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
    /// all other files were copied ([`CopyOptions::skip_unusable`]), and before anything is copied
    /// if the target has other weights that a load of it would read too, or instead
    /// ([`CopyOptions::include`] selects what is copied all the same);
    /// [`ErrorKind::OutOfMemory`] for a full disk; [`ErrorKind::Changed`] for a source that was
    /// replaced meanwhile; [`ErrorKind::Cancelled`]; and errors of opening and reading sources.
    /// After an error, the bytes that have arrived are kept for the next copy.
    pub fn run(self) -> Result<CopyReport> {
        let (source, sources) = (self.source.clone(), self.sources());
        let remote = || sources.remote().cloned();
        let copied = self.copy(&sources);
        copied.map_err(|error| suggest_near(error, &source, remote))
    }

    /// Returns the access to the source.
    #[doc(hidden)]
    pub fn sources(&self) -> Sources {
        Sources::new(&self.store, &self.client)
    }

    /// Returns the counters.
    #[doc(hidden)]
    pub fn ongoing(&self) -> &Arc<Ongoing> {
        &self.ongoing
    }

    fn copy(mut self, sources: &Sources) -> Result<CopyReport> {
        let started = Instant::now();
        self.validate()?;
        self.refuse_own_directory()?;
        let (entries, mut unusable) = self.select(sources)?;
        if self.options.dry_run {
            let existing = self.target.ancestors().find(|path| path.is_dir());
            let here = existing.filter(|path| !path.as_os_str().is_empty());
            let root = TargetDir::find(here.unwrap_or(Path::new(".")))?;
            let entries = match root {
                Some(root) => self.fitting(&root, entries, &mut unusable)?,
                None => entries,
            };
            if let Some(root) = TargetDir::find(&self.target)? {
                self.require_one_model(&root, &entries)?;
            }
            let plan = plan::plan(entries, &self.target, sources, &self.options, &self.ongoing)?;
            return Ok(self.report(started, Some(plan), unusable));
        }
        let root = self.open_target()?;
        let fitting = self.fitting(&root, entries, &mut unusable)?;
        self.require_one_model(&root, &fitting)?;
        let entries = self.absent(fitting, &root)?;
        executor::run(entries, &root, sources, &self.options, &self.ongoing)?;
        if unusable.is_empty() || self.options.skip_unusable {
            return Ok(self.report(started, None, unusable));
        }
        Err(unusable::error(&unusable, &self.source))
    }

    /// Returns the files to copy by name, and the names that cannot be those of files.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotFound`] if there are none, or none with a name of the options; those of
    /// listing.
    #[doc(hidden)]
    pub fn select(&self, sources: &Sources) -> Result<(Vec<Entry>, Vec<String>)> {
        let filter = Filter::new(&self.options)?;
        self.fill_hub_cache(&filter, sources)?;
        let Listing {
            entries,
            mut unusable,
            ..
        } = list::find(&self.source, &filter, sources, &self.ongoing)?;
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
        Ok((entries, unusable))
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

    /// Refuses to add the source's weights to others, unless the options or the location select
    /// single files.
    fn require_one_model(&self, root: &TargetDir, entries: &[Entry]) -> Result<()> {
        let is_selection = self.options.names.is_some() || !self.options.include.is_empty();
        if is_selection || entries.iter().any(|entry| entry.location == self.source) {
            return Ok(());
        }
        let mut folders: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for entry in entries {
            let (folder, name) = entry.name.rsplit_once('/').unwrap_or(("", &entry.name));
            folders.entry(folder).or_default().push(name);
        }
        for (folder, copied) in folders {
            require_one_model(&copied, &root.names(folder)).map_err(|error| {
                let path: PathBuf = self.target.join(folder).components().collect();
                error.with_location(path.display())
            })?;
        }
        Ok(())
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
        self.options.validate()?;
        if let Some((scheme, _)) = self.target.to_string_lossy().split_once("://") {
            // The URL is not shown, because it may contain credentials.
            let message =
                "checkpoints are copied to directories, S3, Google Cloud Storage and Azure";
            let upload = match scheme {
                "hf" => "hf upload",
                "oci" => "oras push",
                _ => "the store's own tool",
            };
            let hint = format!("copy into a directory, and upload that with {upload}");
            return Err(Error::unsupported(message).with_hint(hint));
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

    /// Returns the report of a copy that has ended.
    #[doc(hidden)]
    pub fn report(
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
