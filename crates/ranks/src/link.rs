//! A rank's end of the connection to the leader of its node: which shared memory it can see, and
//! what of it is filled.

#![expect(unsafe_code, reason = "reads memory that the leader has filled")]

mod joining;

use std::fmt;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, OnceLock, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use rustix::io::Errno;

pub use self::joining::Joining;
use super::channel::{Channel, Peer};
use super::messages::{Failure, RankPlan, RankStatistics};
use super::payload;
use super::wait::{Wake, wait_for};
use super::wire::Record;
use crate::error::{Error, ErrorKind, Result};
use crate::memory::{SharedView, ViewEnd};
use crate::sync::cancel::CancelFlag;
use crate::sync::event_count::EventCount;
use crate::sync::lock::Mutex;
use crate::sync::per_process::process_id;
use crate::sync::threads::Builder;

/// Time without a message that counts as one silence: the leader gives more signs of life.
const SILENCE: Duration = Duration::from_secs(2);

/// Number of silences in a row after which the leader has stopped.
const SILENCES_MAX: usize = 5;

/// Receiver of news about the memory of regions.
pub trait RegionListener: fmt::Debug + Send + Sync {
    /// Takes note of a region's memory, before any of its bytes is available.
    fn shown(&self, region: usize, memory: BorrowedFd<'_>);

    /// Takes note that all uses of a region have ended.
    fn released(&self, region: usize);
}

/// Connection to the leader during a load. Dropping it leaves the load.
#[derive(Debug)]
pub struct Link {
    inner: Arc<Inner>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Inner {
    channel: Channel,
    wake: Wake,
    leader: usize,
    process: u32,
    state: Mutex<State>,
    /// Notified whenever something has changed.
    events: Arc<EventCount>,
    listener: Option<Arc<dyn RegionListener>>,
    closing: OnceLock<()>,
}

#[derive(Debug)]
struct State {
    regions: Vec<RegionState>,
    /// The leader has read and verified everything.
    is_whole: bool,
    /// Reason why the leader sends nothing any more.
    failure: Option<Error>,
}

#[derive(Debug, Default)]
struct RegionState {
    /// Until the region has been released.
    view: Option<Arc<SharedView>>,
    is_asked: bool,
    is_here: bool,
    is_gone: bool,
    /// Filled ranges, disjoint.
    filled: Vec<(usize, usize)>,
    /// Bytes that must be filled before any of them is available.
    least_bytes: usize,
}

/// Availability of bytes of a region.
#[derive(Debug)]
pub enum Availability {
    /// All of them are filled.
    Filled,
    /// They will be, or the region will be gone.
    Pending,
    /// The leader does not keep the region for this rank: read it elsewhere.
    Gone,
    /// The leader is lost or has failed.
    Failed(Error),
}

impl Link {
    /// Begins to receive the regions of a plan. `users` are the uses of each region: once they have
    /// ended, the leader need not keep it. If `is_writable`, this process may write to their views,
    /// and bytes are available when all of their region are: a page that is written to no longer
    /// shows what the leader writes there.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::OutOfMemory`] for threads or addresses.
    pub fn begin(
        joining: Joining,
        plan: &RankPlan,
        users: &[usize],
        is_writable: bool,
    ) -> Result<Self> {
        Self::begin_with(joining, plan, users, is_writable, None)
    }

    /// As [`Self::begin`], with a listener.
    ///
    /// # Errors
    ///
    /// As [`Self::begin`].
    pub fn begin_with(
        joining: Joining,
        plan: &RankPlan,
        users: &[usize],
        is_writable: bool,
        listener: Option<Arc<dyn RegionListener>>,
    ) -> Result<Self> {
        let wake = Wake::new().map_err(cannot_receive)?;
        let inner = Arc::new(Inner {
            channel: joining.channel,
            wake,
            leader: joining.leader,
            process: process_id(),
            state: Mutex::new(State {
                regions: Vec::new(),
                is_whole: false,
                failure: None,
            }),
            events: Arc::default(),
            listener,
            closing: OnceLock::new(),
        });
        let mut regions = Vec::with_capacity(plan.regions.len());
        for (region, (origin, users)) in plan.regions.iter().zip(users).enumerate() {
            let mut state = RegionState {
                least_bytes: if is_writable { origin.filled_bytes } else { 0 },
                ..RegionState::default()
            };
            if *users > 0 {
                let link = Arc::downgrade(&inner);
                let on_end = Box::new(move |end| ended(&link, region, end));
                let view = SharedView::reserve(origin.len, *users, on_end)?;
                state.view = Some(Arc::new(view.writable(is_writable)));
            }
            regions.push(state);
        }
        inner.state.lock().regions = regions;
        for (record, carried) in joining.received {
            inner.take(record, carried)?;
        }
        let receiver = Arc::clone(&inner);
        let thread = Builder::new()
            .name("tload-link".to_owned())
            .spawn(move || receiver.receive())
            .map_err(Error::cannot_start_thread)?;
        Ok(Self {
            inner,
            thread: Some(thread),
        })
    }

    /// Returns the rank that reads for this one.
    pub fn leader(&self) -> usize {
        self.inner.leader
    }

    /// Returns the count that changes with every message.
    pub fn events(&self) -> &Arc<EventCount> {
        &self.inner.events
    }

    /// Returns the number of regions of the plan.
    pub(super) fn regions(&self) -> usize {
        self.inner.state.lock().regions.len()
    }

    /// Returns bytes of a view that are [filled](Availability::Filled).
    ///
    /// # Panics
    ///
    /// For bytes that are not.
    pub(super) fn filled<'v>(
        &self,
        region: usize,
        view: &'v SharedView,
        range: Range<usize>,
    ) -> &'v [u8] {
        let availability = self.availability(region, &range);
        assert!(
            matches!(availability, Availability::Filled),
            "bytes that are not there yet"
        );
        // SAFETY: the view shows the region, whose bytes the leader has filled, as asserted above,
        // and does not write again.
        unsafe { view.bytes(range) }
    }

    /// Tells the leader that this rank makes progress, although it needs nothing at the moment.
    pub(super) fn give_sign_of_life(&self) {
        self.inner.tell(Record::Alive);
    }

    /// Returns the view of a region that has not been released.
    pub fn view(&self, region: usize) -> Option<Arc<SharedView>> {
        self.inner.state.lock().regions[region].view.clone()
    }

    /// Asks for a region, unless that has been done.
    pub fn ask(&self, region: usize) {
        let state = &mut self.inner.state.lock().regions[region];
        if std::mem::replace(&mut state.is_asked, true) {
            return;
        }
        let number = u32::try_from(region).expect("regions are counted before");
        self.inner.tell(Record::Ask { region: number });
    }

    /// Returns whether bytes of a region that was asked for are available.
    pub fn availability(&self, region: usize, range: &Range<usize>) -> Availability {
        let state = self.inner.state.lock();
        let found = &state.regions[region];
        let covers = |filled: &(usize, usize)| filled.0 <= range.start && range.end <= filled.1;
        let filled_bytes = || {
            found
                .filled
                .iter()
                .map(|(from, to)| to - from)
                .sum::<usize>()
        };
        let is_filled = || found.filled.iter().any(covers) && filled_bytes() >= found.least_bytes;
        if found.is_here && is_filled() {
            Availability::Filled
        } else if let Some(failure) = &state.failure {
            Availability::Failed(failure.again())
        } else if found.is_gone {
            Availability::Gone
        } else {
            Availability::Pending
        }
    }

    /// Waits until the leader has read and verified everything, or `cancel` is set.
    ///
    /// # Errors
    ///
    /// The error of the leader; [`ErrorKind::Peer`] if it is gone before.
    pub fn wait_until_whole(&self, cancel: &CancelFlag) -> Result<()> {
        let inner = Arc::downgrade(&self.inner);
        cancel.on_cancel(move || {
            if let Some(inner) = inner.upgrade() {
                inner.events.notify();
            }
        });
        loop {
            let changes = self.inner.events.count();
            {
                let state = self.inner.state.lock();
                if state.is_whole || cancel.is_cancelled() {
                    return Ok(());
                }
                if let Some(failure) = &state.failure {
                    return Err(failure.again());
                }
            }
            self.inner.events.wait_past(changes);
        }
    }

    /// Tells the leader that this rank has finished.
    pub fn finish(&self, statistics: &RankStatistics) {
        if let Ok(statistics) = payload::write(statistics) {
            self.inner.channel.post(Record::Done, Some(statistics));
            let _ = self.inner.channel.flush();
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        if self.inner.process != process_id() {
            return;
        }
        let _ = self.inner.closing.set(());
        self.inner.kick();
        if let Some(thread) = self.thread.take() {
            // The receiving thread waits only for the connection and this signal.
            let _ = thread.join();
        }
    }
}

/// Tells the leader that a region is no longer needed, and forgets it; or that it is not mapped any
/// more.
fn ended(link: &Weak<Inner>, region: usize, end: ViewEnd) {
    let Some(inner) = link.upgrade() else { return };
    if inner.process != process_id() {
        return;
    }
    let number = u32::try_from(region).expect("regions are counted before");
    if end == ViewEnd::Unmapped {
        inner.tell(Record::Unmapped { region: number });
        return;
    }
    let view = inner.state.lock().regions[region].view.take();
    if let Some(listener) = &inner.listener {
        listener.released(region);
    }
    drop(view);
    inner.tell(Record::Release { region: number });
    // Notify the lane, which may now have memory for other regions.
    inner.events.notify();
}

impl Inner {
    fn tell(&self, record: Record) {
        self.channel.post(record, None);
        // If the leader is gone, the receiving thread notices; if it is busy, that thread goes on.
        if let Ok(false) = self.channel.flush() {
            self.kick();
        }
    }

    fn kick(&self) {
        self.wake.set();
    }

    /// Receives until the leader is gone or the link is dropped.
    fn receive(&self) {
        let mut silences = 0;
        let ended = loop {
            let is_silent = match self.step() {
                Ok((Peer::Open, _)) if self.closing.get().is_some() => return,
                Ok((Peer::Open, is_silent)) => is_silent,
                Ok((Peer::Gone, _)) => break lost(self.leader, "is gone"),
                Err(error) => break error,
            };
            // Silence is counted in attempts, not measured: if this process was stopped, the leader
            // may have been, too.
            silences = if is_silent { silences + 1 } else { 0 };
            if silences == SILENCES_MAX {
                break lost(self.leader, "has stopped");
            }
        };
        self.state.lock().failure.get_or_insert(ended);
        self.events.notify();
    }

    /// Receives pending messages. Also returns whether none arrived for [`SILENCE`].
    fn step(&self) -> Result<(Peer, bool)> {
        let mut waits = vec![(self.wake.as_fd(), PollFlags::IN)];
        waits.extend(self.channel.incoming());
        let again = self.channel.outgoing(&mut waits);
        let deadline = again.unwrap_or_else(|| Instant::now() + SILENCE);
        let ready = wait_for(&waits, Some(deadline)).map_err(cannot_receive)?;
        let is_silent = again.is_none() && !ready.contains(&true);
        if ready[0] {
            self.wake.clear();
        }
        let mut records = Vec::new();
        let peer = self.channel.receive(&mut records).map_err(cannot_receive)?;
        for (record, carried) in records {
            self.take(record, carried)?;
        }
        self.events.notify();
        if self.channel.has_queued() && peer == Peer::Open {
            // An error here is noticed with the next message.
            let _ = self.channel.flush();
        }
        Ok((peer, is_silent))
    }

    fn take(&self, record: Record, carried: Option<OwnedFd>) -> Result<()> {
        let unknown = || Error::new(ErrorKind::Peer, "the leader sent an unknown region");
        match (record, carried) {
            (Record::Here { region }, Some(memory)) => {
                let region = region as usize;
                let view = {
                    let state = self.state.lock();
                    let found = state.regions.get(region).ok_or_else(unknown)?;
                    // This rank may have begun to read the region itself, into the place of the
                    // view.
                    let is_lost = found.is_gone || state.failure.is_some();
                    found.view.clone().filter(|_| !is_lost)
                };
                if let Some(view) = view {
                    view.show(&memory)?;
                    if let Some(listener) = &self.listener {
                        listener.shown(region, memory.as_fd());
                        // Its last use may have ended meanwhile.
                        if self.state.lock().regions[region].view.is_none() {
                            listener.released(region);
                        }
                    }
                    self.state.lock().regions[region].is_here = true;
                }
            }
            (Record::Filled { region, from, to }, _) => {
                let mut state = self.state.lock();
                let regions = state.regions.get_mut(region as usize);
                let found = regions.ok_or_else(unknown)?;
                let place = |at: u64| usize::try_from(at).map_err(|_| unknown());
                add(&mut found.filled, place(from)?, place(to)?);
            }
            (Record::Gone { region }, _) => {
                let mut state = self.state.lock();
                let regions = state.regions.get_mut(region as usize);
                regions.ok_or_else(unknown)?.is_gone = true;
            }
            (Record::Failed, Some(failure)) => {
                let failure: Failure = payload::read(failure).map_err(cannot_receive)?;
                let mut state = self.state.lock();
                state.failure.get_or_insert(failure.error());
            }
            (Record::Whole, _) => self.state.lock().is_whole = true,
            _ => {}
        }
        Ok(())
    }
}

/// Adds a range to disjoint ranges, joined with those that it touches.
fn add(ranges: &mut Vec<(usize, usize)>, mut from: usize, mut to: usize) {
    ranges.retain(|range| {
        let touches = range.0 <= to && from <= range.1;
        if touches {
            (from, to) = (from.min(range.0), to.max(range.1));
        }
        !touches
    });
    ranges.push((from, to));
}

fn cannot_send(error: io::Error) -> Error {
    failed("cannot send to another rank", error)
}

fn cannot_receive(error: io::Error) -> Error {
    failed("cannot receive from another rank", error)
}

/// Returns the error for a failure of the connection. A lack of descriptors is a failure of this
/// process, not the loss of the other rank.
fn failed(what: &str, error: io::Error) -> Error {
    if is_any(&error, &[Errno::MFILE, Errno::NFILE]) {
        Error::new(ErrorKind::OutOfMemory, what)
            .with_hint("use ‹share=none›, or allow more open files (ulimit -n)")
            .with_source(error)
    } else {
        Error::new(ErrorKind::Peer, what).with_source(error)
    }
}

fn is_any(error: &io::Error, errnos: &[Errno]) -> bool {
    Errno::from_io_error(error).is_some_and(|errno| errnos.contains(&errno))
}

/// Returns the error for the loss of the leader.
fn lost(leader: usize, how: &str) -> Error {
    Error::new(
        ErrorKind::Peer,
        format!("rank {leader}, which reads for this one, {how}"),
    )
    .with_hint("see why it ended; ‹on_peer_loss=read› makes this rank read what is missing itself")
    .with_ranks([leader])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rank_without_descriptors_has_not_lost_its_leader() {
        for errno in [Errno::MFILE, Errno::NFILE] {
            let error = cannot_receive(errno.into());
            assert_eq!(error.kind(), ErrorKind::OutOfMemory);
            assert!(error.hint().is_some_and(|hint| hint.contains("ulimit -n")));
        }
    }
}
