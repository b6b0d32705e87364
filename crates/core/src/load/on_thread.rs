//! Runs an uninterruptible call on its own thread for an asynchronous caller.
//!
//! The thread is abandoned when the caller drops its future. Its system call returns when storage
//! responds, or never; its result is dropped then.

use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::thread;

use crate::error::{Error, Result};
use crate::sync::lock::Mutex;
use crate::sync::threads::Builder;

/// Result of a task on another thread, and the task that awaits it.
struct Outcome<T> {
    ended: Option<thread::Result<Result<T>>>,
    waker: Option<Waker>,
}

/// Runs `task` on its own thread, which begins when the future is polled first, and returns its
/// result without blocking the thread that polls. Needs no runtime.
///
/// # Errors
///
/// [`crate::ErrorKind::OutOfMemory`] if the thread cannot be started, and the errors of `task`.
pub(super) async fn run_on_thread<T: Send + 'static>(
    name: &str,
    task: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    let outcome = Arc::new(Mutex::new(Outcome {
        ended: None,
        waker: None,
    }));
    let on_thread = Arc::clone(&outcome);
    let run = move || {
        let ended = catch_unwind(AssertUnwindSafe(task));
        let waker = {
            let mut outcome = on_thread.lock();
            outcome.ended = Some(ended);
            outcome.waker.take()
        };
        // Waking may run the caller's task, which takes the lock.
        if let Some(waker) = waker {
            waker.wake();
        }
    };
    let thread = Builder::new().name(name.to_owned()).spawn(run);
    thread.map_err(Error::cannot_start_thread)?;
    let ended = poll_fn(|context| {
        let mut outcome = outcome.lock();
        if let Some(ended) = outcome.ended.take() {
            return Poll::Ready(ended);
        }
        outcome.waker = Some(context.waker().clone());
        Poll::Pending
    });
    ended.await.unwrap_or_else(|panic| resume_unwind(panic))
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::mpsc::{Sender, channel};
    use std::task::{Context, Wake};

    use crossbeam_channel::bounded;

    use super::*;

    struct Telling(Sender<()>);

    impl Wake for Telling {
        fn wake(self: Arc<Self>) {
            self.0.send(()).expect("the test receives");
        }
    }

    #[test]
    fn run_on_thread_wakes_its_caller() {
        let (begin, begins) = bounded::<()>(1);
        let (sender, woken) = channel();
        let waker = Waker::from(Arc::new(Telling(sender)));
        let mut context = Context::from_waker(&waker);
        let mut future = pin!(run_on_thread("test", move || {
            begins.recv().expect("the test sends");
            Ok(7)
        }));
        assert!(future.as_mut().poll(&mut context).is_pending());
        begin.send(()).expect("the thread receives");
        woken.recv().expect("woken");
        match future.as_mut().poll(&mut context) {
            Poll::Ready(result) => assert_eq!(result.expect("no error"), 7),
            Poll::Pending => panic!("woken too early"),
        }
    }

    #[test]
    fn run_on_thread_passes_panics_on() {
        let (sender, woken) = channel();
        let waker = Waker::from(Arc::new(Telling(sender)));
        let mut context = Context::from_waker(&waker);
        let mut future = pin!(run_on_thread::<()>("test", || panic!("a bug")));
        let polled = catch_unwind(AssertUnwindSafe(|| {
            if future.as_mut().poll(&mut context).is_pending() {
                woken.recv().expect("woken");
                assert!(future.as_mut().poll(&mut context).is_ready());
            }
        }));
        let panic = polled.expect_err("the task panics");
        assert_eq!(panic.downcast_ref(), Some(&"a bug"));
    }
}
