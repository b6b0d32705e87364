//! Threads that write to the files of a cache. Bytes that find no free buffer are not written,
//! unless the load waits for one.

use std::sync::Arc;
use std::sync::Weak;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, unbounded};

use super::Shared;
use super::claims::Claim;
use super::entry::Entry;
use crate::memory::Filled;
use crate::sync::lock::{Condvar, Mutex};
use crate::sync::per_process::PerProcess;

/// Number of writes at a time. One alone would wait behind all reads of a load that reads what the
/// cache has: 1 MiB behind 128 MiB, which is 15 MB/s on a disk of 2 GB/s.
const THREADS: usize = 4;

/// Writer of this process, while a cache is open. Each of many small checkpoints that stay open
/// would keep threads of its own.
static WRITER: PerProcess<Weak<Writer>> = PerProcess::new();

/// Buffers of this process that are still to be written.
static PENDING: PerProcess<Arc<Pending>> = PerProcess::new();

/// Number of buffers that have not been written yet.
#[derive(Debug, Default)]
struct Pending {
    buffers: Mutex<usize>,
    written: Condvar,
}

/// Bytes to write.
struct Write {
    entry: Arc<Entry>,
    start: u64,
    bytes: Filled,
    #[expect(dead_code, reason = "held until the bytes are written")]
    claim: Option<Arc<Claim>>,
}

/// Queue to the threads, which begin with the first write and end with the last cache.
#[derive(Default)]
pub(super) struct Writer {
    queue: Mutex<Option<(Sender<Write>, Arc<Pending>)>>,
}

impl std::fmt::Debug for Writer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Writer").finish_non_exhaustive()
    }
}

impl Writer {
    /// Returns the writer of this process.
    pub(super) fn share() -> Arc<Self> {
        let mut known = WRITER.lock();
        known.upgrade().unwrap_or_else(|| {
            let made = Arc::<Self>::default();
            *known = Arc::downgrade(&made);
            made
        })
    }
}

impl Shared {
    /// Queues a write.
    pub(super) fn write_later(
        entry: &Arc<Entry>,
        start: u64,
        bytes: Filled,
        claim: Option<Arc<Claim>>,
    ) {
        let mut queue = entry.shared.writer.queue.lock();
        if queue.is_none() {
            match begin() {
                Ok(begun) => *queue = Some(begun),
                Err(error) => {
                    let reason = format!("its threads cannot be started: {error}");
                    return entry.shared.stop(&reason);
                }
            }
        }
        if let Some((sender, pending)) = &*queue {
            *pending.buffers.lock() += 1;
            let entry = Arc::clone(entry);
            // The threads live as long as there is a sender.
            let _ = sender.send(Write {
                entry,
                start,
                bytes,
                claim,
            });
        }
    }
}

fn begin() -> std::io::Result<(Sender<Write>, Arc<Pending>)> {
    let (sender, receiver) = unbounded();
    let pending = Arc::clone(&PENDING.lock());
    for number in 0..THREADS {
        let (receiver, counted) = (Receiver::clone(&receiver), Arc::clone(&pending));
        let begun = std::thread::Builder::new()
            .name("tload-cache".to_owned())
            .spawn(move || run(&receiver, &counted));
        match begun {
            Ok(_) => {}
            Err(error) if number == 0 => return Err(error),
            // Fewer are enough.
            Err(_) => break,
        }
    }
    Ok((sender, pending))
}

fn run(queue: &Receiver<Write>, pending: &Pending) {
    for write in queue {
        let shared = Arc::clone(&write.entry.shared);
        if !shared.is_stopped() {
            match shared.room.take(write.bytes.bytes().len() as u64) {
                Ok(_taken) => match write.entry.write(write.start, write.bytes.bytes()) {
                    Ok(bytes) => {
                        shared.count_written(bytes);
                    }
                    Err(error) => shared.stop(&format!("writing failed: {error}")),
                },
                Err(reason) => shared.stop(&reason),
            }
        }
        // The buffer and the entry first: a thread that waits for the end finds them free.
        drop((write, shared));
        *pending.buffers.lock() -= 1;
        pending.written.notify_all();
    }
}

/// Waits until everything that this process has read from object stores so far is in its cache, for
/// `timeout` at most. Returns whether that is so.
///
/// Loads do not wait for their last writes. A process that ends before leaves the rest for the next
/// load to fetch.
pub fn finish_caching(timeout: Duration) -> bool {
    let pending = Arc::clone(&PENDING.lock());
    let is_busy = |buffers: &usize| *buffers > 0;
    let buffers = pending.buffers.lock();
    *pending
        .written
        .wait_timeout_while(buffers, timeout, is_busy)
        == 0
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use crate::options::StoreOptions;
    use crate::storage::object::cache::{Cache, VERSION};

    #[test]
    fn many_caches_share_threads_and_longest_timeout_is_waited_for() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut options = StoreOptions::default();
        let directory = folder.path().display().to_string();
        options.set("cache_dir", &directory).expect("an option");
        let open = |number: usize| {
            let cache = Cache::from_options(&options).expect("a cache");
            let place = folder.path().join(VERSION).join(number.to_string());
            let entry = Entry::open(&cache.shared, &place, "contents", 4096, "");
            let entry = Arc::new(entry.expect("opens"));
            entry.keep_first(&[7; 4096]);
            (cache, entry)
        };
        let all: Vec<_> = (0..50).map(open).collect();
        let tasks = std::fs::read_dir("/proc/self/task").expect("Linux");
        let names = tasks.flatten().map(|task| task.path().join("comm"));
        let names = names.filter_map(|path| std::fs::read_to_string(path).ok());
        let threads = names.filter(|name| name.trim() == "tload-cache").count();
        // Those of other tests may be ending.
        assert!((1..50).contains(&threads), "{threads}");
        assert!(finish_caching(Duration::MAX));
        for (cache, entry) in &all {
            let report = cache.report();
            let caches = report.written_bytes + report.dropped_bytes;
            assert_eq!((caches, report.reason), (4096, None), "{entry:?}");
        }
    }
}
