//! One copy to a store, step by step: list, look at the target, claim it, send, complete.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use tload_copy::{
    CopyControl, CopyJob, CopyOptions, CopyReport, Entry, Ongoing, Sources, suggest_near,
    unusable_error,
};
use tload_write::WriteId;

use crate::dry_run;
use crate::error::{Error, ErrorKind, Result};
use crate::ledger::{Ledger, Record, Stored};
use crate::options::{Location, StoreOptions};
use crate::prefix::{Prefix, State};
use crate::recorder::Recorder;
use crate::workers::Work;

/// Copy of a checkpoint's directory with all files below it to a prefix of an object store.
///
/// The prefix has to be empty, as files keep their names. Indexes appear last, or the weights if
/// there is no index: until then, no reader finds a checkpoint. Files are sent in parts of 8 MiB or
/// more, on S3 each with its SHA-256. An object `.tload-write` keeps other writers off, and is the
/// journal: the next copy of the same source to the same place goes on from it, and sends again
/// what has changed at the source. It is written every two seconds, before each file of several
/// parts is complete, and when the copy fails or is cancelled. A complete copy leaves the record
/// `.tload-copied`: the next copy of the same source in the same state has nothing to do.
///
/// # Examples
///
/// ```no_run
/// # mod tload {
/// #     pub use tload_base::{error::Result, options::Location};
/// #     pub mod copy { pub use tload_upload::UploadJob; }
/// # }
/// # fn main() -> tload::Result<()> {
/// use tload::Location;
/// use tload::copy::UploadJob;
///
/// let target = Location::parse("s3://bucket/model")?;
/// let report = UploadJob::new(Location::from_path("/models/model"), target).run()?;
/// println!("{} files, {} bytes", report.copied_files, report.copied_bytes);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct UploadJob {
    copy: CopyJob,
    source: Location,
    target: Location,
    options: CopyOptions,
    store: StoreOptions,
    target_store: Option<StoreOptions>,
}

impl UploadJob {
    /// Creates a copy of `source` below `target`, a prefix of S3, Google Cloud Storage or Azure.
    pub fn new(source: impl Into<Location>, target: Location) -> Self {
        let source = source.into();
        Self {
            copy: CopyJob::new(source.clone(), target.to_string()),
            source,
            target,
            options: CopyOptions::default(),
            store: StoreOptions::default(),
            target_store: None,
        }
    }

    /// Sets the options. The length of requests does not matter here.
    #[must_use]
    pub fn options(mut self, options: CopyOptions) -> Self {
        self.copy = self.copy.options(options.clone());
        self.options = options;
        self
    }

    /// Sets the options of the object stores of source and target.
    #[must_use]
    pub fn store(mut self, store: StoreOptions) -> Self {
        self.copy = self.copy.store(store.clone());
        self.store = store;
        self
    }

    /// Sets the options of the target's store, if they differ.
    #[must_use]
    pub fn target_store(mut self, store: StoreOptions) -> Self {
        self.target_store = Some(store);
        self
    }

    /// Returns a handle that observes and cancels the copy.
    pub fn control(&self) -> CopyControl {
        self.copy.control()
    }

    /// Runs the copy.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidRequest`] for a target that is not empty; [`ErrorKind::Changed`] for a
    /// source that was replaced meanwhile, if another writer was faster, and if a copy of other
    /// files has begun there; [`ErrorKind::Cancelled`]; errors of reading the source and of the
    /// store. After an error, what has been sent is kept for the next copy.
    pub fn run(self) -> Result<CopyReport> {
        let started = Instant::now();
        self.options.validate()?;
        self.refuse_own_prefix()?;
        let sources = self.copy.sources();
        let selected = self.copy.select(&sources);
        let remote = || sources.remote().cloned();
        let selected = selected.map_err(|error| suggest_near(error, &self.source, remote));
        let (entries, unusable) = selected?;
        if !unusable.is_empty() && !self.options.skip_unusable && !self.options.dry_run {
            // Before anything is sent: what is complete could not be completed later.
            return Err(unusable_error(&unusable, &self.source));
        }
        let plan = self.copy_entries(entries, &sources)?;
        Ok(self.copy.report(started, plan, unusable))
    }

    fn copy_entries(
        &self,
        entries: Vec<Entry>,
        sources: &Sources,
    ) -> Result<Option<tload_copy::CopyPlan>> {
        let ongoing = self.copy.ongoing();
        let store = self.target_store.as_ref().unwrap_or(&self.store);
        let prefix = Arc::new(Prefix::open(&self.target, store, ongoing)?);
        let it = &self.options;
        let selection = (&it.names, &it.include, &it.exclude, it.hidden);
        let source = format!("{} {selection:?}", self.source.digest(""));
        let names = names(&entries);
        let write = WriteId::draw().to_string();
        let mut state = prefix.look(&source, self.options.force)?;
        if let State::Begun(ledger, _, found) = &state
            && ledger.is_complete(found)
            && !self.options.dry_run
        {
            // The copy was killed after its last file.
            prefix.finish(ledger)?;
            state = prefix.look(&source, self.options.force)?;
        }
        let (mut ledger, version, found) = match state {
            State::Complete(record, found) => {
                let skipped = self.unchanged(&entries, &record, &found, sources, &prefix)?;
                if !self.options.dry_run {
                    return Ok(None);
                }
                return dry_run::plan(Vec::new(), &skipped, None, sources, ongoing).map(Some);
            }
            State::Empty => (Ledger::new(write, source, &names), None, BTreeMap::new()),
            State::Begun(begun, version, found) => {
                let mut ledger = Ledger::new(write, source, &names);
                ledger.files = begun.files;
                (ledger, Some(version), found)
            }
        };
        if !self.options.dry_run {
            let begun = std::mem::take(&mut ledger.files);
            let mut claimed = ledger.clone();
            claimed.files.clone_from(&begun);
            let version = prefix.claim(&claimed, version)?;
            ledger.files = begun;
            let (entries, _) = self.left(entries, &mut ledger, &found, sources, Some(&prefix))?;
            let last = ledger.last.clone();
            let recorder = Recorder::new(&prefix, ledger, version);
            let work = Work {
                prefix: &prefix,
                sources,
                recorder: &recorder,
                ongoing,
                last: &last,
            };
            work.run(entries, self.options.depth)?;
            prefix.finish(&recorder.ledger())?;
            return Ok(None);
        }
        let (entries, skipped) = self.left(entries, &mut ledger, &found, sources, None)?;
        dry_run::plan(entries, &skipped, Some(&ledger), sources, ongoing).map(Some)
    }

    /// Returns the files that are not complete, and the lengths of the others. Removes from the
    /// journal, and from the store, what has another source now.
    fn left(
        &self,
        entries: Vec<Entry>,
        ledger: &mut Ledger,
        found: &BTreeMap<String, Stored>,
        sources: &Sources,
        prefix: Option<&Arc<Prefix>>,
    ) -> Result<(Vec<Entry>, BTreeMap<String, u64>)> {
        let ongoing = self.copy.ongoing();
        let mut kept = BTreeMap::new();
        let (mut left, mut skipped) = (Vec::new(), BTreeMap::new());
        for entry in entries {
            let begun = ledger.files.remove(&entry.name);
            let stored = found.get(&entry.name);
            let mut is_same = false;
            if let Some(begun) = begun.as_ref().filter(|_| !self.options.force) {
                is_same = begun
                    .origin
                    .is_same_state(&origin(&entry, sources, ongoing)?);
            }
            match begun {
                // One that was sent in parts is complete if it is there.
                Some(mut begun)
                    if is_same
                        && (begun.is_done || begun.upload.is_some())
                        && stored.is_some_and(|it| it.len == begun.origin.len) =>
                {
                    ongoing.skip(begun.origin.len);
                    skipped.insert(entry.name.clone(), begun.origin.len);
                    begun.is_done = true;
                    kept.insert(entry.name, begun);
                    continue;
                }
                Some(begun) if is_same && !begun.is_done => {
                    drop(kept.insert(entry.name.clone(), begun));
                }
                begun => {
                    let upload = begun.and_then(|begun| begun.upload);
                    if let Some(prefix) = prefix {
                        prefix.discard(&entry.name, upload.as_deref(), stored.is_some())?;
                    }
                }
            }
            if let Some(listed) = &entry.listed {
                Ongoing::add(&ongoing.bytes_total, listed.len);
            }
            left.push(entry);
        }
        // Files that remain in the journal are no longer at the source.
        for (name, begun) in std::mem::replace(&mut ledger.files, kept) {
            if let Some(prefix) = prefix {
                prefix.discard(&name, begun.upload.as_deref(), found.contains_key(&name))?;
            }
        }
        Ok((left, skipped))
    }

    /// Requires that all files are those of a complete copy, and counts them.
    fn unchanged(
        &self,
        entries: &[Entry],
        record: &Record,
        found: &BTreeMap<String, Stored>,
        sources: &Sources,
        prefix: &Prefix,
    ) -> Result<BTreeMap<String, u64>> {
        let ongoing = self.copy.ongoing();
        let mut skipped = BTreeMap::new();
        for entry in entries {
            if self.options.force {
                return Err(prefix.taken("a complete copy is there"));
            }
            let now = origin(entry, sources, ongoing)?;
            let copied = record.origin(&entry.name, found.get(&entry.name));
            if !copied.is_some_and(|copied| copied.is_same_state(&now)) {
                let name = &entry.name;
                return Err(prefix.taken(&format!("a copy of another state of {name:?} is there")));
            }
            skipped.insert(entry.name.clone(), now.len);
        }
        for &bytes in skipped.values() {
            ongoing.skip(bytes);
        }
        Ok(skipped)
    }

    /// Refuses a target that the next copy would copy too.
    fn refuse_own_prefix(&self) -> Result<()> {
        let (from, to) = (self.source.to_string(), self.target.to_string());
        let (from, to) = (from.trim_end_matches('/'), to.trim_end_matches('/'));
        let below = to
            .strip_prefix(from)
            .filter(|rest| rest.is_empty() || rest.starts_with('/'));
        let is_one_store = self
            .target_store
            .as_ref()
            .is_none_or(|it| *it == self.store);
        if below.is_none() || !is_one_store {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::InvalidRequest,
            "the target is the source, or below it: the next copy would copy it too",
        )
        .with_location(&self.source)
        .with_hint("name another prefix to copy to"))
    }
}

fn names(entries: &[Entry]) -> Vec<String> {
    entries.iter().map(|entry| entry.name.clone()).collect()
}

/// Returns the state of a source, which is opened if its list does not tell enough.
fn origin(entry: &Entry, sources: &Sources, ongoing: &Arc<Ongoing>) -> Result<tload_copy::Origin> {
    match (&entry.listed, &entry.opened) {
        (Some(listed), _) if listed.tells() => Ok(listed.clone()),
        (_, Some(opened)) => opened.origin(),
        _ => sources.open(&entry.location, ongoing)?.origin(),
    }
}
