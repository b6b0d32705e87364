//! Bytes between the leaders of nodes.

use std::fmt;
use std::time::Instant;

use crate::error::Result;

/// Connections between the leaders of the nodes of a group, for one load.
///
/// Bytes between two leaders arrive in the order in which they were sent, in pieces of the lengths
/// in which they were sent. One thread sends to a leader and one receives from it at any time;
/// those for different leaders do not wait for each other. Dropping it closes the connections.
pub trait Transport: fmt::Debug + Send + Sync {
    /// Sends bytes to a leader, by its position among the leaders. Returns once they may be
    /// overwritten.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Peer`](crate::error::ErrorKind::Peer) if the leader is gone, or has not taken
    /// them by the `deadline`; nothing more can be sent to it then.
    fn send(&self, to: usize, bytes: &[u8], deadline: Instant) -> Result<()>;

    /// Receives as many bytes as the leader has sent in one piece.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Peer`](crate::error::ErrorKind::Peer) if the leader is gone, or has not sent
    /// them by the `deadline`; nothing more can be received from it then.
    fn receive(&self, from: usize, bytes: &mut [u8], deadline: Instant) -> Result<()>;
}
