//! The network side of a checkpoint: the threads that requests run on, and the stores that its locations are in.
//!
//! One per opened checkpoint, so that nothing outlives it. A forked process, which has none of its parent's threads, is told so. Callers are
//! ordinary threads: they hand over a future and wait for its result.

use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use crossbeam_channel::{RecvTimeoutError, bounded};
use object_store::ObjectStore;
use object_store::path::Path;
use tokio::runtime::{Builder, Runtime};

use super::hub_id::HubId;
use super::location::{Protocol, RemoteUrl};
use super::store::{Store, object_path};
use super::store_options::StoreOptions;
use crate::error::{Error, ErrorKind, Result};
use crate::tally::Tally;

/// Most threads for requests. A thread receives and copies about 2 GiB a second over plain HTTP, 1.3 over TLS (2-core virtual
/// machine, 2026-11): eight are more than a 100 Gbit/s link asks for.
const THREADS_MAX: usize = 8;

/// What of a URL decides which store it is: scheme, authority and query.
type StoreId = (String, String, Option<String>);

/// Threads for requests, and opened stores.
pub(crate) struct Remote {
    /// None only while being dropped.
    runtime: Option<Runtime>,
    /// The process that the threads are in.
    process: u32,
    options: StoreOptions,
    stores: Mutex<HashMap<StoreId, Arc<Store>>>,
    tally: Tally,
}

impl Remote {
    /// Starts the threads.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::OutOfMemory`] when the system starts none.
    pub(crate) fn start(options: &StoreOptions) -> Result<Arc<Self>> {
        let cores = std::thread::available_parallelism().map_or(2, usize::from);
        let runtime = Builder::new_multi_thread()
            .worker_threads(threads_there(cores.min(THREADS_MAX))?)
            .thread_name("tload-net")
            .enable_all()
            .build()
            .map_err(cannot_start)?;
        Ok(Arc::new(Self {
            runtime: Some(runtime),
            process: std::process::id(),
            options: options.clone(),
            stores: Mutex::default(),
            tally: Tally::default(),
        }))
    }

    /// What was tried again beside reads of tensors.
    pub(crate) fn tally(&self) -> &Tally {
        &self.tally
    }

    /// The same, with one store that the caller opened; `url` is of something in it.
    pub(crate) fn with_store(
        options: &StoreOptions,
        objects: Arc<dyn ObjectStore>,
        url: &RemoteUrl,
    ) -> Result<Arc<Self>> {
        let remote = Self::start(options)?;
        let store = Store::custom(objects, &url.authority);
        remote
            .stores
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(key(url), store);
        Ok(remote)
    }

    /// How its stores are reached.
    pub(crate) fn options(&self) -> &StoreOptions {
        &self.options
    }

    /// The store of `url`, opened at most once, and the object's path in it.
    ///
    /// # Errors
    ///
    /// What the options of the store or the environment get wrong.
    pub(crate) fn store(&self, url: &RemoteUrl) -> Result<(Arc<Store>, Path)> {
        self.check_process()?;
        let key = key(url);
        let mut stores = self.stores.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(store) = stores.get(&key) {
            return Ok((Arc::clone(store), object_path(url)?));
        }
        let (store, path) = Store::open(url, &self.options)?;
        stores.insert(key, Arc::clone(&store));
        Ok((store, path))
    }

    /// Starts `task` on the threads.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.runtime
            .as_ref()
            .expect("taken only in drop")
            .spawn(task);
    }

    /// A forked process has none of the threads, and its parent's may hold the locks.
    fn check_process(&self) -> Result<()> {
        if self.process == std::process::id() {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::InvalidRequest,
            "the checkpoint was opened before the process forked: its network threads are not here",
        )
        .with_hint("open it in the process that uses it"))
    }

    /// When an opening that begins now takes too long.
    pub(crate) fn open_deadline(&self) -> Option<Instant> {
        open_deadline(&self.options)
    }

    /// Runs `task` and waits for its result, until `deadline` if it is part of an opening. For ordinary threads, also those that a
    /// runtime of the caller's own blocks on.
    pub(crate) fn run<T: Send + 'static>(
        &self,
        deadline: Option<Instant>,
        task: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        self.check_process()?;
        let (sender, receiver) = bounded(1);
        self.spawn(async move {
            // The receiver waits below.
            let _ = sender.send(task.await);
        });
        let panicked = || {
            Err(Error::new(ErrorKind::Remote, "a request panicked")
                .with_hint("this is a bug in tload; please report it"))
        };
        let Some(deadline) = deadline else {
            return receiver.recv().unwrap_or_else(|_| panicked());
        };
        match receiver.recv_deadline(deadline) {
            Ok(result) => result,
            Err(RecvTimeoutError::Disconnected) => panicked(),
            Err(RecvTimeoutError::Timeout) => Err(Error::new(
                ErrorKind::TimedOut,
                "opening took longer than it may (open_timeout)",
            )
            .with_hint("raise the timeout, or look at endpoint and network")),
        }
    }
}

/// When an opening that begins now takes too long, as `options` have it. Not for ever: what is opened is read as long as that takes.
pub(crate) fn open_deadline(options: &StoreOptions) -> Option<Instant> {
    let timeout = options.seconds("open_timeout")?;
    Instant::now().checked_add(timeout)
}

/// How many of so many threads the system starts beside one for names that are looked up. The runtime panics where one is refused.
fn threads_there(wanted: usize) -> Result<usize> {
    // All alive at a time: each waits until the channel is gone.
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
        // It cannot panic.
        let _ = thread.join();
    }
    match refusal {
        Some(error) if count < 2 => Err(cannot_start(error)),
        _ => Ok(count - 1),
    }
}

/// The error for a runtime that cannot be had.
fn cannot_start(error: std::io::Error) -> Error {
    let descriptors = matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE));
    let hint = if descriptors {
        "raise the limit of open files (ulimit -n)"
    } else {
        "raise the limit of processes (ulimit -u)"
    };
    Error::new(
        ErrorKind::OutOfMemory,
        "cannot start the threads for requests",
    )
    .with_hint(hint)
    .with_source(error)
}

fn key(url: &RemoteUrl) -> StoreId {
    let authority = match url.protocol {
        // With and without the revision that is meant if there is none.
        Protocol::Hub => HubId::of(&url.authority).to_string(),
        Protocol::S3 | Protocol::Gcs | Protocol::Azure | Protocol::Http | Protocol::Custom => {
            url.authority.clone()
        }
    };
    (url.scheme.clone(), authority, url.query.clone())
}

impl fmt::Debug for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not the keys of the stores: URLs carry secrets.
        f.debug_struct("Remote")
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        // Requests that somebody still waits for keep this alive; what is left are idle connections. Never waits: the last owner
        // may be one of the threads.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Threads for requests whose openings take no time at all.
    fn hurried() -> Arc<Remote> {
        let options = StoreOptions::from_pairs([("open_timeout", "0.000001")]);
        Remote::start(&options.expect("good options")).expect("starts")
    }

    #[test]
    fn only_openings_have_the_timeout_of_openings() {
        let remote = hurried();
        let deadline = remote.open_deadline().expect("has one");
        while Instant::now() <= deadline {
            std::hint::spin_loop();
        }
        // Reads of what has been opened: they take longer than the caller needs to look.
        let (sender, receiver) = tokio::sync::oneshot::channel();
        let begun = std::thread::spawn(move || sender.send(7));
        let read = remote.run(None, async { Ok(receiver.await.expect("is sent")) });
        assert_eq!(read.expect("nobody limits it"), 7);
        begun.join().expect("ends").expect("somebody waits");
        let never = remote.run(Some(deadline), std::future::pending::<Result<()>>());
        let error = never.expect_err("nobody answers");
        assert_eq!(error.kind(), ErrorKind::TimedOut);
    }
}
