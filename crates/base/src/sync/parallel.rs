//! Parallel map over a few threads: opening a file takes a round trip, and a thread waits for one
//! file at a time.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::threads::Builder;

/// Returns the results of `task` for `items`, in order, computed by at most `threads` threads. The
/// calling thread is one of them, so all the work is done even if the system cannot start a thread.
pub fn parallel_map<T: Sync, R: Send>(
    items: &[T],
    threads: usize,
    task: impl Fn(&T) -> R + Sync,
) -> Vec<R> {
    let threads = threads.min(items.len());
    if threads <= 1 {
        return items.iter().map(task).collect();
    }
    let next = AtomicUsize::new(0);
    let mut results: Vec<(usize, R)> = std::thread::scope(|scope| {
        let work = || {
            let mut mine = Vec::new();
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                let Some(item) = items.get(index) else {
                    return mine;
                };
                mine.push((index, task(item)));
            }
        };
        let started: Vec<_> = (1..threads)
            .filter_map(|_| Builder::new().spawn_scoped(scope, work).ok())
            .collect();
        let mut all = work();
        for thread in started {
            let theirs = thread.join();
            all.extend(theirs.unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        }
        all
    });
    results.sort_by_key(|(index, _)| *index);
    results.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use super::parallel_map;

    #[test]
    fn results_keep_item_order_for_any_thread_count() {
        let items: Vec<usize> = (0..1000).collect();
        for threads in [0, 1, 2, 7, 2000] {
            let doubled = parallel_map(&items, threads, |item| item * 2);
            assert!(
                doubled
                    .iter()
                    .enumerate()
                    .all(|(at, value)| *value == at * 2)
            );
            assert_eq!(doubled.len(), items.len());
        }
    }
}
