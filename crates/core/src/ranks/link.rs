//! A rank's end of the connection to the leader of its node: which shared memory it can see, and
//! what of it is filled.

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, OnceLock, Weak};
use std::thread::JoinHandle;
use std::time::Instant;

use rustix::event::PollFlags;

use super::channel::{Channel, Peer};
use super::messages::{Failure, RankPlan, RankStatistics, Request};
use super::payload;
use super::wait::{Wake, wait_for};
use super::wire::Record;
use crate::error::{Error, ErrorKind, Result};
use crate::memory::SharedView;
use crate::sync::event_count::EventCount;
use crate::sync::lock::Mutex;

/// Connection to the leader before there is a plan.
pub(crate) struct Joining {
    channel: Channel,
    leader: usize,
}

impl Joining {
    /// Connects to the leader that listens under `name`, and joins it as `rank`. Returns `None` if
    /// no leader of this node and user listens there.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Peer`] if the leader does not answer by the deadline.
    pub(super) fn join(
        (name, leader): (&str, usize),
        rank: usize,
        request: &Request,
        deadline: Instant,
    ) -> Result<Option<Self>> {
        let Ok(channel) = Channel::connect(name) else {
            return Ok(None);
        };
        let joining = Self { channel, leader };
        joining.send(rank, request)?;
        match joining.wait(deadline)? {
            Some((Record::Joined, _)) => Ok(Some(joining)),
            // It follows another leader, which is not of this node, or belongs to another user.
            _ => Ok(None),
        }
    }

    /// Joins the hub of this process.
    pub(super) fn join_own(channel: Channel, rank: usize, request: &Request) -> Result<Self> {
        let leader = rank;
        let joining = Self { channel, leader };
        joining.send(rank, request)?;
        Ok(joining)
    }

    fn send(&self, rank: usize, request: &Request) -> Result<()> {
        let request = payload::write(request).map_err(cannot_send)?;
        let rank = u32::try_from(rank).expect("ranks are few");
        self.channel.post(Record::Join { rank }, Some(request));
        self.channel.flush().map_err(cannot_send)?;
        Ok(())
    }

    /// Waits for the rank's part of the plan.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Peer`] if there is none by the deadline or the leader is gone; the error of the
    /// leader, if it failed.
    pub(crate) fn plan(&self, deadline: Instant) -> Result<RankPlan> {
        loop {
            match self.wait(deadline)? {
                Some((Record::Joined, _)) => {}
                Some((Record::Plan, Some(plan))) => {
                    return payload::read(plan).map_err(cannot_receive);
                }
                Some((Record::Failed, Some(failure))) => {
                    let failure: Failure = payload::read(failure).map_err(cannot_receive)?;
                    return Err(failure.error());
                }
                _ => return Err(lost(self.leader)),
            }
        }
    }

    /// Waits for one message; `None` if the leader is gone.
    fn wait(&self, deadline: Instant) -> Result<Option<(Record, Option<OwnedFd>)>> {
        loop {
            let ready = wait_for(&[(self.channel.as_fd(), PollFlags::IN)], Some(deadline));
            if !ready.map_err(cannot_receive)?[0] {
                return Err(super::agreement::missing(&[self.leader], "answer"));
            }
            let mut records = Vec::new();
            let peer = self.channel.receive(&mut records).map_err(cannot_receive)?;
            // The leader sends nothing behind an answer before it is asked again, or the plan, or
            // an error.
            match (records.pop(), peer) {
                (Some(record), _) => return Ok(Some(record)),
                (None, Peer::Gone) => return Ok(None),
                (None, Peer::Open) => {}
            }
        }
    }
}

/// Connection to the leader during a load. Dropping it leaves the load.
#[derive(Debug)]
pub struct Link {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    channel: Channel,
    /// Readable at the end of the leader's process.
    leader_ends: Option<OwnedFd>,
    wake: Wake,
    leader: usize,
    process: u32,
    state: Mutex<State>,
    /// Notified whenever something has changed.
    events: EventCount,
    closing: OnceLock<()>,
}

#[derive(Debug)]
struct State {
    regions: Vec<RegionState>,
    /// Reason why the leader sends nothing any more.
    failure: Option<Error>,
}

#[derive(Debug, Default)]
struct RegionState {
    /// Until the region has been released.
    view: Option<Arc<SharedView>>,
    is_claimed: bool,
    is_here: bool,
    is_gone: bool,
    /// Filled ranges, disjoint.
    filled: Vec<(usize, usize)>,
}

/// Availability of bytes of a region.
#[derive(Debug)]
pub(crate) enum Availability {
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
    /// ended, the leader need not keep it.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::OutOfMemory`] for threads or addresses.
    pub(crate) fn begin(joining: Joining, plan: &RankPlan, users: &[usize]) -> Result<Self> {
        let wake = Wake::new().map_err(cannot_receive)?;
        let shared = Arc::new(Shared {
            leader_ends: joining.channel.end_of_process(),
            channel: joining.channel,
            wake,
            leader: joining.leader,
            process: std::process::id(),
            state: Mutex::new(State {
                regions: Vec::new(),
                failure: None,
            }),
            events: EventCount::default(),
            closing: OnceLock::new(),
        });
        let mut regions = Vec::with_capacity(plan.regions.len());
        for (region, (origin, users)) in plan.regions.iter().zip(users).enumerate() {
            let mut state = RegionState::default();
            if *users > 0 {
                let link = Arc::downgrade(&shared);
                let released = Box::new(move || release(&link, region));
                state.view = Some(Arc::new(SharedView::reserve(origin.len, *users, released)?));
            }
            regions.push(state);
        }
        shared.state.lock().regions = regions;
        let receiver = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("tload-link".to_owned())
            .spawn(move || receiver.receive())
            .map_err(Error::cannot_start_thread)?;
        Ok(Self {
            shared,
            thread: Some(thread),
        })
    }

    /// Returns the rank that reads for this one.
    pub(crate) fn leader(&self) -> usize {
        self.shared.leader
    }

    /// Returns the count that changes with every message.
    pub(crate) fn events(&self) -> &EventCount {
        &self.shared.events
    }

    /// Returns the view of a region that has not been released.
    pub(crate) fn view(&self, region: usize) -> Option<Arc<SharedView>> {
        self.shared.state.lock().regions[region].view.clone()
    }

    /// Asks for a region, unless that has been done.
    pub(crate) fn claim(&self, region: usize) {
        let state = &mut self.shared.state.lock().regions[region];
        if std::mem::replace(&mut state.is_claimed, true) {
            return;
        }
        let number = u32::try_from(region).expect("regions are counted before");
        self.shared.tell(Record::Claim { region: number });
    }

    /// Returns whether bytes of a claimed region are available.
    pub(crate) fn availability(&self, region: usize, range: &Range<usize>) -> Availability {
        let state = self.shared.state.lock();
        let found = &state.regions[region];
        let covers = |filled: &(usize, usize)| filled.0 <= range.start && range.end <= filled.1;
        if found.is_here && found.filled.iter().any(covers) {
            Availability::Filled
        } else if let Some(failure) = &state.failure {
            Availability::Failed(failure.again())
        } else if found.is_gone {
            Availability::Gone
        } else {
            Availability::Pending
        }
    }

    /// Tells the leader that this rank has finished.
    pub(crate) fn finish(&self, statistics: &RankStatistics) {
        if let Ok(statistics) = payload::write(statistics) {
            self.shared.channel.post(Record::Done, Some(statistics));
            let _ = self.shared.channel.flush();
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        if self.shared.process != std::process::id() {
            return;
        }
        let _ = self.shared.closing.set(());
        self.shared.kick();
        if let Some(thread) = self.thread.take() {
            // It waits for nothing but the connection and this signal.
            let _ = thread.join();
        }
    }
}

/// Tells the leader that a region is no longer needed, and forgets it.
fn release(link: &Weak<Shared>, region: usize) {
    let Some(shared) = link.upgrade() else { return };
    if shared.process != std::process::id() {
        return;
    }
    let view = shared.state.lock().regions[region].view.take();
    drop(view);
    let region = u32::try_from(region).expect("regions are counted before");
    shared.tell(Record::Release { region });
}

impl Shared {
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
        let ended = loop {
            match self.step() {
                Ok(Peer::Open) if self.closing.get().is_some() => return,
                Ok(Peer::Open) => {}
                Ok(Peer::Gone) => break lost(self.leader),
                Err(error) => break error,
            }
        };
        self.state.lock().failure.get_or_insert(ended);
        self.events.notify();
    }

    fn step(&self) -> Result<Peer> {
        let mut flags = PollFlags::IN;
        if self.channel.has_queued() {
            flags |= PollFlags::OUT;
        }
        let mut waits = vec![
            (self.wake.as_fd(), PollFlags::IN),
            (self.channel.as_fd(), flags),
        ];
        if let Some(end) = &self.leader_ends {
            waits.push((end.as_fd(), PollFlags::IN));
        }
        let ready = wait_for(&waits, None).map_err(cannot_receive)?;
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
        // What the leader had sent has been received above.
        if ready.get(2) == Some(&true) {
            return Ok(Peer::Gone);
        }
        Ok(peer)
    }

    fn take(&self, record: Record, carried: Option<OwnedFd>) -> Result<()> {
        let unknown = || Error::new(ErrorKind::Peer, "the leader sent an unknown region");
        match (record, carried) {
            (Record::Here { region }, Some(memory)) => {
                let region = region as usize;
                let view = {
                    let state = self.state.lock();
                    let found = state.regions.get(region).ok_or_else(unknown)?;
                    found.view.clone()
                };
                if let Some(view) = view {
                    view.show(memory)?;
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
    Error::new(ErrorKind::Peer, "cannot send to another rank").with_source(error)
}

fn cannot_receive(error: io::Error) -> Error {
    Error::new(ErrorKind::Peer, "cannot receive from another rank").with_source(error)
}

/// Returns the error for the loss of the leader.
fn lost(leader: usize) -> Error {
    Error::new(
        ErrorKind::Peer,
        format!("rank {leader}, which reads for this one, is gone"),
    )
    .with_hint("see why it ended; ‹on_peer_loss=read› makes this rank read what is missing itself")
    .with_ranks([leader])
}
