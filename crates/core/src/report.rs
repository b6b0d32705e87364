//! What a load did: bytes, time by stage, engine, memory.
//!
//! Counters are added to while the load runs and read when somebody asks. Nothing here decides anything.

mod counters;
mod verification;

use std::fmt;

use serde::Serialize;
pub use verification::{Unverified, VerificationReport, VerifiedBy};

pub(crate) use counters::{Counters, Stage};

use crate::buffer::PoolUsage;
use crate::error::counted;
use crate::request::format_bytes;
use crate::schedule::DepthReport as GroupDepth;

/// What a load did. Every load ends with one.
#[derive(Clone, Debug, Default, Serialize)]
#[non_exhaustive]
pub struct Report {
    /// The checkpoint, as the caller wrote it.
    pub location: String,
    /// `"complete"`, `"running"`, or the name of the error's kind.
    pub outcome: String,
    /// Tensors handed out.
    pub tensors: u64,
    /// Bytes of these tensors.
    pub tensor_bytes: u64,
    /// Bytes read from storage, with what was read beside tensors for alignment.
    pub read_bytes: u64,
    /// Extents read.
    pub extents: u64,
    /// Seconds from the call until the last tensor was handed out (until now, while it runs).
    pub seconds: f64,
    /// Seconds that opening the checkpoint took, before that.
    pub open_seconds: f64,
    /// Seconds from the call until the first tensor was ready.
    pub first_tensor_seconds: Option<f64>,
    /// Which engine read, and why.
    pub engine: EngineReport,
    /// Bytes read past the page cache.
    pub direct_bytes: u64,
    /// Bytes copied from the page cache.
    pub buffered_bytes: u64,
    /// Bytes of files that were shown and not copied (`cache=map`).
    pub mapped_bytes: u64,
    /// Bytes received from object stores.
    pub remote_bytes: u64,
    /// Requests to object stores for the bytes of tensors.
    pub requests: u64,
    /// Bytes copied in memory after they were read: of tensors whose offset in the file is no multiple of their dtype's
    /// alignment, which no direct read can put at an address that is one. Otherwise 0.
    pub copied_bytes: u64,
    /// Reads that came back short and were continued.
    pub short_reads: u64,
    /// Reads and requests that were repeated, for whatever reason: `read_retries`, `request_retries`, and reads that the system had
    /// interrupted or did not want past the page cache.
    pub retries: u64,
    /// Reads of files that were tried again after a failure that may pass.
    pub read_retries: u64,
    /// Requests to object stores that were tried again.
    pub request_retries: u64,
    /// What else was tried again since the checkpoint was opened: opening, headers, lists and the state of files, by this load and by
    /// others of it. Not among `retries`.
    pub opening_retries: u64,
    /// What of these was tried again last, and why.
    pub last_retry: Option<String>,
    /// Reads of files, and requests, that took much longer than others of this load.
    pub stalls: u64,
    /// Requests sent a second time because the first one stalled.
    pub hedges: u64,
    /// Those of them whose answer was the first.
    pub hedges_won: u64,
    /// Bytes of memory that storage may still write to though the load is over: reads that cannot be taken back. Freed when it answers.
    pub parked_bytes: u64,
    /// How many reads these are.
    pub parked_reads: u64,
    /// The budget, bytes.
    pub memory_limit: u64,
    /// The most of it that was used at a time, bytes.
    pub memory_peak: u64,
    /// Staging memory on the way to GPUs or to memory of the caller's; none when everything was read into its place.
    pub staging: Option<StagingReport>,
    /// GPUs that tensors went to.
    pub devices: Vec<DeviceReport>,
    /// Regions cut from memory that the load had already.
    pub recycled_regions: u64,
    /// Regions for which fresh memory was mapped.
    pub fresh_regions: u64,
    /// Where the time went.
    pub stages: StageTimes,
    /// Lanes.
    pub lanes: usize,
    /// Most reads of the largest size in flight, as the limit was last.
    pub depth: usize,
    /// Most bytes in flight, as the limit was last.
    pub in_flight_bytes: u64,
    /// The same for each file system and each store, and why it is so.
    pub depths: Vec<DepthReport>,
    /// Largest planned read or request, bytes.
    pub extent_bytes: u64,
    /// What was compared with digests of it; none with `verify=off`.
    pub verification: Option<VerificationReport>,
    /// What the user should know: fallbacks and what to do about them.
    pub notes: Vec<String>,
}

/// Staging memory of a load. It is part of the budget.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct StagingReport {
    /// Bytes.
    pub bytes: u64,
    /// Slots that it was cut into.
    pub slots: usize,
    /// Bytes that GPUs read by themselves; the driver copies the others once more.
    pub pinned_bytes: u64,
    /// Whether an earlier load of the process had left it.
    pub reused: bool,
    /// Why not all of it was pinned.
    pub refusal: Option<String>,
}

/// What went to one GPU.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct DeviceReport {
    /// For example `"cuda:0"`.
    pub device: String,
    /// The budget, bytes; 0 when everything went into memory of the caller's.
    pub memory_limit: u64,
    /// The most of it that was used at a time, bytes.
    pub memory_peak: u64,
    /// Copies to it.
    pub copies: u64,
    /// Bytes of them.
    pub copied_bytes: u64,
    /// Seconds in which a copy was running or waiting for the device's copy engine, added up over the lanes.
    pub copy_seconds: f64,
}

/// How deep one file system or one store was read, and why not deeper.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct DepthReport {
    /// For example `"ext4 (8:1)"` or `"s3"`.
    pub sources: String,
    /// Most bytes in flight, as the limit was last.
    pub in_flight_bytes: u64,
    /// How often it changed.
    pub changes: u32,
    /// Seconds from the call until it changed last.
    pub changed_seconds: f64,
    /// The fastest that was measured meanwhile, bytes per second; 0 if the load was too short to measure.
    pub best_bytes_per_second: u64,
    /// Why it is not deeper: `"fixed"`, `"more brought no more"`, …
    pub reason: String,
}

/// Which engine read, and why.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct EngineReport {
    /// `"uring"`, `"pread"`, `"tokio-uring"` or `"object"`; two of them with a `+` when some shards are files and some are objects;
    /// `"none"` when there was nothing to read.
    pub name: String,
    /// What the caller asked for.
    pub requested: String,
    /// Why this one.
    pub reason: String,
    /// What of the system's offers it used.
    pub features: Vec<String>,
}

/// Seconds by what was going on, added up over the lanes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct StageTimes {
    /// Choosing extents and queueing them, with first touch of fresh memory in the kernel.
    pub submit: f64,
    /// Waiting for storage.
    pub storage_wait: f64,
    /// Waiting for the budget: the caller was slower than storage.
    pub memory_wait: f64,
    /// Waiting for copies to a GPU, with nothing being read.
    pub copy_wait: f64,
    /// Completing tensors and handing them over.
    pub deliver: f64,
    /// Comparing bytes with digests.
    pub verify: f64,
    /// The caller waiting for the next tensor.
    pub consumer_wait: f64,
}

impl Report {
    /// Bytes of tensors per second; 0 before anything was handed out.
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
        write!(
            f,
            "time     open {:.3} s, first tensor {}; submit {:.3} s, storage {:.3} s, memory {:.3} s, \
             {}deliver {:.3} s, {}caller waited {:.3} s",
            self.open_seconds,
            self.first_tensor_seconds
                .map_or_else(|| "-".to_owned(), |s| format!("{s:.3} s")),
            stages.submit,
            stages.storage_wait,
            stages.memory_wait,
            if self.devices.is_empty() {
                String::new()
            } else {
                format!("copies {:.3} s, ", stages.copy_wait)
            },
            stages.deliver,
            if self.verification.is_some() {
                format!("verify {:.3} s, ", stages.verify)
            } else {
                String::new()
            },
            stages.consumer_wait
        )
    }

    /// Bytes that were neither read past the page cache nor copied from there.
    fn elsewhere(&self) -> String {
        let mapped = (self.mapped_bytes > 0)
            .then(|| format!(", {} mapped", format_bytes(self.mapped_bytes)));
        let remote = (self.requests > 0).then(|| {
            let requests = counted(self.requests, "request");
            format!(", {} by {requests}", format_bytes(self.remote_bytes))
        });
        [mapped, remote].into_iter().flatten().collect()
    }

    /// Lines that only loads to GPUs and to memory of the caller's have.
    fn fmt_destinations(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(staging) = &self.staging {
            writeln!(
                f,
                "staging  {} in {}, {} pinned{}",
                format_bytes(staging.bytes),
                counted(staging.slots as u64, "slot"),
                format_bytes(staging.pinned_bytes),
                if staging.reused { ", used before" } else { "" }
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

    /// Takes over how deep each group was read.
    pub(crate) fn set_depths(&mut self, groups: impl Iterator<Item = (String, GroupDepth)>) {
        self.depths = groups
            .map(|(sources, depth)| DepthReport {
                sources,
                in_flight_bytes: depth.limit.bytes,
                changes: depth.changes,
                changed_seconds: depth.changed_at.as_secs_f64(),
                best_bytes_per_second: depth.best_rate,
                reason: depth.settled.text().to_owned(),
            })
            .collect();
        let (before, now) = (
            self.in_flight_bytes.max(1),
            self.depths.iter().map(|depth| depth.in_flight_bytes).sum(),
        );
        if !self.depths.is_empty() {
            // Reads follow the bytes.
            let reads = self.depth as u128 * u128::from(now) / u128::from(before);
            self.depth = usize::try_from(reads).unwrap_or(usize::MAX).max(1);
            self.in_flight_bytes = now;
        }
    }

    /// What was tried again beside reads, and why the last time.
    pub(crate) fn set_opening_retries(&mut self, (count, why): (u64, Option<String>)) {
        self.opening_retries = count;
        self.last_retry = self.last_retry.take().or(why);
    }

    /// What went wrong; no line when nothing did.
    fn fmt_troubles(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let again = self.read_retries + self.request_retries;
        if again + self.stalls + self.hedges > 0 {
            writeln!(
                f,
                "troubles {} and {} tried again, {} stalled; {} sent twice, the second was faster {} times",
                counted(self.read_retries, "read"),
                counted(self.request_retries, "request"),
                self.stalls,
                self.hedges,
                self.hedges_won
            )?;
        }
        if self.opening_retries > 0 {
            let times = counted(self.opening_retries, "time");
            writeln!(f, "opening  tried again {times}")?;
        }
        if let Some(last) = &self.last_retry {
            writeln!(f, "         last tried again: {last}")?;
        }
        if self.parked_reads > 0 {
            writeln!(
                f,
                "parked   {} for {} that storage has not answered",
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
                "depth    {} in flight from {}: {}",
                format_bytes(depth.in_flight_bytes),
                depth.sources,
                depth.reason,
            )?;
            if depth.changes > 0 {
                let changes = counted(u64::from(depth.changes), "change");
                write!(f, ", {changes} until {:.3} s", depth.changed_seconds)?;
            }
            writeln!(f)?;
        }
        Ok(())
    }

    pub(crate) fn add_staging(&mut self, staging: &StagingReport) {
        self.memory_limit += staging.bytes;
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
            "{}, {} in {:.3} s: {:.2} GB/s ({})",
            counted(self.tensors, "tensor"),
            format_bytes(self.tensor_bytes),
            self.seconds,
            self.bytes_per_second() / 1e9,
            self.outcome
        )?;
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
            "reads    {} of up to {}, {} and {} in flight in the end, {}; {} direct, {} buffered{}, {} copied; \
             {} short, {} repeated",
            counted(self.extents, "extent"),
            format_bytes(self.extent_bytes),
            counted(self.depth as u64, "read"),
            format_bytes(self.in_flight_bytes),
            counted(self.lanes as u64, "lane"),
            format_bytes(self.direct_bytes),
            format_bytes(self.buffered_bytes),
            self.elsewhere(),
            format_bytes(self.copied_bytes),
            self.short_reads,
            self.retries
        )?;
        writeln!(
            f,
            "memory   peak {} of {}; {} fresh, {} recycled",
            format_bytes(self.memory_peak),
            format_bytes(self.memory_limit),
            counted(self.fresh_regions, "region"),
            self.recycled_regions
        )?;
        self.fmt_troubles(f)?;
        self.fmt_depths(f)?;
        self.fmt_destinations(f)?;
        if let Some(verification) = &self.verification {
            writeln!(f, "{verification}")?;
        }
        self.fmt_time(f)?;
        for note in &self.notes {
            write!(f, "\nnote     {note}")?;
        }
        Ok(())
    }
}
