//! File of a mirror, compared with the origin's before any of its bytes is used.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::OnceCell;

use super::super::opening::look;
use super::super::{Collected, ObjectIdentity, ObjectPath, ObjectSource, Source};
use super::Mirrors;
use crate::error::{Error, ErrorKind, Result};
use crate::sync::lock::Mutex;
use crate::sync::retry::Retries;
use tload_base::crc::Crcs;

/// Bytes that are compared at each end of a file. Files with the same header have tensors at the
/// same places; files that differ in training differ at their ends. Entity tags mean nothing to
/// another server: they may be counters or times. Only peers relay those of the origin.
const EDGE_BYTES: u64 = 64 << 10;

/// Time for which reads wait for a file that is being opened, if they wait at all: peers are asked
/// so that not every process asks the origin.
const PATIENCE: Duration = Duration::from_secs(2);

/// Time for which a file is not opened again after a failure. If that was one of the origin, each
/// read would open the files of all mirrors.
const PAUSE: Duration = Duration::from_secs(5);

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
            // Setting fails if another range has set the checksum meanwhile.
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
        /// Time from which it may be there, if the mirror is used then; `None` if it never will.
        again: Option<Instant>,
    },
}

impl Replica {
    fn failed() -> Self {
        Self::Failed {
            again: Some(Instant::now() + PAUSE),
        }
    }
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
    fn begin(&self, usable: &[bool], now: Instant) -> Vec<usize> {
        let mut all = self.0.lock();
        let len = all.len().max(usable.len());
        all.resize(len, Replica::New);
        let mut begun = Vec::new();
        for ((index, replica), is_usable) in all.iter_mut().enumerate().zip(usable) {
            let until = match replica {
                Replica::New if *is_usable => now + PATIENCE,
                // A mirror that could not be opened before is not waited for.
                Replica::Failed { again: Some(again) } if *is_usable && *again <= now => now,
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

    /// Leaves the file of a mirror out from now on.
    pub(super) fn give_up(&self, index: usize) {
        self.set(index, Replica::Failed { again: None });
    }

    fn set(&self, index: usize, replica: Replica) {
        self.0.lock()[index] = replica;
    }
}

/// Returns the difference between the entity tags if a peer relays another version than the
/// origin's. A peer asks the origin once a second, or never. Length and ends may be the same.
fn relays_other(relayed: &ObjectIdentity, origin: &ObjectIdentity) -> Option<String> {
    let (found, wanted) = (relayed.strong_tag()?, origin.relayed_tag()?);
    (found != wanted).then(|| format!("has the ETag {found}; the origin's file has {wanted}"))
}

/// Returns whether a mirror does not have a file, or not all of it: a cache that is served answers
/// so. Its other files can be used.
pub(super) fn is_without_file(error: &Error) -> bool {
    error.kind() == ErrorKind::NotFound || error.status() == Some(404)
}

impl ObjectSource {
    /// Begins to open the object's file in each mirror, once; again after a pause of one that
    /// failed.
    pub(super) fn begin_replicas(&self, mirrors: &Arc<Mirrors>) {
        for index in self.0.replicas.begin(&mirrors.usable(), Instant::now()) {
            let (source, mirrors) = (self.clone(), Arc::clone(mirrors));
            tokio::spawn(async move {
                let replica = source.open_replica(&mirrors, index).await;
                source.0.replicas.set(index, replica);
            });
        }
    }

    /// Opens the object's file in a mirror, and compares it with the origin's.
    async fn open_replica(&self, mirrors: &Mirrors, index: usize) -> Replica {
        let compared = match self.look_at_replica(mirrors, index).await {
            Ok((file, first)) => match self.ends().await {
                Ok(ends) => file.compare_ends(&first, ends).await.map(|()| file),
                Err(error) => {
                    // The origin failed, which is no reason to drop the mirror.
                    tracing::debug!(%error, "cannot compare the file of a mirror");
                    return Replica::failed();
                }
            },
            Err(error) => Err(error),
        };
        match compared {
            Ok(file) => Replica::Opened(file),
            Err(error) if is_without_file(&error) => {
                tracing::info!(%error, "a mirror does not have a file");
                mirrors.lanes.lock().lacks(index + 1, error.chain());
                Replica::Failed { again: None }
            }
            Err(error) if error.kind() == ErrorKind::Changed && mirrors.names.is_some() => {
                // The peer may soon have the origin's version of this file, and may already have
                // that of others.
                tracing::info!(%error, "a peer has another version of a file");
                mirrors.lanes.lock().lacks(index + 1, error.chain());
                Replica::failed()
            }
            Err(error) => {
                mirrors.fail(index + 1, &error);
                Replica::failed()
            }
        }
    }

    /// Opens the object's file in a mirror, and returns it with the checksums of its first bytes.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Changed`] if it has another length, states another SHA-256, or a peer relays
    /// another entity tag; errors of the mirror, translated.
    async fn look_at_replica(&self, mirrors: &Mirrors, index: usize) -> Result<(Self, Crcs)> {
        let place = mirrors.place(index, self.location());
        let remote = &mirrors.remote;
        let url = place.remote().ok_or_else(|| {
            Error::invalid_request("is not in an object store").with_location(&place)
        })?;
        // Opening a store reads configuration files, which blocks.
        let (store, path) = tokio::task::block_in_place(|| remote.store(url))
            .map_err(|error| error.or_location(&place))?;
        let object = ObjectPath { store, path };
        let looked = look(remote, &object, EDGE_BYTES).await;
        let (meta, bytes, seen) = looked.map_err(|error| error.or_location(&place))?;
        let identity = ObjectIdentity::from_meta(&meta);
        let replica = Self::with_identity(remote, object, place, identity, seen);
        if replica.len() != self.len() {
            let (found, wanted) = (replica.len(), self.len());
            let what = format!("has {found} bytes; the origin's file has {wanted}");
            return Err(replica.differs(what));
        }
        if let (Some(found), Some(wanted)) = (replica.stated_sha256(), self.stated_sha256())
            && found != wanted
        {
            let what = format!("states the SHA-256 {found}; the origin states {wanted}");
            return Err(replica.differs(what));
        }
        if mirrors.names.is_some()
            && let Some(what) = relays_other(replica.identity(), self.identity())
        {
            return Err(replica.differs(what));
        }
        Ok((replica, Crcs::new(&[&bytes])))
    }

    /// Returns the checksums of the first and the last bytes of the origin's file.
    async fn ends(&self) -> Result<(&Crcs, &Crcs)> {
        let (len, ends) = (self.len(), &self.0.ends);
        let first = || self.crcs(0..len.min(EDGE_BYTES));
        let last = || self.crcs(len.saturating_sub(EDGE_BYTES)..len);
        Ok((
            ends.first.get_or_try_init(first).await?,
            ends.last.get_or_try_init(last).await?,
        ))
    }

    /// Compares this file of a mirror, whose first bytes have the checksums `first`, with the ends
    /// of the origin's.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Changed`] if it is another one, and errors of the mirror.
    async fn compare_ends(&self, first: &Crcs, origin: (&Crcs, &Crcs)) -> Result<()> {
        if first != origin.0 {
            return Err(self.differs("begins with other bytes than the origin's file"));
        }
        let last = self.len().saturating_sub(EDGE_BYTES)..self.len();
        if self.crcs(last).await? != *origin.1 {
            return Err(self.differs("ends with other bytes than the origin's file"));
        }
        Ok(())
    }

    fn differs(&self, what: impl Into<String>) -> Error {
        Error::new(ErrorKind::Changed, what)
            .with_location(self.location())
            .with_hint("update the mirror, or take it out of the store option mirrors")
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peer_relays_the_origins_tag_or_another_version() {
        let identity = |e_tag: Option<&str>| ObjectIdentity {
            len: 1,
            e_tag: e_tag.map(str::to_owned),
            version: None,
            modified: 0,
        };
        for (relayed, origin, is_other) in [
            (Some("\"a\""), Some("\"a\""), false),
            (Some("\"b\""), Some("\"a\""), true),
            // Nothing to compare: one of them has none, or a server derives one of its own.
            (None, Some("\"a\""), false),
            (Some("W/\"b\""), Some("\"a\""), false),
            (Some("\"b\""), None, false),
            (Some("\"b\""), Some("W/\"a\""), false),
            (Some("\"b\""), Some("\"a,c\""), false),
        ] {
            let found = relays_other(&identity(relayed), &identity(origin));
            assert_eq!(found.is_some(), is_other, "{relayed:?} {origin:?}");
        }
    }

    #[test]
    fn file_is_opened_again_after_a_pause() {
        let (replicas, now) = (Replicas::default(), Instant::now());
        assert_eq!(replicas.begin(&[true, false, true], now), [0, 2]);
        replicas.set(0, Replica::failed());
        replicas.set(2, Replica::Failed { again: None });
        assert_eq!(replicas.begin(&[true; 3], now), [1]);
        let later = Instant::now() + PAUSE;
        assert_eq!(replicas.begin(&[false, true, true], later), [0; 0]);
        assert_eq!(replicas.begin(&[true; 3], later), [0]);
    }
}
