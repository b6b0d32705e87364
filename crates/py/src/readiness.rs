//! Wakes an event loop when a tensor is ready, by a pipe that then becomes readable.

use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Wake;

/// One byte is in the pipe, or on its way, exactly while `rung` is set.
#[derive(Debug)]
pub(crate) struct Readiness {
    rung: AtomicBool,
    reader: PipeReader,
    writer: PipeWriter,
}

impl Readiness {
    pub(crate) fn new() -> io::Result<Self> {
        let (reader, writer) = io::pipe()?;
        Ok(Self {
            rung: AtomicBool::new(false),
            reader,
            writer,
        })
    }

    /// Returns the descriptor to watch.
    pub(crate) fn fileno(&self) -> i32 {
        self.reader.as_raw_fd()
    }

    /// Makes the pipe unreadable again, before the stream is polled.
    pub(crate) fn reset(&self) -> io::Result<()> {
        if self.rung.swap(false, Ordering::AcqRel) {
            // The byte may still be on its way: it is written right after `rung` was set.
            (&self.reader).read_exact(&mut [0])?;
        }
        Ok(())
    }
}

impl Wake for Readiness {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.rung.swap(true, Ordering::AcqRel) {
            // The pipe always has room for a byte; the reader lives as long as `self`.
            let _ = (&self.writer).write_all(&[1]);
        }
    }
}
