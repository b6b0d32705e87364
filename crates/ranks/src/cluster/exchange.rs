//! Messages between leaders without the threads that serve them: the ranges that each wants,
//! before the load begins, and failures until then.

use std::io;
use std::ops::Range;
use std::time::{Duration, Instant};

use super::Cluster;
use super::frame::{Frame, Kind};
use super::other_leader::OtherLeader;
use crate::error::{Error, ErrorKind, Result};
use crate::sync::threads::Builder;

/// Time in which a failed leader tells the others, before the load began.
const FAREWELL: Duration = Duration::from_secs(5);

/// Ranges of sources, by the number of the source.
pub(super) type Ranges = Vec<(usize, Range<u64>)>;

impl Cluster {
    /// Sends the ranges that this node wants to every other leader, and returns theirs.
    ///
    /// # Errors
    ///
    /// The failure of another leader; [`ErrorKind::Peer`] for one that is lost, or sends nothing by
    /// the `deadline`; [`ErrorKind::OutOfMemory`] for threads.
    pub fn exchange(
        &self,
        ranges: &[(usize, Range<u64>)],
        deadline: Instant,
    ) -> Result<Vec<Ranges>> {
        let message = serde_json::to_vec(ranges).map_err(|error| {
            Error::new(ErrorKind::InvalidRequest, "cannot describe the load").with_source(error)
        })?;
        let (inner, message) = (&*self.inner, &message);
        std::thread::scope(|scope| {
            let sending = inner.others.iter().map(|other| {
                let send = move || inner.send(other, Frame::new(Kind::Wants), message, deadline);
                Builder::new().spawn_scoped(scope, send)
            });
            let sending = sending
                .collect::<io::Result<Vec<_>>>()
                .map_err(Error::cannot_start_thread)?;
            let receiving = inner.others.iter().map(|other| {
                let receive = move || inner.receive_wants(other, deadline);
                Builder::new().spawn_scoped(scope, receive)
            });
            let receiving = receiving
                .collect::<io::Result<Vec<_>>>()
                .map_err(Error::cannot_start_thread)?;
            let bug = || Error::new(ErrorKind::Io, "a thread of the exchange panicked");
            let received: Result<Vec<_>> = receiving
                .into_iter()
                .map(|it| it.join().map_err(|_| bug())?)
                .collect();
            let sent = sending.into_iter().map(|it| it.join().map_err(|_| bug())?);
            // A failure that another leader has sent says more than the end of its connection.
            let sent: Result<()> = sent.collect();
            let received = received?;
            sent.map(|()| received)
        })
    }

    /// Tells leaders that this one has failed, without the threads that serve them.
    pub(super) fn abort(&self, others: &[&OtherLeader], message: &[u8]) {
        let deadline = Instant::now() + FAREWELL;
        std::thread::scope(|scope| {
            for other in others {
                let tell = move || {
                    let failed = Frame::new(Kind::Failed);
                    // Sending fails if the other leaders have failed themselves.
                    let _ = self.inner.send(other, failed, message, deadline);
                };
                if Builder::new().spawn_scoped(scope, tell).is_err() {
                    // No thread is left, so the connections are opened one after the other.
                    tell();
                }
            }
        });
    }
}
