//! Options for opening a checkpoint.

#[cfg(feature = "object")]
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
#[cfg(feature = "object")]
use std::time::Instant;

#[cfg(feature = "object")]
use crate::error::Result;
use crate::format::Precedence;
#[cfg(feature = "object")]
use crate::options::Location;
use crate::options::{StoreOptions, with_setters};
use crate::ranks::Group;
use crate::storage::StoreClient;

with_setters! {
/// Options for opening a checkpoint.
///
/// ```
/// use tload::{Checkpoint, ErrorKind, OpenOptions};
///
/// let options = OpenOptions::default().follow_symlinks(true);
/// let checkpoint = Checkpoint::open_with("no-such-model", options);
/// assert_eq!(checkpoint.unwrap_err().kind(), ErrorKind::NotFound);
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct OpenOptions {
    /// Options of object stores. Default: taken from the environment.
    pub store: StoreOptions,
    /// Allows symbolic links to lead out of the checkpoint's directory. Not needed for files listed
    /// explicitly, links that stay in the directory, links in the path of the directory itself,
    /// links in a hub's cache from a snapshot to the blobs of its repository or to those that all
    /// share, or any links in the cache that `huggingface_hub` is set to. Default: no.
    pub follow_symlinks: bool,
    /// Ranks that open the same location at the same time, to load it together: in an object store,
    /// one rank of each node sends the requests. All of them must load with the same group next;
    /// after an error, call [`give_up`](crate::ranks::give_up). Default: none.
    pub group: Option<Arc<dyn Group>>,
    /// Time that the ranks of the group have to begin the opening. Default: as for loads.
    pub join_timeout: Option<Duration>,
    /// Which of two models in a directory is loaded. Default: the one that an index names.
    pub precedence: Precedence,
    /// Threads, connections and credentials that openings in object stores share. Default: those of
    /// the process.
    ///
    /// ```
    /// use tload::{Checkpoint, OpenOptions, StoreClient};
    ///
    /// let client = StoreClient::new();
    /// for adapter in ["no-such-adapter", "nor-this-one"] {
    ///     let options = OpenOptions::default().client(client.clone());
    ///     assert!(Checkpoint::open_with(adapter, options).is_err());
    /// }
    /// // Connections that were kept for another adapter are closed.
    /// drop(client);
    /// ```
    pub client: StoreClient,
    ;
    #[cfg(feature = "object")]
    pub(crate) prefetch: Option<Prefetch>,
}
}

/// Brings the models at all locations, which are in one repository of a hub, to this machine if
/// the options say so, and returns their places; `None` if they are read from the hub. Copies are
/// built from openings, so the crate's interface sets this. Gives up at the deadline.
#[cfg(feature = "object")]
pub(crate) type Prefetch =
    fn(&[&Location], &StoreOptions, Precedence, Option<Instant>) -> Result<Option<Vec<PathBuf>>>;

impl From<StoreOptions> for OpenOptions {
    fn from(store: StoreOptions) -> Self {
        Self {
            store,
            ..Self::default()
        }
    }
}

impl From<&StoreOptions> for OpenOptions {
    fn from(store: &StoreOptions) -> Self {
        store.clone().into()
    }
}

impl From<&OpenOptions> for OpenOptions {
    fn from(options: &OpenOptions) -> Self {
        options.clone()
    }
}
