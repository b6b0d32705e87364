//! Requests for the objects below a prefix, each with retries.

use std::sync::Arc;

use bytes::Bytes;
use object_store::path::Path;
use object_store::{GetOptions, ObjectMeta, ObjectStoreExt, UpdateVersion};
use tload_base::sync::retry::Retries;
use tload_storage::object::{Fault, Level, Remote, Store, Writable, with_retries};

use crate::error::{Error, ErrorKind, Result};
use crate::options::{Location, Protocol, StoreOptions};

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
        let once = || self.store.send(operation, &request);
        with_retries(self.retries, self.remote.retry_counter(), once).await
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

    /// Removes objects, with one attempt for each, and returns the first failure.
    pub(crate) fn delete(self: &Arc<Self>, paths: Vec<Path>) -> Result<()> {
        self.wait(|client| async move {
            for path in &paths {
                let once = || {
                    let ask = |store: Arc<dyn Writable>| async move { store.delete(path).await };
                    client.store.send("DELETE", ask)
                };
                with_retries(Retries::NONE, client.remote.retry_counter(), once).await?;
            }
            Ok(())
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
