//! File of a mirror, compared with the origin's before any of its bytes is used.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::OnceCell;

use super::super::opening::look;
use super::super::{Collected, ObjectIdentity, ObjectSource, Source};
use super::Mirrors;
use crate::crc::Crcs;
use crate::error::{Error, ErrorKind, Result};
use crate::sync::lock::Mutex;
use crate::sync::retry::Retries;

/// Bytes that are compared at each end of a file. Files with the same header have tensors at the
/// same places; files that differ in training differ at their ends. Entity tags mean nothing to
/// another server: they may be counters or times.
const EDGE_BYTES: u64 = 64 << 10;

/// Time for which reads wait for a file that is being opened, if they wait at all: peers are asked
/// so that not every process asks the origin.
const PATIENCE: Duration = Duration::from_secs(2);

/// Checksums of the ends of an object of the origin, once they are known.
#[derive(Debug, Default)]
pub(in super::super) struct Ends {
    first: OnceCell<Crcs>,
    last: OnceCell<Crcs>,
}

impl Ends {
    /// Takes the first bytes of an object of this length, if there are enough of them.
    pub(in super::super) fn take(&self, first: &[u8], len: u64) {
        let end = usize::try_from(len.min(EDGE_BYTES)).unwrap_or(usize::MAX);
        if let Some(bytes) = first.get(..end) {
            // Known already: by a range that was read meanwhile.
            let _ = self.first.set(Crcs::new(&[bytes]));
        }
    }
}

/// Files of the mirrors, by the index of the mirror: each is opened when the first range is read.
#[derive(Debug, Default)]
pub(in super::super) struct Replicas(Mutex<Vec<Replica>>);

/// File of a mirror.
#[derive(Clone, Debug, Default)]
enum Replica {
    #[default]
    New,
    Opening {
        /// Time until which reads wait for it.
        until: Instant,
    },
    Opened(ObjectSource),
    Failed {
        /// It may be there later, if the mirror is used then.
        may_pass: bool,
    },
}

impl Replicas {
    /// Returns the file of a mirror, if it can be used.
    pub(super) fn get(&self, index: usize) -> Option<ObjectSource> {
        match self.0.lock().get(index)? {
            Replica::Opened(file) => Some(file.clone()),
            Replica::New | Replica::Opening { .. } | Replica::Failed { .. } => None,
        }
    }

    /// Returns whether reads wait for a file that is being opened.
    pub(super) fn are_pending(&self) -> bool {
        let now = Instant::now();
        let is_pending = |it: &Replica| matches!(it, Replica::Opening { until } if now < *until);
        self.0.lock().iter().any(is_pending)
    }

    /// Returns the indices of the mirrors whose files are to be opened now. `usable` says of each
    /// mirror whether it is used at present.
    fn begin(&self, usable: &[bool]) -> Vec<usize> {
        let mut all = self.0.lock();
        let len = all.len().max(usable.len());
        all.resize(len, Replica::New);
        let mut begun = Vec::new();
        let now = Instant::now();
        for ((index, replica), is_usable) in all.iter_mut().enumerate().zip(usable) {
            let until = match replica {
                Replica::New if *is_usable => now + PATIENCE,
                // It could not be opened before: nothing waits for it.
                Replica::Failed { may_pass: true } if *is_usable => now,
                Replica::New
                | Replica::Opening { .. }
                | Replica::Opened(_)
                | Replica::Failed { .. } => continue,
            };
            *replica = Replica::Opening { until };
            begun.push(index);
        }
        begun
    }

    fn set(&self, index: usize, replica: Replica) {
        self.0.lock()[index] = replica;
    }
}

impl ObjectSource {
    /// Begins to open the object's file in each mirror, once; again after a pause of one that
    /// failed.
    pub(super) fn begin_replicas(&self, mirrors: &Arc<Mirrors>) {
        for index in self.0.replicas.begin(&mirrors.usable()) {
            let (source, mirrors) = (self.clone(), Arc::clone(mirrors));
            tokio::spawn(async move {
                let replica = match source.open_replica(&mirrors, index).await {
                    Ok(file) => Replica::Opened(file),
                    Err(error) if error.kind() == ErrorKind::NotFound => {
                        tracing::info!(%error, "a mirror does not have a file");
                        Replica::Failed { may_pass: false }
                    }
                    Err(error) => {
                        mirrors.fail(index + 1, &error);
                        Replica::Failed { may_pass: true }
                    }
                };
                source.0.replicas.set(index, replica);
            });
        }
    }

    /// Opens the object's file in a mirror.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Changed`] if it is another one, and errors of the mirror, translated.
    async fn open_replica(&self, mirrors: &Mirrors, index: usize) -> Result<Self> {
        let place = mirrors.place(index, self.location());
        let remote = &mirrors.remote;
        let url = place.remote().ok_or_else(|| {
            Error::invalid_request("is not in an object store").with_location(&place)
        })?;
        // Reads configuration files.
        let (store, path) = tokio::task::block_in_place(|| remote.store(url))
            .map_err(|error| error.or_location(&place))?;
        let looked = look(remote, &store, &path, EDGE_BYTES).await;
        let (meta, bytes, seen) = looked.map_err(|error| error.or_location(&place))?;
        let identity = ObjectIdentity::from_meta(&meta);
        let replica = Self::with_identity(remote, (store, path), place, identity, seen);
        let differs = |what: String| {
            Error::new(ErrorKind::Changed, what)
                .with_location(replica.location())
                .with_hint("update the mirror, or take it out of the store option mirrors")
        };
        if replica.len() != self.len() {
            let (found, wanted) = (replica.len(), self.len());
            return Err(differs(format!(
                "has {found} bytes; the origin's file has {wanted}"
            )));
        }
        let (len, ends) = (self.len(), &self.0.ends);
        let first = 0..len.min(EDGE_BYTES);
        let ours = ends.first.get_or_try_init(|| self.crcs(first)).await?;
        if Crcs::new(&[&bytes]) != *ours {
            let what = "begins with other bytes than the origin's file";
            return Err(differs(what.to_owned()));
        }
        let last = len.saturating_sub(EDGE_BYTES)..len;
        let ours = ends.last.get_or_try_init(|| self.crcs(last.clone()));
        if *ours.await? != replica.crcs(last.clone()).await? {
            let what = "ends with other bytes than the origin's file";
            return Err(differs(what.to_owned()));
        }
        Ok(replica)
    }

    /// Returns the checksums of a range, read from this object's own store.
    async fn crcs(&self, range: Range<u64>) -> Result<Crcs> {
        if range.is_empty() {
            return Ok(Crcs::new(&[]));
        }
        let mut collected = Collected {
            bytes: Vec::new(),
            retry_counter: self.remote().retry_counter().clone(),
        };
        self.read_remote(range, Retries::up_to(1), None, &mut collected)
            .await?;
        Ok(Crcs::new(&[&collected.bytes]))
    }
}
