//! Threads that write buffers, so that the caller fills the next ones meanwhile.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, Sender, unbounded};
use tload_base::sync::threads::Builder;

use super::direct_file::DirectFile;
use super::file_error;
use crate::error::{Error, Result};
use crate::target::{BUFFER_BYTES, Buffer};

/// Buffers of one write: as many as threads, one that is being filled, and one that a file keeps
/// for its first bytes.
const BUFFERS: usize = 5;

/// Threads that write.
const WRITERS: usize = 3;

/// Buffer to write.
struct Job {
    file: Arc<DirectFile>,
    offset: u64,
    buffer: Buffer,
    len: usize,
}

/// State that the threads share with their caller.
#[derive(Default)]
struct Shared {
    failed: Mutex<Option<Error>>,
    is_direct: AtomicBool,
}

/// Threads, and the buffers that they have written.
pub(super) struct DiskWriters {
    jobs: Option<Sender<Job>>,
    free: Receiver<Buffer>,
    freed: Sender<Buffer>,
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl DiskWriters {
    /// Starts the threads.
    pub(super) fn start() -> Result<Arc<Self>> {
        let (jobs, waiting) = unbounded::<Job>();
        let (freed, free) = unbounded();
        let shared = Arc::new(Shared::default());
        let mut writers = Self {
            jobs: Some(jobs),
            free,
            freed: freed.clone(),
            shared: Arc::clone(&shared),
            threads: Vec::new(),
        };
        for _ in 0..BUFFERS {
            // The receiver is in `writers`.
            let _ = freed.send(Buffer::new(BUFFER_BYTES));
        }
        for _ in 0..WRITERS {
            let (waiting, freed) = (waiting.clone(), freed.clone());
            let shared = Arc::clone(&shared);
            let work = move || {
                for job in waiting {
                    let _ = freed.send(shared.write(job));
                }
            };
            let thread = Builder::new().spawn(work);
            writers
                .threads
                .push(thread.map_err(Error::cannot_start_thread)?);
        }
        Ok(Arc::new(writers))
    }

    /// Waits for a free buffer.
    ///
    /// # Errors
    ///
    /// The first failure of a write.
    pub(super) fn buffer(&self) -> Result<Buffer> {
        let buffer = self.free.recv().expect("both ends are in self");
        match self.shared.failure() {
            None => Ok(buffer),
            Some(error) => {
                let _ = self.freed.send(buffer);
                Err(error)
            }
        }
    }

    /// Waits until all that was sent is written: until every buffer is free.
    pub(super) fn wait(&self) -> Result<()> {
        let all: Vec<_> = self.free.iter().take(BUFFERS).collect();
        for buffer in all {
            let _ = self.freed.send(buffer);
        }
        self.shared.failure().map_or(Ok(()), Err)
    }

    /// Returns whether the last file was written with direct I/O.
    pub(super) fn is_direct(&self) -> bool {
        self.shared.is_direct.load(Ordering::Relaxed)
    }
}

impl Shared {
    fn write(&self, job: Job) -> Buffer {
        let Job {
            file,
            offset,
            mut buffer,
            len,
        } = job;
        let mut failed = None;
        if self.failure().is_none() {
            failed = file.write(offset, &mut buffer, len).err();
        }
        self.is_direct.store(file.is_direct(), Ordering::Relaxed);
        if let Some(error) = failed {
            let error = file_error("cannot write", file.path(), error)
                .with_range(offset..offset + len as u64);
            let mut first = self.failed.lock().expect("no writer panics");
            first.get_or_insert(error);
        }
        buffer
    }

    fn failure(&self) -> Option<Error> {
        let failed = self.failed.lock().expect("no writer panics");
        failed.as_ref().map(Error::again)
    }
}

impl Drop for DiskWriters {
    fn drop(&mut self) {
        self.jobs = None;
        for thread in self.threads.drain(..) {
            // A writer does not panic; what it has not written is not part of any checkpoint.
            let _ = thread.join();
        }
    }
}

/// File for the threads.
pub(super) struct Written {
    writers: Arc<DiskWriters>,
    file: Arc<DirectFile>,
}

impl Written {
    pub(super) fn new(writers: Arc<DiskWriters>, file: Arc<DirectFile>) -> Self {
        Self { writers, file }
    }

    pub(super) fn writers(&self) -> &DiskWriters {
        &self.writers
    }

    pub(super) fn file(&self) -> &DirectFile {
        &self.file
    }

    pub(super) fn send(&self, offset: u64, buffer: Buffer, len: usize) {
        let job = Job {
            file: Arc::clone(&self.file),
            offset,
            buffer,
            len,
        };
        let jobs = self.writers.jobs.as_ref().expect("taken only in drop");
        jobs.send(job).expect("the threads end after the sender");
    }
}
