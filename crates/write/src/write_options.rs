//! Options of a write.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::options::StoreOptions;
use crate::transform::Sealing;

/// Default maximum of bytes of tensors in one file: that of `huggingface_hub`.
pub const SHARD_BYTES_MAX: u64 = 5_000_000_000;

/// Options of a write.
///
/// # Examples
///
/// ```
/// # mod tload { pub mod write { pub use tload_write::WriteOptions; } }
/// use tload::write::WriteOptions;
///
/// let options = WriteOptions::new().replace(true).max_shard_bytes(2 << 30);
/// # let _ = options;
/// ```
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "independent flags")]
pub struct WriteOptions {
    pub(crate) shard_bytes_max: u64,
    pub(crate) metadata: BTreeMap<String, String>,
    pub(crate) aliases: BTreeMap<String, String>,
    pub(crate) replace: bool,
    pub(crate) manifest: bool,
    pub(crate) plain_names: bool,
    pub(crate) is_fragment: bool,
    pub(crate) store: StoreOptions,
    pub(crate) sealing: Option<Arc<dyn Sealing>>,
}

impl WriteOptions {
    /// Creates the default options.
    #[must_use]
    pub fn new() -> Self {
        Self {
            shard_bytes_max: SHARD_BYTES_MAX,
            metadata: BTreeMap::new(),
            aliases: BTreeMap::new(),
            replace: false,
            manifest: false,
            plain_names: false,
            is_fragment: false,
            store: StoreOptions::new(),
            sealing: None,
        }
    }

    /// Sets the maximum of bytes of tensors in one file. A larger tensor has a file of its own.
    #[must_use]
    pub fn max_shard_bytes(mut self, bytes: u64) -> Self {
        self.shard_bytes_max = bytes;
        self
    }

    /// Sets the metadata of every file. Default: none.
    #[must_use]
    pub fn metadata(mut self, metadata: BTreeMap<String, String>) -> Self {
        self.metadata = metadata;
        self
    }

    /// Sets names of tensors that are stored under another name: tied weights. They go into the
    /// metadata of the file, or of the index if there is one: its keys and `total_size` are no
    /// aliases.
    #[must_use]
    pub fn aliases(mut self, aliases: BTreeMap<String, String>) -> Self {
        self.aliases = aliases;
        self
    }

    /// Sets whether a checkpoint that is at the destination is replaced. Default: it is an error.
    #[must_use]
    pub fn replace(mut self, replace: bool) -> Self {
        self.replace = replace;
        self
    }

    /// Sets whether a manifest with the digests of all files is written. Not where a checkpoint in
    /// a store is replaced. Default: none.
    #[must_use]
    pub fn manifest(mut self, manifest: bool) -> Self {
        self.manifest = manifest;
        self
    }

    /// Sets whether shards have the names that `huggingface_hub` gives them, without an identifier
    /// of the write. Only where there is nothing yet.
    #[must_use]
    pub fn plain_names(mut self, plain: bool) -> Self {
        self.plain_names = plain;
        self
    }

    /// Sets whether the file is one of several that other processes write: in a store, it appears
    /// at once, under a name that no other write has, and is no checkpoint by itself.
    #[doc(hidden)]
    #[must_use]
    pub fn fragment(mut self, is_fragment: bool) -> Self {
        self.is_fragment = is_fragment;
        self
    }

    /// Sets options of the object store.
    #[must_use]
    pub fn store(mut self, options: StoreOptions) -> Self {
        self.store = options;
        self
    }

    /// Seals the checkpoint on its way. Its names are then plain, so that there must be nothing
    /// yet, and its tensors must be known first.
    #[must_use]
    pub fn sealing(mut self, sealing: Arc<dyn Sealing>) -> Self {
        self.sealing = Some(sealing);
        self.plain_names(true)
    }
}

impl Default for WriteOptions {
    fn default() -> Self {
        Self::new()
    }
}
