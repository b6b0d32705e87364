//! Requests for the objects below a prefix, each with retries.

use std::sync::Arc;

use bytes::Bytes;
use object_store::path::Path;
use object_store::{Error as Refused, GetOptions, ObjectMeta, ObjectStoreExt};
use object_store::{PutMode, PutOptions, PutPayload, UpdateVersion};
use tload_base::sync::retry::{Retries, Transient};
use tload_storage::object::{Fault, Level, Remote, Store, Writable, with_retries};

use crate::error::{Error, ErrorKind, Result};
use crate::options::{Location, Protocol, StoreOptions};
use crate::step;

/// Store with a prefix.
pub(crate) struct Client {
    remote: Arc<Remote>,
    store: Arc<Store>,
    prefix: Path,
    location: Location,
    retries: Retries,
}

/// State of an object: what a conditional request needs, and when it was written.
pub(crate) struct State {
    pub(crate) version: UpdateVersion,
    pub(crate) modified: i64,
    pub(crate) len: u64,
}

impl Client {
    /// Opens the store of `location`. Sends no request.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`] for a location that cannot be written to; errors of the options.
    pub(crate) fn open(location: &Location, options: &StoreOptions) -> Result<Arc<Self>> {
        let is_store = matches!(
            location.protocol(),
            Some(Protocol::S3 | Protocol::Gcs | Protocol::Azure)
        );
        let Some(url) = location.remote().filter(|_| is_store) else {
            return Err(Error::unsupported("checkpoints cannot be written there")
                .with_location(location)
                .with_hint("write to a directory, or to S3, Google Cloud Storage or Azure"));
        };
        let remote = Remote::start(options)?;
        let (store, prefix) = remote.store(url)?;
        if !store.is_writable() {
            return Err(
                Error::unsupported("this store cannot be written to").with_location(location)
            );
        }
        Ok(Arc::new(Self {
            remote,
            store,
            prefix,
            location: location.clone(),
            retries: options.retries(),
        }))
    }

    pub(crate) fn location(&self) -> &Location {
        &self.location
    }

    /// Returns the path of the object with this name below the prefix.
    pub(crate) fn path(&self, name: &str) -> Path {
        self.prefix.clone().join(name)
    }

    /// Runs `task` on the threads of requests.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.remote.spawn(task);
    }

    /// Sends a request that writes, with retries.
    pub(crate) async fn send<T, F: Future<Output = object_store::Result<T>>>(
        &self,
        operation: &str,
        request: impl Fn(Arc<dyn Writable>) -> F,
    ) -> Result<T> {
        self.read(|| self.store.send(operation, &request)).await
    }

    /// Writes a small object on a condition. Returns `false` if another one is there.
    ///
    /// S3 refuses a condition (409) also while an earlier attempt is under way, and for no reason:
    /// the answer is no once the object has changed, and until then the request is sent again. An
    /// error leaves open whether the object is written later.
    pub(crate) async fn put(&self, path: &Path, text: &Bytes, mode: PutMode) -> Result<bool> {
        let ask = async |store: Arc<dyn Writable>| {
            let options = PutOptions::from(mode.clone());
            let put = store.put_opts(path, PutPayload::from(text.clone()), options);
            match put.await {
                Ok(_) => Ok(true),
                Err(Refused::AlreadyExists { .. } | Refused::Precondition { .. }) => Ok(false),
                Err(error) => Err(error),
            }
        };
        let once = async || {
            if self.store.send("PUT", ask).await? {
                return Ok(true);
            }
            // In this order: an attempt may succeed between the two.
            let now = self.state(path).await.map_err(Fault::new)?;
            let found = self.text(path).await.map_err(Fault::new)?;
            // An answer may have been lost: then what is there is this text.
            let is_there = found.as_ref() == Some(text);
            let has_changed = now.is_some_and(|now| match &mode {
                PutMode::Update(old) => now.version.e_tag != old.e_tag,
                PutMode::Create | PutMode::Overwrite => true,
            });
            if is_there || has_changed {
                return Ok(is_there);
            }
            let message = "the store refuses to write the object, which has not changed";
            Err(Fault {
                transient: Some(Transient::Busy),
                ..Fault::new(Error::new(ErrorKind::Remote, message))
            })
        };
        let put = self.read(once).await;
        step::reach();
        let is_there = |found: Option<Bytes>| found.as_ref() == Some(text);
        if put.is_err() && self.text(path).await.is_ok_and(is_there) {
            return Ok(true);
        }
        put
    }

    /// Waits for the result of a task.
    pub(crate) fn wait<T: Send + 'static, F>(
        self: &Arc<Self>,
        task: impl FnOnce(Arc<Self>) -> F,
    ) -> Result<T>
    where
        F: Future<Output = Result<T>> + Send + 'static,
    {
        let done = self.remote.run(task(Arc::clone(self)));
        done.map_err(|error| error.or_location(&self.location))
    }

    /// Returns the state of an object; `None` if there is none.
    pub(crate) async fn state(&self, path: &Path) -> Result<Option<State>> {
        let head = |(meta, _): (ObjectMeta, _)| State {
            modified: meta.last_modified.timestamp(),
            len: meta.size,
            version: UpdateVersion {
                e_tag: meta.e_tag,
                version: meta.version,
            },
        };
        let found = self.read(|| async { self.store.head(path).await.map(head) });
        unless_missing(found.await)
    }

    /// Returns the bytes of a small object; `None` if there is none.
    pub(crate) async fn text(&self, path: &Path) -> Result<Option<Bytes>> {
        let found = self.read(|| async {
            let (found, captured) = self.store.get(path, GetOptions::default()).await?;
            let bytes = found.bytes().await;
            bytes.map_err(|error| self.store.fault(&error, &captured, "GET"))
        });
        unless_missing(found.await)
    }

    /// Lists what is directly below the prefix.
    pub(crate) async fn list(&self) -> Result<Level> {
        let prefix = Some(&self.prefix).filter(|prefix| !prefix.as_ref().is_empty());
        self.read(|| self.store.list(prefix)).await
    }

    async fn read<T, F: Future<Output = Result<T, Fault>>>(
        &self,
        once: impl Fn() -> F,
    ) -> Result<T> {
        with_retries(self.retries, self.remote.retry_counter(), once).await
    }

    /// Removes objects that may be there, the last first, and returns the first failure. After it,
    /// each has one attempt.
    pub(crate) fn delete(self: &Arc<Self>, paths: Vec<Path>) -> Result<()> {
        self.wait(|client| async move {
            let (mut outcome, mut retries) = (Ok(()), client.retries);
            for path in paths.iter().rev() {
                let ask = async |store: Arc<dyn Writable>| store.delete(path).await;
                let once = || client.store.send("DELETE", ask);
                let removed = with_retries(retries, client.remote.retry_counter(), once).await;
                if let Err(error) = unless_missing(removed) {
                    (outcome, retries) = (outcome.and(Err(error)), Retries::NONE);
                }
            }
            outcome
        })
    }
}

fn unless_missing<T>(found: Result<T>) -> Result<Option<T>> {
    match found {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}
