//! Starts threads, where the process's address space has room for them.

use std::io;
use std::thread::{self, JoinHandle, Scope, ScopedJoinHandle};

use super::address_space::{THREAD_BYTES, require};

/// Like the standard library's, except that a thread for which there is no room is an error. It
/// would be started, and then be unable to allocate.
pub(crate) struct Builder(thread::Builder);

impl Builder {
    pub(crate) fn new() -> Self {
        Self(thread::Builder::new())
    }

    pub(crate) fn name(self, name: String) -> Self {
        Self(self.0.name(name))
    }

    /// Starts a thread.
    ///
    /// # Errors
    ///
    /// `ENOMEM` without room, and the errors of the system.
    pub(crate) fn spawn<T: Send + 'static>(
        self,
        run: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<JoinHandle<T>> {
        require(THREAD_BYTES)?;
        self.0.spawn(run)
    }

    /// Starts a thread of a scope.
    ///
    /// # Errors
    ///
    /// Those of [`Self::spawn`].
    pub(crate) fn spawn_scoped<'scope, T: Send + 'scope>(
        self,
        scope: &'scope Scope<'scope, '_>,
        run: impl FnOnce() -> T + Send + 'scope,
    ) -> io::Result<ScopedJoinHandle<'scope, T>> {
        require(THREAD_BYTES)?;
        self.0.spawn_scoped(scope, run)
    }
}
