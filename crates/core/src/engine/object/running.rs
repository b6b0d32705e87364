//! Request in flight, which copies the bytes that arrive into the windows of its jobs.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::Sender;
use tokio::sync::watch;

use super::{News, Request};
use crate::engine::{Done, Job, Transfer, cancelled};
use crate::error::{Error, ErrorKind, Result};
use crate::memory::Filling;
use crate::storage::object::{Events, Provenance, Receive};

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
pub(super) struct Running {
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
    /// Bytes of all requests of the load.
    arrived: Arc<AtomicU64>,
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
    pub(super) fn new(
        request: Request,
        name: String,
        news: Sender<News>,
        stop: watch::Receiver<bool>,
        arrived: Arc<AtomicU64>,
    ) -> Self {
        let filling = |job: Job| {
            let is_read_soon = job.lease.is_read_soon();
            let filling = job.lease.filling();
            FillingJob {
                extent: job.extent,
                offset: job.offset,
                needed: job.needed,
                filling: if is_read_soon {
                    filling
                } else {
                    filling.streaming()
                },
            }
        };
        Self {
            name,
            jobs: request.jobs.into_iter().map(filling).collect(),
            at: request.start,
            start: request.start,
            end: request.end,
            pace: Pace::new(),
            made_room: false,
            arrived,
            news,
            stop,
            transfer: Transfer::default(),
            last: Vec::new(),
            error: None,
        }
    }

    /// Ends the request: unfinished jobs fail with the error of `result`.
    pub(super) fn end(mut self, result: Result<()>) {
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
            // Sending cannot fail, because the engine outlives its requests.
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
        let received = match from {
            Provenance::Cache => &mut self.transfer.cached_bytes,
            Provenance::Origin | Provenance::Mirror => &mut self.transfer.remote_bytes,
        };
        *received += bytes.len() as u64;
        // Only read for display.
        self.arrived
            .fetch_add(bytes.len() as u64, Ordering::Relaxed);
        self.distribute(bytes);
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
    fn distribute(&mut self, bytes: &[u8]) {
        let end = self.at + bytes.len() as u64;
        for job in &mut self.jobs {
            if job.offset >= end {
                break;
            }
            let next = job.offset + job.filling.len() as u64;
            // Bytes before this job's range are a gap, or belong to earlier jobs.
            let skipped = usize::try_from(next.saturating_sub(self.at)).unwrap_or(usize::MAX);
            let Some(wanted) = bytes.get(skipped..) else {
                continue;
            };
            let missing = job.needed - job.filling.len();
            job.filling.push(&wanted[..wanted.len().min(missing)]);
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

/// Returns the error of a request that ended without a result.
fn panicked() -> Error {
    Error::new(ErrorKind::Remote, "a request panicked")
        .with_hint("this is a bug in tload or in the custom store; please report it")
}
