//! Opens objects, and copies byte ranges of them into a file.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use super::{Opened, Sources};
use crate::copy::Shared;
use crate::copy::cancel::{ask_unless_stopped, unless_stopped};
use crate::copy::target::cannot_write;
use crate::error::Result;
use crate::options::{Location, StoreOptions};
use crate::storage::{ObjectSource, Receive, Remote, Source};

/// Bytes that opening an object fetches with it: all of most configuration files.
const FIRST_BYTES: u64 = 64 << 10;

impl Sources {
    /// Returns the options for stores.
    pub(in crate::copy) fn options(&self) -> &StoreOptions {
        &self.store
    }

    pub(in crate::copy) fn remote(&self) -> Result<&Arc<Remote>> {
        if self.remote.get().is_none() {
            // Another thread may have been faster: then this one's ends unused.
            drop(self.remote.set(Remote::start(&self.store)?));
        }
        Ok(self.remote.get().expect("set above"))
    }

    pub(super) fn open_object(&self, location: &Location, shared: &Arc<Shared>) -> Result<Opened> {
        Shared::add(&shared.requests, 1);
        let remote = self.remote()?;
        let (on, at) = (Arc::clone(remote), location.clone());
        let (object, first) = ask_unless_stopped(remote, shared, move || {
            ObjectSource::open(&on, &at, FIRST_BYTES, on.open_deadline())
        })?;
        Ok(Opened::Object(object, first))
    }
}

impl Opened {
    /// Returns all bytes of a small object.
    pub(in crate::copy) fn bytes(&self, shared: &Arc<Shared>) -> Result<Vec<u8>> {
        let (object, mut bytes) = match self {
            Self::File(file) => {
                return file.fetch(0, usize::try_from(file.len()).unwrap_or(usize::MAX));
            }
            Self::Object(object, first) => (object, first.clone()),
        };
        let missing = usize::try_from(object.len()).unwrap_or(usize::MAX) - bytes.len();
        if missing > 0 {
            let (of, start) = (object.clone(), bytes.len() as u64);
            let ask = move || of.fetch(start, missing);
            bytes.extend(ask_unless_stopped(object.remote(), shared, ask)?);
        }
        Ok(bytes)
    }
}

/// Receives the bytes of one range, and writes them to the file.
struct Writer {
    file: Arc<File>,
    at: u64,
    failed: Option<std::io::Error>,
    shared: Arc<Shared>,
}

impl Receive for Writer {
    fn requested(&mut self, again: bool) {
        Shared::add(&self.shared.requests, 1);
        Shared::add(&self.shared.retries, u64::from(again));
    }

    fn bytes(&mut self, bytes: &[u8]) {
        if self.failed.is_some() {
            return;
        }
        match self.file.write_all_at(bytes, self.at) {
            Ok(()) => {
                self.at += bytes.len() as u64;
                Shared::add(&self.shared.bytes_read, bytes.len() as u64);
            }
            Err(error) => {
                self.failed = Some(error);
                // No further writes would succeed, so the copy ends, and this request with it.
                self.shared.stop.cancel();
            }
        }
    }
}

pub(super) fn fetch_object(
    object: &ObjectSource,
    range: Range<u64>,
    file: &Arc<File>,
    path: &Path,
    shared: &Arc<Shared>,
) -> (u64, Result<()>) {
    let start = range.start;
    let mut writer = Writer {
        file: Arc::clone(file),
        at: start,
        failed: None,
        shared: Arc::clone(shared),
    };
    let (source, shared) = (object.clone(), Arc::clone(shared));
    let done = object.remote().run(None, async move {
        let retries = source.retries();
        let outcome = unless_stopped(&shared, source.read(range, retries, None, &mut writer)).await;
        Ok((writer.at, writer.failed, outcome))
    });
    match done {
        Ok((at, Some(error), _)) => {
            let missing = object.identity().len - at;
            (at, Err(cannot_write(path, missing, error)))
        }
        Ok((at, None, outcome)) => (at, outcome),
        Err(error) => (start, Err(error)),
    }
}
