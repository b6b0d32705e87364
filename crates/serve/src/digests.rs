//! SHA-256 of files, as the manifests beside them state. None is computed here.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsStr;
use std::fs::Metadata;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tload::internal::storage::ConfinedEntry;
use tload::verify::{Digest, Manifest};

use crate::version::Version;

/// Length of a manifest that is read, bytes: of more than 100,000 tensors.
const BYTES_MAX: u64 = 64 << 20;

/// Manifests that are remembered.
const MANIFESTS_MAX: usize = 1000;

/// Digests of the manifests read so far, by directory.
#[derive(Debug, Default)]
pub(crate) struct Digests {
    known: Mutex<HashMap<PathBuf, Arc<Stated>>>,
    /// Locked while a manifest is read, which takes several times its length. All clients of a
    /// fleet that starts ask for the same one.
    reading: Mutex<()>,
}

/// Digests that one manifest states, of the files beside it.
#[derive(Debug)]
pub(crate) struct Stated {
    version: Version,
    /// Time of the manifest, in seconds and nanoseconds.
    written: (i64, i64),
    files: BTreeMap<String, (u64, Digest)>,
}

impl Digests {
    /// Returns what the `manifest` of a directory states; `None` if there is none. It is read again
    /// when it has changed. One request reads at a time; the others wait.
    pub(crate) fn of(&self, directory: &Path, manifest: &ConfinedEntry) -> Option<Arc<Stated>> {
        let known = || {
            let metadata = manifest.metadata().ok()?;
            let known = lock(&self.known).get(directory).map(Arc::clone);
            known.filter(|known| known.version.is_of(&metadata))
        };
        if let Some(known) = known() {
            return Some(known);
        }
        let _reading = lock(&self.reading);
        if let Some(known) = known() {
            return Some(known);
        }
        let (file, metadata) = manifest.open_file().ok()?;
        let mut text = Vec::new();
        file.take(BYTES_MAX).read_to_end(&mut text).ok()?;
        // One that cannot be read states nothing.
        let files = Manifest::parse(&text).unwrap_or_default().files.into_iter();
        let stated = Arc::new(Stated {
            version: Version::new(&metadata),
            written: times(&metadata).into_iter().min()?,
            files: files
                .map(|(name, file)| (name, (file.bytes, file.sha256)))
                .collect(),
        });
        let mut known = lock(&self.known);
        if known.len() >= MANIFESTS_MAX {
            known.clear();
        }
        known.insert(directory.to_owned(), Arc::clone(&stated));
        Some(stated)
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Stated {
    /// Returns the digest of a file, unless it has another length or is younger than the manifest.
    ///
    /// The times of the last write and of the last change of the inode count: `cp -p` and `rsync
    /// -a` set the first, and of the manifest, `chmod` changes the second. So the later one of the
    /// file is compared with the earlier one of the manifest.
    pub(crate) fn of(&self, name: &OsStr, file: &Metadata) -> Option<Digest> {
        let (bytes, digest) = self.files.get(name.to_str()?)?;
        let changed = times(file).into_iter().max()?;
        (*bytes == file.len() && changed <= self.written).then_some(*digest)
    }
}

/// Returns the times of the last write and of the last change of the inode, in seconds and
/// nanoseconds.
fn times(it: &Metadata) -> [(i64, i64); 2] {
    [(it.mtime(), it.mtime_nsec()), (it.ctime(), it.ctime_nsec())]
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use tload::Location;
    use tload::internal::storage::ConfinedDir;
    use tload::verify::MANIFEST_NAME;

    use super::*;

    #[test]
    fn requests_at_a_time_read_the_manifest_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(MANIFEST_NAME);
        let file = |number: u32| {
            let (crc, sha) = ("0".repeat(16), "0".repeat(64));
            format!(r#""{number}.bin": {{"bytes": 0, "crc64nvme": "{crc}", "sha256": "{sha}"}}"#)
        };
        let files: Vec<_> = (0..20_000).map(file).collect();
        let text = format!(
            r#"{{"tload_manifest": 1, "files": {{{}}}}}"#,
            files.join(",")
        );
        std::fs::write(&path, text).unwrap();
        let root = ConfinedDir::open(&Location::from_path(folder.path())).unwrap();
        let (digests, barrier) = (Digests::default(), Barrier::new(16));
        let ask = || {
            let manifest = root.find(&Location::from_path(&path)).unwrap();
            barrier.wait();
            digests.of(Path::new(""), &manifest).unwrap()
        };
        let all: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..16).map(|_| scope.spawn(ask)).collect();
            threads.into_iter().map(|it| it.join().unwrap()).collect()
        });
        assert_eq!(all[0].files.len(), 20_000);
        assert!(all.iter().all(|one| Arc::ptr_eq(one, &all[0])));
    }
}
