//! Work on many tensors or files at once: digests take longer than most storage.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::thread;

use tload::Result;
use tload_base::sync::threads::Builder;

/// Most threads, each with a few pieces of memory: as many as a reader serves at once.
const THREADS_MAX: usize = 8;

/// Calls `work` with every number below `count`, in order but several at once, until one fails.
pub(crate) fn each(count: usize, work: impl Fn(usize) -> Result<()> + Sync) -> Result<()> {
    let next = AtomicUsize::new(0);
    let failed = Mutex::new(None);
    let run = || {
        loop {
            let number = next.fetch_add(1, Relaxed);
            if number >= count {
                return;
            }
            if let Err(error) = work(number) {
                next.store(count, Relaxed);
                let mut failed = failed.lock().unwrap_or_else(PoisonError::into_inner);
                failed.get_or_insert(error);
                return;
            }
        }
    };
    let cpus = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        for _ in 1..cpus.min(count).min(THREADS_MAX) {
            let builder = Builder::new().name("tload-delta".to_owned());
            // One that the system refuses is not needed: this thread works, too.
            let _ = builder.spawn_scoped(scope, run);
        }
        run();
    });
    let failed = failed.into_inner().unwrap_or_else(PoisonError::into_inner);
    failed.map_or(Ok(()), Err)
}

#[cfg(test)]
mod tests {
    use tload::Error;

    use super::*;

    #[test]
    fn every_number_is_worked_on_once_until_one_fails() {
        let seen: Vec<AtomicUsize> = (0..1000).map(|_| AtomicUsize::new(0)).collect();
        let count = |number: usize| {
            seen[number].fetch_add(1, Relaxed);
            Ok(())
        };
        each(seen.len(), count).expect("none fails");
        each(0, |_| Err(Error::unsupported("none"))).expect("there are none");
        assert!(seen.iter().all(|it| it.load(Relaxed) == 1));
        let begun = AtomicUsize::new(0);
        let error = each(1_000_000, |number| {
            begun.fetch_add(1, Relaxed);
            if number == 10 {
                Err(Error::unsupported("ten"))
            } else {
                Ok(())
            }
        });
        assert_eq!(error.expect_err("ten fails").message(), "ten");
        assert!(begun.load(Relaxed) < 1_000_000);
    }
}
