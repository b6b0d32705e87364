//! Threads that write to the files of a cache. Bytes that find no free buffer are not written,
//! unless the load waits for one.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, unbounded};

use super::arriving::Arrived;
use super::claims::Claim;
use super::entry::Entry;
use crate::sync::lock::{Condvar, Mutex};
use crate::sync::per_process::PerProcess;
use crate::sync::threads::Builder;

/// Number of writes at a time. One alone would wait behind all reads of a load that reads what the
/// cache has: 1 MiB behind 128 MiB, which is 15 MB/s on a disk of 2 GB/s.
const THREADS: usize = 4;

/// Buffers of this process that are still to be written.
static PENDING: PerProcess<Arc<Pending>> = PerProcess::new();

/// Buffers that have not been written yet.
#[derive(Debug, Default)]
struct Pending {
    buffers: Mutex<Numbers>,
    written: Condvar,
}

/// Numbers of buffers, in the order in which they were queued: a wait for those so far does not
/// last as long as other loads go on.
#[derive(Debug, Default)]
struct Numbers {
    next: u64,
    unwritten: BTreeSet<u64>,
}

/// A buffer that is counted until it is written, whatever becomes of its thread.
struct Counted {
    pending: Arc<Pending>,
    number: u64,
}

impl Counted {
    fn new(pending: &Arc<Pending>) -> Self {
        let mut buffers = pending.buffers.lock();
        let number = buffers.next;
        buffers.next += 1;
        buffers.unwritten.insert(number);
        Self {
            pending: Arc::clone(pending),
            number,
        }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.pending.buffers.lock().unwritten.remove(&self.number);
        self.pending.written.notify_all();
    }
}

impl Pending {
    /// Waits for the buffers that have been queued so far. Returns whether they are written.
    fn wait(&self, timeout: Duration) -> bool {
        let buffers = self.buffers.lock();
        let end = buffers.next;
        let is_busy = |buffers: &Numbers| buffers.unwritten.first().is_some_and(|it| *it < end);
        let waited = self.written.wait_timeout_while(buffers, timeout, is_busy);
        !is_busy(&waited)
    }
}

/// Bytes to write.
struct Write {
    entry: Arc<Entry>,
    /// Neighbours.
    arrived: Vec<Arrived>,
    #[expect(dead_code, reason = "held until the bytes are written")]
    claim: Option<Arc<Claim>>,
    #[expect(
        dead_code,
        reason = "last: a thread that waits for the end finds the buffer and the entry free"
    )]
    counted: Counted,
}

/// Queue to the threads, which begin with the first write and end with the last cache.
#[derive(Debug, Default)]
pub(super) struct Writer {
    queue: Mutex<Option<(Sender<Write>, Arc<Pending>)>>,
}

impl Entry {
    /// Writes neighbours together. Returns at once. `claim` is held until they are written.
    pub(super) fn keep(self: &Arc<Self>, arrived: Vec<Arrived>, claim: Option<Arc<Claim>>) {
        let mut queue = self.shared.disk.writer.queue.lock();
        let (sender, pending) = match queue.take().map_or_else(begin, Ok) {
            Ok(begun) => queue.insert(begun),
            Err(error) => {
                let reason = format!("its threads cannot be started: {error}");
                return self.shared.stop(&reason);
            }
        };
        // The threads run until the last sender is dropped.
        let _ = sender.send(Write {
            entry: Arc::clone(self),
            arrived,
            claim,
            counted: Counted::new(pending),
        });
    }
}

fn begin() -> std::io::Result<(Sender<Write>, Arc<Pending>)> {
    let (sender, receiver) = unbounded();
    let pending = Arc::clone(&PENDING.lock());
    for number in 0..THREADS {
        let receiver = Receiver::clone(&receiver);
        let begun = Builder::new()
            .name("tload-cache".to_owned())
            .spawn(move || run(&receiver, Write::perform));
        match begun {
            Ok(_) => {}
            Err(error) if number == 0 => return Err(error),
            // Fewer threads are enough.
            Err(_) => break,
        }
    }
    Ok((sender, pending))
}

fn run(queue: &Receiver<Write>, perform: impl Fn(&Write)) {
    for write in queue {
        if catch_unwind(AssertUnwindSafe(|| perform(&write))).is_err() {
            let reason = "writing panicked: this is a bug in tload; please report it";
            write.entry.shared.stop(reason);
        }
    }
}

impl Write {
    fn perform(&self) {
        let (shared, all) = (&self.entry.shared, &self.arrived[..]);
        if shared.is_stopped() {
            return;
        }
        let mut written = self.write(all);
        if written.is_err() && all.len() > 1 {
            // There may be room for some of them.
            written = all.chunks(1).try_for_each(|one| self.write(one));
        }
        if let Err(reason) = written {
            shared.stop(&reason);
        }
    }

    fn write(&self, all: &[Arrived]) -> Result<(), String> {
        let shared = &self.entry.shared;
        let len = all.iter().map(|one| one.bytes().len() as u64).sum();
        let _taken = shared.room.take(len)?;
        let written = self.entry.write(all);
        shared.count_written(written.map_err(|error| format!("writing failed: {error}"))?);
        Ok(())
    }
}

/// Waits until everything that this process has read from object stores so far is in its cache, for
/// `timeout` at most. Returns whether that is so.
///
/// Loads do not wait for their last writes. A process that ends before leaves the rest for the next
/// load to fetch.
pub fn finish_caching(timeout: Duration) -> bool {
    let pending = Arc::clone(&PENDING.lock());
    pending.wait(timeout)
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::path::Path;

    use super::super::arriving::Arriving;
    use super::*;
    use crate::object::cache::Cache;
    use crate::object::cache::tests::open_numbered;
    use crate::options::StoreOptions;

    /// Opens a cache in a folder, and the numbered entry of an object of 4 KiB in it.
    fn open(folder: &Path, limit: &str, number: usize) -> (Arc<Cache>, Arc<Entry>) {
        let directory = folder.display().to_string();
        let options = StoreOptions::new()
            .with("cache_dir", &directory)
            .and_then(|options| options.with("cache_limit", limit));
        let cache = Cache::from_options(&options.expect("options")).expect("a cache");
        let entry = open_numbered(&cache, number, 4096);
        (cache, entry)
    }

    #[test]
    fn many_caches_share_threads_and_longest_timeout_is_waited_for() {
        let folder = tempfile::tempdir().expect("a folder");
        let open = |number: usize| {
            let (cache, entry) = open(folder.path(), "1GiB", number);
            entry.keep_first(&[7; 4096]);
            (cache, entry)
        };
        let all: Vec<_> = (0..50).map(open).collect();
        let tasks = std::fs::read_dir("/proc/self/task").expect("Linux");
        let names = tasks
            .flatten()
            .map(|task| task.path().join("comm"))
            .filter_map(|path| std::fs::read_to_string(path).ok());
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

    /// Returns a buffer of the cache with the bytes of an entry.
    fn arrived(cache: &Cache) -> Vec<Arrived> {
        let buffer = cache.shared.disk.supplies.writes.take();
        let mut arriving = Arriving::new(0, buffer.expect("a buffer"));
        arriving.push(&[7; 4096]);
        vec![arriving.finish()]
    }

    #[test]
    fn directory_that_takes_nothing_holds_up_no_other_one() {
        let folders = [(); 2].map(|()| tempfile::tempdir().expect("a folder"));
        let (stuck, entry) = open(folders[0].path(), "1MiB", 0);
        let all = stuck.shared.room.take(1 << 20).expect("nothing is there");
        // All writes wait for room.
        for _ in 0..=THREADS {
            entry.keep(arrived(&stuck), None);
        }
        let (cache, entry) = open(folders[1].path(), "1MiB", 0);
        let writes = &cache.shared.disk.supplies.writes;
        let bytes = arrived(&cache);
        let others: Vec<_> = std::iter::from_fn(|| writes.take()).collect();
        entry.keep(bytes, None);
        let returned = writes.wait(Duration::from_secs(60));
        drop(all);
        assert!(returned.is_some(), "written");
        assert_eq!(cache.report().written_bytes, 4096);
        drop(others);
    }

    #[test]
    fn wait_lasts_for_what_was_queued_before() {
        let pending = Arc::<Pending>::default();
        let first = Counted::new(&pending);
        assert!(!pending.wait(Duration::ZERO));
        let (begun, waits) = std::sync::mpsc::channel();
        let waiting = {
            let pending = Arc::clone(&pending);
            std::thread::spawn(move || {
                begun.send(()).expect("is received");
                pending.wait(Duration::MAX)
            })
        };
        waits.recv().expect("begins");
        // Other loads never pause.
        let mut next = Counted::new(&pending);
        drop(first);
        while !waiting.is_finished() {
            let last = std::mem::replace(&mut next, Counted::new(&pending));
            drop(last);
        }
        assert!(waiting.join().expect("ends"));
        assert!(!pending.wait(Duration::ZERO));
    }

    #[test]
    fn write_that_panics_is_no_longer_pending_and_stops_its_cache() {
        let folder = tempfile::tempdir().expect("a folder");
        let (cache, entry) = open(folder.path(), "1GiB", 0);
        let pending = Arc::<Pending>::default();
        let (sender, receiver) = unbounded();
        for _ in 0..2 {
            let write = Write {
                entry: Arc::clone(&entry),
                arrived: arrived(&cache),
                claim: None,
                counted: Counted::new(&pending),
            };
            sender.send(write).expect("is received below");
        }
        drop(sender);
        run(&receiver, |_| panic!("a test"));
        assert!(pending.buffers.lock().unwritten.is_empty());
        let reason = cache.report().reason.expect("is stopped");
        assert!(reason.contains("panicked"), "{reason}");
    }
}
