//! Runs an uninterruptible call on its own thread, with a timeout: for example opening files on a
//! mount that may be dead.
//!
//! The thread is abandoned when the timeout expires. Its system call returns when storage responds,
//! or never; its result is dropped then.

use std::panic::resume_unwind;
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{RecvTimeoutError, bounded};

use super::threads::Builder;
use crate::error::{Error, ErrorKind, Result, counted};
use crate::sync::lock::Mutex;

/// Names of the operations that a task is waiting for, to be reported if it takes too long. Clones
/// share one list.
#[derive(Clone, Debug, Default)]
pub(crate) struct PendingOps(Arc<Mutex<Vec<String>>>);

impl PendingOps {
    /// Runs `task`, which waits for `what`.
    pub(crate) fn during<T>(&self, what: &dyn ToString, task: impl FnOnce() -> T) -> T {
        let what = what.to_string();
        let lock = || self.0.lock();
        lock().push(what.clone());
        let done = task();
        let mut pending = lock();
        if let Some(index) = pending.iter().position(|other| *other == what) {
            pending.remove(index);
        }
        done
    }

    /// Returns the error for a task that exceeded its timeout.
    fn timed_out(&self, message: &str, hint: &str) -> Error {
        let pending = self.0.lock();
        let error = Error::new(ErrorKind::TimedOut, message).with_hint(hint);
        let Some(first) = pending.first() else {
            return error;
        };
        let others = pending.len() - 1;
        if others == 0 {
            return error.with_location(first);
        }
        let more = counted(others as u64, "other");
        Error::new(ErrorKind::TimedOut, format!("{message}, as did {more}"))
            .with_hint(hint)
            .with_location(first)
    }
}

/// Runs `task` and returns its result. With a `limit`, `task` runs on a thread that is abandoned
/// when the limit expires; the error is then `message`, with `hint`, and names the first operation
/// that is still pending.
pub(crate) fn run_with_timeout<T: Send + 'static>(
    limit: Option<Duration>,
    pending: &PendingOps,
    (message, hint): (&str, &str),
    task: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    let Some(limit) = limit else {
        return task();
    };
    let (sender, receiver) = bounded(1);
    let thread = Builder::new()
        .name("tload-open".to_owned())
        .spawn(move || {
            // The receiver may be gone already.
            let _ = sender.send(task());
        })
        .map_err(Error::cannot_start_thread)?;
    match receiver.recv_timeout(limit) {
        Ok(result) => result,
        Err(RecvTimeoutError::Timeout) => Err(pending.timed_out(message, hint)),
        Err(RecvTimeoutError::Disconnected) => match thread.join() {
            Err(panic) => resume_unwind(panic),
            Ok(()) => unreachable!("sends before it ends"),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORDS: (&str, &str) = ("took too long", "raise it");
    const SHORT: Option<Duration> = Some(Duration::from_millis(1));
    const LONG: Option<Duration> = Some(Duration::from_secs(1000));

    #[test]
    fn run_with_timeout_returns_in_time_or_names_pending_operation() {
        let pending = PendingOps::default();
        for limit in [None, LONG] {
            assert_eq!(
                run_with_timeout(limit, &pending, WORDS, || Ok(7)).expect("in time"),
                7
            );
        }
        let (never, hung) = bounded::<()>(0);
        let inside = pending.clone();
        let (reached, is_there) = bounded(1);
        let error = run_with_timeout(SHORT, &pending, WORDS, move || {
            inside.during(&"/mnt/a", || {
                inside.during(&"/mnt/b", || {
                    reached.send(()).expect("the test waits");
                    let _ = hung.recv();
                });
            });
            Ok(())
        });
        let error = error.expect_err("hangs");
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        is_there.recv().expect("begins");
        let error = pending.timed_out(WORDS.0, WORDS.1);
        assert_eq!(error.to_string(), "/mnt/a: took too long, as did 1 other");
        drop(never);
    }

    #[test]
    #[should_panic(expected = "ours")]
    fn task_panic_propagates() {
        let _ = run_with_timeout::<()>(LONG, &PendingOps::default(), WORDS, || panic!("ours"));
    }
}
