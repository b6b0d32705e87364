//! Options for opening a checkpoint.

use std::sync::Arc;
use std::time::Duration;

use tload_ranks::Group;

use crate::format::Precedence;
use crate::options::{StoreOptions, with_setters};
use crate::sealed::Key;
use crate::storage::StoreClient;

with_setters! {
/// Options for opening a checkpoint.
///
/// ```
/// # mod tload {
/// #     pub use tload_base::{error::*, options::*};
/// #     pub use tload_checkpoint::{OpenOptions, OpenedCheckpoint as Checkpoint};
/// # }
/// use tload::{Checkpoint, ErrorKind, Location, OpenOptions};
///
/// let options = OpenOptions::default().follow_symlinks(true);
/// let location = Location::from_path("no-such-model");
/// let checkpoint = Checkpoint::open_with(&location, options);
/// assert_eq!(checkpoint.unwrap_err().kind(), ErrorKind::NotFound);
/// ```
#[derive(Clone, Debug, Default)]
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
    /// after an error, call [`give_up`](tload_ranks::give_up). Default: none.
    pub group: Option<Arc<dyn Group>>,
    /// Time that the ranks of the group have to begin the opening. Default: as for loads.
    pub join_timeout: Option<Duration>,
    /// Key of a sealed checkpoint, or of an encrypted file of Tensorizer. With one, a checkpoint
    /// that is neither is an error. Default: none.
    pub key: Option<Key>,
    /// Which of two models in a directory is loaded. Default: the one that an index names.
    pub precedence: Precedence,
    /// Threads, connections and credentials that openings in object stores share. Default: those of
    /// the process.
    ///
    /// ```
    /// # mod tload {
    /// #     pub use tload_base::options::Location;
    /// #     pub use tload_checkpoint::{OpenOptions, OpenedCheckpoint as Checkpoint};
    /// #     pub use tload_storage::StoreClient;
    /// # }
    /// use tload::{Checkpoint, Location, OpenOptions, StoreClient};
    ///
    /// let client = StoreClient::new();
    /// for adapter in ["no-such-adapter", "nor-this-one"] {
    ///     let options = OpenOptions::default().client(client.clone());
    ///     let adapter = Location::from_path(adapter);
    ///     assert!(Checkpoint::open_with(&adapter, options).is_err());
    /// }
    /// // Connections that were kept for another adapter are closed.
    /// drop(client);
    /// ```
    pub client: StoreClient,
}
}

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
