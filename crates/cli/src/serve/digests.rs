//! SHA-256 of files, as the manifests beside them state. None is computed here.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsStr;
use std::fs::Metadata;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use tload::storage::ConfinedEntry;
use tload::verify::{Digest, Manifest};

use super::version::Version;

/// Length of a manifest that is read, bytes: of more than 100,000 tensors.
const BYTES_MAX: u64 = 64 << 20;

/// Manifests that are remembered.
const MANIFESTS_MAX: usize = 1000;

/// Digests of the manifests read so far, by directory.
#[derive(Debug, Default)]
pub(super) struct Digests(Mutex<HashMap<PathBuf, Arc<Stated>>>);

/// Digests that one manifest states, of the files beside it.
#[derive(Debug)]
pub(super) struct Stated {
    version: Version,
    manifest: Metadata,
    files: BTreeMap<String, (u64, Digest)>,
}

impl Digests {
    /// Returns what the `manifest` of a directory states; `None` if there is none. It is read again
    /// when it has changed.
    pub(super) fn of(&self, directory: &Path, manifest: &ConfinedEntry) -> Option<Arc<Stated>> {
        let metadata = manifest.metadata().ok()?;
        let lock = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let known = lock().get(directory).map(Arc::clone);
        if let Some(known) = known.filter(|known| known.version.is_of(&metadata)) {
            return Some(known);
        }
        let (file, metadata) = manifest.open_file().ok()?;
        let mut text = Vec::new();
        file.take(BYTES_MAX).read_to_end(&mut text).ok()?;
        // One that cannot be read states nothing.
        let files = Manifest::parse(&text).unwrap_or_default().files;
        let files = files.into_iter();
        let stated = Arc::new(Stated {
            version: Version::new(&metadata),
            manifest: metadata,
            files: files
                .map(|(name, file)| (name, (file.bytes, file.sha256)))
                .collect(),
        });
        let mut known = lock();
        if known.len() >= MANIFESTS_MAX {
            known.clear();
        }
        known.insert(directory.to_owned(), Arc::clone(&stated));
        Some(stated)
    }
}

impl Stated {
    /// Returns the digest of a file, unless it has another length or is younger than the manifest.
    /// The time of the change of its inode counts too: `cp -p` and `rsync -a` set the other one.
    pub(super) fn of(&self, name: &OsStr, file: &Metadata) -> Option<Digest> {
        let (bytes, digest) = self.files.get(name.to_str()?)?;
        let times = |it: &Metadata| {
            let (written, changed) = ((it.mtime(), it.mtime_nsec()), (it.ctime(), it.ctime_nsec()));
            written.max(changed)
        };
        let is_older = times(file) <= times(&self.manifest);
        (*bytes == file.len() && is_older).then_some(*digest)
    }
}
