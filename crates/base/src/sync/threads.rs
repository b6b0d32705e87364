//! Starts threads, where the process's address space has room for them.

use std::hint::black_box;
use std::io;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread::{self, JoinHandle, Scope, ScopedJoinHandle};

use super::address_space::{THREAD_BYTES, is_limited, require};

/// Like the standard library's, except that a thread for which there is no room is an error. It
/// would be started, and then be unable to allocate.
#[derive(Debug)]
pub struct Builder(thread::Builder);

impl Builder {
    /// Creates a builder of a thread without a name.
    pub fn new() -> Self {
        Self(thread::Builder::new())
    }

    /// Sets the name of the thread.
    #[must_use]
    pub fn name(self, name: String) -> Self {
        Self(self.0.name(name))
    }

    /// Starts a thread.
    ///
    /// # Errors
    ///
    /// `ENOMEM` without room, and the errors of the system.
    pub fn spawn<T: Send + 'static>(
        self,
        run: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<JoinHandle<T>> {
        if !is_limited() {
            return self.0.spawn(run);
        }
        require(THREAD_BYTES)?;
        let (run, started) = telling(run);
        let thread = self.0.spawn(run)?;
        let _ = started.recv();
        Ok(thread)
    }

    /// Starts a thread of a scope.
    ///
    /// # Errors
    ///
    /// Those of [`Self::spawn`].
    pub fn spawn_scoped<'scope, T: Send + 'scope>(
        self,
        scope: &'scope Scope<'scope, '_>,
        run: impl FnOnce() -> T + Send + 'scope,
    ) -> io::Result<ScopedJoinHandle<'scope, T>> {
        if !is_limited() {
            return self.0.spawn_scoped(scope, run);
        }
        require(THREAD_BYTES)?;
        let (run, started) = telling(run);
        let thread = self.0.spawn_scoped(scope, run)?;
        let _ = started.recv();
        Ok(thread)
    }
}

impl Default for Builder {
    fn default() -> Self {
        Self::new()
    }
}

/// Returns what a thread runs, and a channel that tells that it has taken its heap: the next check
/// of the room must count that.
fn telling<T>(run: impl FnOnce() -> T + Send) -> (impl FnOnce() -> T + Send, Receiver<()>) {
    let (sender, started) = sync_channel(1);
    let run = move || {
        drop(black_box(Box::new(0_u64)));
        // Sending cannot fail, because the starting thread waits.
        let _ = sender.send(());
        run()
    };
    (run, started)
}
