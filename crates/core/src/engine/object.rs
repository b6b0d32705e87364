//! Engine for object stores: ranged requests, streamed into leases.
//!
//! A job is not a request. Adjacent jobs of an object share one request, up to the extent length of
//! the store, and come back one by one as their bytes arrive; so many small tensors share a
//! request. Bytes are copied once, from the socket into the jobs' windows. Requests run on the
//! threads of the checkpoint; this side only starts them and takes results.
//!
//! ```text
//!  submit ─▶ [job][job] ─ adjacent ─▶ Request ─ connection ─▶ Running ─ bytes ─▶ Filled ─▶ reap
//!                                                                └─ permanent error ─▶ all others
//! ```

mod cached;
mod running;

use std::collections::VecDeque;
use std::sync::Arc;

use crossbeam_channel::{Receiver, Sender, unbounded};
use tokio::sync::watch;

use self::cached::CachedEngine;
use self::running::Running;
use super::{Done, Engine, Job, ObjectSetup, OpenedEngine, Wait, cancelled};
use crate::error::{Error, ErrorKind};
use crate::storage::object::Hedging;
use crate::storage::{ObjectSource, Source};

/// Minimum length to which requests are split to give work to idle connections, bytes: with 30 ms
/// of latency and 90 MB/s after it, as S3 has, a request of this length still spends more time
/// receiving than waiting.
const SHARE_BYTES_MIN: u64 = 4 << 20;

/// Opens the engine for object stores.
pub fn open_objects(setup: &Arc<ObjectSetup>) -> OpenedEngine {
    let mut features = vec![format!("{} connections", setup.connections)];
    let mut credentials: Vec<_> = setup
        .objects
        .iter()
        .map(ObjectSource::credentials)
        .collect();
    credentials.sort();
    credentials.dedup();
    features.extend(
        credentials
            .iter()
            .map(|source| format!("credentials: {source}")),
    );
    OpenedEngine {
        engine: Box::new(ObjectEngine::open(Arc::clone(setup))),
        name: "object",
        features,
        refusal: None,
    }
}

/// Puts an engine for the cached files of the objects in front of the store.
pub(crate) fn open_cached(files: OpenedEngine, setup: &Arc<ObjectSetup>) -> OpenedEngine {
    let mut opened = files;
    opened.features.push("cached objects".to_owned());
    opened.engine = Box::new(CachedEngine::new(opened.engine, setup));
    opened
}

/// Engine that reads objects.
#[derive(Debug)]
pub(super) struct ObjectEngine {
    setup: Arc<ObjectSetup>,
    hedging: Arc<Hedging>,
    /// Number of requests that may receive at a time now.
    connections: usize,
    /// Requests that have not started: the last one may still grow.
    waiting: VecDeque<Request>,
    /// Bytes of the requests in `waiting`.
    waiting_bytes: u64,
    /// Bytes of the load that are not submitted yet.
    unseen_bytes: u64,
    /// Requests that receive, or soon will in place of another one.
    running: usize,
    /// Requests that have not ended.
    open: usize,
    /// Jobs that failed before a request was made for them.
    ended: Vec<Done>,
    /// Jobs in `waiting`, in requests that run and in `ended`.
    in_flight: usize,
    /// `None` only while the engine is being dropped.
    news: Option<Sender<News>>,
    reports: Receiver<News>,
    /// Set to true to cancel everything.
    stop: Arc<watch::Sender<bool>>,
}

/// Message from a request to the engine.
#[derive(Debug)]
struct News {
    done: Vec<Done>,
    /// Another request may begin in its place. Sent once, at the end or shortly before.
    makes_room: bool,
    ended: bool,
}

/// Jobs that share one request, in the order of their offsets.
#[derive(Debug)]
struct Request {
    source: usize,
    start: u64,
    end: u64,
    jobs: VecDeque<Job>,
}

impl ObjectEngine {
    pub(super) fn open(setup: Arc<ObjectSetup>) -> Self {
        let (news, reports) = unbounded();
        let stop = Arc::new(watch::Sender::new(false));
        let stopper = Arc::clone(&stop);
        setup.cancel.on_cancel(move || {
            stopper.send_replace(true);
        });
        Self {
            unseen_bytes: setup.total_bytes,
            connections: setup.connections,
            hedging: Arc::new(Hedging::new(setup.hedge)),
            setup,
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            running: 0,
            open: 0,
            ended: Vec::new(),
            in_flight: 0,
            news: Some(news),
            reports,
            stop,
        }
    }

    fn start_requests(&mut self) {
        let open_max = self.connections + self.connections / 4;
        while self.running < self.connections && self.open < open_max {
            let Some(request) = self.next_request() else {
                return;
            };
            self.running += 1;
            self.open += 1;
            let object = self.setup.objects[request.source].clone();
            let retries = self
                .setup
                .retries
                .unwrap_or_else(|| object.retries().in_mid_load());
            let news = self.news.clone().expect("taken only in drop");
            let mut stopped = self.stop.subscribe();
            let range = request.start..request.end;
            let hedging = Arc::clone(&self.hedging);
            let name = object.location().to_string();
            let arrived = Arc::clone(&self.setup.arrived);
            let mut running = Running::new(request, name, news, stopped.clone(), arrived);
            let remote = Arc::clone(object.remote());
            let checked = remote.check_process();
            if range.is_empty() || checked.is_err() {
                running.end(checked);
                continue;
            }
            remote.spawn(async move {
                let reading = object.read(range, retries, Some(&hedging), &mut running);
                let result = tokio::select! {
                    biased;
                    // An error means that the engine is gone, which cancels its requests, too.
                    _ = stopped.wait_for(|stopped| *stopped) => Err(cancelled()),
                    result = reading => result,
                };
                running.end(result);
            });
        }
    }

    /// Returns the next request for a free connection. Its length leaves work for the others: a
    /// connection gets at most an even share of the waiting bytes, and at most half of an even
    /// share of the load's remaining bytes, as in guided self-scheduling (Polychronopoulos and
    /// Kuck, IEEE Transactions on Computers 1987).
    fn next_request(&mut self) -> Option<Request> {
        let mut first = self.waiting.pop_front()?;
        let connections = self.connections as u64;
        let idle = connections - self.running as u64;
        let left = self.waiting_bytes + self.unseen_bytes;
        let share = (self.waiting_bytes / idle)
            .min(left / (2 * connections))
            .max(SHARE_BYTES_MIN);
        if let Some(rest) = first.split_off(share) {
            self.waiting.push_front(rest);
        }
        // The sum is inexact while requests wait, because of gaps and overlaps.
        self.waiting_bytes = self.waiting_bytes.saturating_sub(first.len());
        if self.waiting.is_empty() {
            self.waiting_bytes = 0;
        }
        Some(first)
    }

    fn take(&mut self, news: News, done: &mut Vec<Done>) {
        self.in_flight -= news.done.len();
        self.running -= usize::from(news.makes_room);
        self.open -= usize::from(news.ended);
        done.extend(news.done);
    }
}

impl Engine for ObjectEngine {
    fn depth(&self) -> usize {
        self.setup.depth
    }

    fn in_flight(&self) -> usize {
        self.in_flight
    }

    fn submit(&mut self, job: Job) {
        self.in_flight += 1;
        let object = &self.setup.objects[job.source];
        if job.offset + job.needed as u64 > object.len() {
            let error = ends_before(object, &job);
            self.ended.push(Done::failed(job.extent, error));
            return;
        }
        let gap = object.hints().gap_bytes;
        self.waiting_bytes += job.needed as u64;
        self.unseen_bytes = self.unseen_bytes.saturating_sub(job.needed as u64);
        match self.waiting.back_mut() {
            Some(last) if last.takes(&job, gap, self.setup.request_bytes) => last.add(job),
            _ => self.waiting.push_back(Request::new(job)),
        }
    }

    fn reap(&mut self, wait: Wait, done: &mut Vec<Done>) {
        let before = done.len();
        self.in_flight -= self.ended.len();
        done.append(&mut self.ended);
        loop {
            while let Ok(news) = self.reports.try_recv() {
                self.take(news, done);
            }
            if done[before..].iter().any(|done| done.result.is_err()) {
                // Start no more requests before the caller has seen the failure.
                return;
            }
            self.start_requests();
            if wait == Wait::No || self.in_flight == 0 || done.len() > before {
                return;
            }
            let news = self.reports.recv().expect("holds a sender itself");
            self.take(news, done);
        }
    }

    fn allow(&mut self, bytes: u64) {
        self.connections = self.setup.connections_for(bytes);
    }
}

impl ObjectSetup {
    /// Returns the number of connections for `bytes` bytes in flight, in proportion to the initial
    /// values.
    fn connections_for(&self, bytes: u64) -> usize {
        let Some(base) = self.in_flight_bytes.filter(|base| *base > 0) else {
            return self.connections;
        };
        let wanted = u128::from(bytes) * self.connections as u128 / u128::from(base);
        usize::try_from(wanted).unwrap_or(usize::MAX).max(1)
    }
}

impl Drop for ObjectEngine {
    fn drop(&mut self) {
        self.stop.send_replace(true);
        self.waiting.clear();
        // Wait until the last request has released its memory.
        self.news = None;
        while self.reports.recv().is_ok() {}
    }
}

impl Request {
    fn new(job: Job) -> Self {
        Self {
            source: job.source,
            start: job.offset,
            end: job.offset + job.needed as u64,
            jobs: VecDeque::from([job]),
        }
    }

    /// Returns whether `job` is next in the same object, near enough, and does not make the request
    /// too long. Windows begin on a multiple of 64 bytes, so it may begin a little before the end
    /// of the previous job.
    fn takes(&self, job: &Job, gap: u64, request_bytes: u64) -> bool {
        let last = self.jobs.back().expect("has a job from the start");
        let end = job.offset + job.needed as u64;
        job.source == self.source
            && job.offset >= last.offset
            && end >= self.end
            && job.offset <= self.end.saturating_add(gap)
            && end - self.start <= request_bytes
    }

    fn add(&mut self, job: Job) {
        self.end = job.offset + job.needed as u64;
        self.jobs.push_back(job);
    }

    fn len(&self) -> u64 {
        self.end - self.start
    }

    /// Keeps the first jobs, as many as fit into `bytes` bytes but at least one, and returns the
    /// others.
    fn split_off(&mut self, bytes: u64) -> Option<Self> {
        let end = self.start + bytes;
        let fits = |job: &Job| job.offset + job.needed as u64 <= end;
        let kept = self.jobs.iter().take_while(|job| fits(job)).count().max(1);
        if kept == self.jobs.len() {
            return None;
        }
        let mut rest = self.jobs.split_off(kept).into_iter();
        let mut split = Self::new(rest.next().expect("fewer are kept"));
        rest.for_each(|job| split.add(job));
        let last = self.jobs.back().expect("one is kept");
        self.end = last.offset + last.needed as u64;
        Some(split)
    }
}

fn ends_before(object: &ObjectSource, job: &Job) -> Error {
    Error::new(
        ErrorKind::Changed,
        format!(
            "the object ends at byte {}, before the end of the requested range",
            object.len()
        ),
    )
    .with_location(object.location())
    .with_range(job.offset..job.offset + job.needed as u64)
}
