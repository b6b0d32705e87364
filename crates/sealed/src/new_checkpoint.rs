//! Checkpoint that is being sealed: its keys, and the two files that it has beside its own.

use tload_base::error::{Error, Result};

use crate::key::Key;
use crate::key_file::{KEY_FILE_NAME, KeyFile};
use crate::keyset::MainKey;
use crate::manifest::{MANIFEST_NAME, Manifest, ManifestEntry, associated};
use crate::recipients::Recipients;
use crate::stream::{Algorithm, Header, Sealer};

/// Checkpoint that is being sealed.
#[derive(Debug)]
pub struct NewCheckpoint {
    key: MainKey,
    key_file: KeyFile,
}

impl NewCheckpoint {
    /// Creates the keys of a new checkpoint: a new data key of `algorithm`, unless `key` is one,
    /// wrapped to the recipients.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidRequest`](tload_base::error::ErrorKind::InvalidRequest) without
    /// recipients and key; those of reading the key and of wrapping it.
    pub fn new(algorithm: Algorithm, recipients: &Recipients, key: Option<&Key>) -> Result<Self> {
        let key = match key {
            Some(key) => key.main_key(None)?,
            None if recipients.is_empty() => {
                return Err(Error::invalid_request("there is no recipient, and no key")
                    .with_hint("name recipients of age (--recipient), or pass a keyset of Tink as the key (--new-key-file makes one)"));
            }
            None => MainKey::random(algorithm),
        };
        let recipients = Some(recipients).filter(|it| !it.is_empty());
        let key_file = KeyFile::new(&key, recipients)?;
        Ok(Self { key, key_file })
    }

    /// Begins the file of this name, with a new salt.
    #[must_use]
    pub fn sealer(&self, name: &str) -> Sealer {
        let header = Header::random(self.key.algorithm());
        let associated = associated(self.key_file.id(), name);
        Sealer::new(self.key.file_key(&header, &associated), header)
    }

    /// Returns the names and contents of the files that complete the checkpoint, given its own.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`](tload_base::error::ErrorKind::Unsupported) for too many files.
    pub fn complete(&self, files: Vec<ManifestEntry>) -> Result<[(&'static str, Vec<u8>); 2]> {
        let mut sealer = self.sealer(MANIFEST_NAME);
        let mut manifest = Vec::new();
        let pushed = sealer.push(&Manifest::new(files).to_text(), &mut manifest);
        pushed.map_err(|error| Error::unsupported(error.to_string()))?;
        sealer.finish(&mut manifest);
        let key_file = self.key_file.to_text().into_bytes();
        Ok([(MANIFEST_NAME, manifest), (KEY_FILE_NAME, key_file)])
    }
}
