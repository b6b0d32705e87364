//! Network side of a checkpoint: the threads that run requests, and the stores of its locations.
//!
//! Each opened checkpoint has one: its stores, counters and deadlines. Threads and connections are
//! lent (`store_client.rs`). A forked process, which has none of its parent's threads, gets an
//! error. Callers are ordinary threads: they hand over a future and wait for its result.

use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use crossbeam_channel::{RecvTimeoutError, bounded};
use object_store::ObjectStore;
use object_store::path::Path;

use super::cache::Cache;
use super::mirrors::Mirrors;
use super::store::{AnswerCache, Check, Store, check, object_path};
use super::store_client::{Lent, StoreClient, StoreId};
use crate::cache_report::CacheReport;
use crate::error::{Error, ErrorKind, Result};
use crate::mirror_report::MirrorReport;
use crate::options::Location;
use crate::options::hub_id::HubId;
use crate::options::location::{Protocol, RemoteUrl};
use crate::options::store_options::StoreOptions;
use crate::sync::lock::Mutex;
use crate::sync::per_process::process_id;
use crate::sync::retry_counter::RetryCounter;
use crate::sync::timeline::Timeline;

/// Threads for requests, and opened stores.
pub struct Remote {
    lent: Arc<Lent>,
    options: StoreOptions,
    cache: Option<Arc<Cache>>,
    mirrors: Option<Arc<Mirrors>>,
    stores: Mutex<HashMap<StoreId, Arc<Store>>>,
    retry_counter: RetryCounter,
    timeline: Timeline,
    /// True once the state of an object was taken from the cache.
    pub(super) has_recalled: AtomicBool,
    /// True once a store was asked for the state of an object that the cache may have.
    pub(super) has_asked: AtomicBool,
}

impl Remote {
    /// Starts the threads, of the process's client.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::OutOfMemory`] if the system starts none.
    pub fn start(options: &StoreOptions) -> Result<Arc<Self>> {
        Self::start_in(&StoreClient::default(), options, &[])
    }

    /// Starts the threads of a client, for what is at `locations` and its mirrors.
    ///
    /// # Errors
    ///
    /// Those of [`Self::start`]; [`ErrorKind::InvalidRequest`] for invalid options of mirrors.
    pub fn start_in(
        client: &StoreClient,
        options: &StoreOptions,
        locations: &[Location],
    ) -> Result<Arc<Self>> {
        let timeline = Timeline::default();
        let lent = client.lend(options, &timeline)?;
        let mut remote = Self::on(Arc::new(lent), options, timeline);
        remote.mirrors = match locations {
            [] => None,
            _ => Mirrors::new(&remote, options, locations)?,
        };
        Ok(Arc::new(remote))
    }

    fn on(lent: Arc<Lent>, options: &StoreOptions, timeline: Timeline) -> Self {
        Self {
            lent,
            options: options.clone(),
            cache: Cache::from_options(options),
            mirrors: None,
            stores: Mutex::default(),
            retry_counter: RetryCounter::default(),
            timeline,
            has_recalled: AtomicBool::new(false),
            has_asked: AtomicBool::new(false),
        }
    }

    /// Returns other stores on the same threads, without a cache.
    pub(super) fn beside(&self, options: &StoreOptions) -> Arc<Self> {
        let lent = Arc::clone(&self.lent);
        let mut beside = Self::on(lent, options, Timeline::default());
        beside.cache = None;
        Arc::new(beside)
    }

    /// Returns the mirrors, if the options name any.
    pub(super) fn mirrors(&self) -> Option<&Arc<Mirrors>> {
        self.mirrors.as_ref()
    }

    /// Returns the counter of retries outside of reads of tensors.
    pub fn retry_counter(&self) -> &RetryCounter {
        &self.retry_counter
    }

    /// Returns the phases of its stores: clients, credentials, names, connections.
    pub fn timeline(&self) -> &Timeline {
        &self.timeline
    }

    /// Like [`Self::start`], with one store that the caller opened; `url` is of something in it.
    pub fn with_store(
        options: &StoreOptions,
        objects: Arc<dyn ObjectStore>,
        url: &RemoteUrl,
    ) -> Result<Arc<Self>> {
        let remote = Self::start_in(&StoreClient::new(), options, &[])?;
        let store = Store::custom(objects, &url.authority);
        remote.stores.lock().insert(key(url), store);
        Ok(remote)
    }

    /// Returns whether states of some objects come from the cache, and those of others from a
    /// store: they may be of different times.
    pub fn mixes_states(&self) -> bool {
        let has = |it: &AtomicBool| it.load(Ordering::Relaxed);
        check(&self.options) == Check::Never && has(&self.has_recalled) && has(&self.has_asked)
    }

    /// Returns the cache of its objects, if the options name one.
    pub(super) fn cache(&self) -> Option<&Arc<Cache>> {
        self.cache.as_ref()
    }

    /// Returns statistics of the cache, if the options name one.
    pub fn cache_report(&self) -> Option<CacheReport> {
        self.cache.as_ref().map(|cache| cache.report())
    }

    /// Returns statistics of each mirror.
    pub fn mirror_reports(&self) -> Vec<MirrorReport> {
        let mirrors = self.mirrors.as_ref();
        mirrors.map(|mirrors| mirrors.reports()).unwrap_or_default()
    }

    /// Returns the options of its stores.
    pub(crate) fn options(&self) -> &StoreOptions {
        &self.options
    }

    /// Returns the store of `url`, opened at most once, and the object's path in it.
    ///
    /// # Errors
    ///
    /// Errors in the options of the store or in the environment.
    pub fn store(&self, url: &RemoteUrl) -> Result<(Arc<Store>, Path)> {
        self.check_process()?;
        let key = key(url);
        let mut stores = self.stores.lock();
        if let Some(store) = stores.get(&key) {
            return Ok((Arc::clone(store), object_path(url)?));
        }
        if self.cache.is_none() && check(&self.options) != Check::Always {
            return Err(Error::invalid_request(
                "the store option cache_check is never or offline, but there is no cache",
            )
            .with_hint("set cache_dir (TLOAD_CACHE_DIR), or leave cache_check out"));
        }
        let (options, timeline) = (&self.options, &self.timeline);
        let cache = self.cache().map(|cache| -> &dyn AnswerCache { &**cache });
        let (store, path) = self.lent.store(&key, url, options, timeline, cache)?;
        stores.insert(key, Arc::clone(&store));
        Ok((store, path))
    }

    /// Spawns `task` on the threads. [`Self::check_process`] says whether there are any.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        drop(self.lent.spawn(task));
    }

    /// Refuses forked processes, which have none of the threads; threads of the parent may hold the
    /// locks.
    pub fn check_process(&self) -> Result<()> {
        if self.lent.process() == process_id() {
            return Ok(());
        }
        Err(Error::invalid_request("the checkpoint was opened before the process forked: its network threads do not exist in this process",
        )
        .with_hint("open it in the process that uses it"))
    }

    /// Returns the deadline of an opening that begins now.
    pub fn open_deadline(&self) -> Option<Instant> {
        open_deadline(&self.options)
    }

    /// Returns the error of an opening that took too long in `stage`, before which there had been
    /// `retries`.
    fn too_late(&self, stage: &str, retries: u64) -> Error {
        let late = format!("opening took longer than its timeout while {stage}");
        let (message, hint) = match self.retry_counter.so_far() {
            (now, Some(why)) if now > retries => (
                format!("{late}; the last failure: {why}"),
                "see that failure, or raise the shorter one of ‹timeout› and open_timeout",
            ),
            _ => (
                late,
                "check the endpoint and the network, or raise the shorter one of ‹timeout› and open_timeout",
            ),
        };
        Error::new(ErrorKind::TimedOut, message).with_hint(hint)
    }

    /// Runs `task` and waits for its result. For ordinary threads, including those on which the
    /// caller's runtime runs `block_on`.
    pub fn run<T: Send + 'static>(
        &self,
        task: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        self.run_until(None, "", task)
    }

    /// Like [`Self::run`], until `deadline`, for a `stage` of an opening. Its name completes the
    /// sentence "opening took longer than its timeout while …".
    pub fn run_until<T: Send + 'static>(
        &self,
        deadline: Option<Instant>,
        stage: &str,
        task: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        self.check_process()?;
        let (before, _) = self.retry_counter.so_far();
        let (sender, receiver) = bounded(1);
        let running = self.lent.spawn(async move {
            // The send fails only if the caller below has stopped waiting.
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
            Err(RecvTimeoutError::Timeout) => {
                // Abort the task, because the threads may outlive the opening.
                running.abort();
                Err(self.too_late(stage, before))
            }
        }
    }
}

/// Returns the deadline of an opening that begins now, from `options`. It covers the opening only:
/// reading what was opened has no deadline.
pub fn open_deadline(options: &StoreOptions) -> Option<Instant> {
    let timeout = options.seconds("open_timeout")?;
    Instant::now().checked_add(timeout)
}

fn key(url: &RemoteUrl) -> StoreId {
    let authority = if url.protocol == Protocol::Hub {
        // `org/name` and `org/name@main` are the same repository.
        HubId::from_authority(&url.authority).to_string()
    } else {
        url.authority.clone()
    };
    (url.scheme.clone(), authority, url.query.clone())
}

impl fmt::Debug for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The keys of the stores are left out: URLs carry secrets.
        f.debug_struct("Remote")
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns threads for requests with an expired `open_timeout`.
    fn hurried() -> Arc<Remote> {
        let options = StoreOptions::from_pairs([("open_timeout", "0.000001")]);
        Remote::start(&options.expect("good options")).expect("starts")
    }

    #[test]
    fn open_timeout_applies_to_openings_only() {
        let remote = hurried();
        let deadline = remote.open_deadline().expect("has one");
        while Instant::now() <= deadline {
            std::hint::spin_loop();
        }
        // A read of an opened object takes longer than the caller needs to look.
        let (sender, receiver) = tokio::sync::oneshot::channel();
        let begun = std::thread::spawn(move || sender.send(7));
        let read = remote.run(async { Ok(receiver.await.expect("is sent")) });
        assert_eq!(read.expect("no deadline"), 7);
        begun.join().expect("ends").expect("receiver waits");
        let never = std::future::pending::<Result<()>>();
        let never = remote.run_until(Some(deadline), "waiting", never);
        let error = never.expect_err("never answered");
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        let wanted = "opening took longer than its timeout while waiting";
        assert_eq!(error.message(), wanted);
    }
}
