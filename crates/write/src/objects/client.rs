//! Requests for the objects below a prefix, each with retries.

use std::sync::Arc;

use bytes::Bytes;
use object_store::path::Path;
use object_store::{Error as Refused, GetOptions, ObjectMeta, ObjectStoreExt};
use object_store::{PutMode, PutOptions, PutPayload, UpdateVersion};
use tload_base::sync::retry::{Retries, Transient};
use tload_storage::object::{Fault, Level, Remote, Store, Writable, with_retries};

use crate::error::{Error, ErrorKind, Result};
use crate::format::INDEX_BYTES_MAX;
use crate::options::{Location, Protocol, StoreOptions};
use crate::step;

/// Store with a prefix.
#[derive(Debug)]
pub struct Client {
    remote: Arc<Remote>,
    store: Arc<Store>,
    /// Path of the prefix.
    pub prefix: Path,
    location: Location,
    retries: Retries,
}

/// State of an object: what a conditional request needs, and when it was written.
#[derive(Debug)]
pub struct State {
    /// Condition of a request that replaces this state.
    pub version: UpdateVersion,
    /// Time of the last change, seconds since 1970.
    pub modified: i64,
    /// Length, bytes.
    pub len: u64,
}

impl Client {
    /// Opens the store of `location`. Sends no request.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`] for a location that cannot be written to; errors of the options.
    pub fn open(location: &Location, options: &StoreOptions) -> Result<Arc<Self>> {
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

    /// Returns the location of the prefix.
    pub fn location(&self) -> &Location {
        &self.location
    }

    /// Returns the path of the object with this name below the prefix.
    pub fn path(&self, name: &str) -> Path {
        self.prefix.clone().join(name)
    }

    /// Returns the path of the object with this name, which may have slashes, as readers find it.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidRequest`] for a name that no object can have.
    pub fn path_below(&self, name: &str) -> Result<Path> {
        let location = self.location.join(name);
        let url = location.remote().expect("that of a store");
        Ok(self.remote.store(url)?.1)
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

    /// Writes a small object on a condition. Returns its state, or `None` if another one is there.
    ///
    /// S3 refuses a condition (409) also while an earlier attempt is under way, and for no reason:
    /// the answer is no once the object has changed, and until then the request is sent again. An
    /// error leaves open whether the object is written later.
    ///
    /// # Errors
    ///
    /// Those of the store.
    pub async fn put(
        &self,
        path: &Path,
        text: &Bytes,
        mode: PutMode,
    ) -> Result<Option<UpdateVersion>> {
        let ask = async |store: Arc<dyn Writable>| {
            let options = PutOptions::from(mode.clone());
            let put = store.put_opts(path, PutPayload::from(text.clone()), options);
            match put.await {
                Ok(put) => Ok(Some(UpdateVersion {
                    e_tag: put.e_tag,
                    version: put.version,
                })),
                Err(Refused::AlreadyExists { .. } | Refused::Precondition { .. }) => Ok(None),
                Err(error) => Err(error),
            }
        };
        let once = async || {
            if let Some(version) = self.store.send("PUT", ask).await? {
                return Ok(Some(version));
            }
            // In this order: an attempt may succeed between the two.
            let now = self.state(path).await.map_err(Fault::new)?;
            let found = self.text(path).await.map_err(Fault::new)?;
            // An answer may have been lost: then what is there is this text.
            let is_there = found.as_ref() == Some(text);
            let has_changed = match &mode {
                PutMode::Update(old) => now.is_none_or(|now| now.version.e_tag != old.e_tag),
                PutMode::Create | PutMode::Overwrite => now.is_some(),
            };
            if is_there || has_changed {
                let now = self.state(path).await.map_err(Fault::new)?;
                return Ok(now.filter(|_| is_there).map(|now| now.version));
            }
            let message = "the store refuses to write the object, which has not changed";
            Err(Fault {
                transient: Some(Transient::Busy),
                ..Fault::new(Error::new(ErrorKind::Remote, message))
            })
        };
        let put = self.read(once).await;
        step::reach();
        let Err(error) = put else { return put };
        match (self.state(path).await, self.text(path).await) {
            (Ok(Some(now)), Ok(found)) if found.as_ref() == Some(text) => Ok(Some(now.version)),
            _ => Err(error),
        }
    }

    /// Waits for the result of a task.
    pub fn wait<T: Send + 'static, F>(
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
    pub async fn state(&self, path: &Path) -> Result<Option<State>> {
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

    /// Returns the bytes of a small object; `None` if there is none, or one that is longer than an
    /// index may be.
    pub async fn text(&self, path: &Path) -> Result<Option<Bytes>> {
        let found = self.read(|| async {
            let (found, captured) = self.store.get(path, GetOptions::default()).await?;
            if found.meta.size > INDEX_BYTES_MAX {
                return Ok(None);
            }
            let bytes = found.bytes().await;
            let bytes = bytes.map_err(|error| self.store.fault(&error, &captured, "GET"));
            bytes.map(Some)
        });
        unless_missing(found.await).map(Option::flatten)
    }

    /// Lists what is directly below the prefix.
    ///
    /// # Errors
    ///
    /// Those of the store.
    pub async fn list(&self) -> Result<Level> {
        self.level(&self.prefix).await
    }

    /// Lists what is directly below any prefix.
    ///
    /// # Errors
    ///
    /// Those of the store.
    pub async fn level(&self, prefix: &Path) -> Result<Level> {
        let prefix = Some(prefix).filter(|prefix| !prefix.as_ref().is_empty());
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
    ///
    /// # Errors
    ///
    /// Those of the store.
    pub fn delete(self: &Arc<Self>, paths: Vec<Path>) -> Result<()> {
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

pub(super) fn unless_missing<T>(found: Result<T>) -> Result<Option<T>> {
    match found {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}
