//! The reads: an ordinary load whose tensors are dropped, on a thread of low priority.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use tload::{
    CacheMode, Checkpoint, LoadOptions, Location, OpenOptions, Report, Result, TensorStream,
};

/// Memory of the load: enough for some fifty requests in flight.
const MEMORY_BYTES: u64 = 512 << 20;

/// Time between looks whether to stop.
const LOOK: Duration = Duration::from_millis(20);

/// State that the thread that reads and the one that watches it share.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    /// Set to stop the reads.
    pub(crate) stop: AtomicBool,
    /// Bytes that have arrived.
    pub(crate) bytes: AtomicU64,
}

impl Progress {
    fn count(&self, stream: &TensorStream) {
        let read = stream.progress().bytes_read;
        self.bytes.store(read, Ordering::Relaxed);
    }
}

/// Reads the checkpoint until its end, or until it has to stop.
pub(crate) fn read(
    location: &Location,
    options: OpenOptions,
    progress: &Progress,
) -> Result<Report> {
    let checkpoint = Checkpoint::open_with(location, options)?;
    let options = LoadOptions::new()
        .cache(CacheMode::Buffered)
        .memory_limit(MEMORY_BYTES);
    let mut stream = checkpoint.load().options(options).stream()?;
    loop {
        if progress.stop.load(Ordering::Relaxed) {
            stream.cancel();
            break;
        }
        match stream.wait(LOOK) {
            Poll::Pending => {}
            Poll::Ready(None) => break,
            Poll::Ready(Some(tensor)) => drop(tensor?),
        }
        progress.count(&stream);
    }
    // Bytes on their way when a load is cancelled still arrive, and are cached.
    progress.count(&stream);
    Ok(stream.report())
}
