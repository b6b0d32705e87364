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

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, unbounded};
use tokio::sync::watch;

use super::{Done, Engine, Job, Transfer, Wait, cancelled};
use crate::error::{Error, ErrorKind, Result};
use crate::memory::{Filling, Provenance};
use crate::storage::{Events, Hedging, ObjectSource, Receive, Source};
use crate::sync::cancel::CancelFlag;
use crate::sync::retry::Retries;

/// Minimum length to which requests are split to give work to idle connections, bytes: with 30 ms
/// of latency and 90 MB/s after it, as S3 has, a request of this length still spends more time
/// receiving than waiting.
const SHARE_BYTES_MIN: u64 = 4 << 20;

/// Configuration of the engine.
#[derive(Debug)]
pub struct ObjectSetup {
    /// Objects, in the order of [`Job::source`].
    pub objects: Arc<[ObjectSource]>,
    /// Initial number of requests that receive at a time. Requests that only wait for their
    /// response are not counted: the next request is sent ahead of the end of another one by the
    /// expected latency, so that no connection's share of the bandwidth is idle meanwhile.
    pub connections: usize,
    /// Bytes in flight for which `connections` is right: the number of connections scales with the
    /// bytes. `None` if it is constant.
    pub in_flight_bytes: Option<u64>,
    /// Maximum length of a request, bytes; a longer job is still one request.
    pub request_bytes: u64,
    /// Total number of bytes that the load needs: towards the end requests become shorter, so that
    /// all connections end together. 0 if unknown.
    pub total_bytes: u64,
    /// Retry policy for failed requests; `None` for the policy of the store's options.
    pub retries: Option<Retries>,
    /// True if stalled requests may be hedged.
    pub hedge: bool,
    /// Number of jobs in flight that the engine must accept.
    pub depth: usize,
    /// Cancels the requests in flight when set.
    pub cancel: Arc<CancelFlag>,
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
            let mut running = Running::new(request, name, news, stopped.clone());
            if range.is_empty() {
                running.end(Ok(()));
                continue;
            }
            let remote = Arc::clone(object.remote());
            remote.spawn(async move {
                let reading = object.read(range, retries, Some(&hedging), &mut running);
                let result = tokio::select! {
                    biased;
                    // An error would mean that the engine is gone.
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
        let share = (self.waiting_bytes / idle).min(left / (2 * connections));
        let share = share.max(SHARE_BYTES_MIN);
        if let Some(rest) = first.split_off(share) {
            self.waiting.push_front(rest);
        }
        // Gaps and overlaps make this inexact while requests wait.
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
                // The caller may want to stop: let it decide first.
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

/// Latency and speed of a response.
#[derive(Debug)]
struct Pace {
    asked: Instant,
    latency: Option<Duration>,
    /// Time when a quarter had arrived: before that, full buffers on the way suggest a speed that
    /// does not last.
    quarter: Option<(Instant, u64)>,
}

impl Pace {
    fn new() -> Self {
        Self {
            asked: Instant::now(),
            latency: None,
            quarter: None,
        }
    }

    /// Returns whether the rest will arrive before another request could be answered, when `came`
    /// of `wanted` bytes have arrived.
    fn ends_soon(&mut self, came: u64, wanted: u64) -> bool {
        let now = Instant::now();
        let latency = *self.latency.get_or_insert(now - self.asked);
        if came < wanted / 4 {
            return false;
        }
        let (since, at) = *self.quarter.get_or_insert((now, came));
        let time = now - since;
        // time left = bytes left / (bytes / time), compared without a division.
        let left = u128::from(wanted - came) * time.as_nanos();
        time >= latency && left <= u128::from(came - at) * latency.as_nanos()
    }
}

/// Request in flight: distributes the bytes to its jobs. Every job is returned, whatever the
/// outcome.
#[derive(Debug)]
struct Running {
    /// Name of the object.
    name: String,
    /// Unfinished jobs, in the order of their offsets.
    jobs: VecDeque<FillingJob>,
    /// Offset of the next byte in the object.
    at: u64,
    news: Sender<News>,
    stop: watch::Receiver<bool>,
    /// Range of the current request.
    start: u64,
    end: u64,
    pace: Pace,
    made_room: bool,
    /// Statistics that have not been reported yet.
    transfer: Transfer,
    /// Jobs to report when the request ends.
    last: Vec<Done>,
    error: Option<Error>,
}

#[derive(Debug)]
struct FillingJob {
    extent: usize,
    offset: u64,
    needed: usize,
    filling: Filling,
}

impl FillingJob {
    fn is_finished(&self) -> bool {
        self.filling.len() == self.needed
    }
}

impl Running {
    fn new(
        request: Request,
        name: String,
        news: Sender<News>,
        stop: watch::Receiver<bool>,
    ) -> Self {
        let filling = |job: Job| FillingJob {
            extent: job.extent,
            offset: job.offset,
            needed: job.needed,
            filling: job.lease.filling(),
        };
        Self {
            name,
            jobs: request.jobs.into_iter().map(filling).collect(),
            at: request.start,
            start: request.start,
            end: request.end,
            pace: Pace::new(),
            made_room: false,
            news,
            stop,
            transfer: Transfer::default(),
            last: Vec::new(),
            error: None,
        }
    }

    /// Ends the request: unfinished jobs fail with the error of `result`.
    fn end(mut self, result: Result<()>) {
        match result {
            Ok(()) => self.last = self.finished(0),
            Err(error) => self.error = Some(error),
        }
    }

    /// Sends the completed jobs at the front. The last job waits for the end of the response, which
    /// may turn out to be longer than it should be.
    fn send_finished(&mut self) {
        let done = self.finished(1);
        let (came, wanted) = (self.at - self.start, self.end - self.start);
        let makes_room = !self.made_room && self.pace.ends_soon(came, wanted);
        self.made_room |= makes_room;
        if !done.is_empty() || makes_room {
            // The engine outlives its requests.
            let _ = self.news.send(News {
                done,
                makes_room,
                ended: false,
            });
        }
    }

    /// Removes the completed jobs at the front, except the last `held` ones.
    fn finished(&mut self, held: usize) -> Vec<Done> {
        let mut done = Vec::new();
        while self.jobs.len() > held && self.jobs[0].is_finished() {
            let job = self.jobs.pop_front().expect("looked at");
            done.push(Done {
                extent: job.extent,
                result: Ok(job.filling.finish()),
                window: None,
                transfer: std::mem::take(&mut self.transfer),
            });
        }
        done
    }
}

impl Receive for Running {
    fn bytes(&mut self, bytes: &[u8], from: Provenance) {
        let is_cached = from == Provenance::CACHE;
        self.transfer.received(bytes.len() as u64, is_cached);
        self.distribute(bytes, from);
    }

    fn events(&mut self) -> &mut dyn Events {
        self
    }
}

impl Events for Running {
    fn requested(&mut self, again: bool) {
        self.start = self.at;
        self.pace = Pace::new();
        self.transfer.requests += 1;
        self.transfer.retries += u64::from(again);
        self.transfer.request_retries += u64::from(again);
    }

    fn failed(&mut self, error: &Error) {
        let (at, end) = (self.at, self.end);
        let why = format!(
            "request for {} [{at}..{end}]: {}",
            self.name,
            error.message()
        );
        self.transfer.last_retry = Some(why);
    }

    fn stalled(&mut self, hedged: bool) {
        self.transfer.stalls += 1;
        self.transfer.hedges += u64::from(hedged);
        self.transfer.requests += u64::from(hedged);
    }

    fn hedge_won(&mut self) {
        self.transfer.hedges_won += 1;
    }

    fn surplus(&mut self, bytes: u64) {
        self.transfer.remote_bytes += bytes;
    }
}

impl Running {
    /// Copies the next bytes to their jobs.
    fn distribute(&mut self, bytes: &[u8], from: Provenance) {
        let end = self.at + bytes.len() as u64;
        for job in &mut self.jobs {
            if job.offset >= end {
                break;
            }
            let next = job.offset + job.filling.len() as u64;
            // Bytes before it are a gap, or belong to earlier jobs.
            let skipped = usize::try_from(next.saturating_sub(self.at)).unwrap_or(usize::MAX);
            let Some(wanted) = bytes.get(skipped..) else {
                continue;
            };
            let missing = job.needed - job.filling.len();
            job.filling.push(&wanted[..wanted.len().min(missing)]);
            job.filling.came_from(from);
        }
        self.at = end;
        self.send_finished();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let stopped = *self.stop.borrow();
        let error = self
            .error
            .take()
            .unwrap_or_else(|| if stopped { cancelled() } else { panicked() });
        let failed = self.jobs.drain(..).map(|job| {
            let range = job.offset..job.offset + job.needed as u64;
            Done {
                transfer: std::mem::take(&mut self.transfer),
                ..Done::failed(job.extent, error.again().with_range(range))
            }
        });
        let mut done = std::mem::take(&mut self.last);
        // The windows are free again before the engine is notified.
        done.extend(failed);
        let _ = self.news.send(News {
            done,
            makes_room: !self.made_room,
            ended: true,
        });
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

/// Returns the error of a request that ended without a result.
fn panicked() -> Error {
    Error::new(ErrorKind::Remote, "a request panicked")
        .with_hint("this is a bug in tload or in the custom store; please report it")
}
