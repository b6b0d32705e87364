//! Threads and stores that openings share, so that a checkpoint that is opened again needs no new
//! threads, connections and credentials.
//!
//! Openings of one client with equal options share threads. They share a store, with its HTTP
//! client, its open connections and its credentials, if nothing else that it was opened from has
//! changed: variables and files. Only ways to send requests are kept, never an answer: each opening
//! sends its own requests, with its own counters and deadlines.
//!
//! Threads without a user end soon: a task on the threads themselves ends them. A forked process
//! begins with nothing.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::bounded;
use object_store::path::Path;
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinHandle;

use super::store::{AnswerCache, Store, object_path};
use crate::error::{Error, ErrorKind, Result, thread_hint};
use crate::options::location::RemoteUrl;
use crate::options::store_options::StoreOptions;
use crate::sync::address_space::threads_fitting;
use crate::sync::lock::Mutex;
use crate::sync::per_process::{PerProcess, process_id};
use crate::sync::timeline::Timeline;

/// Time for which threads are kept after their last use.
const IDLE: Duration = Duration::from_secs(60);

/// Interval at which threads without a user are looked for.
const INTERVAL: Duration = Duration::from_secs(15);

/// Maximum number of sets of threads without a user.
const IDLE_MAX: usize = 4;

/// Maximum number of stores kept on one set of threads: the idle connections of each are
/// descriptors of the process.
const STORES_MAX: usize = 4;

/// Age from which a store is opened anew for the next opening. Bounds how long something counts
/// that cannot be compared: certificates of the system, credentials without an end that a program
/// has printed.
const AGE_MAX: Duration = Duration::from_secs(300);

/// Maximum of threads for requests. A thread receives and copies about 2 GiB a second over plain
/// HTTP, 1.3 over TLS (2-core virtual machine, 2026-11): eight are more than enough for a 100
/// Gbit/s link.
const THREADS_MAX: usize = 8;

/// Maximum number of threads for calls that block: tokio's default.
const OTHERS_MAX: usize = 512;

/// Parts of a URL that identify its store: scheme, authority and query.
pub(super) type StoreId = (String, String, Option<String>);

/// Threads, connections and credentials that openings share.
///
/// A checkpoint in an object store that is opened again needs no new ones while those of an earlier
/// opening with equal options are kept: for up to a minute after their last use. Nothing that a
/// store answered is kept.
///
/// Each process has one client, which is the default. Openings with another client share nothing
/// with it, and what they shared ends with the client, its clones and the last checkpoint that was
/// opened with it. In a forked child, each client of the parent stands for the child's default one.
///
/// ```
/// # mod tload { pub use tload_storage::StoreClient; }
/// use tload::StoreClient;
///
/// let client = StoreClient::new();
/// // Open checkpoints with `OpenOptions::default().client(client.clone())`, and drop them.
/// client.close_idle();
/// ```
#[derive(Clone, Default)]
pub struct StoreClient(Option<Arc<Kept>>);

/// State of one client.
struct Kept {
    /// Process that the threads are in.
    process: u32,
    /// The one used last is last.
    held: Mutex<Vec<Held>>,
}

/// State of the default client.
static OF_PROCESS: PerProcess<Arc<Kept>> = PerProcess::new();

/// Threads for requests, and the stores opened on them. Not to be shown: the identifiers of stores
/// are of URLs, which carry secrets.
struct Shared {
    /// `None` only while being dropped.
    runtime: Option<Runtime>,
    options: StoreOptions,
    /// The one used last is last.
    stores: Mutex<Vec<KeptStore>>,
}

struct KeptStore {
    id: StoreId,
    /// Options of the store; for a mirror they differ from the options of the threads.
    options: StoreOptions,
    opened: Instant,
    store: Arc<Store>,
}

/// Use of shared threads. They may be kept after the last one.
pub(super) struct Lent {
    shared: Arc<Shared>,
    kept: Arc<Kept>,
}

/// Entry of the list of shared threads.
struct Held {
    shared: Arc<Shared>,
    users: usize,
    /// Time at which the last user left, if there is none.
    left: Instant,
}

impl StoreClient {
    /// Creates a client that shares nothing with others.
    #[must_use]
    pub fn new() -> Self {
        Self(Some(Arc::default()))
    }

    /// Ends threads and closes connections that no checkpoint uses, as if their time were over.
    pub fn close_idle(&self) {
        self.kept().expire(Instant::now() + IDLE);
    }

    /// Returns the threads of openings with these options, which are started if there are none.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::OutOfMemory`] if the system starts none.
    pub(super) fn lend(&self, options: &StoreOptions, timeline: &Timeline) -> Result<Lent> {
        let (kept, options) = (self.kept(), shared(options));
        let mut held = kept.held.lock();
        if let Some(known) = held.iter_mut().find(|it| it.shared.options == options) {
            known.users += 1;
            let (shared, kept) = (Arc::clone(&known.shared), Arc::clone(&kept));
            return Ok(Lent { shared, kept });
        }
        let shared = Arc::new(Shared {
            runtime: Some(start_threads(timeline)?),
            options,
            stores: Mutex::default(),
        });
        held.push(Held {
            shared: Arc::clone(&shared),
            users: 1,
            left: Instant::now(),
        });
        drop(held);
        let lent = Lent { shared, kept };
        let kept = Arc::downgrade(&lent.kept);
        lent.spawn(async move {
            loop {
                tokio::time::sleep(INTERVAL).await;
                // This task ends with the threads that it runs on.
                if let Some(kept) = kept.upgrade() {
                    kept.expire(Instant::now());
                }
            }
        });
        Ok(lent)
    }

    /// Returns the client's state in this process. A child that was forked does not touch that of
    /// its parent, whose threads may have held the locks.
    fn kept(&self) -> Arc<Kept> {
        let here = self.0.as_ref().filter(|it| it.process == process_id());
        here.map_or_else(|| Arc::clone(&OF_PROCESS.lock()), Arc::clone)
    }
}

impl fmt::Debug for StoreClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreClient").finish_non_exhaustive()
    }
}

impl Default for Kept {
    fn default() -> Self {
        Self {
            process: process_id(),
            held: Mutex::default(),
        }
    }
}

impl Kept {
    /// Ends all threads that had no user for [`IDLE`] at `now`, and drops their stores.
    fn expire(&self, now: Instant) {
        let is_over =
            |it: &mut Held| it.users == 0 && now.saturating_duration_since(it.left) >= IDLE;
        let over: Vec<Held> = self.held.lock().extract_if(.., is_over).collect();
        drop(over);
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        // Threads, locks and connections of the parent stay with the parent.
        if self.process != process_id() {
            let _ = Box::leak(Box::new(std::mem::take(&mut self.held)));
        }
    }
}

/// Starts threads for requests.
fn start_threads(timeline: &Timeline) -> Result<Runtime> {
    timeline.time("threads", || {
        let cores = std::thread::available_parallelism().map_or(2, usize::from);
        let (workers, others) = threads_there(cores.min(THREADS_MAX))?;
        Builder::new_multi_thread()
            .worker_threads(workers)
            .max_blocking_threads(others)
            .thread_name("tload-net")
            .enable_all()
            .build()
            .map_err(cannot_start)
    })
}

impl Lent {
    /// Returns the process that the threads are in.
    pub(super) fn process(&self) -> u32 {
        self.kept.process
    }

    /// Spawns `task` on the threads.
    pub(super) fn spawn<T: Send + 'static>(
        &self,
        task: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<T> {
        let runtime = self.shared.runtime.as_ref();
        runtime.expect("taken only in drop").spawn(task)
    }

    /// Returns the store of `url` and the object's path in it. The store is the opening's own, but
    /// sends its requests as a kept one does, if there is one that is still right.
    ///
    /// # Errors
    ///
    /// Those of [`Store::open`].
    pub(super) fn store(
        &self,
        id: &StoreId,
        url: &RemoteUrl,
        options: &StoreOptions,
        timeline: &Timeline,
        cache: Option<&dyn AnswerCache>,
    ) -> Result<(Arc<Store>, Path)> {
        let shared = shared(options);
        if let Some(kept) = self.find(id, &shared) {
            let store = kept.again(url, timeline, cache);
            return Ok((Arc::new(store), object_path(url)?));
        }
        let (store, path) = Store::open(url, options, timeline, cache)?;
        if store.is_keepable() {
            let mut stores = self.shared.stores.lock();
            stores.push(KeptStore {
                id: id.clone(),
                options: shared,
                opened: Instant::now(),
                store: Arc::new(store.again(url, &Timeline::default(), None)),
            });
            if stores.len() > STORES_MAX {
                stores.remove(0);
            }
        }
        Ok((store, path))
    }

    /// Returns the kept store, if opening it again would give an equal one.
    fn find(&self, id: &StoreId, options: &StoreOptions) -> Option<Arc<Store>> {
        let mut stores = self.shared.stores.lock();
        let is_it = |kept: &KeptStore| kept.id == *id && kept.options == *options;
        let at = stores.iter().position(is_it)?;
        let found = stores.remove(at);
        if found.opened.elapsed() >= AGE_MAX || !found.store.is_reusable() {
            return None;
        }
        let store = Arc::clone(&found.store);
        stores.push(found);
        Some(store)
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if self.kept.process != process_id() {
            return;
        }
        let mut held = self.kept.held.lock();
        let is_this = |it: &Held| Arc::ptr_eq(&it.shared, &self.shared);
        let at = held.iter().position(is_this);
        let mut this = held.remove(at.expect("held while it has a user"));
        (this.users, this.left) = (this.users - 1, Instant::now());
        held.push(this);
        let is_idle = |it: &Held| it.users == 0;
        let is_surplus = held.iter().filter(|it| is_idle(it)).count() > IDLE_MAX;
        let oldest = held.iter().position(is_idle).filter(|_| is_surplus);
        let ended = oldest.map(|at| held.remove(at));
        drop(held);
        drop(ended);
    }
}

/// Returns the options that openings must have in common. A deadline is each opening's own.
fn shared(options: &StoreOptions) -> StoreOptions {
    options.without("open_timeout")
}

impl Drop for Shared {
    fn drop(&mut self) {
        // Callers that wait for a request keep the runtime alive, so only idle connections are left
        // here. Shutting down must not wait, because the last owner may be a thread of the runtime.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// Returns how many of `wanted` threads the system starts, and how many more there is room for, at
/// least one: they resolve names and search the cache. The runtime panics if one is refused.
fn threads_there(wanted: usize) -> Result<(usize, usize)> {
    let fitting = threads_fitting(wanted + OTHERS_MAX);
    if fitting < 2 {
        return Err(cannot_start(std::io::Error::from_raw_os_error(
            libc::ENOMEM,
        )));
    }
    let wanted = wanted.min(fitting - 1);
    // Each thread waits until the channel is closed, so all of them are alive at the same time.
    let (alive, wait) = bounded::<()>(0);
    let mut started = Vec::new();
    let mut refusal = None;
    for _ in 0..=wanted {
        let wait = wait.clone();
        let idle = move || {
            let _ = wait.recv();
        };
        match std::thread::Builder::new().spawn(idle) {
            Ok(thread) => started.push(thread),
            Err(error) => {
                refusal = Some(error);
                break;
            }
        }
    }
    drop(alive);
    let count = started.len();
    for thread in started {
        // The thread cannot panic.
        let _ = thread.join();
    }
    match refusal {
        Some(error) if count < 2 => Err(cannot_start(error)),
        _ => Ok((count - 1, fitting - (count - 1))),
    }
}

/// Returns the error for a runtime that cannot be started.
fn cannot_start(error: std::io::Error) -> Error {
    Error::new(
        ErrorKind::OutOfMemory,
        "cannot start the threads for requests",
    )
    .with_hint(thread_hint(&error))
    .with_source(error)
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use super::*;

    /// Held by tests that use the default client with the options of [`lend`]: threads that one of
    /// them finds idle may be those of another.
    static DEFAULT_CLIENT: LazyLock<Mutex<()>> = LazyLock::new(Mutex::default);

    fn lend(client: &StoreClient) -> Lent {
        let options = StoreOptions::from_pairs([("header.x-team", "client")]);
        let lent = client.lend(&options.expect("good options"), &Timeline::default());
        lent.expect("starts")
    }

    #[test]
    fn threads_end_with_client_and_last_user() {
        let client = StoreClient::new();
        let (lent, other) = (lend(&client), lend(&client.clone()));
        assert!(Arc::ptr_eq(&lent.shared, &other.shared));
        assert!(!Arc::ptr_eq(
            &lent.shared,
            &lend(&StoreClient::new()).shared
        ));
        let threads = Arc::downgrade(&lent.shared);
        drop((client, lent));
        assert!(threads.upgrade().is_some(), "they have a user");
        drop(other);
        assert!(threads.upgrade().is_none());
    }

    #[test]
    fn client_keeps_idle_threads_until_they_are_closed() {
        let _alone = DEFAULT_CLIENT.lock();
        for client in [StoreClient::new(), StoreClient::default()] {
            let lent = lend(&client);
            let threads = Arc::downgrade(&lent.shared);
            client.close_idle();
            assert!(threads.upgrade().is_some(), "they have a user");
            drop(lent);
            assert!(threads.upgrade().is_some(), "kept for the next");
            client.close_idle();
            assert!(threads.upgrade().is_none());
        }
    }

    /// Processes are told apart only by their number here; `tests/test_fork.py` forks.
    #[test]
    fn client_of_other_process_is_neither_locked_nor_dropped() {
        let _alone = DEFAULT_CLIENT.lock();
        let parents = Arc::new(Kept {
            process: process_id() + 1,
            held: Mutex::default(),
        });
        let here = lend(&StoreClient::new());
        let threads = Arc::downgrade(&here.shared);
        let held = Held {
            shared: Arc::clone(&here.shared),
            users: 0,
            left: Instant::now(),
        };
        parents.held.lock().push(held);
        let locked = parents.held.lock();
        let client = StoreClient(Some(Arc::clone(&parents)));
        let lent = lend(&client);
        assert_eq!(lent.process(), process_id());
        client.close_idle();
        drop(Lent {
            shared: Arc::clone(&here.shared),
            kept: Arc::clone(&parents),
        });
        drop(locked);
        drop((client, parents, here));
        assert!(threads.upgrade().is_some(), "stays with the parent");
    }
}
