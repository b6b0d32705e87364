//! The leader's end: a thread that tells the ranks of its node which shared memory is filled.
//!
//! It only moves messages; which rank needs which region is decided in `holdings.rs`.

mod thread;

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Serialize;
use thread::Serving;

use super::channel::{Carried, Channel, Listener};
use super::link::Joining;
use super::messages::{Failure, RankStatistics, Request};
use super::payload;
use super::serving::ServingGuard;
use super::wait::Wake;
use crate::error::{Error, Result};
use crate::memory::Region;
use crate::sync::lock::{Condvar, Mutex};
use crate::sync::threads::Builder;

/// Connection of the leader's reads to the dispatcher, which reports their progress. Clones share
/// the dispatcher.
#[derive(Clone, Debug)]
pub struct Dispatcher(Arc<Inner>);

struct Inner {
    state: Mutex<State>,
    /// Signalled when a rank has joined, and at the end.
    changed: Condvar,
    wake: Wake,
}

#[derive(Default)]
struct State {
    inbox: Vec<Event>,
    /// Requests of the ranks that have joined, by rank of the group.
    joined: Vec<(usize, Request)>,
    statistics: Vec<(usize, RankStatistics)>,
    ended: bool,
    /// Refusal of the system that ended the dispatcher.
    refusal: Option<io::Error>,
}

/// Change that the dispatcher is told of.
enum Event {
    /// Another node is served from here, as if it were a rank.
    Attached(Channel),
    /// The plan is known: which ranks take part, and what each of them is told.
    Start(Box<Start>),
    Begun(usize, Arc<Region>),
    Filled(usize, u64, u64),
    /// The leader's reads have failed.
    Failed(Failure),
    /// Everything has been read and verified.
    Whole,
    /// The leader gives up before there is a plan.
    Close,
}

/// Writes a rank's part of the plan, or another answer to it, for [`Start::plans`].
///
/// # Errors
///
/// [`ErrorKind::OutOfMemory`](crate::error::ErrorKind::OutOfMemory) or the system's refusal of
/// anonymous memory.
pub fn encode(plan: &impl Serialize) -> Result<Carried> {
    payload::write(plan).map_err(|error| Error::from_io("cannot send the plan", error))
}

/// Everything that the dispatcher needs to serve a load.
pub struct Start {
    /// Ranks of the node, and then those that stand for other nodes.
    pub ranks: Vec<usize>,
    /// Number of ranks of the node.
    pub own: usize,
    /// By rank: its part of the plan, as it is sent.
    pub plans: Vec<Carried>,
    /// By region: bytes to fill, and the positions of the ranks that need it.
    pub regions: Vec<(u64, Vec<usize>)>,
    /// Returns whether reads wait for memory that ranks hold.
    pub is_starved: Box<dyn Fn() -> bool + Send>,
    /// Gives such reads more memory. Returns false if all of the budget is in use.
    pub widen: Box<dyn Fn() -> bool + Send>,
    /// Time without a sign of life after which a rank that keeps the others from going on has
    /// fallen behind.
    pub patience: Duration,
    /// Called once every rank of the node has finished or left.
    pub left: Box<dyn Fn() + Send>,
    /// Called once every rank has finished or left, and no other node needs anything.
    pub finished: Box<dyn Fn() + Send>,
}

impl Start {
    /// Describes a dispatcher that only sends an answer to each of `ranks`.
    pub(super) fn of_one_answer(ranks: &[usize], answer: &Carried) -> Self {
        Self {
            ranks: ranks.to_vec(),
            own: ranks.len(),
            plans: ranks.iter().map(|_| Arc::clone(answer)).collect(),
            regions: Vec::new(),
            is_starved: Box::new(|| false),
            widen: Box::new(|| false),
            patience: Duration::MAX,
            left: Box::new(|| ()),
            finished: Box::new(|| ()),
        }
    }
}

impl Dispatcher {
    /// Starts a dispatcher for ranks that connect to `listener`, and one that is connected already:
    /// the leader's own.
    pub(super) fn start(listener: Listener, own: Channel) -> Result<Self> {
        let refused = |error| Error::from_io("cannot start sharing", error);
        let wake = Wake::new().map_err(refused)?;
        let failure_memory = payload::create().map_err(refused)?;
        let dispatcher = Self(Arc::new(Inner {
            state: Mutex::default(),
            changed: Condvar::default(),
            wake,
        }));
        let ending = Ending::begin(Arc::clone(&dispatcher.0));
        Builder::new()
            .name("tload-dispatch".to_owned())
            .spawn(move || Serving::new(&ending.0, listener, own, failure_memory).run())
            .map_err(Error::cannot_start_thread)?;
        Ok(dispatcher)
    }

    /// Joins the dispatcher of this process, whose rank is `leader`, as a `rank` that stands for
    /// another node.
    ///
    /// # Errors
    ///
    /// The system refuses sockets.
    pub(super) fn attach(&self, rank: usize, leader: usize) -> Result<Joining> {
        let pair = Channel::pair();
        let (own, other) = pair.map_err(|error| Error::from_io("cannot start sharing", error))?;
        let joining = Joining::join_own(own, leader, rank, &Request::default())?;
        self.tell(Event::Attached(other));
        Ok(joining)
    }

    /// Waits until `ranks` have joined and returns their requests in this order.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Peer`](crate::error::ErrorKind::Peer) with the ranks that have not, at the
    /// deadline or when the dispatcher has ended; the refusal of the system that ended it, such as
    /// too many open files.
    pub fn requests(&self, ranks: &[usize], deadline: Instant) -> Result<Vec<Request>> {
        let mut state = self.0.state.lock();
        loop {
            let request = |rank: &usize| {
                let found = state.joined.iter().find(|(joined, _)| joined == rank);
                found.map(|(_, request)| request.clone()).ok_or(*rank)
            };
            let (found, missing): (Vec<_>, Vec<_>) =
                ranks.iter().map(request).partition(Result::is_ok);
            if missing.is_empty() {
                return Ok(found.into_iter().flatten().collect());
            }
            if let Some(refusal) = state.refusal.take() {
                let refused = "cannot accept the other ranks of this node";
                return Err(Error::from_io(refused, refusal));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || state.ended {
                let missing: Vec<_> = missing.into_iter().filter_map(Result::err).collect();
                return Err(super::agreement::missing(&missing, "send their requests"));
            }
            state = self.0.changed.wait_timeout(state, left);
        }
    }

    /// Begins to serve a load.
    pub fn serve(&self, start: Start) {
        self.tell(Event::Start(Box::new(start)));
    }

    /// Announces the memory of a region.
    pub fn begun(&self, region: usize, memory: Arc<Region>) {
        self.tell(Event::Begun(region, memory));
    }

    /// Announces that the bytes from `from` to `to` of a region are filled.
    pub fn filled(&self, region: usize, from: u64, to: u64) {
        self.tell(Event::Filled(region, from, to));
    }

    /// Tells every rank that the load has failed at `rank`.
    pub fn failed(&self, rank: usize, error: &Error) {
        self.tell(Event::Failed(Failure::new(rank, error)));
    }

    /// Tells every rank that everything has been read and verified.
    pub fn whole(&self) {
        self.tell(Event::Whole);
    }

    /// Ends the dispatcher before it serves a load.
    pub fn close(&self) {
        self.tell(Event::Close);
    }

    /// Returns the statistics of the ranks that have finished.
    pub fn statistics(&self) -> Vec<(usize, RankStatistics)> {
        self.0.state.lock().statistics.clone()
    }

    fn tell(&self, event: Event) {
        let unheard = {
            let mut state = self.0.state.lock();
            if state.ended {
                Some(event)
            } else {
                state.inbox.push(event);
                None
            }
        };
        drop(unheard);
        self.0.wake.set();
    }
}

impl std::fmt::Debug for Start {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Start")
            .field("ranks", &self.ranks)
            .finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Dispatcher").finish_non_exhaustive()
    }
}

/// A dispatcher's thread, however it ends.
struct Ending(Arc<Inner>, ServingGuard);

impl Ending {
    fn begin(inner: Arc<Inner>) -> Self {
        Self(inner, ServingGuard::new())
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        let left = {
            let mut state = self.0.state.lock();
            state.ended = true;
            std::mem::take(&mut state.inbox)
        };
        // The lock is released first, because this may free memory.
        drop(left);
        self.0.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusal_to_accept_ranks_is_named() {
        let (own, _other) = Channel::pair().expect("a pair");
        let dispatcher = Dispatcher::start(Listener::refused(), own).expect("starts");
        let deadline = Instant::now() + Duration::from_secs(60);
        let error = dispatcher.requests(&[0, 1], deadline).expect_err("refused");
        assert_eq!(
            error.chain(),
            "cannot accept the other ranks of this node\n  caused by: Invalid argument (os error 22)"
        );
    }
}
