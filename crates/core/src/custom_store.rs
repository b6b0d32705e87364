//! Checkpoints in stores that the caller opened.

use std::sync::Arc;

use object_store::ObjectStore;

use crate::checkpoint::OpenedCheckpoint;
use crate::error::Result;
use crate::load::Checkpoint;
use crate::options::{Location, StoreOptions};
use crate::storage::Remote;

impl Checkpoint {
    /// Opens a checkpoint in a store that the caller opened: an object, an index, or the prefix of
    /// a directory. Of the options in `store`, those for retries, `open_timeout`, `read_timeout`
    /// and `allow_unversioned` (whether objects may lack a validator) apply; those that configure a
    /// connection do not.
    ///
    /// # Errors
    ///
    /// As [`Self::open`]; [`ErrorKind::InvalidRequest`](crate::ErrorKind::InvalidRequest) for a
    /// path with empty components, `.` or `..`.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::sync::Arc;
    /// use tload::{Checkpoint, ErrorKind, StoreOptions};
    ///
    /// let store = Arc::new(object_store::memory::InMemory::new());
    /// let opened = Checkpoint::open_in(store, "models/none", &StoreOptions::default());
    /// assert_eq!(opened.unwrap_err().kind(), ErrorKind::NotFound);
    /// ```
    pub fn open_in(
        objects: Arc<dyn ObjectStore>,
        path: &str,
        store: &StoreOptions,
    ) -> Result<Self> {
        let location = Location::custom(&objects.to_string(), path);
        let url = location.remote().expect("a location in a store");
        let remote = Remote::with_store(store, objects, url)?;
        OpenedCheckpoint::open_on(remote, location, store).map(Self)
    }
}
