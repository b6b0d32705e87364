//! Copies a range of an object to a writer, such as the socket of a client.

use std::convert::Infallible;
use std::io::Write;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{RecvTimeoutError, Sender, unbounded};
use tokio::sync::{Semaphore, oneshot};

use super::{Events, ObjectSource, Provenance, Receive, Source};
use crate::error::{Error, ErrorKind, Result};

/// Most bytes of one read: as many as most requests of a load. Between two reads, nothing of the
/// cache is held.
const READ_BYTES: u32 = 8 << 20;

/// Most bytes between the threads that receive and the writer: one read goes on while the bytes of
/// the one before are written.
const WAITING_BYTES: u32 = 2 * READ_BYTES;

/// Most requests at a time in the process: fewer than the cache has buffers, each of which a
/// request may fill while the others wait for one.
const REQUESTS_MAX: usize = 48;

static REQUESTS: Semaphore = Semaphore::const_new(REQUESTS_MAX);

/// Longest time without bytes until the writer is flushed.
const STEP: Duration = Duration::from_millis(250);

impl ObjectSource {
    /// Reads a range, through the cache if there is one, and writes it to `out` in order. Blocks.
    ///
    /// However slow the writer is, others wait for no part of the cache that this call holds: it
    /// reads what there is memory for, 16 MiB, and goes on when that has been written.
    ///
    /// While no bytes arrive, `out` is flushed several times a second. It returns an error if
    /// nothing is to be written any more: the request is then dropped.
    ///
    /// # Errors
    ///
    /// Errors of the store, translated, and those of the writer. Some of the range may have been
    /// written.
    pub fn copy_to(&self, range: Range<u64>, out: &mut dyn Write) -> Result<()> {
        self.remote().check_process()?;
        let (sender, pieces) = unbounded();
        let waiting = Arc::new(Semaphore::new(WAITING_BYTES as usize));
        let (source, location) = (self.clone(), self.location().clone());
        let mut left = range.end.saturating_sub(range.start);
        let (mut caller, _until_the_end) = oneshot::channel::<Infallible>();
        let written = Arc::clone(&waiting);
        self.remote().spawn(async move {
            let mut sending = Sending(sender);
            let reading = async {
                for (read, bytes) in reads(range) {
                    let room = waiting.acquire_many(bytes).await;
                    room.expect("is never closed").forget();
                    let retries = source.retries();
                    source.read(read, retries, None, &mut sending).await?;
                }
                Ok(())
            };
            let result = tokio::select! {
                biased;
                // The writer has failed, and its error is reported below.
                () = caller.closed() => return,
                result = reading => result,
            };
            if let Err(error) = result {
                let _ = sending.0.send(Err(error));
            }
        });
        let failed =
            |error| Error::from_io("cannot write what was read", error).with_location(&location);
        // Wait for the end of the task, even after the last piece: it may still find an error.
        loop {
            match pieces.recv_timeout(STEP) {
                Ok(piece) => {
                    let piece = piece?;
                    out.write_all(&piece).map_err(failed)?;
                    written.add_permits(piece.len());
                    left -= piece.len() as u64;
                }
                Err(RecvTimeoutError::Timeout) => out.flush().map_err(failed)?,
                Err(RecvTimeoutError::Disconnected) if left == 0 => return Ok(()),
                Err(RecvTimeoutError::Disconnected) => {
                    let panicked = Error::new(ErrorKind::Remote, "a request panicked");
                    return Err(panicked.with_location(&location));
                }
            }
        }
    }
}

/// Returns the reads of a range and their lengths. All but the last end at a multiple of
/// [`READ_BYTES`], which whole tiles of the cache and its buffers fit into.
fn reads(range: Range<u64>) -> impl Iterator<Item = (Range<u64>, u32)> {
    let most = u64::from(READ_BYTES);
    let starts = std::iter::successors(Some(range.start), move |at| Some((at / most + 1) * most));
    starts
        .take_while(move |start| *start < range.end)
        .map(move |start| {
            let end = ((start / most + 1) * most).min(range.end);
            (start..end, u32::try_from(end - start).unwrap_or(READ_BYTES))
        })
}

/// Receiver that passes bytes on at once. There is room for them before they are read.
struct Sending(Sender<Result<Vec<u8>>>);

impl Receive for Sending {
    fn bytes(&mut self, bytes: &[u8], _from: Provenance) {
        // Sending fails if the writer has failed, which the task notices itself.
        let _ = self.0.send(Ok(bytes.to_vec()));
    }

    fn events(&mut self) -> &mut dyn Events {
        self
    }

    fn turns(&self) -> Option<&'static Semaphore> {
        Some(&REQUESTS)
    }
}

impl Events for Sending {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_cover_a_range_once_and_end_at_multiples() {
        let most = u64::from(READ_BYTES);
        for range in [
            0..0,
            0..1,
            5..most,
            5..most + 1,
            most..2 * most,
            7..3 * most + 9,
        ] {
            let mut at = range.start;
            for (read, bytes) in reads(range.clone()) {
                assert_eq!((read.start, read.end - at), (at, u64::from(bytes)));
                assert!(read.end == range.end || read.end.is_multiple_of(most));
                assert!(!read.is_empty() && read.end - at <= most);
                at = read.end;
            }
            assert_eq!(at, range.end);
        }
    }
}
