//! Runs an uninterruptible call with a timeout, on its own thread: for example opening files on a
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

/// Operations that a task is waiting for, to be reported if it takes too long. Clones share one
/// list.
#[derive(Clone, Debug, Default)]
pub struct PendingOps(Arc<Operations>);

#[derive(Debug, Default)]
struct Operations {
    /// Location of the whole task, reported while no operation is pending.
    whole: Option<String>,
    pending: Mutex<Vec<Operation>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Operation {
    location: String,
    /// Description after "while", empty if the task has one operation only.
    stage: &'static str,
}

impl PendingOps {
    /// Creates an empty list for a task about `whole`.
    pub fn of(whole: &dyn ToString) -> Self {
        Self(Arc::new(Operations {
            whole: Some(whole.to_string()),
            pending: Mutex::default(),
        }))
    }

    /// Runs `task`, which waits for `location`. `stage` completes the sentence "it took longer than
    /// its timeout while …".
    pub fn during<T>(
        &self,
        location: &dyn ToString,
        stage: &'static str,
        task: impl FnOnce() -> T,
    ) -> T {
        let operation = Operation {
            location: location.to_string(),
            stage,
        };
        let lock = || self.0.pending.lock();
        lock().push(operation.clone());
        let done = task();
        let mut pending = lock();
        if let Some(index) = pending.iter().position(|other| *other == operation) {
            pending.remove(index);
        }
        done
    }

    /// Returns the error for a task that exceeded its timeout.
    fn timed_out(&self, too_long: TooLong) -> Error {
        let pending = self.0.pending.lock();
        let mut message = too_long.message.to_owned();
        if let Some(Operation { stage, .. }) = pending.first()
            && !stage.is_empty()
        {
            message = format!("{message} while {stage}");
        }
        if pending.len() > 1 {
            let more = counted(pending.len() as u64 - 1, "other");
            message = format!("{message}, as did {more}");
        }
        let error = Error::new(ErrorKind::TimedOut, message).with_hint(too_long.hint);
        let first = pending.first().map(|operation| &operation.location);
        match first.or(self.0.whole.as_ref()) {
            Some(location) => error.with_location(location),
            None => error,
        }
    }
}

/// Texts of the error for a task that exceeds its limit.
#[derive(Clone, Copy, Debug)]
pub struct TooLong {
    /// The error's message, to which the pending operation is added.
    pub message: &'static str,
    /// The error's hint.
    pub hint: &'static str,
}

/// Runs `task` and returns its result. With a `limit`, `task` runs on a thread that is abandoned
/// when the limit expires; the error then has the texts of `too_long` and names the first operation
/// that is still pending.
pub fn run_with_timeout<T: Send + 'static>(
    limit: Option<Duration>,
    pending: &PendingOps,
    too_long: TooLong,
    task: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    let Some(limit) = limit else {
        return task();
    };
    let (sender, receiver) = bounded(1);
    let thread = Builder::new()
        .name("tload-open".to_owned())
        .spawn(move || {
            // Sending fails if the caller has stopped waiting.
            let _ = sender.send(task());
        })
        .map_err(Error::cannot_start_thread)?;
    match receiver.recv_timeout(limit) {
        Ok(result) => result,
        Err(RecvTimeoutError::Timeout) => Err(pending.timed_out(too_long)),
        Err(RecvTimeoutError::Disconnected) => match thread.join() {
            Err(panic) => resume_unwind(panic),
            Ok(()) => unreachable!("sends before it ends"),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORDS: TooLong = TooLong {
        message: "took too long",
        hint: "raise it",
    };
    const SHORT: Option<Duration> = Some(Duration::from_millis(1));
    const LONG: Option<Duration> = Some(Duration::from_secs(1000));

    #[test]
    fn run_with_timeout_returns_in_time_or_names_pending_operation() {
        let pending = PendingOps::of(&"/mnt");
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
            inside.during(&"/mnt/a", "looking", || {
                inside.during(&"/mnt/b", "looking", || {
                    reached.send(()).expect("the test waits");
                    let _ = hung.recv();
                });
            });
            Ok(())
        });
        let error = error.expect_err("hangs");
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        is_there.recv().expect("begins");
        let error = pending.timed_out(WORDS);
        assert_eq!(
            error.to_string(),
            "/mnt/a: took too long while looking, as did 1 other"
        );
        drop(never);
    }

    #[test]
    fn task_between_two_operations_is_named_as_a_whole() {
        let pending = PendingOps::of(&"/mnt");
        let timed_out = || pending.timed_out(WORDS).to_string();
        assert_eq!(timed_out(), "/mnt: took too long");
        let during = pending.during(&"/mnt/a", "", timed_out);
        assert_eq!(during, "/mnt/a: took too long");
        assert_eq!(timed_out(), "/mnt: took too long");
    }

    #[test]
    #[should_panic(expected = "ours")]
    fn task_panic_propagates() {
        let _ = run_with_timeout::<()>(LONG, &PendingOps::default(), WORDS, || panic!("ours"));
    }
}
