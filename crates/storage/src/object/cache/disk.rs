//! Resources that all caches in one directory share: memory, threads, and the state of its disk.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use super::buffers::Supplies;
use super::writer::Writer;
use crate::sync::per_process::PerProcess;

/// Most disks of a process. More directories at a time share them.
const DISKS_MAX: usize = 4;

/// Disks of this process. Each of many small checkpoints that stay open would keep memory and
/// its own threads.
static DISKS: PerProcess<PerDirectory> = PerProcess::new();

/// Disk of a directory, while a cache in it is open. One that does not respond holds up its own
/// caches only.
#[derive(Debug, Default)]
pub(super) struct Disk {
    pub(super) supplies: Supplies,
    pub(super) writer: Writer,
    /// True if it has taken nothing for long, until it takes something.
    is_stalled: AtomicBool,
    /// True if it has been logged why nothing more is written to it, until something is.
    is_told: AtomicBool,
}

impl Disk {
    /// Returns the disk for the caches in a directory.
    pub(super) fn share(directory: &Path) -> Arc<Self> {
        DISKS.lock().share(directory)
    }

    pub(super) fn is_stalled(&self) -> bool {
        self.is_stalled.load(Ordering::Relaxed)
    }

    pub(super) fn set_stalled(&self) {
        self.is_stalled.store(true, Ordering::Relaxed);
    }

    /// Takes note that it has taken something.
    pub(super) fn has_written(&self) {
        self.is_stalled.store(false, Ordering::Relaxed);
        self.is_told.store(false, Ordering::Relaxed);
    }

    /// Returns whether to log that nothing more is written. A server opens the cache every second,
    /// and would log it as often.
    pub(super) fn tell(&self) -> bool {
        !self.is_told.swap(true, Ordering::Relaxed)
    }
}

#[derive(Debug, Default)]
struct PerDirectory(Vec<(PathBuf, Weak<Disk>)>);

impl PerDirectory {
    /// Returns the disk of a directory: that of another one if there are too many.
    fn share(&mut self, directory: &Path) -> Arc<Disk> {
        self.0.retain(|(_, disk)| disk.strong_count() > 0);
        let mut known = self.0.iter();
        let own = known.find(|(path, _)| path == directory);
        let is_full = self.0.len() >= DISKS_MAX;
        let least_used = || {
            let all = is_full.then_some(&self.0)?;
            all.iter().min_by_key(|(_, disk)| disk.strong_count())
        };
        let found = own.or_else(least_used);
        // The last cache on this disk may have been closed meanwhile.
        if let Some(disk) = found.and_then(|(_, disk)| disk.upgrade()) {
            return disk;
        }
        let made = Arc::<Disk>::default();
        self.0.push((directory.to_owned(), Arc::downgrade(&made)));
        made
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_share_disks_only_if_there_are_too_many() {
        let mut all = PerDirectory::default();
        let mut share = |name: &str| all.share(Path::new(name));
        let first = share("1");
        let others = ["2", "3", "4"].map(&mut share);
        assert!(Arc::ptr_eq(&first, &share("1")));
        assert!(others.iter().all(|other| !Arc::ptr_eq(&first, other)));
        let again = others.clone();
        let fifth = share("5");
        assert!(Arc::ptr_eq(&first, &fifth), "has the fewest users");
        drop((first, fifth));
        let sixth = share("6");
        let mut others = others.iter().chain(&again);
        assert!(others.all(|other| !Arc::ptr_eq(&sixth, other)));
    }

    #[test]
    fn end_of_writing_is_told_once_for_all_openings() {
        let disk = Disk::default();
        assert!(disk.tell() && !disk.tell());
        disk.has_written();
        assert!(disk.tell() && !disk.tell());
    }
}
