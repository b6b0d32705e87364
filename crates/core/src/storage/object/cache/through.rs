//! Reads objects through the cache: verified bytes from its entry, the others from the store.
//!
//! Requests are widened to whole tiles, so that every tile of what was read is cached: the same
//! read sends no request next time. The receiver gets exactly its range.

use std::ops::Range;
use std::sync::Arc;

use super::buffers::{BUFFER_BYTES, Buffer};
use super::entry::{Entry, Found};
use super::stamp::{bytes_of, tiles};
use crate::error::{Error, Result};
use crate::storage::object::{Hedging, ObjectSource, Receive};
use crate::sync::retry::Retries;

impl ObjectSource {
    /// Reads `range`, which must not be empty, and passes every byte of it to `to` once and in
    /// order. A failed request is retried from where it stopped; a stalled one is hedged once, if
    /// `hedging` allows it.
    pub(crate) async fn read(
        &self,
        range: Range<u64>,
        retries: Retries,
        hedging: Option<&Hedging>,
        to: &mut impl Receive,
    ) -> Result<()> {
        let Some(entry) = self.entry() else {
            return self.read_remote(range, retries, hedging, to).await;
        };
        let mut at = range.start;
        while at < range.end {
            match find(entry, at..range.end).await {
                Found::Bytes(buffer, shown) => {
                    let bytes = &buffer.bytes()[shown];
                    to.cached(bytes);
                    at += bytes.len() as u64;
                }
                Found::Absent(end) => {
                    let wanted = at..end.min(range.end);
                    let asked = bytes_of(&tiles(&wanted), entry.len());
                    let mut tee = Tee::new(to, entry, wanted.clone(), &asked);
                    self.read_remote(asked, retries, hedging, &mut tee).await?;
                    tee.finish();
                    at = wanted.end;
                }
            }
        }
        Ok(())
    }
}

/// Searches on a thread that may block. Nothing is there if that fails.
async fn find(entry: &Arc<Entry>, range: Range<u64>) -> Found {
    let (entry, end) = (Arc::clone(entry), range.end);
    let searched = tokio::task::spawn_blocking(move || entry.find(&range));
    searched.await.unwrap_or(Found::Absent(end))
}

/// Receiver of whole tiles: passes the wanted bytes on, and copies all of them for the cache.
struct Tee<'a, R> {
    to: &'a mut R,
    entry: &'a Arc<Entry>,
    wanted: Range<u64>,
    /// Offset of the next byte.
    at: u64,
    /// End of the tiles.
    end: u64,
    /// Bytes for the cache up to `at`, and their offset.
    copied: Option<(u64, Buffer)>,
}

impl<'a, R: Receive> Tee<'a, R> {
    fn new(to: &'a mut R, entry: &'a Arc<Entry>, wanted: Range<u64>, asked: &Range<u64>) -> Self {
        Self {
            to,
            entry,
            wanted,
            at: asked.start,
            end: asked.end,
            copied: None,
        }
    }

    /// Hands the last bytes over: the response has ended and was as long as it should be.
    fn finish(mut self) {
        self.hand_over();
    }

    fn hand_over(&mut self) {
        if let Some((start, buffer)) = self.copied.take() {
            self.entry.keep(start, buffer);
        }
    }

    /// Copies bytes that begin at `at` for the cache. A stretch of it ends at a multiple of the
    /// buffers' length; one that finds no buffer is left out.
    fn copy(&mut self, mut bytes: &[u8]) {
        let mut at = self.at;
        while !bytes.is_empty() {
            let next = (at / BUFFER_BYTES as u64 + 1) * BUFFER_BYTES as u64;
            let stretch = next.min(self.end);
            let is_first = at.is_multiple_of(BUFFER_BYTES as u64) || at == self.start();
            if is_first && self.copied.is_none() {
                let buffer = self.entry.buffer(stretch - at);
                self.copied = buffer.map(|buffer| (at, buffer));
            }
            let room = usize::try_from(stretch - at).unwrap_or(usize::MAX);
            let (now, later) = bytes.split_at(bytes.len().min(room));
            if let Some((_, buffer)) = &mut self.copied {
                buffer.push(now);
            }
            at += now.len() as u64;
            bytes = later;
            // The last stretch waits for the end of the response.
            if at == stretch && at != self.end {
                self.hand_over();
            }
        }
    }

    fn start(&self) -> u64 {
        bytes_of(&tiles(&self.wanted), self.end).start
    }
}

impl<R: Receive> Receive for Tee<'_, R> {
    fn requested(&mut self, again: bool) {
        self.to.requested(again);
    }

    fn failed(&mut self, error: &Error) {
        self.to.failed(error);
    }

    fn stalled(&mut self, hedged: bool) {
        self.to.stalled(hedged);
    }

    fn hedge_won(&mut self) {
        self.to.hedge_won();
    }

    fn bytes(&mut self, bytes: &[u8]) {
        let (start, end) = (self.at, self.at + bytes.len() as u64);
        let (from, to) = (start.max(self.wanted.start), end.min(self.wanted.end));
        let index = |offset: u64| usize::try_from(offset - start).unwrap_or(usize::MAX);
        if from < to {
            self.to.bytes(&bytes[index(from)..index(to)]);
        }
        let passed = to.saturating_sub(from);
        self.to.surplus(bytes.len() as u64 - passed);
        self.copy(bytes);
        self.at = end;
    }
}
