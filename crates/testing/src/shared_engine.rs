//! The engine of a rank that follows a leader that publishes the bytes of a test.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::thread;
use std::time::{Duration, Instant};

use super::conformance::{EngineRequest, EngineUnderTest};
use super::ranks_as_threads;
use tload::OnPeerLoss;
use tload::internal::cuda::Context;
use tload::internal::engine::{
    Done, Engine, Job, RegisteredSource, RereadSetup, SharedSetup, Wait, open_shared,
};
use tload::internal::registered::{RegionListener, RegisteredRegions};
use tload_base::error::{Error, ErrorKind};
use tload_base::sync::cancel::CancelFlag;
use tload_memory::PublishedPool;
use tload_ranks::Group;
use tload_ranks::Hello;
use tload_ranks::{Dispatcher, Start, encode};
use tload_ranks::{Joining, Link};
use tload_ranks::{Node, Role, Scope};
use tload_ranks::{RankPlan, RegionOrigin, Request};

/// Longer than two threads take to meet.
const PATIENCE: Duration = Duration::from_secs(60);

/// Bytes that the leader announces at once.
const STEP: usize = 100_000;

/// Uses of a region: more than a test makes.
const USES: usize = 1 << 30;

/// Opens the engine of a rank, with `copiers` threads that copy, whose leader publishes the sources
/// of `request`, one region each, while jobs wait for them.
///
/// # Panics
///
/// If memory cannot be shared within this process.
pub fn shared_engine(request: &EngineRequest<'_>, copiers: usize) -> EngineUnderTest {
    open(request, copiers, None)
}

/// As [`shared_engine`], for a rank whose GPU reads the leader's memory directly.
///
/// # Panics
///
/// As [`shared_engine`].
pub fn registered_engine(request: &EngineRequest<'_>, context: &Context) -> EngineUnderTest {
    let regions = RegisteredRegions::new(context, vec![true; request.contents.len()]);
    let registered = RegisteredSource {
        regions: Arc::new(regions),
        gpus: Vec::new(),
    };
    open(request, 1, Some(registered))
}

fn open(
    request: &EngineRequest<'_>,
    copiers: usize,
    registered: Option<RegisteredSource>,
) -> EngineUnderTest {
    let deadline = Instant::now() + PATIENCE;
    let (dispatcher, mut joining) = meet(deadline);
    let requests = dispatcher.requests(&[0, 1], deadline);
    requests.expect("both have joined");
    // A region has at least one byte.
    let sources = request.contents.iter().map(|bytes| match bytes.as_slice() {
        [] => vec![0],
        bytes => bytes.to_vec(),
    });
    let sources: Vec<Vec<u8>> = sources.collect();
    serve(&dispatcher, &sources);
    let plan = joining.plan(deadline).expect("served");
    let listener = registered.as_ref();
    let listener = listener.map(|it| Arc::clone(&it.regions) as Arc<dyn RegionListener>);
    let users = vec![USES; sources.len()];
    let link = Link::begin_with(joining, &plan, &users, false, listener).expect("a thread");
    let setup = SharedSetup {
        plan: Arc::default(),
        link: Arc::new(link),
        regions: (0..sources.len()).collect(),
        depth: request.depth,
        copiers,
        // Most jobs of the suite have several strips, of an odd length.
        strip_bytes: 5000,
        registered,
        reread: RereadSetup {
            on_peer_loss: OnPeerLoss::Error,
            is_verified: false,
            bytes: Arc::<AtomicU64>::default(),
            open: Box::new(|| Err(Error::new(ErrorKind::Io, "there are no files"))),
            cancel: Arc::<CancelFlag>::default(),
        },
    };
    thread::spawn(move || publish(&dispatcher, sources));
    EngineUnderTest {
        engine: Box::new(Insistent(open_shared(&Arc::new(setup)).engine)),
        alignment: 1,
        remote: false,
        keep: Box::new(()),
    }
}

/// Lets two ranks join, and returns the dispatcher of the leader and the connection of the other.
fn meet(deadline: Instant) -> (Dispatcher, Joining) {
    let join = |group: &Arc<dyn Group>| -> Node {
        let hello = Hello::new(Vec::new(), Vec::new());
        let joined = tload_ranks::join(&**group, hello, &Request::default(), Scope::Node, deadline);
        joined.expect("one process")
    };
    let group = ranks_as_threads(2);
    let (leader, follower) = thread::scope(|scope| {
        let follower = scope.spawn(|| join(&group[1]));
        (join(&group[0]), follower.join().expect("no panic"))
    });
    match (leader.role, follower.role) {
        (Role::Leader(dispatcher, _), Role::Follower(joining)) => (dispatcher, joining),
        _ => unreachable!("threads of one process share"),
    }
}

/// Serves a plan in which only the follower wants the regions.
fn serve(dispatcher: &Dispatcher, sources: &[Vec<u8>]) {
    let lengths = || sources.iter().map(Vec::len);
    let origins = lengths().enumerate().map(|(shard, len)| RegionOrigin {
        shard,
        offset: 0,
        strides: None,
        len,
        filled_bytes: len,
    });
    let plan = encode(&RankPlan {
        regions: origins.collect(),
        tensors: Vec::new(),
        unique_bytes: lengths().sum::<usize>() as u64,
        ..RankPlan::default()
    });
    let plan = plan.expect("memory is there");
    dispatcher.serve(Start {
        ranks: vec![0, 1],
        own: 2,
        left: Box::new(|| ()),
        plans: vec![Arc::clone(&plan), plan],
        regions: lengths().map(|len| (len as u64, vec![1])).collect(),
        is_starved: Box::new(|| false),
        widen: Box::new(|| false),
        patience: Duration::MAX,
        finished: Box::new(|| ()),
    });
}

/// Publishes each source in turn, in several steps.
fn publish(dispatcher: &Dispatcher, sources: Vec<Vec<u8>>) {
    for (region, bytes) in sources.into_iter().enumerate() {
        let pool = PublishedPool::new(u64::MAX, u64::MAX, Arc::default());
        let writer = pool.try_region(bytes.len(), 1).expect("memory is there");
        let filled = writer.expect("fits").carve(bytes.len()).fill_from(&bytes);
        let (memory, _) = filled.region().expect("carved from one");
        let memory = Arc::clone(memory);
        drop(filled);
        dispatcher.begun(region, memory);
        for from in (0..bytes.len()).step_by(STEP) {
            let to = (from + STEP).min(bytes.len());
            dispatcher.filled(region, from as u64, to as u64);
        }
    }
}

/// Waits until a job has ended, as the contract says. The engine itself may return after any news
/// of the leader: its lane may have memory for other jobs then, and comes back.
struct Insistent(Box<dyn Engine>);

impl Engine for Insistent {
    fn depth(&self) -> usize {
        self.0.depth()
    }

    fn in_flight(&self) -> usize {
        self.0.in_flight()
    }

    fn submit(&mut self, job: Job) {
        self.0.submit(job);
    }

    fn reap(&mut self, wait: Wait, done: &mut Vec<Done>) {
        let before = done.len();
        self.0.reap(wait, done);
        while wait == Wait::ForOne && done.len() == before && self.in_flight() > 0 {
            self.0.reap(wait, done);
        }
    }

    fn stop_when(&mut self, cancel: &CancelFlag) {
        self.0.stop_when(cancel);
    }
}

impl fmt::Debug for Insistent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Insistent").finish_non_exhaustive()
    }
}
