//! Steps at the end of a load: closes its files, detects changes, completes its report.
//!
//! Created with the load (`load/start.rs`) and run by the stream: when its last lane ends, and when
//! the stream ends.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::groups::{RemoteReports, Sources};
use super::lane::LaneEvents;
use super::outputs::Complete;
use super::pipeline::Feed;
use super::prepare::Prepared;
use super::shared::Joined;
use crate::checkpoint::Checkpoint;
use crate::error::{Error, ErrorKind, Result};
use crate::options::{OnPeerLoss, Options, Verify};
use crate::ranks::messages::RankStatistics;
use crate::report::{Counters, Report};
use crate::storage::ReadFile;
use crate::sync::timeline::{Span, Timeline};
use crate::verify::Check;

/// Returns a function that adds what only the destinations and the files know to a report.
pub(super) fn completion(
    feed: &Arc<Feed>,
    destinations: Complete,
    sources: &Arc<Sources>,
    check: Option<&Arc<Check>>,
    joined: Option<Joined>,
    phases: impl Fn(&mut Report) + Send + Sync + 'static,
) -> Box<dyn Fn(&mut Report) + Send + Sync> {
    let (feed, sources, check) = (Arc::clone(feed), Arc::clone(sources), check.cloned());
    Box::new(move |report| {
        destinations(report, feed.origins());
        phases(report);
        if let Some(check) = &check {
            check.report(report);
        }
        add_depths(report, &feed, &sources);
        let RemoteReports { cache, mirrors } = sources.remote_reports();
        (report.cache, report.mirrors) = (cache, mirrors);
        report.set_opening_retries(sources.opening_retries());
        report.notes.extend(sources.notes());
        if let Some(joined) = &joined {
            joined.complete(report);
        }
    })
}

/// Makes the cache forget an object of a load whose bytes turn out to be wrong.
pub(super) fn forgetting<T: 'static>(
    events: LaneEvents<T>,
    sources: &Arc<Sources>,
) -> LaneEvents<T> {
    let (failing, sources) = (events.failing, Arc::clone(sources));
    let failing = Box::new(move |error: &Error| {
        forget_wrong(&sources, error);
        failing(error);
    });
    LaneEvents { failing, ..events }
}

/// Makes the cache forget an object if `error` says that some of its bytes are wrong: not just
/// their number, or the list of files.
pub(super) fn forget_wrong(sources: &Sources, error: &Error) {
    if error.kind() == ErrorKind::Corrupt && error.range().is_some() {
        sources.clear_cached(error);
    }
}

/// Returns a function that adds the phases of the opening and of the load, which began at `started`
/// and records its preparation in `timeline`, to a report.
pub(super) fn phases(
    checkpoint: &Checkpoint,
    sources: &Arc<Sources>,
    (started, timeline): (Instant, &Timeline),
    counters: &Arc<Counters>,
) -> impl Fn(&mut Report) + Send + Sync + 'static {
    let (opened_at, opening) = checkpoint.opening();
    let (opening, sources) = (opening.clone(), Arc::clone(sources));
    let (timeline, counters) = (timeline.clone(), Arc::clone(counters));
    move |report| {
        let at = |seconds| started + Duration::from_secs_f64(seconds);
        let reading = counters.reading_since.get().copied();
        let first_read = counters.first_read.get().copied();
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
        let mut spans = opening.spans();
        spans.extend(sources.spans());
        spans.extend(timeline.spans());
        spans.extend(steps);
        report.set_phases(opened_at, spans);
    }
}

/// Adds the depth and the number of lanes of each group to the report.
pub(crate) fn add_depths(report: &mut Report, feed: &Feed, sources: &Sources) {
    report.lanes = feed.lanes();
    let groups = sources.groups().iter().map(|group| group.name());
    report.set_depths(groups.zip(feed.depths()));
}

/// Returns a function that waits until the leader of the node has verified what it has read for
/// this rank, if that is requested.
pub(super) fn settlement(
    feed: &Arc<Feed>,
    prepared: &Prepared,
    options: &Options,
) -> Box<dyn Fn(bool) -> Result<()> + Send + Sync> {
    let link = prepared
        .leader
        .as_ref()
        .filter(|leader| options.verify != Verify::Off && leader.has_regions())
        .map(|leader| Arc::clone(&leader.link));
    let cancel = Arc::clone(feed.cancel());
    let reads = options.on_peer_loss == OnPeerLoss::Read;
    Box::new(move |is_whole| {
        let Some(link) = link.as_ref().filter(|_| is_whole) else {
            return Ok(());
        };
        link.wait_until_whole(&cancel).map_err(|error| {
            if error.kind() != ErrorKind::Peer || !reads {
                return error;
            }
            let message = format!("{}, and had not verified what it read", error.message());
            Error::new(ErrorKind::Peer, message)
                .with_hint("load again, or use ‹verify=off›")
                .with_ranks(error.ranks().to_vec())
                .with_source(error)
        })
    })
}

/// Returns a function that closes the files at the end. After a complete load, it checks that
/// neither the files nor the `index` changed meanwhile, and that everything was verified.
pub(super) fn verification(
    index: Option<&Checkpoint>,
    prepared: &Prepared,
    check: Option<&Arc<Check>>,
    (started, counters): (Instant, &Arc<Counters>),
) -> Box<dyn Fn(bool) -> Result<()> + Send + Sync> {
    let (sources, check) = (Arc::clone(&prepared.sources), check.cloned());
    let link = prepared
        .leader
        .as_ref()
        .map(|leader| Arc::clone(&leader.link));
    let (index, counters) = (index.cloned(), Arc::clone(counters));
    Box::new(move |is_whole| {
        if let Some(link) = &link {
            link.finish(&RankStatistics {
                read_bytes: counters.read_bytes(),
                seconds: started.elapsed().as_secs_f64(),
            });
        }
        sources.files().for_each(ReadFile::finish);
        if !is_whole {
            return Ok(());
        }
        sources.verify_unchanged()?;
        index.as_ref().map_or(Ok(()), Checkpoint::verify_index)?;
        check.as_ref().map_or(Ok(()), |check| check.finish())
    })
}
