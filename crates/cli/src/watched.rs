//! A task that nobody waits for longer than until a signal, or until its time is over: it may be in the kernel, which does not answer.

use std::panic::resume_unwind;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use tload::{Error, ErrorKind, Result};

use crate::interrupt::Interrupt;

/// How often a bar moves, and whether it is over is looked at.
const REDRAW: Duration = Duration::from_millis(50);

/// How much later than the core's own end of opening a watch's is: the core says which file did not answer.
pub(crate) const LAST_WORDS: Duration = Duration::from_secs(1);

/// How long a task that was told to end may take for it: to write down what it has.
const PATIENCE: Duration = Duration::from_secs(1);

/// When a task is to end, and who is told.
pub(crate) struct Watch<'a> {
    pub(crate) interrupt: &'a Interrupt,
    pub(crate) timeout: Option<Duration>,
    /// Asks the task to end. None: it cannot be asked.
    pub(crate) cancel: Option<&'a dyn Fn()>,
    /// Shows how far it is.
    pub(crate) redraw: &'a dyn Fn(),
    /// What is said when its time is over.
    pub(crate) late: &'a dyn Fn(Duration) -> Error,
}

impl Watch<'_> {
    /// Runs `task` on a thread of its own, which is left behind when it does not end in time.
    pub(crate) fn run<T: Send + 'static>(
        self,
        task: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let deadline = self.timeout.and_then(|it| Instant::now().checked_add(it));
        // Closed when it ends, however it does.
        let (open, closes) = channel::<()>();
        let (give, given) = channel();
        let started = thread::Builder::new()
            .name("tload-task".to_owned())
            .spawn(move || {
                let _open = open;
                let task: Box<dyn FnOnce() -> Result<T> + Send> =
                    given.recv().expect("given below, when it has started");
                task()
            });
        let thread = match (started, self.timeout) {
            (Ok(thread), _) => thread,
            // Where there are so few threads, better so than not at all; a signal still ends the process.
            (Err(_), None) => return task(),
            (Err(error), Some(_)) => {
                return Err(Error::new(ErrorKind::OutOfMemory, "cannot start a thread")
                    .with_hint("raise the limit of processes (ulimit -u)")
                    .with_source(error));
            }
        };
        // It waits for that.
        let _ = give.send(Box::new(task) as Box<dyn FnOnce() -> Result<T> + Send>);
        let why = self.wait(deadline, &|| thread.is_finished());
        if let Some(why) = why {
            let patience = self.cancel.map_or(Duration::ZERO, |cancel| {
                cancel();
                PATIENCE
            });
            if closes.recv_timeout(patience) == Err(RecvTimeoutError::Timeout) {
                return Err(why);
            }
            return match thread.join().unwrap_or_else(|panic| resume_unwind(panic)) {
                // It ended because it was told to. Of a signal it says as much.
                Err(error) if error.kind() == ErrorKind::Cancelled => {
                    let is_late = why.kind() == ErrorKind::TimedOut;
                    Err(if is_late { why } else { error })
                }
                outcome => outcome,
            };
        }
        thread.join().unwrap_or_else(|panic| resume_unwind(panic))
    }

    /// Until it has ended, or why it should.
    fn wait(&self, deadline: Option<Instant>, ended: &dyn Fn() -> bool) -> Option<Error> {
        while !ended() {
            let left = deadline.map(|it| it.saturating_duration_since(Instant::now()));
            if let (Some(Duration::ZERO), Some(timeout)) = (left, self.timeout) {
                return Some((self.late)(timeout));
            }
            let step = left.map_or(REDRAW, |left| left.min(REDRAW));
            if let Err(interrupted) = self.interrupt.wait(step) {
                return Some(interrupted);
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
    fn what_ends_is_waited_for_and_what_hangs_is_left_behind() {
        let interrupt = Interrupt::unattached(Answer::default());
        let (tell, told) = channel::<()>();
        let cancel = || tell.send(()).expect("it listens");
        let watch = |millis, cancel| Watch {
            interrupt: &interrupt,
            timeout: Some(Duration::from_millis(millis)),
            cancel,
            redraw: &|| (),
            late: &late,
        };
        assert_eq!(watch(100_000, None).run(|| Ok(7)).expect("in time"), 7);
        // It does as it is told.
        let error = watch(1, Some(&cancel)).run(move || {
            let _ = told.recv();
            Err::<(), _>(Error::new(ErrorKind::Cancelled, "cancelled"))
        });
        assert_eq!(error.expect_err("late").message(), "longer than 1ms");
        // Nobody can tell it anything.
        let (never, hung) = channel::<()>();
        let error = watch(1, None).run(move || {
            let _ = hung.recv();
            Ok(())
        });
        assert_eq!(error.expect_err("hangs").kind(), ErrorKind::TimedOut);
        drop(never);
    }
}
