//! Threads that write to the files of a cache. Bytes that find no free buffer are not written,
//! unless the load waits for one.

use std::sync::Arc;
use std::sync::Weak;
use std::time::{Duration, Instant};

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

/// Writers of this process, each while it exists.
static WRITERS: PerProcess<Vec<Weak<Pending>>> = PerProcess::new();

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

/// Queue to the threads, which begin with the first write and end with the cache.
#[derive(Default)]
pub(super) struct Writer {
    queue: Mutex<Option<(Sender<Write>, Arc<Pending>)>>,
}

impl std::fmt::Debug for Writer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Writer").finish_non_exhaustive()
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
    let pending = Arc::<Pending>::default();
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
    let mut writers = WRITERS.lock();
    writers.retain(|writer| writer.strong_count() > 0);
    writers.push(Arc::downgrade(&pending));
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
    let deadline = Instant::now() + timeout;
    let writers: Vec<_> = WRITERS.lock().iter().filter_map(Weak::upgrade).collect();
    writers.iter().all(|writer| {
        let left = deadline.saturating_duration_since(Instant::now());
        let is_busy = |buffers: &usize| *buffers > 0;
        let buffers = writer.buffers.lock();
        *writer.written.wait_timeout_while(buffers, left, is_busy) == 0
    })
}
