//! Cancellation of a load from another thread, also while it starts.

use std::fmt;
use std::sync::{Arc, Weak};

use super::{Handover, TensorStream};
use crate::engine::cancelled;
use crate::error::Result;
use crate::load::lane::Refused;
use crate::sync::lock::Mutex;

/// Handle that cancels a load from another thread. Cheap to clone.
///
/// [`TensorStream::canceller`] returns the handle of a load that has started. A new one cancels the
/// next load of the loader that it is [given to](crate::Loader::cancelled_by), also while that
/// starts.
#[derive(Clone, Default)]
pub struct Canceller(Arc<Mutex<State>>);

#[derive(Default)]
enum State {
    /// No load has begun to read.
    #[default]
    Starting,
    Begun(Weak<Handover>),
    Cancelled,
}

impl Canceller {
    pub(super) fn of(handover: &Arc<Handover>) -> Self {
        Self(Arc::new(Mutex::new(State::Begun(Arc::downgrade(handover)))))
    }

    /// Cancels the load. Does nothing if it has ended. If it is still starting, it is refused as
    /// [`Cancelled`](crate::ErrorKind::Cancelled).
    pub fn cancel(&self) {
        let state = std::mem::replace(&mut *self.0.lock(), State::Cancelled);
        if let State::Begun(handover) = state
            && let Some(handover) = handover.upgrade()
        {
            handover.abandon(cancelled());
        }
    }

    /// Attaches a load whose `lanes` are about to begin, or refuses it: a cancelled load may have
    /// no caller that could end it, and must not write to the caller's memory.
    ///
    /// # Errors
    ///
    /// [`crate::ErrorKind::Cancelled`] if the load has been cancelled.
    pub(in crate::load) fn begin(&self, handover: &Arc<Handover>, lanes: usize) -> Result<()> {
        {
            let mut state = self.0.lock();
            if !matches!(*state, State::Cancelled) {
                *state = State::Begun(Arc::downgrade(handover));
                return Ok(());
            }
        }
        let refused = Refused::before_threads(cancelled(), lanes);
        Err(TensorStream::refused(Arc::clone(handover), refused))
    }
}

impl fmt::Debug for Canceller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Canceller").finish_non_exhaustive()
    }
}
