//! Threads and stores that the openings of a process share, so that a checkpoint that is opened
//! again needs no new threads, connections and credentials.
//!
//! Openings with equal options share threads. They share a store, with its HTTP client, its open
//! connections and its credentials, if nothing else that it was opened from has changed: variables
//! and files ([`Surroundings`]). Only ways to send requests are kept, never an answer: each opening
//! sends its own requests, with its own counters and deadlines.
//!
//! Threads without a user end soon: a task on the threads themselves ends them. A forked process
//! begins with nothing.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::bounded;
use object_store::path::Path;
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinHandle;

use super::store::{AnswerCache, Store, Surroundings, object_path};
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

/// Threads for requests, and the stores opened on them. Not to be shown: the identifiers of stores
/// are of URLs, which carry secrets.
struct Shared {
    /// `None` only while being dropped.
    runtime: Option<Runtime>,
    /// Process that the threads are in.
    process: u32,
    options: StoreOptions,
    /// The one used last is last.
    stores: Mutex<Vec<KeptStore>>,
}

struct KeptStore {
    id: StoreId,
    /// Options of the store; for a mirror they differ from the options of the threads.
    options: StoreOptions,
    surroundings: Surroundings,
    opened: Instant,
    store: Arc<Store>,
}

/// Use of shared threads. They may be kept after the last one.
pub(super) struct Lent(Arc<Shared>);

/// Entry of the list of shared threads.
struct Held {
    shared: Arc<Shared>,
    users: usize,
    /// Time at which the last user left, if there is none.
    left: Instant,
}

static HELD: PerProcess<Vec<Held>> = PerProcess::new();

impl Lent {
    /// Returns the threads of openings with these options, which are started if there are none.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::OutOfMemory`] if the system starts none.
    pub(super) fn share(options: &StoreOptions, timeline: &Timeline) -> Result<Self> {
        let options = &shared(options);
        let mut held = HELD.lock();
        if let Some(known) = held.iter_mut().find(|it| it.shared.options == *options) {
            known.users += 1;
            return Ok(Self(Arc::clone(&known.shared)));
        }
        let started = Self::start(options, timeline)?;
        held.push(Held {
            shared: Arc::clone(&started.0),
            users: 1,
            left: Instant::now(),
        });
        started.spawn(async {
            loop {
                tokio::time::sleep(INTERVAL).await;
                // This task ends with the threads that it runs on.
                expire(Instant::now());
            }
        });
        Ok(started)
    }

    /// Starts threads that are not shared and end with this.
    ///
    /// # Errors
    ///
    /// Those of [`Self::share`].
    pub(super) fn start(options: &StoreOptions, timeline: &Timeline) -> Result<Self> {
        let started = Instant::now();
        let cores = std::thread::available_parallelism().map_or(2, usize::from);
        let (workers, others) = threads_there(cores.min(THREADS_MAX))?;
        let runtime = Builder::new_multi_thread()
            .worker_threads(workers)
            .max_blocking_threads(others)
            .thread_name("tload-net")
            .enable_all()
            .build()
            .map_err(cannot_start)?;
        timeline.record("threads", started);
        Ok(Self(Arc::new(Shared {
            runtime: Some(runtime),
            process: process_id(),
            options: options.clone(),
            stores: Mutex::default(),
        })))
    }

    /// Returns the process that the threads are in.
    pub(super) fn process(&self) -> u32 {
        self.0.process
    }

    /// Spawns `task` on the threads.
    pub(super) fn spawn<T: Send + 'static>(
        &self,
        task: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<T> {
        let runtime = self.0.runtime.as_ref();
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
        if let Some(kept) = self.find(id, &shared(options)) {
            return Ok((
                Arc::new(kept.again(url, timeline, cache)),
                object_path(url)?,
            ));
        }
        let (store, path, surroundings) = Store::open(url, options, timeline, cache)?;
        // Stores of signed URLs are not kept.
        if let Some(surroundings) = surroundings.filter(|_| url.query.is_none()) {
            let mut stores = self.0.stores.lock();
            stores.push(KeptStore {
                id: id.clone(),
                options: shared(options),
                surroundings,
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
        let mut stores = self.0.stores.lock();
        let is_it = |kept: &KeptStore| kept.id == *id && kept.options == *options;
        let at = stores.iter().position(is_it)?;
        let found = stores.remove(at);
        let is_current = found.opened.elapsed() < AGE_MAX
            && found.store.is_reusable()
            && found.surroundings.are_unchanged();
        is_current.then(|| {
            let store = Arc::clone(&found.store);
            stores.push(found);
            store
        })
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        let mut held = HELD.lock();
        // In a forked process the list is empty: entries of the parent stay with the parent.
        let is_this = |it: &&mut Held| Arc::ptr_eq(&it.shared, &self.0);
        let Some(this) = held.iter_mut().find(is_this) else {
            return;
        };
        this.users -= 1;
        if this.users > 0 {
            return;
        }
        this.left = Instant::now();
        let idle = held.iter().filter(|it| it.users == 0);
        let surplus = idle.clone().count() > IDLE_MAX;
        let oldest = idle
            .min_by_key(|it| it.left)
            .map(|it| Arc::clone(&it.shared));
        if let Some(oldest) = oldest.filter(|_| surplus) {
            held.retain(|it| !Arc::ptr_eq(&it.shared, &oldest));
            drop(held);
        }
    }
}

/// Returns the options that openings must have in common. A deadline is each opening's own.
fn shared(options: &StoreOptions) -> StoreOptions {
    options.without("open_timeout")
}

/// Ends all threads that had no user for [`IDLE`] at `now`, and drops their stores.
fn expire(now: Instant) {
    let is_over = |it: &mut Held| it.users == 0 && now.saturating_duration_since(it.left) >= IDLE;
    let over: Vec<Held> = HELD.lock().extract_if(.., is_over).collect();
    drop(over);
}

/// Ends all threads that have no user, as if their time were over.
#[cfg(feature = "testing")]
pub fn end_idle_threads() {
    expire(Instant::now() + IDLE);
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
