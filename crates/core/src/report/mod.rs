//! Load reports: bytes, time by stage, engine, memory.
//!
//! Engines state the statistics of each read as a [`Transfer`]. Lanes add them up while the load
//! runs; a report is a snapshot of the sums. Nothing here makes decisions.

mod counters;
mod group;
mod speed;
#[cfg(test)]
mod tests;
mod verdict;
mod verification;

use std::fmt;
use std::time::Instant;

pub use group::GroupReport;
use serde::Serialize;
pub use verification::{Unverified, VerificationReport, VerifiedBy};

#[doc(hidden)]
pub use counters::Counters;
pub(crate) use counters::Stage;
#[doc(hidden)]
pub use speed::{RecentSpeed, format_left};
pub(crate) use verdict::IN_MEMORY;

use crate::error::counted;
use crate::memory::PoolUsage;
use crate::options::{format_bytes, format_rate};
use crate::schedule::DepthReport as GroupDepth;
pub use crate::storage::{CacheReport, MirrorReport};
use crate::sync::timeline::Span;
pub use tload_engine::Transfer;
use tload_engine::with_transfer_counters;

/// Declares `Report` with the counters of `Transfer` in place of `..Transfer`.
macro_rules! declare_report {
    (
        [$($(#[$of_counter:meta])* $counter:ident,)*]
        $(#[$of_report:meta])*
        pub struct Report {
            $($(#[$of_field:meta])* pub $field:ident: $type:ty,)*
            ..Transfer
        }
    ) => {
        $(#[$of_report])*
        pub struct Report {
            $($(#[$of_field])* pub $field: $type,)*
            $($(#[$of_counter])* pub $counter: u64,)*
        }

        impl Report {
            /// Sets the counters of reads.
            pub(crate) fn set_transfer(&mut self, transfer: Transfer) {
                self.read_bytes = transfer.read_bytes();
                self.last_retry = transfer.last_retry;
                $(self.$counter = transfer.$counter;)*
            }

            /// Returns the counters of reads.
            pub(crate) fn transfer(&self) -> Transfer {
                Transfer {
                    last_retry: self.last_retry.clone(),
                    $($counter: self.$counter,)*
                }
            }

            /// Adds the counters of more reads.
            fn add_transfer(&mut self, transfer: Transfer) {
                self.read_bytes += transfer.read_bytes();
                self.last_retry = transfer.last_retry.or(self.last_retry.take());
                $(self.$counter += transfer.$counter;)*
            }
        }
    };
}

with_transfer_counters! {
    declare_report =>

    /// Statistics of one load. Every load ends with one.
    #[derive(Clone, Debug, Default, Serialize)]
    #[non_exhaustive]
    pub struct Report {
        /// The checkpoint, as the caller wrote it.
        pub location: String,
        /// `"complete"`, `"running"`, or the name of the error's kind.
        pub outcome: String,
        /// Tensors handed out.
        pub tensors: u64,
        /// Bytes of the tensors handed out.
        pub tensor_bytes: u64,
        /// Bytes read from storage, including bytes around tensors that were read for alignment:
        /// the sum of `direct_bytes`, `buffered_bytes`, `mapped_bytes`, `remote_bytes` and
        /// `cached_bytes`. In a load with a group, what the ranks of a node share is counted where
        /// it is read: on the leader.
        pub read_bytes: u64,
        /// Extents read.
        pub extents: u64,
        /// Seconds from the call until the last tensor was handed out (until now, while it runs).
        pub seconds: f64,
        /// Seconds that opening the checkpoint took before the load.
        pub open_seconds: f64,
        /// Seconds from the call until the first tensor was ready.
        pub first_tensor_seconds: Option<f64>,
        /// Seconds from the call until the latest tensor was ready: in a complete load the last
        /// one, whenever the caller took it.
        pub ready_seconds: Option<f64>,
        /// Sentence that names what limited the load, for example `"the disk was the limit: …"`;
        /// `None` if the counters do not tell.
        pub verdict: Option<String>,
        /// Engine that was used, and why.
        pub engine: EngineReport,
        /// Bytes copied in memory after they were read. These belong to the caller's memory on the
        /// host, which is filled from staging memory; to slices that are not contiguous in their
        /// file; and to tensors whose offset in the file is not a multiple of their dtype's
        /// alignment, so that no direct read can place them at an aligned address. Otherwise 0.
        pub copied_bytes: u64,
        /// Number of tensors in host memory that were converted to another dtype.
        pub converted_tensors: u64,
        /// Bytes of these tensors after the conversion.
        pub converted_bytes: u64,
        /// Retries outside the data path (open, header, list, stat) since the checkpoint was
        /// opened, by this load and by other loads of the same checkpoint. Not included in
        /// `retries`.
        pub opening_retries: u64,
        /// Description of the last retry, in the data path or outside of it, and its cause.
        pub last_retry: Option<String>,
        /// Sharing with other ranks, in a load with a group.
        pub group: Option<GroupReport>,
        /// Bytes of orphaned memory: storage may still write to it although the load has ended,
        /// because its reads cannot be cancelled. It is freed when they complete.
        pub parked_bytes: u64,
        /// Number of reads that hold orphaned memory.
        pub parked_reads: u64,
        /// Memory budget, bytes.
        pub memory_limit: u64,
        /// Peak use of the budget, bytes.
        pub memory_peak: u64,
        /// Staging memory for GPUs or for the caller's memory; `None` when everything was read in
        /// place.
        pub staging: Option<StagingReport>,
        /// GPUs that tensors were loaded to.
        pub devices: Vec<DeviceReport>,
        /// Regions reused: carved from memory that the load already had.
        pub recycled_regions: u64,
        /// Regions allocated: fresh memory was mapped for them.
        pub fresh_regions: u64,
        /// Time by stage.
        pub stages: StageTimes,
        /// Phases of the opening and the load, in the order in which they began. They overlap.
        pub phases: Vec<PhaseReport>,
        /// Number of lanes.
        pub lanes: usize,
        /// Limit of the reads in flight at the end of the load, in reads of the largest size.
        pub depth: usize,
        /// Limit of the bytes in flight at the end of the load.
        pub in_flight_bytes: u64,
        /// Depth of each file system and each store, and the reason for it.
        pub depths: Vec<DepthReport>,
        /// Largest planned read or request, bytes.
        pub extent_bytes: u64,
        /// Bytes that were compared with digests; `None` with `verify=off`.
        pub verification: Option<VerificationReport>,
        /// Cache of objects; `None` without one.
        pub cache: Option<CacheReport>,
        /// Mirrors and peers, in the order of the option.
        pub mirrors: Vec<MirrorReport>,
        /// Messages for the user: fallbacks and what to do about them.
        pub notes: Vec<String>,
        ..Transfer
    }
}

/// Staging memory of a load. It is part of the budget.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct StagingReport {
    /// Size, bytes.
    pub bytes: u64,
    /// Number of slots.
    pub slots: usize,
    /// Bytes that GPUs read directly; the driver copies the others once more.
    pub pinned_bytes: u64,
    /// True if the memory was reused from an earlier load of the process.
    pub reused: bool,
    /// Reason why some of it was not pinned.
    pub refusal: Option<String>,
}

impl StagingReport {
    /// Adds another part of the staging memory.
    pub(crate) fn and(self, other: Self) -> Self {
        Self {
            bytes: self.bytes + other.bytes,
            slots: self.slots + other.slots,
            pinned_bytes: self.pinned_bytes + other.pinned_bytes,
            reused: self.reused && other.reused,
            refusal: self.refusal.or(other.refusal),
        }
    }
}

/// Transfers to one GPU.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct DeviceReport {
    /// Name of the device, for example `"cuda:0"`.
    pub device: String,
    /// Memory budget, bytes; 0 when everything went into the caller's memory.
    pub memory_limit: u64,
    /// Peak use of the budget, bytes.
    pub memory_peak: u64,
    /// Number of copies to the device.
    pub copies: u64,
    /// Bytes of these copies.
    pub copied_bytes: u64,
    /// Seconds in which a copy was running or waiting for the device's copy engine, summed over the
    /// lanes: extrapolated, by bytes, from the copies that were timed.
    pub copy_seconds: f64,
}

/// Depth of the reads from one file system or store, and the reason for it.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct DepthReport {
    /// Name of the file system or store, for example `"ext4 (8:1)"` or `"s3"`.
    pub sources: String,
    /// Limit of the bytes in flight at the end of the load.
    pub in_flight_bytes: u64,
    /// Number of changes of the limit.
    pub changes: u32,
    /// Seconds from the call until the last change.
    pub changed_seconds: f64,
    /// Highest rate measured, bytes per second; 0 if the load was too short to measure.
    pub best_bytes_per_second: u64,
    /// Why the limit is not higher: `"fixed"`, `"throughput plateaued"`, …
    pub reason: String,
}

/// Engine that was used, and why.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct EngineReport {
    /// Name: `"uring"`, `"pread"`, `"tokio-uring"`, `"map"` or `"object"`, and `"shared"` or
    /// `"remote"` for parts that other ranks read; several are joined by ` + `; `"none"` when there
    /// was nothing to read.
    pub name: String,
    /// Engine that the caller asked for.
    pub requested: String,
    /// Reason for the choice.
    pub reason: String,
    /// Features of the system that the engine used.
    pub features: Vec<String>,
}

impl EngineReport {
    /// Adds an engine that reads another part of the load.
    pub(crate) fn add(&mut self, other: Self) {
        let is_new = |all: &str, one: &str, between: &str| !all.split(between).any(|it| it == one);
        if is_new(&self.name, &other.name, " + ") {
            self.name = format!("{} + {}", self.name, other.name);
        }
        if is_new(&self.reason, &other.reason, "; ") {
            self.reason = format!("{}; {}", self.reason, other.reason);
        }
        for feature in other.features {
            if !self.features.contains(&feature) {
                self.features.push(feature);
            }
        }
    }
}

/// Phase of the opening or the load: `"list"`, `"headers"`, `"plan"`, `"first tensor"`, …; of an
/// object store also `"threads"`, `"client"`, `"credentials"`, `"dns"` and `"connect"`, which may
/// occur several times.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct PhaseReport {
    /// Name of the phase.
    pub phase: String,
    /// Seconds from the beginning of the opening until the phase began.
    pub start_seconds: f64,
    /// Duration in seconds.
    pub seconds: f64,
}

/// Seconds by stage, summed over the lanes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct StageTimes {
    /// Choosing and queueing extents, including the first touch of fresh memory in the kernel.
    pub submit: f64,
    /// Waiting for storage.
    pub storage_wait: f64,
    /// Waiting for the budget: the caller was slower than storage.
    pub memory_wait: f64,
    /// Waiting for copies to a GPU while no read was in flight, or none could begin until a copy
    /// had finished.
    pub copy_wait: f64,
    /// Completing tensors and delivering them.
    pub deliver: f64,
    /// Comparing bytes with digests. CRCs of files in the page cache are computed while they are
    /// read.
    pub verify: f64,
    /// The caller waiting for the next tensor.
    pub consumer_wait: f64,
}

impl Report {
    /// Returns the bytes of tensors per second; 0 before the first tensor was handed out.
    ///
    /// # Examples
    ///
    /// ```
    /// # let model = tload_testing::ExampleModel::new(); let path = model.path();
    ///
    /// let mut stream = tload::Checkpoint::open(path)?.load().stream()?;
    /// stream.by_ref().for_each(drop);
    /// let report = stream.report();
    /// assert_eq!((report.tensors, report.tensor_bytes), (3, 144));
    /// assert!(report.bytes_per_second() > 0.0);
    /// // For people; it serializes to JSON for programs.
    /// println!("{report}");
    /// # Ok::<(), tload::Error>(())
    /// ```
    #[expect(clippy::cast_precision_loss, reason = "a rate for people")]
    pub fn bytes_per_second(&self) -> f64 {
        if self.seconds > 0.0 {
            self.tensor_bytes as f64 / self.seconds
        } else {
            0.0
        }
    }

    fn fmt_time(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stages = &self.stages;
        write!(f, "time     open {:.3} s", self.open_seconds)?;
        if let Some(seconds) = self.first_tensor_seconds {
            write!(f, ", first tensor {seconds:.3} s")?;
        }
        write!(f, ", consumer wait {:.3} s", stages.consumer_wait)?;
        let all = [
            ("submit", stages.submit),
            ("storage wait", stages.storage_wait),
            ("budget wait", stages.memory_wait),
            ("copy wait", stages.copy_wait),
            ("deliver", stages.deliver),
            ("verify", stages.verify),
        ];
        let spent = all.iter().filter(|(_, seconds)| *seconds >= 0.0005);
        let spent: Vec<_> = spent
            .map(|(stage, seconds)| format!("{stage} {seconds:.3} s"))
            .collect();
        if spent.is_empty() {
            return Ok(());
        }
        let sum = if self.lanes > 1 { ", summed" } else { "" };
        let lanes = counted(self.lanes as u64, "lane");
        write!(f, "\nlanes    {lanes}{sum}: {}", spent.join(", "))
    }

    /// Describes where the bytes came from, each with a separator before it.
    fn sources(&self) -> String {
        let requests = counted(self.requests, "request");
        let remote = format!("in {requests}");
        let all = [
            (self.direct_bytes, "direct"),
            (self.buffered_bytes, "through the page cache"),
            (self.mapped_bytes, "mapped"),
            (self.remote_bytes, remote.as_str()),
            (self.cached_bytes, "from the cache"),
            (self.copied_bytes, "copied in memory"),
        ];
        let all = all.into_iter().filter(|(bytes, _)| *bytes > 0);
        let texts = all.map(|(bytes, how)| format!(", {} {how}", format_bytes(bytes)));
        let short = match self.short_reads {
            0 => String::new(),
            reads => format!(", {} continued", counted(reads, "short read")),
        };
        texts.chain([short]).collect()
    }

    /// Writes the lines that only loads to GPUs and to the caller's memory have.
    fn fmt_destinations(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(staging) = &self.staging {
            writeln!(
                f,
                "staging  {} in {}, {} pinned{}",
                format_bytes(staging.bytes),
                counted(staging.slots as u64, "slot"),
                format_bytes(staging.pinned_bytes),
                if staging.reused { ", reused" } else { "" }
            )?;
        }
        for device in &self.devices {
            writeln!(
                f,
                "{:<8} {} in {}, {:.3} s of copying; memory peak {} of {}",
                device.device,
                format_bytes(device.copied_bytes),
                if device.copies == 1 {
                    "1 copy".to_owned()
                } else {
                    format!("{} copies", device.copies)
                },
                device.copy_seconds,
                format_bytes(device.memory_peak),
                format_bytes(device.memory_limit)
            )?;
        }
        Ok(())
    }

    /// Sets the depth of each group.
    pub(crate) fn set_depths(&mut self, groups: impl Iterator<Item = (String, GroupDepth)>) {
        self.depths = groups
            .map(|(sources, depth)| DepthReport {
                sources,
                in_flight_bytes: depth.limit.bytes,
                changes: depth.changes,
                changed_seconds: depth.changed_at.as_secs_f64(),
                best_bytes_per_second: depth.best_rate,
                reason: depth.limit_reason.text().to_owned(),
            })
            .collect();
        let limits = self.depths.iter().map(|depth| depth.in_flight_bytes);
        let now = limits.fold(0, u64::saturating_add);
        let before = self.in_flight_bytes.max(1);
        if !self.depths.is_empty() {
            // The number of reads is proportional to the bytes.
            let reads = self.depth as u128 * u128::from(now) / u128::from(before);
            self.depth = usize::try_from(reads).unwrap_or(usize::MAX).max(1);
            self.in_flight_bytes = now;
        }
    }

    /// Sets the phases, which are relative to `opened_at`.
    pub(crate) fn set_phases(&mut self, opened_at: Instant, mut spans: Vec<Span>) {
        spans.sort_by_key(|span| (span.start, span.end));
        let phase = |span: &Span| PhaseReport {
            phase: span.phase.to_owned(),
            start_seconds: (span.start.saturating_duration_since(opened_at)).as_secs_f64(),
            seconds: (span.end.saturating_duration_since(span.start)).as_secs_f64(),
        };
        self.phases = spans.iter().map(phase).collect();
    }

    /// Sets the number of retries outside the data path and the cause of the last one.
    pub(crate) fn set_opening_retries(&mut self, count: u64, why: Option<String>) {
        self.opening_retries = count;
        self.last_retry = self.last_retry.take().or(why);
    }

    /// Writes the lines about retries, stalls and orphaned reads; none if there were none.
    fn fmt_retries(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.retries + self.opening_retries + self.stalls + self.hedges > 0 {
            let transient = self.read_retries + self.request_retries;
            let all = [
                (self.read_retries, counted(self.read_retries, "read")),
                (
                    self.request_retries,
                    counted(self.request_retries, "request"),
                ),
                (
                    self.opening_retries,
                    format!("{} opening", self.opening_retries),
                ),
                (
                    self.retries.saturating_sub(transient),
                    format!("{} resubmitted", self.retries.saturating_sub(transient)),
                ),
                (self.stalls, format!("{} stalled", self.stalls)),
                (
                    self.hedges,
                    format!("{} hedged ({} won)", self.hedges, self.hedges_won),
                ),
            ];
            let all = all.into_iter().filter(|(count, _)| *count > 0);
            let all: Vec<_> = all.map(|(_, text)| text).collect();
            writeln!(f, "retries  {}", all.join(", "))?;
        }
        if let Some(last) = &self.last_retry {
            writeln!(f, "         last retry: {last}")?;
        }
        if self.parked_reads > 0 {
            writeln!(
                f,
                "orphaned {} held by {} that storage has not completed",
                format_bytes(self.parked_bytes),
                counted(self.parked_reads, "read")
            )?;
        }
        Ok(())
    }

    fn fmt_depths(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for depth in self.depths.iter().filter(|depth| depth.reason != "fixed") {
            write!(
                f,
                "depth    limit {} for {}: {}",
                format_bytes(depth.in_flight_bytes),
                depth.sources,
                depth.reason,
            )?;
            if depth.changes > 0 {
                let changes = counted(u64::from(depth.changes), "change");
                write!(f, ", {changes}, the last at {:.3} s", depth.changed_seconds)?;
            }
            writeln!(f)?;
        }
        Ok(())
    }

    pub(crate) fn add_staging(&mut self, staging: &StagingReport) {
        self.memory_limit = self.memory_limit.saturating_add(staging.bytes);
        self.memory_peak += staging.bytes;
        if let Some(refusal) = &staging.refusal {
            self.notes.push(format!(
                "{} of {} staging memory could not be pinned, so the driver copies once more: {refusal}",
                format_bytes(staging.bytes - staging.pinned_bytes),
                format_bytes(staging.bytes)
            ));
        }
        self.staging = Some(staging.clone());
    }

    pub(crate) fn add_usage(&mut self, usage: PoolUsage) {
        self.memory_limit = usage.limit;
        self.memory_peak = usage.peak;
        self.recycled_regions = usage.recycled;
        self.fresh_regions = usage.fresh;
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{}, {} in {:.3} s: {} ({})",
            counted(self.tensors, "tensor"),
            format_bytes(self.tensor_bytes),
            self.seconds,
            format_rate(self.bytes_per_second()),
            self.outcome
        )?;
        if let Some(verdict) = &self.verdict {
            writeln!(f, "verdict  {verdict}")?;
        }
        writeln!(
            f,
            "engine   {} ({}){}",
            self.engine.name,
            self.engine.reason,
            if self.engine.features.is_empty() {
                String::new()
            } else {
                format!(": {}", self.engine.features.join(", "))
            }
        )?;
        writeln!(
            f,
            "reads    {} of up to {}, limit at the end {} in flight ({}){}",
            counted(self.extents, "extent"),
            format_bytes(self.extent_bytes),
            counted(self.depth as u64, "read"),
            format_bytes(self.in_flight_bytes),
            self.sources(),
        )?;
        let (peak, limit) = (self.memory_peak, self.memory_limit);
        let (peak, limit) = (format_bytes(peak), format_bytes(limit));
        let regions = counted(self.fresh_regions, "region");
        write!(f, "memory   peak {peak} of {limit}; {regions} allocated")?;
        match self.recycled_regions {
            0 => writeln!(f)?,
            reused => writeln!(f, ", {reused} reused")?,
        }
        self.fmt_retries(f)?;
        self.fmt_depths(f)?;
        if self.converted_tensors > 0 {
            let (tensors, bytes) = (self.converted_tensors, format_bytes(self.converted_bytes));
            writeln!(f, "convert  {} to {bytes}", counted(tensors, "tensor"))?;
        }
        self.fmt_destinations(f)?;
        if let Some(group) = &self.group {
            writeln!(f, "{}", group.line(self.received_bytes))?;
        }
        if let Some(verification) = &self.verification {
            writeln!(f, "{verification}")?;
        }
        if let Some(cache) = &self.cache {
            writeln!(f, "{cache}")?;
        }
        for mirror in &self.mirrors {
            writeln!(f, "{mirror}")?;
        }
        self.fmt_time(f)?;
        for note in &self.notes {
            write!(f, "\nnote     {note}")?;
        }
        Ok(())
    }
}
