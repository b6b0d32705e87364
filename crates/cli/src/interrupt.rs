//! Handling of Ctrl-C and termination: cancels the load in progress and removes temporary files.
//!
//! ```text
//! signal ─▶ the load is cancelled, the command unwinds and removes its files ─▶ exit 128 + signal
//!   └─ a second signal, or not done within GRACE (a kernel that does not answer)
//!        └─▶ a thread here answers (`--json`), removes them, within REMOVAL ─▶ exit 128 + signal
//!              └─ a third signal: at once ─▶ exit 128 + signal
//! ```
//!
//! The kernel delivers a signal to the main thread, and a thread that waits for a mount which does
//! not answer never runs a handler. Therefore the command runs on a thread of its own
//! ([`Interrupt::attend`]), and the main thread only waits for it.
//!
//! The listener for signals is the only process-wide state of the command, because signals are
//! process-wide in the operating system. Handlers installed before (Python's) run as well.

use std::fs;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::{Handle, Signals};
use tload::{Canceller, Error, ErrorKind, Result};
use tload_base::sync::threads::Builder;

use crate::exit;
use crate::output::answer::Answer;
use crate::output::error;
use crate::output::failure::Failure;
use tload_doctor::host::System;

/// Time limit for removing temporary files in place of the command. Removing GiB of a benchmark
/// takes less (2026-11).
const REMOVAL: Duration = Duration::from_secs(1);

/// Time for the command to stop by itself. A raw ceiling of a few GiB cannot be cancelled and ends
/// within this time on most disks; on a hung disk it does not.
const GRACE: Duration = Duration::from_secs(2);

/// Interval between checks for the end of a child, which measures its own time.
const LOOK: Duration = Duration::from_millis(20);

/// State of interruption by the user, and the files to clean up.
#[derive(Debug)]
pub(crate) struct Interrupt {
    shared: Arc<Shared>,
    /// Ends the thread that listens for signals.
    listener: Option<Handle>,
}

#[derive(Debug, Default)]
struct Shared {
    answer: Answer,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// The first signal.
    raised: Option<i32>,
    /// Set once a second signal has arrived.
    hurried: bool,
    finished: bool,
    canceller: Option<Canceller>,
    temporary: Vec<PathBuf>,
}

impl Interrupt {
    /// Listens for SIGINT, SIGTERM and SIGHUP, except those that this process was started to ignore
    /// (`nohup`, a background job of a script). If the command ignores the signal, prints `answer`
    /// and exits.
    pub(crate) fn install(system: &System, answer: Answer) -> Self {
        let mut interrupt = Self::unattached(answer);
        let shared = Arc::clone(&interrupt.shared);
        let (give, given) = channel::<Signals>();
        let listener = Builder::new()
            .name("tload-signals".to_owned())
            .spawn(move || {
                if let Ok(mut signals) = given.recv() {
                    listen(&mut signals, &shared);
                }
            });
        // Without a listener (no threads or descriptors left, for example) a signal takes its
        // default action: it ends the process, and temporary files stay. That is no reason to
        // refuse a load. Handlers are installed only if a thread listens.
        if listener.is_ok()
            && let Ok(signals) = Signals::new(heeded(system))
        {
            interrupt.listener = Some(signals.handle());
            // The thread waits for it, so this cannot fail.
            drop(give.send(signals));
        }
        interrupt
    }

    /// Returns an interrupt that no signal raises.
    pub(crate) fn unattached(answer: Answer) -> Self {
        Self {
            shared: Arc::new(Shared {
                answer,
                ..Shared::default()
            }),
            listener: None,
        }
    }

    /// Runs `command` on a thread of its own, while the calling thread only waits and takes
    /// signals.
    pub(crate) fn attend<T: Send>(&self, command: impl FnOnce(&Self) -> T + Send) -> T {
        let command = Mutex::new(Some(command));
        let run = || {
            let command = command
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .take();
            command.map(|command| command(self))
        };
        let done = thread::scope(|scope| {
            let thread = Builder::new()
                .name("tload-command".to_owned())
                .spawn_scoped(scope, run);
            match thread {
                Ok(thread) => thread.join().unwrap_or_else(|panic| resume_unwind(panic)),
                // No thread is left: run the command here.
                Err(_) => run(),
            }
        });
        done.expect("it runs once")
    }

    /// Returns the answer of the command.
    pub(crate) fn answer(&self) -> &Answer {
        &self.shared.answer
    }

    /// Converts `error` for JSON.
    pub(crate) fn failure<'a>(&self, error: &'a Error) -> Failure<'a> {
        Failure::new(error, self.exit_status(error))
    }

    /// Returns the exit status for `error`: that of the signal, if a signal stopped the command.
    pub(crate) fn exit_status(&self, error: &Error) -> u8 {
        let raised = self.shared.lock().raised;
        raised
            .filter(|_| error.kind() == ErrorKind::Cancelled)
            .map_or_else(|| exit::status(error), exit::of_signal)
    }

    /// Returns an error once a signal has arrived.
    pub(crate) fn check(&self) -> Result<()> {
        if self.shared.lock().raised.is_some() {
            Err(interrupted())
        } else {
            Ok(())
        }
    }

    /// Waits for `timeout`, or until a signal arrives.
    pub(crate) fn wait(&self, timeout: Duration) -> Result<()> {
        self.wait_for(timeout, &AtomicBool::new(false))
    }

    /// Waits for `timeout`, or until a signal arrives or a [`TaskEnd`] sets `over`.
    pub(crate) fn wait_for(&self, timeout: Duration, over: &AtomicBool) -> Result<()> {
        let state = self.shared.lock();
        let goes_on = |state: &mut State| state.raised.is_none() && !over.load(Ordering::Relaxed);
        let waited = (self.shared.changed).wait_timeout_while(state, timeout, goes_on);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
        self.check()
    }

    /// Waits until `child` ends, or kills it at a signal.
    pub(crate) fn wait_for_end(&self, child: &mut Child) -> Result<ExitStatus> {
        loop {
            match child.try_wait() {
                Ok(Some(status)) => return Ok(status),
                Ok(None) => {}
                Err(error) => return Err(Error::from_io("cannot wait for a process", error)),
            }
            if let Err(interrupted) = self.wait(LOOK) {
                // It may have ended by itself in the meantime.
                drop(child.kill());
                drop(child.wait());
                return Err(interrupted);
            }
        }
    }

    /// Returns a guard that sets `over` when it is dropped, and wakes [`Self::wait_for`].
    pub(crate) fn task_end(&self, over: &Arc<AtomicBool>) -> TaskEnd {
        TaskEnd {
            shared: Arc::clone(&self.shared),
            over: Arc::clone(over),
        }
    }

    /// Cancels the load of `canceller` on a signal, until the next call.
    pub(crate) fn watch(&self, canceller: Canceller) {
        let mut state = self.shared.lock();
        if state.raised.is_some() {
            canceller.cancel();
        }
        state.canceller = Some(canceller);
    }

    /// Registers a temporary file or directory, which is removed when the guard is dropped, or on a
    /// signal.
    pub(crate) fn temporary(&self, path: impl Into<PathBuf>) -> Temporary<'_> {
        let path = path.into();
        self.shared.lock().temporary.push(path.clone());
        Temporary {
            interrupt: self,
            path,
        }
    }
}

/// Guard of a task on another thread, dropped at its end.
pub(crate) struct TaskEnd {
    shared: Arc<Shared>,
    over: Arc<AtomicBool>,
}

impl Drop for TaskEnd {
    fn drop(&mut self) {
        // With the lock: a waiting thread has either not looked at `over` yet, or waits already.
        let _state = self.shared.lock();
        self.over.store(true, Ordering::Relaxed);
        self.shared.changed.notify_all();
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

    /// Handles the first signal.
    fn raise(&self, signal: i32) {
        let mut state = self.lock();
        state.raised = Some(signal);
        if let Some(canceller) = &state.canceller {
            canceller.cancel();
        }
        self.changed.notify_all();
    }

    /// Handles the second signal.
    fn hurry(&self) {
        self.lock().hurried = true;
        self.changed.notify_all();
    }

    /// Waits for the command to stop by itself. If it does not stop within `patience`, or if a
    /// second signal arrives before, returns the temporary files to remove in its place.
    fn outlived(&self, patience: Duration) -> Option<Vec<PathBuf>> {
        let waits = |state: &mut State| !state.finished && !state.hurried;
        let waited = self
            .changed
            .wait_timeout_while(self.lock(), patience, waits);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        (!state.finished).then(|| state.temporary.clone())
    }
}

/// Handles signals until the command ends. Runs on a thread of its own.
fn listen(signals: &mut Signals, shared: &Arc<Shared>) {
    let mut signals = signals.forever();
    let Some(first) = signals.next() else {
        return;
    };
    shared.raise(first);
    let status = exit::of_signal(first);
    let waiting = Arc::clone(shared);
    let wait = move || {
        if let Some(left) = waiting.outlived(GRACE) {
            give_up(waiting, left, status);
            exit_at_once(status);
        }
    };
    let waits = Builder::new().name("tload-grace".to_owned()).spawn(wait);
    if waits.is_ok() && signals.next().is_some() {
        shared.hurry();
    }
    if signals.next().is_some() {
        exit_at_once(status);
    }
}

/// Answers and removes `left` in place of the command, and prints the reason. These steps can block
/// forever too, so the wait for them is limited.
fn give_up(shared: Arc<Shared>, left: Vec<PathBuf>, status: u8) {
    let (done, is_done) = channel::<()>();
    let task = move || {
        let error = Error::new(
            ErrorKind::Cancelled,
            "interrupted without waiting for storage that does not answer",
        );
        shared.answer.fail_at_once(&error, status);
        for path in &left {
            remove(path);
        }
        error::print(&error);
        shared.answer.finish();
        drop(done);
    };
    if Builder::new().spawn(task).is_ok() {
        // Returns when `done` is dropped, or after the time limit.
        let _ = is_done.recv_timeout(REMOVAL);
    }
}

/// Exits without running exit handlers, which might wait for storage that does not answer.
fn exit_at_once(status: u8) -> ! {
    signal_hook::low_level::exit(status.into())
}

/// File or directory that is removed when this guard is dropped, unless it is [kept](Self::keep).
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
    // Best effort: the path may be gone already, and an error cannot be reported any more.
    if path.is_dir() {
        drop(fs::remove_dir_all(path));
    } else {
        drop(fs::remove_file(path));
    }
}

/// Returns the signals to listen for: those that the mask in `/proc/self/status` does not ignore.
fn heeded(system: &System) -> Vec<i32> {
    let ignored = system
        .field("proc/self/status", "SigIgn")
        .ok()
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
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    #[test]
    fn temporary_files_go_with_their_guard_unless_kept() {
        let folder = tempfile::tempdir().unwrap();
        let interrupt = Interrupt::unattached(Answer::default());
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
    fn end_of_task_wakes_the_waiting_thread() {
        let interrupt = Interrupt::unattached(Answer::default());
        let over = Arc::<AtomicBool>::default();
        let end = interrupt.task_end(&over);
        thread::spawn(move || drop(end));
        let waited = interrupt.wait_for(Duration::from_secs(3600), &over);
        assert!(waited.is_ok() && over.load(Ordering::Relaxed));
    }

    #[test]
    fn ignored_signals_stay_ignored() {
        let heeded = |mask: &str| {
            let status = format!("SigIgn:\t{mask}\n");
            let folder = tempfile::tempdir().unwrap();
            fs::create_dir_all(folder.path().join("proc/self")).unwrap();
            fs::write(folder.path().join("proc/self/status"), &status).unwrap();
            let system = System::at(folder.path());
            heeded(&system)
        };
        assert_eq!(heeded("0000000000000000"), [SIGHUP, SIGINT, SIGTERM]);
        // nohup, and a background job of a script.
        assert_eq!(heeded("0000000000001001"), [SIGINT, SIGTERM]);
        assert_eq!(heeded("0000000000001006"), [SIGHUP, SIGTERM]);
    }

    #[test]
    fn interrupt_is_error_and_ends_waits() {
        let interrupt = Interrupt::unattached(Answer::default());
        interrupt.check().unwrap();
        let cancelled = Error::new(ErrorKind::Cancelled, "cancelled");
        assert_eq!(interrupt.exit_status(&cancelled), 130);
        interrupt.shared.raise(SIGTERM);
        let error = interrupt.wait(Duration::from_secs(60)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Cancelled);
        assert_eq!(interrupt.exit_status(&cancelled), 143);
        let other = Error::new(ErrorKind::NotFound, "gone");
        assert_eq!(interrupt.exit_status(&other), exit::status(&other));
    }

    #[test]
    fn attend_runs_on_other_thread_and_propagates_panic() {
        let interrupt = Interrupt::unattached(Answer::default());
        let here = thread::current().id();
        let there = interrupt.attend(|_| thread::current().id());
        assert_ne!(
            there, here,
            "the command must not run on the thread that takes signals"
        );
        let panic = catch_unwind(AssertUnwindSafe(|| {
            interrupt.attend::<()>(|_| panic!("ours"));
        }));
        assert_eq!(panic.unwrap_err().downcast_ref(), Some(&"ours"));
    }

    /// No wait here uses up its time limit of an hour.
    #[test]
    fn second_signal_skips_grace_period() {
        let for_ever = Duration::from_secs(3600);
        let interrupt = Interrupt::unattached(Answer::default());
        let left = interrupt.temporary("/nothing/here");
        interrupt.shared.raise(SIGINT);
        thread::scope(|scope| {
            let waiting = scope.spawn(|| interrupt.shared.outlived(for_ever));
            interrupt.shared.hurry();
            let wanted = [PathBuf::from("/nothing/here")];
            assert_eq!(waiting.join().unwrap().unwrap(), wanted);
        });
        drop(left);

        let stops = Interrupt::unattached(Answer::default());
        stops.shared.raise(SIGINT);
        let shared = Arc::clone(&stops.shared);
        thread::scope(|scope| {
            let waiting = scope.spawn(move || shared.outlived(for_ever));
            drop(stops);
            assert_eq!(waiting.join().unwrap(), None, "nothing is left to do");
        });
    }
}
