//! Ctrl-C and termination: cancels the load in progress, and removes what a command would otherwise leave behind.
//!
//! ```text
//! signal ──▶ raised ──▶ the load is cancelled, the command unwinds, its guards remove its files ──▶ exit 130
//!               └─ not done within GRACE (a kernel that does not answer) ─▶ the signal's thread removes them ─▶ exit 130
//! ```
//!
//! The one process-wide thing of the command is the listener for signals, which the operating system makes so. Handlers that
//! were there before (Python's) run as well.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::{Handle, Signals};
use tload::{Canceller, Error, ErrorKind, Result};

use crate::exit;
use crate::host::System;

/// How long the command may take to stop by itself. A raw ceiling of a few GiB cannot be cancelled and ends within
/// this on most disks; a hung disk does not.
const GRACE: Duration = Duration::from_secs(2);

/// Whether the user wants the command to stop, and what to clean up then.
#[derive(Debug)]
pub(crate) struct Interrupt {
    shared: Arc<Shared>,
    /// Ends the thread that listens for signals.
    listener: Option<Handle>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    raised: bool,
    finished: bool,
    canceller: Option<Canceller>,
    temporary: Vec<PathBuf>,
}

impl Interrupt {
    /// Listens for SIGINT, SIGTERM and SIGHUP, as far as this process was not started to ignore them (`nohup`, a job in
    /// the background of a script).
    pub(crate) fn install(system: &System) -> Self {
        let mut interrupt = Self::unattached();
        // Without a listener (no more descriptors, say) a signal does what it does by default: it ends the process, and
        // what is temporary stays. Not worth refusing a load for.
        if let Ok(mut signals) = Signals::new(heeded(system)) {
            interrupt.listener = Some(signals.handle());
            let shared = Arc::clone(&interrupt.shared);
            let listen = move || {
                if signals.forever().next().is_some() {
                    shared.stop();
                }
            };
            drop(
                thread::Builder::new()
                    .name("tload-signals".to_owned())
                    .spawn(listen),
            );
        }
        interrupt
    }

    /// One that no signal raises.
    pub(crate) fn unattached() -> Self {
        Self {
            shared: Arc::default(),
            listener: None,
        }
    }

    /// An error once the user wants to stop.
    pub(crate) fn check(&self) -> Result<()> {
        if self.shared.lock().raised {
            Err(interrupted())
        } else {
            Ok(())
        }
    }

    /// Waits for `timeout`, or less when the user wants to stop.
    pub(crate) fn wait(&self, timeout: Duration) -> Result<()> {
        let state = self.shared.lock();
        let waited = self
            .shared
            .changed
            .wait_timeout_while(state, timeout, |state| !state.raised);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
        self.check()
    }

    /// Cancels `canceller`'s load on a signal, from now on and until the next call.
    pub(crate) fn watch(&self, canceller: Canceller) {
        let mut state = self.shared.lock();
        if state.raised {
            canceller.cancel();
        }
        state.canceller = Some(canceller);
    }

    /// Takes charge of a file or directory: it is removed when the guard is dropped, or on a signal.
    pub(crate) fn temporary(&self, path: impl Into<PathBuf>) -> Temporary<'_> {
        let path = path.into();
        self.shared.lock().temporary.push(path.clone());
        Temporary {
            interrupt: self,
            path,
        }
    }
}

impl Drop for Interrupt {
    fn drop(&mut self) {
        self.shared.lock().finished = true;
        self.shared.changed.notify_all();
        if let Some(listener) = &self.listener {
            listener.close();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs on the signal's own thread.
    fn stop(&self) {
        let mut state = self.lock();
        state.raised = true;
        if let Some(canceller) = &state.canceller {
            canceller.cancel();
        }
        self.changed.notify_all();
        let waited = self
            .changed
            .wait_timeout_while(state, GRACE, |state| !state.finished);
        let (state, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
        if timeout.timed_out() {
            for path in &state.temporary {
                remove(path);
            }
            std::process::exit(exit::INTERRUPTED.into());
        }
    }
}

/// A file or directory that is removed when this is dropped, unless it is [kept](Self::keep).
#[derive(Debug)]
pub(crate) struct Temporary<'a> {
    interrupt: &'a Interrupt,
    path: PathBuf,
}

impl Temporary<'_> {
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Leaves the file where it is.
    pub(crate) fn keep(mut self) {
        self.release();
        self.path.clear();
    }

    fn release(&mut self) {
        self.interrupt
            .shared
            .lock()
            .temporary
            .retain(|path| *path != self.path);
    }
}

impl Drop for Temporary<'_> {
    fn drop(&mut self) {
        if !self.path.as_os_str().is_empty() {
            remove(&self.path);
            self.release();
        }
    }
}

fn remove(path: &Path) {
    // Best effort: it may be gone already, and there is no one left to tell.
    if path.is_dir() {
        drop(fs::remove_dir_all(path));
    } else {
        drop(fs::remove_file(path));
    }
}

/// The signals to listen for: those that are not ignored, by the mask of `/proc/self/status`.
fn heeded(system: &System) -> Vec<i32> {
    let ignored = system.field("proc/self/status", "SigIgn").ok();
    let ignored = ignored
        .and_then(|mask| u64::from_str_radix(&mask, 16).ok())
        .unwrap_or(0);
    [SIGHUP, SIGINT, SIGTERM]
        .into_iter()
        .filter(|signal| ignored >> (signal - 1) & 1 == 0)
        .collect()
}

fn interrupted() -> Error {
    Error::new(ErrorKind::Cancelled, "interrupted")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn temporary_files_go_with_their_guard_unless_kept() {
        let folder = tempfile::tempdir().unwrap();
        let interrupt = Interrupt::unattached();
        let (gone, kept) = (folder.path().join("gone"), folder.path().join("kept"));
        for path in [&gone, &kept] {
            fs::write(path, "x").unwrap();
        }
        drop(interrupt.temporary(&gone));
        interrupt.temporary(&kept).keep();
        assert!(!gone.exists());
        assert!(kept.exists());
        assert!(interrupt.shared.lock().temporary.is_empty());
    }

    #[test]
    fn ignored_signals_stay_ignored() {
        let heeded = |mask: &str| {
            let status = format!("SigIgn:\t{mask}\n");
            let (_folder, system) = crate::host::testing::system(&[("proc/self/status", &status)]);
            heeded(&system)
        };
        assert_eq!(heeded("0000000000000000"), [SIGHUP, SIGINT, SIGTERM]);
        // nohup; and a job in the background of a script.
        assert_eq!(heeded("0000000000001001"), [SIGINT, SIGTERM]);
        assert_eq!(heeded("0000000000001006"), [SIGHUP, SIGTERM]);
    }

    #[test]
    fn a_raised_interrupt_is_an_error_and_ends_waits() {
        let interrupt = Interrupt::unattached();
        interrupt.check().unwrap();
        interrupt.shared.lock().raised = true;
        let error = interrupt.wait(Duration::from_secs(60)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Cancelled);
    }
}
