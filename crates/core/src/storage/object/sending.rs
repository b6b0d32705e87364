//! Copies a range of an object to a writer, such as the socket of a client.

use std::io::Write;
use std::ops::Range;

use tokio::sync::mpsc::{Sender, channel};

use super::{Events, ObjectSource, Receive, Source};
use crate::error::{Error, ErrorKind, Result};
use crate::memory::Provenance;

/// Pieces between the threads that receive and the writer: a few reads of a socket each.
const PIECES: usize = 16;

impl ObjectSource {
    /// Reads a range, through the cache if there is one, and writes it to `out` in order. Blocks.
    ///
    /// # Errors
    ///
    /// Errors of the store, translated, and those of the writer. Some of the range may have been
    /// written.
    pub fn copy_to(&self, range: Range<u64>, out: &mut dyn Write) -> Result<()> {
        if range.is_empty() {
            return Ok(());
        }
        let (sender, mut pieces) = channel(PIECES);
        let (source, location) = (self.clone(), self.location().clone());
        let (report, outcome) = crossbeam_channel::bounded(1);
        self.remote().spawn(async move {
            let mut sending = Sending(sender.clone());
            let reading = source.read(range, source.retries(), None, &mut sending);
            let result = tokio::select! {
                biased;
                // The writer failed: its error is reported.
                () = sender.closed() => Ok(()),
                result = reading => result,
            };
            // The caller waits for it after the last piece.
            let _ = report.send(result);
        });
        while let Some(piece) = pieces.blocking_recv() {
            let written = out.write_all(&piece);
            written.map_err(|error| {
                Error::from_io("cannot write what was read", error).with_location(&location)
            })?;
        }
        outcome.recv().unwrap_or_else(|_| {
            Err(Error::new(ErrorKind::Remote, "a request panicked").with_location(&location))
        })
    }
}

/// Receiver that passes bytes on, and waits while the writer is behind.
struct Sending(Sender<Vec<u8>>);

impl Receive for Sending {
    fn bytes(&mut self, bytes: &[u8], _from: Provenance) {
        let piece = bytes.to_vec();
        // The thread's other requests go on elsewhere meanwhile. A writer that has failed is
        // noticed by the task.
        let _ = tokio::task::block_in_place(|| self.0.blocking_send(piece));
    }

    fn events(&mut self) -> &mut dyn Events {
        self
    }
}

impl Events for Sending {}
