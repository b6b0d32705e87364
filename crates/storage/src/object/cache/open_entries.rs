//! Entries that this process has open, or is removing. Locks say so too, but not on every file
//! system.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;

use crate::sync::per_process::{PerProcess, process_id};

/// Number of openings by device and inode of the stamps; 0 while the entry is being removed.
static OPEN: PerProcess<HashMap<(u64, u64), usize>> = PerProcess::new();

/// Entry that is open or being removed, until this is dropped.
#[derive(Debug)]
pub(super) struct OpenEntry {
    key: (u64, u64),
    process: u32,
}

impl OpenEntry {
    /// Counts an opening of the entry with these stamps, which may have been evicted just before;
    /// `None` while it is being removed.
    pub(super) fn new(stamps: &File) -> io::Result<Option<Self>> {
        Self::with(stamps, |known| match known {
            Entry::Occupied(count) if *count.get() == 0 => false,
            Entry::Occupied(mut count) => {
                *count.get_mut() += 1;
                true
            }
            Entry::Vacant(none) => *none.insert(1) == 1,
        })
    }

    /// Keeps the entry with these stamps from being opened; `None` if it is open, or being removed.
    pub(super) fn removing(stamps: &File) -> io::Result<Option<Self>> {
        Self::with(stamps, |known| match known {
            Entry::Occupied(_) => false,
            Entry::Vacant(none) => *none.insert(0) == 0,
        })
    }

    fn with(
        stamps: &File,
        count: impl FnOnce(Entry<'_, (u64, u64), usize>) -> bool,
    ) -> io::Result<Option<Self>> {
        let found = stamps.metadata()?;
        let key = (found.dev(), found.ino());
        let is_counted = count(OPEN.lock().entry(key));
        Ok(is_counted.then(|| Self {
            key,
            process: process_id(),
        }))
    }
}

impl Drop for OpenEntry {
    fn drop(&mut self) {
        if self.process != process_id() {
            // A forked process counts its own openings.
            return;
        }
        let mut open = OPEN.lock();
        let count = open.get_mut(&self.key).expect("counted when it was opened");
        *count = count.saturating_sub(1);
        if *count == 0 {
            open.remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entry_that_is_being_removed_keeps_no_other_one_from_being_opened() {
        let stamps = || tempfile::tempfile().expect("a file");
        let [one, other] = [stamps(), stamps()];
        let open = |stamps| OpenEntry::new(stamps).expect("has a status");
        let removing = |stamps| OpenEntry::removing(stamps).expect("has a status");
        let openings = [open(&one), open(&one)];
        assert!(openings.iter().all(Option::is_some) && removing(&one).is_none());
        drop(openings);
        let removal = removing(&one);
        assert!(removal.is_some() && removing(&one).is_none());
        assert!(open(&one).is_none() && open(&other).is_some());
        drop(removal);
        assert!(open(&one).is_some());
    }
}
