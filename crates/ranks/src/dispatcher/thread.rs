//! Thread of the dispatcher: receives the messages of the ranks, and sends each rank the messages
//! that it needs.

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::PollFlags;

use super::{Event, Inner, Start};
use crate::channel::{Carried, Channel, Listener, Peer};
use crate::holdings::{Holdings, SharedBytes};
use crate::memory::{Region, SharedMemory};
use crate::payload;
use crate::wait::wait_for;
use crate::wire::Record;

/// Time like [`Start::patience`] for another node, which is heard of every second or two as long as
/// its leader runs. It passes over its own ranks in the meantime.
const LAG_OF_NODE: Duration = Duration::from_secs(5);

/// Interval at which the leader tells the ranks that it runs; less often than it may take to notice
/// that it does not.
const SIGN_OF_LIFE: Duration = Duration::from_secs(1);

/// Most regions that only their viewers need and that may be filled again: four tensors of which
/// each of eight ranks takes columns.
const LENT_MAX: usize = 32;

/// Interval at which the leader looks whether a rank has fallen behind.
const TICK: Duration = Duration::from_millis(200);

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

/// State of the dispatcher's thread.
pub(super) struct Serving<'a> {
    inner: &'a Inner,
    /// Until all ranks have joined.
    listener: Option<Listener>,
    followers: Vec<Follower>,
    /// Memory for the leader's first failure: later, the process may have no descriptor left, which
    /// may itself be the failure.
    failure_memory: Option<OwnedFd>,
    holdings: Holdings<Arc<Region>>,
    load: Option<Box<Start>>,
    /// Reads have waited for memory since then.
    starved_since: Option<Instant>,
    /// Time of the last sign of life.
    signed: Instant,
    is_closed: bool,
    /// Every rank of the node has finished or left.
    has_left: bool,
}

impl<'a> Serving<'a> {
    pub(super) fn new(
        inner: &'a Inner,
        listener: Listener,
        own: Channel,
        failure_memory: OwnedFd,
    ) -> Self {
        Self {
            inner,
            listener: Some(listener),
            followers: vec![Follower::new(own)],
            failure_memory: Some(failure_memory),
            holdings: Holdings::new([]),
            load: None,
            starved_since: None,
            signed: Instant::now(),
            is_closed: false,
            has_left: false,
        }
    }

    /// Serves until every rank has finished or left.
    pub(super) fn run(&mut self) {
        let is_over = |this: &Self| {
            let mut followers = this.followers.iter();
            this.is_closed || (this.load.is_some() && followers.all(|follower| follower.is_done))
        };
        while !is_over(self) {
            // The ranks notice that their connections close.
            if let Err(refusal) = self.step() {
                tracing::warn!(%refusal, "cannot serve the ranks of this node");
                self.inner.state.lock().refusal = Some(refusal);
                break;
            }
            self.tell_left();
        }
        if let Some(load) = &self.load {
            (load.finished)();
        }
    }

    fn tell_left(&mut self) {
        let Some(load) = self.load.as_ref().filter(|_| !self.has_left) else {
            return;
        };
        let is_own = |follower: &Follower| follower.position.is_some_and(|it| it < load.own);
        let mut followers = self.followers.iter();
        if !followers.any(|follower| is_own(follower) && !follower.is_done) {
            self.has_left = true;
            (load.left)();
        }
    }

    fn step(&mut self) -> io::Result<()> {
        let ready = {
            let mut waits: Vec<(BorrowedFd<'_>, PollFlags)> =
                vec![(self.inner.wake.as_fd(), PollFlags::IN)];
            // Range of `waits` that belongs to each follower.
            let mut places = Vec::with_capacity(self.followers.len());
            let mut until = self.load.as_ref().map(|_| Instant::now() + TICK);
            for follower in &self.followers {
                let first = waits.len();
                waits.extend(follower.channel.incoming());
                places.push(first..waits.len());
                let again = follower.channel.outgoing(&mut waits);
                until = until.into_iter().chain(again).min();
            }
            let listener = self.listener.iter();
            waits.extend(listener.map(|listener| (listener.as_fd(), PollFlags::IN)));
            let ready = wait_for(&waits, until)?;
            let spoke = |place: Range<usize>| ready[place].contains(&true);
            places.into_iter().map(spoke).collect::<Vec<_>>()
        };
        self.inner.wake.clear();
        // Accept connections before handling events: an event may begin the load, which ends the
        // listening.
        while let Some(listener) = &self.listener
            && let Some(channel) = listener.accept()?
        {
            self.followers.push(Follower::new(channel));
        }
        let events = std::mem::take(&mut self.inner.state.lock().inbox);
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
            Event::Attached(channel) => self.followers.push(Follower::new(channel)),
            Event::Start(mut start) => {
                let lent_max = LENT_MAX.min(SharedMemory::open_max() / 8);
                let regions = std::mem::take(&mut start.regions);
                self.holdings = Holdings::new(regions).lending(lent_max);
                for follower in &mut self.followers {
                    let Some(rank) = follower.rank else { continue };
                    follower.position = start.ranks.iter().position(|known| *known == rank);
                    if let Some(position) = follower.position {
                        let plan = Arc::clone(&start.plans[position]);
                        follower.channel.post(Record::Plan, Some(plan));
                    }
                }
                // Sending fails for ranks that died since they joined, which need nothing.
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
            Event::Filled(region, from, to) => {
                // Ranks that waited for this in silence have something to do from now on.
                self.starved_since = None;
                self.holdings.filled(region, from, to);
            }
            Event::Failed(failure) => {
                // The first error counts.
                let Some(memory) = self.failure_memory.take() else {
                    return;
                };
                let Ok(text) = payload::write_to(memory, &failure) else {
                    // The ranks notice that their connections close.
                    self.is_closed = true;
                    return;
                };
                for follower in &self.followers {
                    let text = Arc::clone(&text);
                    follower.channel.post(Record::Failed, Some(text));
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
            match (record, carried, position) {
                (Record::Join { rank }, Some(carried), _) => {
                    let Ok(request) = payload::read(carried) else {
                        return false;
                    };
                    follower.rank = Some(rank as usize);
                    follower.channel.post(Record::Joined, None);
                    let mut state = self.inner.state.lock();
                    state.joined.push((rank as usize, request));
                    drop(state);
                    self.inner.changed.notify_all();
                }
                (Record::Ask { region }, _, Some(position)) => {
                    self.holdings.ask(position, region as usize);
                }
                (Record::Release { region }, _, Some(position)) => {
                    self.holdings.release(position, region as usize);
                }
                (Record::Alive, ..) => {}
                (Record::Unmapped { region }, _, Some(position)) => {
                    self.holdings.unmapped(position, region as usize);
                }
                (Record::Done, Some(carried), position) => {
                    let own = self.load.as_ref().map_or(0, |load| load.own);
                    if let (Some(rank), Ok(found)) = (follower.rank, payload::read(carried))
                        && position.is_none_or(|position| position < own)
                    {
                        self.inner.state.lock().statistics.push((rank, found));
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
        for index in 0..self.followers.len() {
            let channel = &self.followers[index].channel;
            if channel.has_queued() && channel.flush().is_err() {
                // The rank may have announced that it has finished.
                self.listen(index);
                gone.push(index);
            }
        }
    }

    /// If reads wait for memory that ranks hold, gives them more, or drops ranks from it that show
    /// no sign of life.
    fn look_for_laggards(&mut self) {
        let Some(load) = &self.load else { return };
        let now = Instant::now();
        let is_late = if (load.is_starved)() {
            let starved = now - *self.starved_since.get_or_insert(now);
            if starved >= TICK && (load.widen)() {
                self.starved_since = None;
            }
            starved >= load.patience
        } else {
            self.starved_since = None;
            false
        };
        let is_behind = |follower: &Follower| {
            let is_node = follower.position.is_some_and(|it| it >= load.own);
            let lag = if is_node {
                LAG_OF_NODE.max(load.patience)
            } else {
                load.patience
            };
            follower.is_behind || (is_late && now - follower.heard >= lag)
        };
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

impl SharedBytes for Arc<Region> {
    fn lend(&self) {
        Region::lend(self);
    }

    fn allow_reuse(&self) {
        Region::allow_reuse(self);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::messages::RankStatistics;
    use crate::sync::lock::{Condvar, Mutex};
    use crate::wait::Wake;

    #[test]
    fn rank_that_leaves_while_it_is_told_something_has_finished() {
        let inner = Inner {
            state: Mutex::default(),
            changed: Condvar::default(),
            wake: Wake::new().expect("sockets"),
        };
        let (rank, own) = Channel::pair().expect("sockets");
        let memory = payload::create().expect("memory");
        let listener = Listener::new("tload-").expect("a socket");
        let mut serving = Serving::new(&inner, listener, own, memory);
        serving.followers[0].rank = Some(1);
        let statistics = payload::write(&RankStatistics::default()).expect("memory");
        rank.post(Record::Done, Some(statistics));
        assert!(rank.flush().expect("open"));
        drop(rank);
        serving.followers[0].channel.post(Record::Alive, None);
        let mut gone = Vec::new();
        serving.send(&mut gone);
        assert_eq!(gone, [0]);
        assert!(serving.followers[0].is_done);
        assert_eq!(inner.state.lock().statistics.len(), 1);
    }
}
