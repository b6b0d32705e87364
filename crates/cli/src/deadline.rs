//! Tasks with a deadline. The command stops waiting for a task at a signal or at its deadline, even
//! if the task is blocked in the kernel.

use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use tload::{Error, ErrorKind, Result};
use tload_base::sync::threads::Builder;

use crate::interrupt::Interrupt;

/// Interval between updates of the progress bar.
const REDRAW: Duration = Duration::from_millis(50);

/// Extra time after the core's own timeout for opening, whose error names the file that did not
/// answer.
pub(crate) const ERROR_GRACE: Duration = Duration::from_secs(1);

/// Time for a cancelled task to end, so that it can save its state.
const CANCEL_GRACE: Duration = Duration::from_secs(1);

/// Conditions under which a task ends, and its callbacks.
pub(crate) struct Watch<'a> {
    pub(crate) interrupt: &'a Interrupt,
    pub(crate) timeout: Option<Duration>,
    /// Cancels the task. `None`: the task cannot be cancelled.
    pub(crate) cancel: Option<&'a dyn Fn()>,
    /// Redraws the progress.
    pub(crate) redraw: &'a dyn Fn(),
    /// Returns the error for an expired timeout. Called once the task has ended, if it ends.
    pub(crate) late: &'a dyn Fn(Duration) -> Error,
}

/// Reason for ending a task.
enum End {
    /// This timeout has expired.
    Late(Duration),
    /// A signal has arrived.
    Interrupted(Error),
}

impl Watch<'_> {
    /// Runs `task` on a thread of its own, which is orphaned if it does not end in time.
    pub(crate) fn run<T: Send + 'static>(
        self,
        task: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let deadline = self.timeout.and_then(|it| Instant::now().checked_add(it));
        // The channel closes when the task ends, by a return or by a panic.
        let (open, closes) = channel::<()>();
        let (give, given) = channel();
        let over = Arc::<AtomicBool>::default();
        let end = self.interrupt.task_end(&over);
        let started = Builder::new().name("tload-task".to_owned()).spawn(move || {
            let (_open, _end) = (open, end);
            let task: Box<dyn FnOnce() -> Result<T> + Send> =
                given.recv().expect("given below, when it has started");
            task()
        });
        let thread = match (started, self.timeout) {
            (Ok(thread), _) => thread,
            // No thread is left: run the task here. A signal still ends the process.
            (Err(_), None) => return task(),
            (Err(error), Some(_)) => {
                return Err(Error::cannot_start_thread(error));
            }
        };
        // The thread waits for the task, so this cannot fail.
        let _ = give.send(Box::new(task) as Box<dyn FnOnce() -> Result<T> + Send>);
        let Some(end) = self.wait(deadline, &over) else {
            return thread.join().unwrap_or_else(|panic| resume_unwind(panic));
        };
        let patience = self.cancel.map_or(Duration::ZERO, |cancel| {
            cancel();
            CANCEL_GRACE
        });
        if closes.recv_timeout(patience) == Err(RecvTimeoutError::Timeout) {
            return Err(match end {
                End::Late(timeout) => (self.late)(timeout),
                End::Interrupted(error) => error,
            });
        }
        match thread.join().unwrap_or_else(|panic| resume_unwind(panic)) {
            // The task was cancelled: report the timeout, or the task's own error for a signal.
            Err(error) if error.kind() == ErrorKind::Cancelled => Err(match end {
                End::Late(timeout) => (self.late)(timeout),
                End::Interrupted(_) => error,
            }),
            outcome => outcome,
        }
    }

    /// Waits until the task has ended. Returns the reason if it must be stopped before.
    fn wait(&self, deadline: Option<Instant>, over: &AtomicBool) -> Option<End> {
        while !over.load(Ordering::Relaxed) {
            let left = deadline.map(|it| it.saturating_duration_since(Instant::now()));
            if let (Some(Duration::ZERO), Some(timeout)) = (left, self.timeout) {
                return Some(End::Late(timeout));
            }
            let step = left.map_or(REDRAW, |left| left.min(REDRAW));
            if let Err(interrupted) = self.interrupt.wait_for(step, over) {
                return Some(End::Interrupted(interrupted));
            }
            (self.redraw)();
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;
    use crate::output::answer::Answer;

    fn late(timeout: Duration) -> Error {
        Error::new(ErrorKind::TimedOut, format!("longer than {timeout:?}"))
    }

    #[test]
    fn finished_task_is_joined_and_hung_task_orphaned() {
        let interrupt = Interrupt::unattached(Answer::default());
        let (tell, told) = channel::<()>();
        let cancel = || tell.send(()).expect("the task listens");
        let watch = |millis, cancel| Watch {
            interrupt: &interrupt,
            timeout: Some(Duration::from_millis(millis)),
            cancel,
            redraw: &|| (),
            late: &late,
        };
        assert_eq!(watch(100_000, None).run(|| Ok(7)).expect("in time"), 7);
        // A task that can be cancelled.
        let error = watch(1, Some(&cancel)).run(move || {
            let _ = told.recv();
            Err::<(), _>(Error::new(ErrorKind::Cancelled, "cancelled"))
        });
        assert_eq!(error.expect_err("late").message(), "longer than 1ms");
        // A task that cannot be cancelled.
        let (never, hung) = channel::<()>();
        let error = watch(1, None).run(move || {
            let _ = hung.recv();
            Ok(())
        });
        assert_eq!(error.expect_err("hangs").kind(), ErrorKind::TimedOut);
        drop(never);
    }
}
