//! How a checkpoint is opened.

use crate::source::StoreOptions;

/// How a checkpoint is opened.
///
/// ```
/// let mut options = tload::OpenOptions::default();
/// options.follow_symlinks = true;
/// let checkpoint = tload::Checkpoint::open_with(&tload::Location::parse("no-such-model")?, options);
/// assert_eq!(checkpoint.unwrap_err().kind(), tload::ErrorKind::NotFound);
/// # Ok::<(), tload::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct OpenOptions {
    /// How object stores are reached. Default: as the environment says.
    pub store: StoreOptions,
    /// Whether symbolic links may lead out of the checkpoint's folder. Allowed in any case: files that are named one by one; links
    /// that stay in the folder; links to the folder, or to one above it; links from a snapshot in a hub's cache to the blobs of the same
    /// repository. Default: no.
    pub follow_symlinks: bool,
}

impl From<StoreOptions> for OpenOptions {
    fn from(store: StoreOptions) -> Self {
        Self {
            store,
            follow_symlinks: false,
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
