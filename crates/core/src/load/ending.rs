//! Steps at the end of a load: closes its files, detects changes, completes its report.
//!
//! A file has changed if its path leads to another file, or its size or modification time differs.
//!
//! Created with the load (`load/start.rs`) and called by the stream: when its last lane ends, and
//! for each report.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::check::LateCheck;
use super::distributed::Joined;
use super::near_gpu::GpuPlaces;
use super::outputs::Complete;
use super::pipeline::Feed;
use super::stream::LastSteps;
use crate::checkpoint::OpenedCheckpoint;
use crate::error::{Error, ErrorKind, Result};
use crate::groups::{LeaderGroup, RemoteReports, Sources};
use crate::options::{LoadOptions, OnPeerLoss};
use crate::report::{Counters, Report};
use crate::storage::ReadFile;
use crate::sync::timeline::{Span, Timeline};
use crate::verify::Verify;
use tload_ranks::RankStatistics;

/// Parts of a load that its end needs.
pub(super) struct LoadEnd {
    pub(super) started: Instant,
    /// Phases of the preparation.
    pub(super) timeline: Timeline,
    /// Beginning and phases of the checkpoint's opening.
    pub(super) opened_at: Instant,
    pub(super) opening: Timeline,
    pub(super) feed: Arc<Feed>,
    pub(super) counters: Arc<Counters>,
    pub(super) sources: Arc<Sources>,
    /// The part that the leader of the node reads.
    pub(super) leader: Option<Arc<LeaderGroup>>,
    /// CPUs for the threads of the load, if they are chosen.
    pub(super) gpu_places: Option<Arc<GpuPlaces>>,
    /// By group of lanes: its name in reports.
    pub(super) group_names: Vec<String>,
    pub(super) check: Arc<LateCheck>,
    /// Completes a report with what only the destinations know.
    pub(super) destinations: Complete,
    pub(super) joined: Option<Joined>,
    /// Checkpoint whose index must not change during the load.
    pub(super) index: Option<OpenedCheckpoint>,
    pub(super) options: LoadOptions,
}

impl LastSteps for LoadEnd {
    /// Waits until the leader of the node has verified what it has read for this rank, if that is
    /// requested.
    fn settle(&self, is_whole: bool) -> Result<()> {
        let leader = self.leader.as_ref().filter(|leader| leader.has_regions());
        let Some(leader) = leader.filter(|_| is_whole && self.options.verify != Verify::Off) else {
            return Ok(());
        };
        let settled = leader.link.wait_until_whole(self.feed.cancel());
        settled.map_err(|error| {
            if error.kind() != ErrorKind::Peer || self.options.on_peer_loss != OnPeerLoss::Read {
                return error;
            }
            let message = format!("{}, and had not verified what it read", error.message());
            Error::new(ErrorKind::Peer, message)
                .with_hint("load again, or use ‹verify=off›")
                .with_ranks(error.ranks().to_vec())
                .with_source(error)
        })
    }

    /// Closes the files. After a complete load, checks that neither the sources nor the index
    /// changed meanwhile, and that everything was verified.
    fn verify(&self, is_whole: bool) -> Result<()> {
        if let Some(leader) = &self.leader {
            leader.link.finish(&RankStatistics {
                read_bytes: self.counters.read_bytes(),
                seconds: self.started.elapsed().as_secs_f64(),
            });
        }
        self.sources.files().for_each(ReadFile::finish);
        if !is_whole {
            return Ok(());
        }
        self.sources.verify_unchanged()?;
        (self.index.as_ref()).map_or(Ok(()), OpenedCheckpoint::verify_index)?;
        self.check.finish()
    }

    /// Adds what only the destinations, the sources and other ranks know.
    fn complete(&self, report: &mut Report) {
        (self.destinations)(report, self.feed.origins());
        self.add_phases(report);
        self.check.report(report);
        add_depths(report, &self.feed, &self.group_names);
        let RemoteReports { cache, mirrors } = self.sources.remote_reports();
        (report.cache, report.mirrors) = (cache, mirrors);
        let (retries, reason) = self.sources.opening_retries();
        report.set_opening_retries(retries, reason);
        report.notes.extend(self.sources.notes());
        let places = self.gpu_places.iter();
        report.notes.extend(places.flat_map(|it| it.notes()));
        if let Some(joined) = &self.joined {
            joined.complete(report);
        }
    }
}

impl LoadEnd {
    /// Adds the phases of the opening and of the load.
    fn add_phases(&self, report: &mut Report) {
        let at = |seconds| self.started + Duration::from_secs_f64(seconds);
        let reading = self.counters.reading_since.get().copied();
        let first_read = self.counters.first_read.get().copied();
        let first_tensor = report.first_tensor_seconds.map(at);
        let steps = [
            ("first read", reading, first_read),
            ("first tensor", first_read, first_tensor),
            ("all tensors", first_tensor, Some(at(report.seconds))),
        ];
        let steps = steps.into_iter().filter_map(|(phase, start, end)| {
            let (start, end) = (start?, end?);
            Some(Span { phase, start, end })
        });
        let mut spans = self.opening.spans();
        spans.extend(self.sources.spans());
        spans.extend(self.timeline.spans());
        spans.extend(steps);
        report.set_phases(self.opened_at, spans);
    }
}

/// Adds the depth and the number of lanes of each group to the report.
pub(crate) fn add_depths(report: &mut Report, feed: &Feed, groups: &[String]) {
    report.lanes = feed.lanes();
    report.set_depths(groups.iter().cloned().zip(feed.depths()));
}
