//! Opened sources of one load, in groups that share limits and engines: the files of one file
//! system, the objects of one store, bytes that other ranks read.
//!
//! [`SourceGroup`] is the seam between a load and the places that bytes come from: each kind of
//! group is one file of this folder, and `load/` does not tell them apart.

mod cached;
mod files;
mod leader;
mod limits;
mod nodes;
mod objects;
mod opening;
mod packed;
mod reread;
mod transformed;

use std::collections::HashSet;
use std::fmt;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

pub(crate) use self::leader::{LeaderGroup, Regions, Shares, is_shown};
pub(crate) use self::limits::Limits;
pub(crate) use self::nodes::{NodeGroup, NodeShares};
pub(crate) use self::opening::{Opened, WantedShard, open};
use crate::engine::{Engine, OpenedEngine};
use crate::error::{Error, ErrorKind, Result};
use crate::load::check::Blame;
use crate::memory::{FileView, Slab};
use crate::options::LoadOptions;
use crate::plan::Plan;
use crate::report::{CacheReport, MirrorReport};
use crate::schedule::{LaneCount, Member};
use crate::storage::{ReadFile, ReadHints};
use crate::sync::cancel::CancelFlag;
use crate::sync::retry_counter::RetryCounter;
use crate::sync::timeline::{Span, Timeline};

/// Sources that share limits and that one engine can read. Sources are numbered within the group.
pub(crate) trait SourceGroup: fmt::Debug + Send + Sync {
    /// Returns the name of what the sources share: `ext4 (8:1)`, `s3`.
    fn name(&self) -> String;

    /// Returns the number of sources.
    fn count(&self) -> usize;

    /// Returns the location of a source, as reports and errors name it.
    fn location(&self, index: usize) -> String;

    /// Returns the read hints of a source.
    fn hints(&self, index: usize) -> ReadHints;

    /// Returns the in-flight limits of the group.
    fn limits(&self, request: &LimitsRequest<'_>) -> Limits;

    /// Returns the lanes that read the group. The load needs `needed_bytes` of it.
    fn lanes(&self, context: &LaneContext<'_>, needed_bytes: u64) -> GroupLanes;

    /// Returns the sources, if they are files.
    fn files(&self) -> &[ReadFile] {
        &[]
    }

    /// Returns whether other ranks read the bytes, not an engine for storage.
    fn is_received(&self) -> bool {
        false
    }

    /// Returns whether the group must be read in file order, whatever the order of the load.
    fn reads_in_file_order(&self) -> bool {
        false
    }

    /// Returns whether several sets of lanes may read the group, each with engines of its own.
    fn is_divisible(&self) -> bool {
        false
    }

    /// Returns whether the load watches for reads that take long. Engines that also wait for
    /// something else than storage do so themselves.
    fn is_watched(&self) -> bool {
        false
    }

    /// Checks that every source is unchanged since it was opened, where reads have not checked
    /// that.
    ///
    /// # Errors
    ///
    /// [`crate::ErrorKind::Changed`], and any error of the check itself.
    fn verify_unchanged(&self) -> Result<()> {
        Ok(())
    }

    /// Returns the counters of retries outside of reads. Sources may share them.
    fn retry_counters(&self) -> Vec<&RetryCounter> {
        Vec::new()
    }

    /// Returns the phases that stores have recorded: clients, credentials, names, connections.
    /// Sources may share them.
    fn timelines(&self) -> Vec<&Timeline> {
        Vec::new()
    }

    /// Returns the reports of cache and mirrors, if the group may use any.
    fn remote_reports(&self) -> Option<RemoteReports> {
        None
    }

    /// Returns notes on the sources for the user.
    fn notes(&self) -> Vec<String> {
        Vec::new()
    }

    /// Distrusts the places that the wrong bytes of `mismatch` came from, if it is about a source
    /// of the group, and returns the error with their names.
    fn blame(&self, mismatch: Error) -> Error {
        mismatch
    }
}

/// Group that is read from storage.
pub(crate) trait StorageGroup: SourceGroup {
    /// Opens an engine for single reads in place of another rank, on the calling thread.
    ///
    /// # Errors
    ///
    /// Those of opening an engine.
    fn open_engine(
        &self,
        options: &LoadOptions,
        cancel: &Arc<CancelFlag>,
    ) -> Result<Box<dyn Engine>>;
}

/// Opens the engine of a lane.
pub(crate) trait OpenEngine: fmt::Debug + Send + Sync {
    /// Opens the engine on the calling thread, which must be the one that uses it. `lanes` is the
    /// number of lanes that read the group from then on.
    ///
    /// # Errors
    ///
    /// [`crate::ErrorKind::Unsupported`] when a ring was required and refused;
    /// [`crate::ErrorKind::OutOfMemory`] when no thread can be started.
    fn open(&self, lanes: usize) -> Result<OpenedEngine>;

    /// Returns the reason for this engine.
    fn reason(&self) -> String;
}

/// Facts that the in-flight limits of a group depend on.
pub(crate) struct LimitsRequest<'a> {
    pub(crate) options: &'a LoadOptions,
    /// Length of the longest window that is read, in bytes.
    pub(crate) window: usize,
    /// Number of GPUs that tensors go to.
    pub(crate) gpus: usize,
    /// Number of threads that copy for them, if it does not follow from the machine and the files.
    pub(crate) copiers: Option<usize>,
    /// Reads go into fresh memory of the load, as much as fits: they may start with more in flight.
    pub(crate) is_deep: bool,
}

/// Facts that the lanes of a group depend on.
pub(crate) struct LaneContext<'a> {
    pub(crate) options: &'a LoadOptions,
    pub(crate) plan: &'a Arc<Plan>,
    pub(crate) limits: &'a Limits,
    /// Number of GPUs that tensors go to.
    pub(crate) gpus: usize,
    /// Number of threads that copy for them, if it does not follow from the machine and the files.
    pub(crate) copiers: Option<usize>,
    /// Lanes scatter what they read.
    pub(crate) scatters: bool,
    /// Memory that reads take place in, if it lives as long as the load.
    pub(crate) slab: Option<&'a Arc<Slab>>,
    /// Counts the bytes that requests receive, as they arrive.
    pub(crate) arrived: &'a Arc<AtomicU64>,
    pub(crate) cancel: &'a Arc<CancelFlag>,
}

impl LaneContext<'_> {
    /// Returns the number of jobs in flight that an engine must accept.
    fn depth(&self) -> usize {
        let extents = self.plan.extents.len();
        self.limits.depth.jobs().min(extents).max(1)
    }
}

/// Lanes that read a group.
pub(crate) struct GroupLanes {
    pub(crate) engine: Arc<dyn OpenEngine>,
    pub(crate) count: LaneCount,
}

/// Reports of the cache and the mirrors of a checkpoint.
#[derive(Debug, Default)]
pub(crate) struct RemoteReports {
    pub(crate) cache: Option<CacheReport>,
    pub(crate) mirrors: Vec<MirrorReport>,
}

/// All sources of a load.
#[derive(Debug)]
pub(crate) struct Sources {
    groups: Vec<Arc<dyn SourceGroup>>,
    /// By source, in the order given.
    members: Vec<Member>,
}

impl Sources {
    /// Adds a group, whose sources come last.
    pub(crate) fn add(&mut self, added: Arc<dyn SourceGroup>) {
        let group = self.groups.len();
        let members = 0..added.count();
        self.members
            .extend(members.map(|index| Member { group, index }));
        self.groups.push(added);
    }

    /// Reorders the sources: source `i` becomes the old `order[i]`.
    pub(crate) fn arrange(&mut self, order: &[usize]) {
        self.members = order.iter().map(|source| self.members[*source]).collect();
    }

    pub(crate) fn groups(&self) -> &[Arc<dyn SourceGroup>] {
        &self.groups
    }

    /// Returns the group of a source.
    pub(crate) fn group_of(&self, source: usize) -> &dyn SourceGroup {
        &*self.groups[self.members[source].group]
    }

    /// Returns the location of each source.
    pub(crate) fn names(&self) -> Vec<String> {
        let name = |member: &Member| self.groups[member.group].location(member.index);
        self.members.iter().map(name).collect()
    }

    /// Returns the group of each source, and its index in the group.
    pub(crate) fn members(&self) -> &[Member] {
        &self.members
    }

    /// Returns the read hints of a source.
    pub(crate) fn hints(&self, source: usize) -> ReadHints {
        self.group_of(source).hints(self.members[source].index)
    }

    /// Returns all files, also those of the cache.
    pub(crate) fn files(&self) -> impl Iterator<Item = &ReadFile> {
        self.groups.iter().flat_map(|group| group.files().iter())
    }

    /// Checks that every source is unchanged since it was opened, where reads have not checked
    /// that.
    ///
    /// # Errors
    ///
    /// [`crate::ErrorKind::Changed`], and any error of the check itself.
    pub(crate) fn verify_unchanged(&self) -> Result<()> {
        let mut groups = self.groups.iter();
        groups.try_for_each(|group| group.verify_unchanged())
    }

    /// Returns notes on the sources for the user.
    pub(crate) fn notes(&self) -> Vec<String> {
        let refused = self.files().find(|file| file.is_refused());
        let refused = refused.map(|file| {
            format!(
                "the file system ({}) refused direct I/O, so files were read through the page cache",
                file.source().file_system().name
            )
        });
        let others = self.groups.iter().flat_map(|group| group.notes());
        refused.into_iter().chain(others).collect()
    }

    /// Returns the reports of cache and mirrors, which all objects of a checkpoint share.
    pub(crate) fn remote_reports(&self) -> RemoteReports {
        let mut groups = self.groups.iter();
        let reports = groups.find_map(|group| group.remote_reports());
        reports.unwrap_or_default()
    }

    /// Returns the number of retries outside of reads, and the reason of the last one.
    pub(crate) fn opening_retries(&self) -> (u64, Option<String>) {
        // Objects of one checkpoint share a counter.
        let mut seen = HashSet::new();
        let counters = self
            .groups
            .iter()
            .flat_map(|group| group.retry_counters())
            .filter(|counter| seen.insert(counter.address()));
        let (counts, reasons): (Vec<u64>, Vec<_>) = counters.map(RetryCounter::so_far).unzip();
        (counts.iter().sum(), reasons.into_iter().flatten().last())
    }

    /// Returns the phases of the stores.
    pub(crate) fn spans(&self) -> Vec<Span> {
        let mut seen = HashSet::new();
        let timelines = self
            .groups
            .iter()
            .flat_map(|group| group.timelines())
            .filter(|timeline| seen.insert(ptr::from_ref(*timeline)));
        timelines.flat_map(Timeline::spans).collect()
    }

    /// Returns each file as memory, by source; none unless the load uses views.
    pub(crate) fn views(&self) -> Option<Vec<Arc<FileView>>> {
        let view = |member: &Member| self.groups[member.group].files().get(member.index)?.view();
        self.members
            .iter()
            .map(|member| view(member).cloned())
            .collect()
    }
}

impl Blame for Sources {
    fn blame(&self, mismatch: Error) -> Error {
        // Without a range, an error is about the length of a file, or the list of files.
        if mismatch.kind() != ErrorKind::Corrupt || mismatch.range().is_none() {
            return mismatch;
        }
        let groups = self.groups.iter();
        groups.fold(mismatch, |error, group| group.blame(error))
    }
}
