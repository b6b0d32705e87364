//! Model of the ranks of a node: `holdings.rs` decides, a thread stands for each
//! process, and a queue for each socket. Loom finds the interleavings in which a rank reads bytes
//! of another region, and steps that wait for ever.

#![expect(clippy::panic, reason = "ends a test")]

use std::collections::VecDeque;
use std::sync::Arc as Plain;

use loom::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;

use tload_ranks::{Holdings, Record, SharedBytes};

/// Ranges of each region, one byte each: filled one after the other.
const RANGES: u64 = 2;

/// Bytes of a memfd, each with the number of the region that it was filled for. Nothing but the
/// messages between threads orders access to them.
#[derive(Default)]
struct Bytes([AtomicU32; 2]);

impl Bytes {
    fn at(&self, at: u64) -> &AtomicU32 {
        &self.0[usize::try_from(at).expect("small")]
    }

    fn fill(&self, at: u64, region: u32) {
        self.at(at).store(region + 1, Ordering::Relaxed);
    }

    fn check(&self, at: u64, region: u32) {
        let found = self.at(at).load(Ordering::Relaxed);
        assert_eq!(found, region + 1, "bytes of another region");
    }
}

/// A socket, in one direction.
struct Queue<T>(Mutex<VecDeque<T>>, Condvar);

impl<T> Queue<T> {
    fn new() -> Arc<Self> {
        Arc::new(Self(Mutex::default(), Condvar::new()))
    }

    fn send(&self, message: T) {
        self.0.lock().expect("whole").push_back(message);
        self.1.notify_one();
    }

    fn receive(&self) -> T {
        let mut messages = self.0.lock().expect("whole");
        loop {
            match messages.pop_front() {
                Some(message) => return message,
                None => messages = self.1.wait(messages).expect("whole"),
            }
        }
    }
}

/// Memory of one region as its leader has it. Its bytes come back to the lane that fills regions,
/// or others in their place, once no part of the leader has it any more.
#[derive(Clone)]
struct Memory(Plain<Owned>);

struct Owned {
    bytes: Arc<Bytes>,
    is_reusable: AtomicBool,
    free: Arc<Queue<Arc<Bytes>>>,
}

impl SharedBytes for Memory {
    fn lend(&self) {}

    fn allow_reuse(&self) {
        self.0.is_reusable.store(true, Ordering::Relaxed);
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        let bytes = if self.is_reusable.load(Ordering::Relaxed) {
            Arc::clone(&self.bytes)
        } else {
            Arc::default()
        };
        self.free.send(bytes);
    }
}

/// Message to the leader's thread.
enum Event {
    Begun(usize, Memory),
    Filled(usize, u64, u64),
    From(usize, Record),
    /// The rank has finished, or its socket has closed because it was killed.
    Left(usize),
}

/// Message to a rank, with the memory that a descriptor stands for.
type Told = (Record, Option<Arc<Bytes>>);

/// Fills one region after the other, in memory that there is once only.
fn fill(regions: usize, leader: &Queue<Event>) {
    let free = Queue::new();
    free.send(Arc::default());
    for region in 0..regions {
        let bytes: Arc<Bytes> = free.receive();
        let owned = Owned {
            bytes: Arc::clone(&bytes),
            is_reusable: AtomicBool::new(false),
            free: Arc::clone(&free),
        };
        let memory = Memory(Plain::new(owned));
        leader.send(Event::Begun(region, memory));
        for at in 0..RANGES {
            bytes.fill(at, u32::try_from(region).expect("small"));
            let filled = Event::Filled(region, at, at + 1);
            leader.send(filled);
        }
    }
}

/// Reads each region once it is filled. A rank that is `killed` shows its last one for ever.
fn follow(rank: usize, regions: u32, killed: bool, told: &Queue<Told>, leader: &Queue<Event>) {
    let say = |record| leader.send(Event::From(rank, record));
    for region in 0..regions {
        say(Record::Ask { region });
        let (mut bytes, mut filled) = (None, 0);
        while filled < RANGES {
            match told.receive() {
                (Record::Here { region: here }, memory) if here == region => bytes = memory,
                (
                    Record::Filled {
                        region: here,
                        from,
                        to,
                    },
                    _,
                ) if here == region => {
                    let bytes: &Arc<Bytes> = bytes.as_ref().expect("announced before");
                    (from..to).for_each(|at| bytes.check(at, region));
                    filled += to - from;
                }
                (record, _) => panic!("rank {rank} was told {record:?} while it read {region}"),
            }
        }
        if killed {
            leader.send(Event::Left(rank));
            let bytes = bytes.expect("announced before");
            (0..RANGES).for_each(|at| bytes.check(at, region));
            return;
        }
        say(Record::Release { region });
        let bytes = bytes.expect("announced before");
        (0..RANGES).for_each(|at| bytes.check(at, region));
        say(Record::Unmapped { region });
    }
    leader.send(Event::Left(rank));
}

/// Tells ranks what they need to know until all have left.
fn lead(needs: &[Vec<usize>], events: &Queue<Event>, ranks: &[Arc<Queue<Told>>]) {
    let mut holdings = Holdings::new(needs.iter().map(|ranks| (RANGES, ranks.clone())));
    let mut left = 0;
    while left < ranks.len() {
        let number = |region: u32| usize::try_from(region).expect("small");
        match events.receive() {
            Event::Begun(region, memory) => holdings.begun(region, memory),
            Event::Filled(region, from, to) => holdings.filled(region, from, to),
            Event::From(rank, Record::Ask { region }) => holdings.ask(rank, number(region)),
            Event::From(rank, Record::Release { region }) => {
                holdings.release(rank, number(region));
            }
            Event::From(rank, Record::Unmapped { region }) => {
                holdings.unmapped(rank, number(region));
            }
            Event::From(rank, record) => panic!("rank {rank} said {record:?}"),
            Event::Left(rank) => {
                holdings.leave(rank);
                left += 1;
            }
        }
        for (rank, record, memory) in holdings.take_outgoing() {
            let bytes = memory.map(|memory| Arc::clone(&memory.0.bytes));
            ranks[rank].send((record, bytes));
        }
    }
}

/// Lets two ranks read `regions` regions, in memory for one. Ranks that are `killed` end after the
/// first, and show it for ever.
///
/// # Panics
///
/// A rank reads bytes of another region.
pub(crate) fn read_by_two_ranks(regions: u32, killed: [bool; 2]) {
    let leader = Queue::new();
    let lane = {
        let leader = Arc::clone(&leader);
        thread::spawn(move || fill(regions as usize, &leader))
    };
    let ranks = (0..2).map(|rank| {
        let (to, leader) = (Queue::new(), Arc::clone(&leader));
        let told = Arc::clone(&to);
        let follow = move || follow(rank, regions, killed[rank], &told, &leader);
        (to, thread::spawn(follow))
    });
    let (to, threads): (Vec<_>, Vec<_>) = ranks.unzip();
    lead(&vec![vec![0, 1]; regions as usize], &leader, &to);
    for thread in threads.into_iter().chain([lane]) {
        thread.join().expect("ends");
    }
}
