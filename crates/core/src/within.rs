//! What must not take longer than so long, though it cannot be interrupted: opening files of a mount that may be dead.
//!
//! It runs on a thread of its own, which is left behind when the time is over. The system ends its call when storage answers, or
//! never; what it brings is dropped then.

use std::panic::resume_unwind;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crossbeam_channel::{RecvTimeoutError, bounded};

use crate::error::{Error, ErrorKind, Result, counted};

/// What a task is waiting for now, to be named if it takes too long. Clones are the same list.
#[derive(Clone, Debug, Default)]
pub(crate) struct Underway(Arc<Mutex<Vec<String>>>);

impl Underway {
    /// Does `task`, which waits for `what`.
    pub(crate) fn during<T>(&self, what: &dyn ToString, task: impl FnOnce() -> T) -> T {
        let what = what.to_string();
        let lock = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        lock().push(what.clone());
        let done = task();
        let mut underway = lock();
        if let Some(index) = underway.iter().position(|other| *other == what) {
            underway.remove(index);
        }
        done
    }

    /// The error for a task that took longer than it may.
    fn timed_out(&self, message: &str, hint: &str) -> Error {
        let underway = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let error = Error::new(ErrorKind::TimedOut, message).with_hint(hint);
        let Some(first) = underway.first() else {
            return error;
        };
        let others = underway.len() - 1;
        if others == 0 {
            return error.with_location(first);
        }
        let more = counted(others as u64, "other");
        Error::new(
            ErrorKind::TimedOut,
            format!("{message}, and {more} with it"),
        )
        .with_hint(hint)
        .with_location(first)
    }
}

/// Does `task` and returns what it returns. With a limit, on a thread that is left behind when that is over: then the error is `message`,
/// with `hint`, and names the first thing that is underway.
pub(crate) fn within<T: Send + 'static>(
    limit: Option<Duration>,
    underway: &Underway,
    (message, hint): (&str, &str),
    task: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    let Some(limit) = limit else {
        return task();
    };
    let (sender, receiver) = bounded(1);
    let thread = std::thread::Builder::new()
        .name("tload-open".to_owned())
        .spawn(move || {
            // Nobody may be waiting any more.
            let _ = sender.send(task());
        })
        .map_err(|error| {
            Error::new(ErrorKind::OutOfMemory, "cannot start a thread")
                .with_hint("raise the limit of processes (ulimit -u)")
                .with_source(error)
        })?;
    match receiver.recv_timeout(limit) {
        Ok(result) => result,
        Err(RecvTimeoutError::Timeout) => Err(underway.timed_out(message, hint)),
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
    fn what_ends_in_time_returns_and_what_does_not_is_named() {
        let underway = Underway::default();
        for limit in [None, LONG] {
            assert_eq!(
                within(limit, &underway, WORDS, || Ok(7)).expect("in time"),
                7
            );
        }
        let (never, hung) = bounded::<()>(0);
        let inside = underway.clone();
        let (reached, is_there) = bounded(1);
        let error = within(SHORT, &underway, WORDS, move || {
            inside.during(&"/mnt/a", || {
                inside.during(&"/mnt/b", || {
                    reached.send(()).expect("somebody waits");
                    let _ = hung.recv();
                });
            });
            Ok(())
        });
        let error = error.expect_err("hangs");
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        is_there.recv().expect("begins");
        let error = underway.timed_out(WORDS.0, WORDS.1);
        assert_eq!(
            error.to_string(),
            "/mnt/a: took too long, and 1 other with it"
        );
        drop(never);
    }

    #[test]
    #[should_panic(expected = "ours")]
    fn a_panic_stays_one() {
        let _ = within::<()>(LONG, &Underway::default(), WORDS, || panic!("ours"));
    }
}
