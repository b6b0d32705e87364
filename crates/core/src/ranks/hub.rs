//! The leader's end: a thread that tells the ranks of its node which shared memory is filled.
//!
//! It only moves messages; which rank needs which region is decided in `holdings.rs`.

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::event::PollFlags;

pub(crate) use super::channel::Carried;
use super::channel::{Channel, Listener, Peer};
use super::holdings::Holdings;
use super::messages::{Failure, RankPlan, RankStatistics, Request};
use super::payload;
use super::wait::{Wake, wait_for};
use super::wire::Record;
use crate::error::{Error, Result};
use crate::memory::Region;
use crate::sync::lock::{Condvar, Mutex};

/// Time without a sign of life after which a rank that keeps the others from going on has fallen
/// behind.
const LAG: Duration = Duration::from_secs(1);

/// Interval at which the leader tells the ranks that it runs; less often than it may take to notice
/// that it does not.
const SIGN_OF_LIFE: Duration = Duration::from_secs(1);

/// Interval at which the leader looks whether a rank has fallen behind.
const TICK: Duration = Duration::from_millis(200);

/// Tells the hub what the leader's reads do. Clones share the hub.
#[derive(Clone, Debug)]
pub(crate) struct Hub(Arc<Shared>);

struct Shared {
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
}

/// Change that the hub is told of.
enum Event {
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

/// Writes a rank's part of the plan for [`Start::plans`].
///
/// # Errors
///
/// [`crate::ErrorKind::OutOfMemory`] or the system's refusal of anonymous memory.
pub(crate) fn encode_plan(plan: &RankPlan) -> Result<Carried> {
    payload::write(plan).map_err(|error| Error::from_io("cannot send the plan", error))
}

/// Everything that the hub needs to serve a load.
pub(crate) struct Start {
    /// Ranks of the node.
    pub(crate) ranks: Vec<usize>,
    /// By rank of the node: its part of the plan, as it is sent.
    pub(crate) plans: Vec<Carried>,
    /// By region: bytes to fill, and the positions of the ranks that need it.
    pub(crate) regions: Vec<(u64, Vec<usize>)>,
    /// Returns whether reads wait for memory that ranks hold.
    pub(crate) is_starved: Box<dyn Fn() -> bool + Send>,
    /// Called once every rank has finished or left.
    pub(crate) finished: Box<dyn Fn() + Send>,
}

impl Hub {
    /// Starts a hub for ranks that connect to `listener`, and one that is connected already: the
    /// leader's own.
    pub(super) fn start(listener: Listener, own: Channel) -> Result<Self> {
        let wake = Wake::new();
        let wake = wake.map_err(|error| Error::from_io("cannot start sharing", error))?;
        let hub = Self(Arc::new(Shared {
            state: Mutex::default(),
            changed: Condvar::default(),
            wake,
        }));
        let ending = Ending::begin(Arc::clone(&hub.0));
        std::thread::Builder::new()
            .name("tload-hub".to_owned())
            .spawn(move || Serving::new(&ending.0, listener, own).run())
            .map_err(Error::cannot_start_thread)?;
        Ok(hub)
    }

    /// Waits until `ranks` have joined and returns their requests in this order.
    ///
    /// # Errors
    ///
    /// [`crate::ErrorKind::Peer`] with the ranks that have not, at the deadline or when the hub has
    /// ended.
    pub(crate) fn requests(&self, ranks: &[usize], deadline: Instant) -> Result<Vec<Request>> {
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
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || state.ended {
                let missing: Vec<_> = missing.into_iter().filter_map(Result::err).collect();
                return Err(super::agreement::missing(&missing, "send their requests"));
            }
            state = self.0.changed.wait_timeout(state, left);
        }
    }

    /// Begins to serve a load.
    pub(crate) fn serve(&self, start: Start) {
        self.tell(Event::Start(Box::new(start)));
    }

    /// Announces the memory of a region.
    pub(crate) fn begun(&self, region: usize, memory: Arc<Region>) {
        self.tell(Event::Begun(region, memory));
    }

    /// Announces that the bytes from `from` to `to` of a region are filled.
    pub(crate) fn filled(&self, region: usize, from: u64, to: u64) {
        self.tell(Event::Filled(region, from, to));
    }

    /// Tells every rank that the load has failed at `rank`.
    pub(crate) fn failed(&self, rank: usize, error: &Error) {
        self.tell(Event::Failed(Failure::new(rank, error)));
    }

    /// Tells every rank that everything has been read and verified.
    pub(crate) fn whole(&self) {
        self.tell(Event::Whole);
    }

    /// Ends the hub before it serves a load.
    pub(crate) fn close(&self) {
        self.tell(Event::Close);
    }

    /// Returns the statistics of the ranks that have finished.
    pub(crate) fn statistics(&self) -> Vec<(usize, RankStatistics)> {
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

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hub").finish_non_exhaustive()
    }
}

/// Hubs of this process that still serve other ranks.
static SERVING: Hubs = Hubs {
    process: AtomicU32::new(0),
    count: std::sync::Mutex::new(0),
    ended: std::sync::Condvar::new(),
};

struct Hubs {
    /// Process that serves: a forked child has the count, and no thread of a hub.
    process: AtomicU32,
    count: std::sync::Mutex<usize>,
    ended: std::sync::Condvar,
}

impl Hubs {
    fn lock(&self) -> std::sync::MutexGuard<'_, usize> {
        let locked = self.count.lock();
        locked.unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn begin(&self) {
        if self.process.swap(std::process::id(), Ordering::SeqCst) != std::process::id() {
            *self.lock() = 0;
        }
        *self.lock() += 1;
    }

    fn end(&self) {
        *self.lock() -= 1;
        self.ended.notify_all();
    }
}

/// A hub's thread, however it ends.
struct Ending(Arc<Shared>);

impl Ending {
    fn begin(shared: Arc<Shared>) -> Self {
        SERVING.begin();
        Self(shared)
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        let left = {
            let mut state = self.0.state.lock();
            state.ended = true;
            std::mem::take(&mut state.inbox)
        };
        // Without the lock: this may free memory.
        drop(left);
        self.0.changed.notify_all();
        SERVING.end();
    }
}

/// Waits until this process reads for no other rank any more, for `timeout` at most. Returns
/// whether that is so.
///
/// A process that leads a node and exits before takes the memory of the ranks that it still reads
/// for with it: they fail with [`crate::ErrorKind::Peer`], or read for themselves.
pub fn finish_serving(timeout: Duration) -> bool {
    if SERVING.process.load(Ordering::SeqCst) != std::process::id() {
        return true;
    }
    let deadline = Instant::now() + timeout;
    let mut count = SERVING.lock();
    while *count > 0 {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return false;
        }
        let waited = SERVING.ended.wait_timeout(count, left);
        count = waited.unwrap_or_else(std::sync::PoisonError::into_inner).0;
    }
    true
}

/// A connected rank.
struct Follower {
    channel: Channel,
    /// Its number in the group, once it has joined.
    rank: Option<usize>,
    /// Its position among the ranks of the node, once there is a plan.
    position: Option<usize>,
    heard: Instant,
    /// It has fallen behind and has not been heard since.
    is_behind: bool,
    /// It needs nothing any more.
    is_done: bool,
}

/// State of the hub's thread.
struct Serving<'a> {
    shared: &'a Shared,
    /// Until all ranks have joined.
    listener: Option<Listener>,
    followers: Vec<Follower>,
    holdings: Holdings<Arc<Region>>,
    load: Option<Box<Start>>,
    /// Reads have waited for memory since then.
    starved_since: Option<Instant>,
    /// Time of the last sign of life.
    signed: Instant,
    is_closed: bool,
}

impl<'a> Serving<'a> {
    fn new(shared: &'a Shared, listener: Listener, own: Channel) -> Self {
        Self {
            shared,
            listener: Some(listener),
            followers: vec![Follower::new(own)],
            holdings: Holdings::new([]),
            load: None,
            starved_since: None,
            signed: Instant::now(),
            is_closed: false,
        }
    }

    /// Serves until every rank has finished or left.
    fn run(&mut self) {
        let is_over = |this: &Self| {
            let mut followers = this.followers.iter();
            this.is_closed || (this.load.is_some() && followers.all(|follower| follower.is_done))
        };
        // If the system refuses to wait, the ranks notice that their connections close.
        while !is_over(self) && self.step().is_ok() {}
        if let Some(load) = &self.load {
            (load.finished)();
        }
    }

    fn step(&mut self) -> io::Result<()> {
        let ready = {
            let mut waits: Vec<(BorrowedFd<'_>, PollFlags)> =
                vec![(self.shared.wake.as_fd(), PollFlags::IN)];
            // The position of each follower among them.
            let mut places = Vec::with_capacity(self.followers.len());
            for follower in &self.followers {
                let first = waits.len();
                waits.extend(follower.channel.incoming());
                places.push(first..waits.len());
                if follower.channel.has_queued() {
                    waits.push((follower.channel.as_fd(), PollFlags::OUT));
                }
            }
            let listener = self.listener.iter();
            waits.extend(listener.map(|listener| (listener.as_fd(), PollFlags::IN)));
            let tick = self.load.as_ref().map(|_| Instant::now() + TICK);
            let ready = wait_for(&waits, tick)?;
            let spoke = |place: Range<usize>| ready[place].contains(&true);
            places.into_iter().map(spoke).collect::<Vec<_>>()
        };
        self.shared.wake.clear();
        // Before the events: one of them may begin the load, which ends the listening.
        while let Some(listener) = &self.listener
            && let Some(channel) = listener.accept()?
        {
            self.followers.push(Follower::new(channel));
        }
        let events = std::mem::take(&mut self.shared.state.lock().inbox);
        for event in events {
            self.take(event);
        }
        let mut gone = Vec::new();
        for (index, is_ready) in ready.iter().enumerate() {
            if *is_ready && !self.listen(index) {
                gone.push(index);
            }
        }
        self.give_sign_of_life();
        self.send(&mut gone);
        gone.sort_unstable();
        gone.dedup();
        for index in gone.into_iter().rev() {
            let follower = self.followers.swap_remove(index);
            if let Some(position) = follower.position {
                self.holdings.leave(position);
            }
        }
        self.look_for_laggards();
        Ok(())
    }

    fn take(&mut self, event: Event) {
        match event {
            Event::Start(mut start) => {
                self.holdings = Holdings::new(std::mem::take(&mut start.regions));
                for follower in &mut self.followers {
                    let Some(rank) = follower.rank else { continue };
                    follower.position = start.ranks.iter().position(|known| *known == rank);
                    if let Some(position) = follower.position {
                        let plan = Arc::clone(&start.plans[position]);
                        follower.channel.post(Record::Plan, Some(plan));
                    }
                }
                // Ranks that died since they joined need nothing.
                for position in 0..start.ranks.len() {
                    let mut known = self.followers.iter();
                    if !known.any(|follower| follower.position == Some(position)) {
                        self.holdings.leave(position);
                    }
                }
                start.plans.clear();
                self.listener = None;
                self.load = Some(start);
            }
            Event::Begun(region, memory) => self.holdings.begun(region, memory),
            Event::Filled(region, from, to) => self.holdings.filled(region, from, to),
            Event::Failed(failure) => {
                for follower in &self.followers {
                    if let Ok(text) = payload::write(&failure) {
                        follower.channel.post(Record::Failed, Some(text));
                    }
                }
            }
            Event::Whole => {
                for follower in &self.followers {
                    follower.channel.post(Record::Whole, None);
                }
            }
            Event::Close => self.is_closed = true,
        }
    }

    /// Takes the messages of a rank. Returns whether it is still there.
    fn listen(&mut self, index: usize) -> bool {
        let follower = &mut self.followers[index];
        let mut records = Vec::new();
        let peer = follower.channel.receive(&mut records);
        if !records.is_empty() {
            follower.heard = Instant::now();
            follower.is_behind = false;
        }
        for (record, carried) in records {
            let position = follower.position;
            match (record, carried) {
                (Record::Join { rank }, Some(carried)) => {
                    let Ok(request) = payload::read(carried) else {
                        return false;
                    };
                    follower.rank = Some(rank as usize);
                    follower.channel.post(Record::Joined, None);
                    let mut state = self.shared.state.lock();
                    state.joined.push((rank as usize, request));
                    drop(state);
                    self.shared.changed.notify_all();
                }
                (Record::Claim { region }, _) if let Some(position) = position => {
                    self.holdings.claim(position, region as usize);
                }
                (Record::Release { region }, _) if let Some(position) = position => {
                    self.holdings.release(position, region as usize);
                }
                (Record::Done, Some(carried)) => {
                    if let (Some(rank), Ok(found)) = (follower.rank, payload::read(carried)) {
                        self.shared.state.lock().statistics.push((rank, found));
                    }
                    follower.is_done = true;
                    if let Some(position) = position {
                        self.holdings.leave(position);
                    }
                }
                _ => return false,
            }
        }
        matches!(peer, Ok(Peer::Open))
    }

    /// Tells the ranks that this process runs, if it is time.
    fn give_sign_of_life(&mut self) {
        if self.load.is_none() || self.signed.elapsed() < SIGN_OF_LIFE {
            return;
        }
        self.signed = Instant::now();
        let waiting = self.followers.iter();
        for follower in waiting.filter(|follower| !follower.channel.has_queued()) {
            follower.channel.post(Record::Alive, None);
        }
    }

    /// Sends everything that is queued, and adds the ranks that are gone to `gone`.
    fn send(&mut self, gone: &mut Vec<usize>) {
        for (position, record, memory) in self.holdings.take_outgoing() {
            let mut followers = self.followers.iter();
            if let Some(follower) = followers.find(|follower| follower.position == Some(position)) {
                let carried = memory.map(|memory| -> Carried { Arc::new(RegionMemory(memory)) });
                follower.channel.post(record, carried);
            }
        }
        for (index, follower) in self.followers.iter().enumerate() {
            if follower.channel.has_queued() && follower.channel.flush().is_err() {
                gone.push(index);
            }
        }
    }

    /// Drops ranks from what they hold if reads wait for that memory and they show no sign of life.
    fn look_for_laggards(&mut self) {
        let Some(load) = &self.load else { return };
        let now = Instant::now();
        let is_late = if (load.is_starved)() {
            now - *self.starved_since.get_or_insert(now) >= LAG
        } else {
            self.starved_since = None;
            false
        };
        let is_behind =
            |follower: &Follower| follower.is_behind || (is_late && now - follower.heard >= LAG);
        if !self.followers.iter().any(is_behind) {
            return;
        }
        let holders: Vec<usize> = self.holdings.holders().collect();
        for follower in &mut self.followers {
            let Some(position) = follower.position else {
                continue;
            };
            if !holders.contains(&position) || !is_behind(follower) {
                continue;
            }
            if !std::mem::replace(&mut follower.is_behind, true) {
                tracing::warn!(
                    rank = follower.rank,
                    "a rank has fallen behind: it will read again what the others go on without"
                );
            }
            self.holdings.drop_for(position);
            follower.channel.forget_memory();
        }
    }
}

impl Follower {
    fn new(channel: Channel) -> Self {
        Self {
            channel,
            rank: None,
            position: None,
            heard: Instant::now(),
            is_behind: false,
            is_done: false,
        }
    }
}

/// Descriptor of a region's memory.
struct RegionMemory(Arc<Region>);

impl AsFd for RegionMemory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        let memory = self.0.published();
        memory.expect("the leader publishes its regions").as_fd()
    }
}
