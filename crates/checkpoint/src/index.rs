//! The index of a checkpoint: its file, as it was read, and the placement of tensors in shards.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use sha2::{Digest as _, Sha256};

use crate::crc::Crcs;
use crate::error::Result;
use crate::format::{Index, listed_twice};
use crate::options::Location;
use crate::storage::Source;

/// Index file that a checkpoint was opened by, as it was read then: it is compared with a manifest
/// without being read again, since another file could be there by then.
#[derive(Clone)]
pub struct IndexFile {
    pub(super) source: Arc<dyn Source>,
    bytes: Arc<Vec<u8>>,
}

/// Digests of an index file.
#[derive(Debug)]
pub struct IndexDigests {
    /// CRC-32 and CRC-32C.
    pub crcs: Crcs,
    /// SHA-256.
    pub sha256: [u8; 32],
}

impl IndexFile {
    fn new(source: Arc<dyn Source>, mut bytes: Vec<u8>) -> Self {
        bytes.shrink_to_fit();
        Self {
            source,
            bytes: Arc::new(bytes),
        }
    }

    /// Computes the digests. They are not kept: few loads compare them, and a process that is
    /// forked meanwhile would inherit the lock around them.
    pub fn digests(&self) -> IndexDigests {
        IndexDigests {
            crcs: Crcs::new(&[&self.bytes]),
            sha256: Sha256::digest(self.bytes.as_slice()).into(),
        }
    }

    /// Returns its contents as they were read, decrypted if it is sealed.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns where it was read.
    pub fn location(&self) -> &Location {
        self.source.location()
    }

    /// Returns its length, bytes.
    pub fn byte_len(&self) -> u64 {
        self.source.len()
    }
}

impl fmt::Debug for IndexFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IndexFile")
            .field("source", &self.source)
            .finish_non_exhaustive()
    }
}

/// Placement of tensors in shards, according to an index.
#[derive(Debug)]
pub(super) struct Placement {
    pub(super) file: IndexFile,
    /// In the order in which they are opened.
    pub(super) shards: Vec<String>,
    /// Tensors with the positions of their shards, in the order of the file, until they are taken.
    tensors: Vec<(String, usize)>,
}

impl Placement {
    /// Creates the placement of an index that was parsed from `bytes`.
    pub(super) fn new(source: Arc<dyn Source>, index: Index, bytes: Vec<u8>) -> Self {
        Self {
            file: IndexFile::new(source, bytes),
            shards: index.shards,
            tensors: index.weight_map,
        }
    }

    /// Takes the tensors, with the positions of their shards.
    pub(super) fn take_tensors(&mut self) -> Vec<(String, usize)> {
        std::mem::take(&mut self.tensors)
    }

    /// Returns the shard of each tensor.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidFormat`](crate::error::ErrorKind::InvalidFormat) for a tensor that is
    /// listed twice.
    pub(super) fn by_tensor(&self) -> Result<HashMap<&str, &str>> {
        let mut shards = HashMap::with_capacity(self.tensors.len());
        for (tensor, shard) in &self.tensors {
            if shards.insert(&**tensor, &*self.shards[*shard]).is_some() {
                return Err(listed_twice(tensor).with_location(self.file.location()));
            }
        }
        Ok(shards)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{OpenOptions, OpenedCheckpoint};

    #[test]
    fn index_is_hashed_as_it_was_read() {
        let folder = tempfile::tempdir().expect("a folder");
        let header = r#"{"t":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}"#;
        let mut file = (header.len() as u64).to_le_bytes().to_vec();
        file.extend(header.bytes().chain([7]));
        let index = r#"{"weight_map":{"t":"m.safetensors"}}"#;
        let path = folder.path().join("model.safetensors.index.json");
        std::fs::write(folder.path().join("m.safetensors"), file).expect("writes");
        std::fs::write(&path, index).expect("writes");
        let checkpoint = OpenedCheckpoint::open_with(
            &Location::from_path(folder.path()),
            OpenOptions::default(),
        )
        .expect("opens");
        let opened = checkpoint.index().expect("an index");
        std::fs::write(&path, "another").expect("writes");
        let wanted: [u8; 32] = Sha256::digest(index).into();
        assert_eq!(opened.digests().sha256, wanted);
        assert_eq!(opened.digests().crcs, Crcs::new(&[index.as_bytes()]));
    }
}
