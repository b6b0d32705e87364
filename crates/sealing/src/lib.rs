//! Sealing of a checkpoint while it is written: `tload-write` passes its files through
//! `tload-sealed`.
//!
//! Programs depend on the crate `tload`, which re-exports what they need of this one. The crates
//! are released together, and anything else here may change in any release.

mod file;

use std::sync::Arc;

use tload_base::error::Result;
use tload_base::sync::lock::Mutex;
use tload_sealed::stream::Algorithm;
use tload_sealed::{Key, ManifestEntry, NewCheckpoint, Recipients};
use tload_write::{SmallFile, Transform};

use crate::file::SealedFile;

/// Checkpoint that is sealed while it is written, for
/// [`WriteOptions::sealing`](tload_write::WriteOptions::sealing).
///
/// Its names are plain, so that there must be nothing at the destination, and its tensors must be
/// known before the first of them is written.
///
/// # Examples
///
/// ```
/// # mod tload {
/// #     pub use tload_base::options::Location;
/// #     pub use tload_format::Dtype;
/// #     pub use tload_sealed::Key;
/// #     pub mod sealed {
/// #         pub use tload_sealed::{Recipients, stream::Algorithm, write_new_key};
/// #         pub use tload_sealing::Sealing;
/// #     }
/// #     pub mod write { pub use tload_write::{TensorSpec, WriteOptions, Writer}; }
/// # }
/// use std::sync::Arc;
///
/// use tload::sealed::{Algorithm, Recipients, Sealing, write_new_key};
/// use tload::write::{TensorSpec, WriteOptions, Writer};
/// use tload::{Dtype, Key, Location};
///
/// # let folder = tempfile::tempdir().unwrap();
/// # let (key, path) = (folder.path().join("key.json"), folder.path().join("model"));
/// write_new_key(Algorithm::Aes256, &key)?;
/// let sealing = Sealing::new(&Recipients::new(), Some(&Key::from_file(key)))?;
/// let spec = TensorSpec::new("norm.weight", Dtype::F32, &[2])?;
/// let options = WriteOptions::new().sealing(Arc::new(sealing));
/// let mut writer = Writer::planned(&Location::from_path(path), vec![spec], options)?;
/// writer.tensor("norm.weight", Dtype::F32, &[2], &[0; 8])?;
/// assert_eq!(writer.finish()?.files, ["model.safetensors"]);
/// # Ok::<(), tload_base::error::Error>(())
/// ```
#[derive(Debug)]
pub struct Sealing {
    checkpoint: NewCheckpoint,
    /// Files that are complete.
    files: Arc<Mutex<Vec<ManifestEntry>>>,
}

impl Sealing {
    /// Creates the keys of a new checkpoint: a data key of AES-256, or `key` if there is one, which
    /// must be a keyset; wrapped to the recipients.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidRequest`](tload_base::error::ErrorKind::InvalidRequest) without
    /// recipients and key; those of reading the key and of wrapping it.
    pub fn new(recipients: &Recipients, key: Option<&Key>) -> Result<Self> {
        Ok(Self {
            checkpoint: NewCheckpoint::new(Algorithm::Aes256, recipients, key)?,
            files: Arc::default(),
        })
    }
}

impl tload_write::Sealing for Sealing {
    fn file(&self, name: &str) -> Box<dyn Transform> {
        let sealer = self.checkpoint.sealer(name);
        Box::new(SealedFile::new(name, sealer, Arc::clone(&self.files)))
    }

    fn small_file(&self, name: &str, content: &[u8]) -> Result<Vec<u8>> {
        let (mut file, mut stored) = (self.file(name), Vec::new());
        file.push(content, &mut stored)?;
        file.finish(&mut stored)?;
        Ok(stored)
    }

    fn complete(&self) -> Result<Vec<SmallFile>> {
        let files = std::mem::take(&mut *self.files.lock());
        let added = self.checkpoint.complete(files)?;
        Ok(added
            .map(|(name, content)| (name.to_owned(), content))
            .into())
    }
}
