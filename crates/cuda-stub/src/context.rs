//! Stack of bound contexts of each thread, and waiting for all work of a context.

use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::clock::Clock;
use crate::driver::{Driver, Lock, changed, is_child};
use crate::status::{CONTEXT_IS_DESTROYED, INVALID_CONTEXT, Outcome};
use crate::stream::Kind;

static THREADS: AtomicU64 = AtomicU64::new(1);

thread_local! {
    /// Stack of contexts, by device ordinal; the last one is current.
    static STACK: RefCell<Vec<i32>> = const { RefCell::new(Vec::new()) };
    static THREAD: Thread = Thread(THREADS.fetch_add(1, Ordering::Relaxed));
}

/// Thread of the caller. Its default streams end with it.
struct Thread(u64);

impl Drop for Thread {
    fn drop(&mut self) {
        if is_child() {
            return;
        }
        let mut driver = Lock::take();
        for device in driver.devices.values_mut() {
            device.per_thread.remove(&self.0);
        }
        for stream in driver.streams.values_mut() {
            stream.closing |= stream.kind == Kind::PerThread(self.0);
        }
        changed();
    }
}

/// Returns a number for the calling thread; `None` while the thread is exiting.
pub(crate) fn thread() -> Option<u64> {
    THREAD.try_with(|thread| thread.0).ok()
}

/// Calls `work` with the thread's stack. A thread that is exiting has none, and so no context.
fn with_stack<T: Default>(work: impl FnOnce(&mut Vec<i32>) -> T) -> T {
    STACK
        .try_with(|stack| work(&mut stack.borrow_mut()))
        .unwrap_or_default()
}

fn top() -> Option<i32> {
    with_stack(|stack| stack.last().copied())
}

/// Returns the device of the calling thread's context.
pub(crate) fn here(driver: &mut Driver) -> Outcome<i32> {
    let here = top().ok_or(INVALID_CONTEXT)?;
    if driver.known(here).retains == 0 {
        return Err(CONTEXT_IS_DESTROYED);
    }
    Ok(here)
}

/// Returns the handle of the current context, or 0.
pub(crate) fn current(driver: &mut Driver) -> u64 {
    top().map_or(0, |here| driver.known(here).context)
}

pub(crate) fn find(driver: &Driver, context: u64) -> Outcome<i32> {
    driver
        .devices
        .iter()
        .find(|(_, device)| device.context == context && device.retains > 0)
        .map(|(ordinal, _)| *ordinal)
        .ok_or(INVALID_CONTEXT)
}

/// Replaces the top of the stack; 0 removes it.
pub(crate) fn set(driver: &Driver, context: u64) -> Outcome {
    let wanted = match context {
        0 => None,
        context => Some(find(driver, context)?),
    };
    with_stack(|stack| {
        stack.pop();
        stack.extend(wanted);
    });
    Ok(())
}

pub(crate) fn push(driver: &Driver, context: u64) -> Outcome {
    let wanted = find(driver, context)?;
    with_stack(|stack| stack.push(wanted));
    Ok(())
}

/// Removes the top of the stack and returns that context.
pub(crate) fn pop(driver: &mut Driver) -> Outcome<u64> {
    let popped = with_stack(Vec::pop).ok_or(INVALID_CONTEXT)?;
    Ok(driver.known(popped).context)
}

/// Waits until all work submitted so far in this context has run.
pub(crate) fn drain(driver: &mut Lock, ordinal: i32) {
    let mut clock = Clock::default();
    for stream in driver.streams.values() {
        if stream.ordinal == ordinal {
            clock.join(&stream.clock);
        }
    }
    let device = driver.known(ordinal);
    clock.join(&device.retired);
    driver.wait_while(|driver| !driver.has_run(&clock));
    driver.reached(&clock, ordinal);
}

/// Implements `cuCtxSynchronize`.
pub(crate) fn synchronize(driver: &mut Lock, ordinal: i32) -> Outcome {
    drain(driver, ordinal);
    driver.lost(ordinal)
}
