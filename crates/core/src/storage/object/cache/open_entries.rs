//! Entries that this process has open. Locks say so too, but not on every file system.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::sync::MutexGuard;

use crate::sync::per_process::{PerProcess, process_id};

/// Number of openings by device and inode of the stamps.
static OPEN: PerProcess<HashMap<(u64, u64), usize>> = PerProcess::new();

/// Entry that is open, until this is dropped.
#[derive(Debug)]
pub(super) struct OpenEntry {
    key: (u64, u64),
    process: u32,
}

impl OpenEntry {
    /// Counts an opening of the entry with these stamps. It may have been evicted just before.
    pub(super) fn new(stamps: &File) -> io::Result<Self> {
        let key = key(stamps)?;
        *OPEN.lock().entry(key).or_default() += 1;
        Ok(Self {
            key,
            process: process_id(),
        })
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
        *count -= 1;
        if *count == 0 {
            open.remove(&self.key);
        }
    }
}

/// All of them. None is opened or closed meanwhile.
pub(super) struct OpenEntries(MutexGuard<'static, HashMap<(u64, u64), usize>>);

impl OpenEntries {
    pub(super) fn lock() -> Self {
        Self(OPEN.lock())
    }

    /// Returns whether the entry with these stamps is open.
    pub(super) fn contain(&self, stamps: &File) -> io::Result<bool> {
        Ok(self.0.contains_key(&key(stamps)?))
    }
}

fn key(stamps: &File) -> io::Result<(u64, u64)> {
    let found = stamps.metadata()?;
    Ok((found.dev(), found.ino()))
}
