//! Options for opening a checkpoint.

use crate::format::Precedence;
use crate::options::StoreOptions;

/// Options for opening a checkpoint.
///
/// ```
/// let mut options = tload::OpenOptions::default();
/// options.follow_symlinks = true;
/// let location = tload::Location::parse("no-such-model")?;
/// let checkpoint = tload::Checkpoint::open_with(&location, options);
/// assert_eq!(checkpoint.unwrap_err().kind(), tload::ErrorKind::NotFound);
/// # Ok::<(), tload::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct OpenOptions {
    /// Options of object stores. Default: taken from the environment.
    pub store: StoreOptions,
    /// Allows symbolic links to lead out of the checkpoint's directory. Not needed for files listed
    /// explicitly, links that stay in the directory, links in the path of the directory itself,
    /// links in a hub's cache from a snapshot to the blobs of its repository or to those that all
    /// share, or any links in the cache that the hub's tools are set to. Default: no.
    pub follow_symlinks: bool,
    /// Which of two models in a directory is loaded. Default: the one that an index names.
    pub precedence: Precedence,
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
