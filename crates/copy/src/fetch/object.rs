//! Opens objects, and copies byte ranges of them into a file.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use super::{Fetching, Opened, Sources};
use crate::cancel::{ask_unless_stopped, unless_stopped};
use crate::control::Ongoing;
use crate::error::Result;
use crate::options::{Location, StoreOptions};
use crate::storage::object::{Events, Provenance, Receive};
use crate::storage::{ObjectSource, Remote, Source};
use crate::target::cannot_write;

/// Bytes that opening an object fetches with it: all of most configuration files.
const FIRST_BYTES: u64 = 64 << 10;

impl Sources {
    /// Returns the options for stores.
    pub(crate) fn options(&self) -> &StoreOptions {
        &self.store
    }

    /// Returns the client of stores.
    ///
    /// # Errors
    ///
    /// It cannot be started.
    pub fn remote(&self) -> Result<&Arc<Remote>> {
        if self.remote.get().is_none() {
            // If another thread has set its `Remote` first, this one ends unused.
            drop(
                self.remote
                    .set(Remote::start_in(&self.client, &self.store, &[])?),
            );
        }
        Ok(self.remote.get().expect("set above"))
    }

    pub(super) fn open_object(
        &self,
        location: &Location,
        ongoing: &Arc<Ongoing>,
    ) -> Result<Opened> {
        Ongoing::add(&ongoing.requests, 1);
        let remote = self.remote()?;
        let (on, at) = (Arc::clone(remote), location.clone());
        let (object, first) = ask_unless_stopped(remote, ongoing, move || {
            ObjectSource::open(&on, &at, FIRST_BYTES, on.open_deadline())
        })?;
        Ok(Opened::Object(object, first))
    }
}

/// Returns all bytes of an object that begins with `first`.
pub(super) fn bytes(
    object: &ObjectSource,
    first: &[u8],
    ongoing: &Arc<Ongoing>,
) -> Result<Vec<u8>> {
    let mut bytes = first.to_vec();
    let missing = usize::try_from(object.len()).unwrap_or(usize::MAX) - bytes.len();
    if missing > 0 {
        let (of, start) = (object.clone(), bytes.len() as u64);
        let ask = move || of.fetch(start, missing);
        bytes.extend(ask_unless_stopped(object.remote(), ongoing, ask)?);
    }
    Ok(bytes)
}

/// Receives the bytes of one range, and writes them to the file.
struct Writer {
    file: Arc<File>,
    fetching: Arc<Fetching>,
    failed: Option<std::io::Error>,
    ongoing: Arc<Ongoing>,
}

impl Receive for Writer {
    fn bytes(&mut self, bytes: &[u8], _from: Provenance) {
        if self.failed.is_some() {
            return;
        }
        match self.file.write_all_at(bytes, self.fetching.at()) {
            Ok(()) => self.fetching.advance(bytes.len() as u64, &self.ongoing),
            Err(error) => {
                self.failed = Some(error);
                // No further writes would succeed, so the copy ends, and this request with it.
                self.ongoing.stop.cancel();
            }
        }
    }

    fn events(&mut self) -> &mut dyn Events {
        self
    }
}

impl Events for Writer {
    fn requested(&mut self, again: bool) {
        Ongoing::add(&self.ongoing.requests, 1);
        Ongoing::add(&self.ongoing.retries, u64::from(again));
    }
}

pub(super) fn fetch_object(
    object: &ObjectSource,
    fetching: &Arc<Fetching>,
    file: &Arc<File>,
    path: &Path,
    ongoing: &Arc<Ongoing>,
) -> Result<()> {
    let range = fetching.range.clone();
    let mut writer = Writer {
        file: Arc::clone(file),
        fetching: Arc::clone(fetching),
        failed: None,
        ongoing: Arc::clone(ongoing),
    };
    let (source, ongoing) = (object.clone(), Arc::clone(ongoing));
    let (failed, outcome) = object.remote().run(async move {
        let retries = source.retries();
        let outcome =
            unless_stopped(&ongoing, source.read(range, retries, None, &mut writer)).await;
        Ok((writer.failed, outcome))
    })?;
    match failed {
        Some(error) => {
            let missing = object.identity().len - fetching.at();
            Err(cannot_write(path, missing, error))
        }
        None => outcome,
    }
}
