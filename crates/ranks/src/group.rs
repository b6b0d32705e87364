//! A group of ranks, as its creator supplies it.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use super::transport::Transport;
use crate::error::Result;

/// Largest message of [`Group::exchange`], bytes.
pub const MESSAGE_BYTES_MAX: usize = 64 << 10;

/// The processes that load together, seen from one of them.
///
/// Every rank of a group starts the same loads in the same order; the selections, slices and
/// destinations of a load may differ from rank to rank.
///
/// # Examples
///
/// ```
/// # mod tload { pub use tload_base::error::Result; pub use tload_ranks::Group; }
/// use std::time::Instant;
/// use tload::Group;
///
/// /// A group of one: what every rank without company is.
/// #[derive(Debug)]
/// struct Alone;
///
/// impl Group for Alone {
///     fn rank(&self) -> usize {
///         0
///     }
///
///     fn size(&self) -> usize {
///         1
///     }
///
///     fn exchange(&self, message: &[u8], _: Instant) -> tload::Result<Vec<Vec<u8>>> {
///         Ok(vec![message.to_vec()])
///     }
/// }
/// ```
pub trait Group: fmt::Debug + Send + Sync {
    /// Number of this rank, from 0.
    fn rank(&self) -> usize;

    /// Number of ranks, at least 1.
    fn size(&self) -> usize;

    /// Sends `message`, of at most [`MESSAGE_BYTES_MAX`] bytes, to every rank and returns the
    /// messages of all ranks, by rank. The n-th call of one rank meets the n-th call of every
    /// other.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Peer`](crate::error::ErrorKind::Peer) with the
    /// [ranks](crate::error::Error::ranks) that have not sent theirs by the `deadline`, or that are
    /// known to be gone. The group must not be used after an error.
    fn exchange(&self, message: &[u8], deadline: Instant) -> Result<Vec<Vec<u8>>>;

    /// Connects this rank with the others of `leaders`, which are ascending ranks, this one
    /// included. Called by all of them for the same load, and by no other rank. Returns `None` if
    /// the group cannot do that: each node then reads for itself.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Peer`](crate::error::ErrorKind::Peer) for ranks that are not connected by the
    /// `deadline`.
    fn transport(
        &self,
        leaders: &[usize],
        deadline: Instant,
    ) -> Result<Option<Arc<dyn Transport>>> {
        let _ = (leaders, deadline);
        Ok(None)
    }

    /// Returns the number of the node that this rank pretends to be on: ranks with different ones
    /// share no memory.
    #[doc(hidden)]
    fn simulated_node(&self) -> Option<usize> {
        None
    }
}
