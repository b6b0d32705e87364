//! Reads objects through the cache: verified bytes from its entry, the others from the store.
//!
//! Requests are widened to whole tiles, so that every tile of what was read is cached: the same
//! read sends no request next time. The receiver gets exactly its range.

use std::fs::File;
use std::ops::Range;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::Instant;

use super::TOTALS;
use super::arriving::{Arrived, Arriving, TILE};
use super::buffers::BUFFER_BYTES;
use super::claims::Claim;
use super::entry::{Entry, Found, PATIENCE};
use super::stamp::{TILE_BYTES, bytes_of, tiles};
use super::waiting::Announcement;
use crate::error::Result;
use crate::memory::Lease;
use crate::object::{Events, Hedging, ObjectSource, Provenance, Receive};
use crate::sync::retry::Retries;

/// First pause before looking again for what another load requests; each is twice as long as
/// the one before.
const PAUSE_MIN: Duration = Duration::from_millis(2);

/// Longest pause.
const PAUSE_MAX: Duration = Duration::from_millis(50);

/// Most full buffers of a request that are written together: 4 MiB. A write costs some 50 µs for
/// waking a thread and waiting for the disk.
const WRITTEN_TOGETHER: usize = 4;

/// Time since the last write after which the next full buffer is written at once, so that loads
/// that wait for its tiles wait little. A response that stalls keeps up to three full buffers until
/// it goes on, fails, or the disk's buffers become few.
const HELD_MAX: Duration = Duration::from_millis(if cfg!(test) { 3_600_000 } else { 500 });

impl ObjectSource {
    /// Reads `range`, which must not be empty, and passes every byte of it to `to` once and in
    /// order. A failed request is retried from where it stopped; a stalled one is hedged once, if
    /// `hedging` allows it.
    pub async fn read(
        &self,
        range: Range<u64>,
        retries: Retries,
        hedging: Option<&Hedging>,
        to: &mut impl Receive,
    ) -> Result<()> {
        let Some(entry) = self.entry() else {
            let _turn = turn(to.turns()).await;
            return self.read_anywhere(range, retries, hedging, to).await;
        };
        let (mut at, mut waits) = (range.start, Waits::default());
        while at < range.end {
            match find(entry, at..range.end).await {
                Found::Bytes(buffer, shown) => {
                    let bytes = &buffer.bytes()[shown];
                    self.add_cached_bytes();
                    to.bytes(bytes, Provenance::Cache);
                    waits = Waits::default();
                    at += bytes.len() as u64;
                }
                Found::Absent(end) => {
                    let absent = at..end.min(range.end);
                    // Wait for a turn before claiming the range, because other loads wait for
                    // claims.
                    let Some(turn) = waits.turn(entry, to.turns(), at).await else {
                        continue;
                    };
                    let Some((wanted, claim)) = waits.claim(entry, self.claims(), &absent) else {
                        drop(turn);
                        waits.pause(entry).await;
                        continue;
                    };
                    waits.announced = None;
                    let asked = bytes_of(&tiles(&wanted), entry.len());
                    let mut tee = Tee::new(to, entry, wanted.clone(), &asked, claim);
                    let read = self.read_anywhere(asked, retries, hedging, &mut tee).await;
                    read.map_err(|error| self.without_stale_answer(error))?;
                    tee.finish();
                    at = wanted.end;
                }
            }
        }
        Ok(())
    }
}

impl Entry {
    /// Returns a range, on this thread; `None` if some of it is not there.
    pub(crate) fn find_all(&self, range: Range<u64>) -> Option<Vec<u8>> {
        let mut found = Vec::new();
        let mut at = range.start;
        while at < range.end {
            let Found::Bytes(buffer, shown) = self.find(&(at..range.end)) else {
                return None;
            };
            found.extend_from_slice(&buffer.bytes()[shown]);
            at = range.start + found.len() as u64;
        }
        Some(found)
    }
}

/// Searches on a thread that may block. Nothing is there if that fails.
async fn find(entry: &Arc<Entry>, range: Range<u64>) -> Found {
    let (entry, end) = (Arc::clone(entry), range.end);
    let searched = tokio::task::spawn_blocking(move || entry.find(&range));
    searched.await.unwrap_or(Found::Absent(end))
}

/// Waits until a request may be sent. It may as long as the returned permit is held.
async fn turn(turns: Option<&'static Semaphore>) -> Option<SemaphorePermit<'static>> {
    turns?.acquire().await.ok()
}

/// Waits for tiles that another load requests.
#[derive(Default)]
struct Waits {
    pause: Duration,
    /// True after a search in vain for a tile that had been written.
    is_certain: bool,
    announced: Option<Announcement>,
    /// Last write to the entry, and since when it has been the last one.
    seen: Option<(Option<SystemTime>, Instant)>,
}

impl Waits {
    /// Waits for a [`turn`]; `None` if the byte at `at`, which was absent, has been written
    /// meanwhile: what is there needs none.
    async fn turn(
        &mut self,
        entry: &Entry,
        turns: Option<&'static Semaphore>,
        at: u64,
    ) -> Option<Option<SemaphorePermit<'static>>> {
        let mut turn = pin!(turn(turns));
        loop {
            tokio::select! {
                biased;
                turn = &mut turn => return Some(turn),
                () = tokio::time::sleep(PAUSE_MAX) => if self.is_new(entry, at / TILE_BYTES) {
                    return None;
                },
            }
        }
    }

    /// Returns whether a tile has been written since the search. Once only: it may turn out to be
    /// unreadable.
    fn is_new(&mut self, entry: &Entry, tile: u64) -> bool {
        if self.is_certain || entry.is_absent(tile) {
            return false;
        }
        (self.is_certain, self.pause) = (true, Duration::ZERO);
        true
    }

    /// Claims the beginning of a range, none of which was there a moment ago. `None` if another
    /// load has claimed it and still writes, or has just written it.
    fn claim(
        &mut self,
        entry: &Entry,
        of_load: Option<&Arc<File>>,
        range: &Range<u64>,
    ) -> Option<(Range<u64>, Claim)> {
        let mut wanted = tiles(range);
        loop {
            let claim = entry.claim(of_load, &wanted);
            let claim = match claim {
                None if entry.is_alone.load(Ordering::Relaxed) => {
                    wanted = tiles(range);
                    Claim::without_lock(wanted.clone())
                }
                None if wanted.end - wanted.start > 1 => {
                    // The other load may have claimed the end of the range.
                    wanted.end -= (wanted.end - wanted.start) / 2;
                    continue;
                }
                None if self.is_patient(entry) => return None,
                None => {
                    // This load now holds the claim; the other load's progress is unknown.
                    entry.is_alone.store(true, Ordering::Relaxed);
                    continue;
                }
                Some(claim) => claim,
            };
            if self.is_new(entry, wanted.start) {
                return None;
            }
            let end = bytes_of(&wanted, entry.len()).end;
            // If the entry is not written to, release the claim: other loads would wait for tiles
            // that never appear.
            let claim = if entry.is_written() {
                claim
            } else {
                Claim::without_lock(wanted)
            };
            return Some((range.start..end.min(range.end), claim));
        }
    }

    /// Returns whether the other load has written anything lately.
    fn is_patient(&mut self, entry: &Entry) -> bool {
        self.pause = (self.pause * 2).clamp(PAUSE_MIN, PAUSE_MAX);
        let last = entry.last_written();
        match self.seen {
            Some((seen, since)) if seen == last => since.elapsed() < PATIENCE,
            _ => {
                self.seen = Some((last, Instant::now()));
                true
            }
        }
    }

    async fn pause(&mut self, entry: &Arc<Entry>) {
        self.announced.get_or_insert_with(|| entry.announce());
        let started = Instant::now();
        tokio::time::sleep(self.pause).await;
        TOTALS.lock().claim_wait += started.elapsed();
    }
}

/// Receiver of whole tiles: passes the wanted bytes on, and copies all of them for the cache.
struct Tee<'a, R: Receive> {
    to: &'a mut R,
    entry: &'a Arc<Entry>,
    wanted: Range<u64>,
    /// Offset of the next byte.
    at: u64,
    /// End of the tiles.
    end: u64,
    /// Bytes for the cache up to `at`.
    copied: Option<Arriving>,
    /// Full buffers before those bytes.
    full: Vec<Arrived>,
    /// Time of the last write.
    since: Instant,
    /// True after a stretch that found no buffer. The rest is left out too: a later load then sends
    /// one request for it, as without a cache, and not one for each gap.
    is_left_out: bool,
    claim: Arc<Claim>,
}

impl<'a, R: Receive> Tee<'a, R> {
    fn new(
        to: &'a mut R,
        entry: &'a Arc<Entry>,
        wanted: Range<u64>,
        asked: &Range<u64>,
        claim: Claim,
    ) -> Self {
        Self {
            to,
            entry,
            wanted,
            at: asked.start,
            end: asked.end,
            copied: None,
            full: Vec::new(),
            since: Instant::now(),
            is_left_out: false,
            claim: Arc::new(claim),
        }
    }

    /// Leaves out the current stretch and the rest of the response: only the origin's bytes are
    /// cached, and no digest has confirmed these yet. Others need not wait for them.
    fn leave_out(&mut self) {
        if !self.is_left_out || self.copied.is_some() {
            let reason =
                "bytes of mirrors are not cached, since only the origin says what is right";
            self.entry.shared.note(reason);
        }
        (self.is_left_out, self.copied) = (true, None);
        self.hand_over();
        self.claim = Arc::new(Claim::without_lock(tiles(&self.wanted)));
    }

    /// Hands the last bytes over: the response has ended and was as long as it should be.
    fn finish(mut self) {
        self.end_stretch();
    }

    fn end_stretch(&mut self) {
        self.full.extend(self.copied.take().map(Arriving::finish));
        let is_due = self.full.len() == WRITTEN_TOGETHER || self.since.elapsed() > HELD_MAX;
        if is_due || !self.entry.shared.disk.supplies.writes.has_many() {
            self.hand_over();
        }
    }

    fn hand_over(&mut self) {
        self.since = Instant::now();
        if !self.full.is_empty() {
            let claim = Some(Arc::clone(&self.claim));
            self.entry.keep(std::mem::take(&mut self.full), claim);
        }
    }

    /// Copies bytes that begin at `at` for the cache. A stretch of it ends at a multiple of the
    /// buffers' length; one that finds no buffer is left out, with those behind it.
    fn copy(&mut self, mut bytes: &[u8]) {
        let mut at = self.at;
        while !bytes.is_empty() {
            let next = (at / BUFFER_BYTES as u64 + 1) * BUFFER_BYTES as u64;
            let stretch = next.min(self.end);
            let is_first = at.is_multiple_of(BUFFER_BYTES as u64) || at == self.start();
            if is_first && self.copied.is_none() {
                let buffer = (!self.is_left_out).then(|| self.buffer()).flatten();
                self.is_left_out = buffer.is_none();
                self.copied = buffer.map(|buffer| Arriving::new(at, buffer));
                if self.is_left_out {
                    self.entry.leave_out(stretch - at);
                }
            }
            let room = usize::try_from(stretch - at).unwrap_or(usize::MAX);
            let (now, later) = bytes.split_at(bytes.len().min(room));
            if let Some(copied) = &mut self.copied {
                copied.push(now);
            }
            at += now.len() as u64;
            bytes = later;
            // The last stretch is handed over at the end of the response.
            if at == stretch && at != self.end {
                self.end_stretch();
            }
        }
    }

    /// Returns a buffer, after waiting for the disk if the load does that.
    fn buffer(&mut self) -> Option<Lease> {
        let buffer = self.entry.buffer();
        if buffer.is_none() {
            self.hand_over();
        }
        // `block_in_place` lets other threads continue this thread's other requests.
        let wait = || tokio::task::block_in_place(|| self.entry.wait_for_buffer());
        buffer.or_else(|| self.entry.waits().then(wait)?)
    }

    fn start(&self) -> u64 {
        bytes_of(&tiles(&self.wanted), self.end).start
    }

    fn piece(&mut self, bytes: &[u8], from: Provenance) {
        let (start, end) = (self.at, self.at + bytes.len() as u64);
        let (first, last) = (start.max(self.wanted.start), end.min(self.wanted.end));
        let index = |offset: u64| usize::try_from(offset - start).unwrap_or(usize::MAX);
        if first < last {
            self.to.bytes(&bytes[index(first)..index(last)], from);
        }
        let passed = last.saturating_sub(first);
        self.events().surplus(bytes.len() as u64 - passed);
        match from {
            Provenance::Mirror => self.leave_out(),
            Provenance::Origin | Provenance::Cache => self.copy(bytes),
        }
        self.at = end;
    }
}

/// Full buffers are kept even if the request fails.
impl<R: Receive> Drop for Tee<'_, R> {
    fn drop(&mut self) {
        self.hand_over();
    }
}

impl<R: Receive> Receive for Tee<'_, R> {
    fn bytes(&mut self, bytes: &[u8], from: Provenance) {
        // A piece is read three times, for the receiver, for the cache and for its checksum: the
        // last two times from the processor's cache.
        bytes.chunks(TILE).for_each(|piece| self.piece(piece, from));
    }

    fn events(&mut self) -> &mut dyn Events {
        self.to.events()
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::opened;
    use super::*;

    struct Nothing;

    impl Events for Nothing {}

    impl Receive for Nothing {
        fn bytes(&mut self, _bytes: &[u8], _from: Provenance) {}

        fn events(&mut self) -> &mut dyn Events {
            self
        }
    }

    /// A later load sends one request for what is missing, not one for each gap.
    #[test]
    fn rest_of_a_request_is_left_out_with_the_first_bytes_that_find_no_buffer() {
        let folder = tempfile::tempdir().expect("a folder");
        let all = 0..4 * BUFFER_BYTES as u64;
        let (cache, entry) = opened(folder.path(), all.end);
        let mut to = Nothing;
        let claim = Claim::without_lock(tiles(&all));
        let mut tee = Tee::new(&mut to, &entry, all.clone(), &all, claim);
        let bytes = vec![7; BUFFER_BYTES];
        let dropped = || cache.report().dropped_bytes;
        tee.bytes(&bytes, Provenance::Origin);
        let held: Vec<_> = std::iter::from_fn(|| entry.buffer()).collect();
        tee.bytes(&bytes, Provenance::Origin);
        assert_eq!(dropped(), BUFFER_BYTES as u64);
        drop(held);
        tee.bytes(&bytes, Provenance::Origin);
        tee.bytes(&bytes, Provenance::Origin);
        tee.finish();
        assert_eq!(dropped(), 3 * BUFFER_BYTES as u64);
    }

    #[test]
    fn response_is_written_in_few_calls_also_when_it_fails() {
        let mib = |count: u64| count * BUFFER_BYTES as u64;
        let all = 0..mib(11) + 100;
        let bytes: Vec<u8> = (0..=250).cycle().take(11 * BUFFER_BYTES + 100).collect();
        for (came, there, calls) in [(bytes.len(), all.end, 3), (7 * BUFFER_BYTES - 1, mib(6), 2)] {
            let folder = tempfile::tempdir().expect("a folder");
            let (_cache, entry) = opened(folder.path(), all.end);
            let mut to = Nothing;
            let claim = Claim::without_lock(tiles(&all));
            let mut tee = Tee::new(&mut to, &entry, all.clone(), &all, claim);
            tee.bytes(&bytes[..came], Provenance::Origin);
            if came == bytes.len() {
                tee.finish();
            } else {
                drop(tee);
            }
            let minute = Duration::from_secs(60);
            assert!(crate::object::cache::finish_caching(minute));
            let found = entry.find_all(0..there).expect("is there");
            assert!(
                bytes.starts_with(&found) && (there == all.end || !entry.has(&(there..all.end)))
            );
            // The file system may refuse the first direct write.
            let made = entry.calls.load(Ordering::Relaxed);
            assert!(
                (calls..=calls + 1).contains(&made),
                "{made} calls, wanted {calls}"
            );
        }
    }

    #[test]
    fn bytes_of_mirrors_are_not_cached() {
        let folder = tempfile::tempdir().expect("a folder");
        let all = 0..4 * BUFFER_BYTES as u64;
        let (cache, entry) = opened(folder.path(), all.end);
        let bytes = vec![7; BUFFER_BYTES];
        for (from, kept) in [
            ([Provenance::Mirror; 4], 0),
            // Neither the stretch in which the mirror's bytes begin nor those behind it.
            (
                [
                    Provenance::Origin,
                    Provenance::Mirror,
                    Provenance::Origin,
                    Provenance::Origin,
                ],
                1,
            ),
            ([Provenance::Origin; 4], 4),
        ] {
            let mut to = Nothing;
            let claim = Claim::without_lock(tiles(&all));
            let mut tee = Tee::new(&mut to, &entry, all.clone(), &all, claim);
            for from in from {
                tee.bytes(&bytes, from);
            }
            tee.finish();
            assert!(crate::object::cache::finish_caching(Duration::from_secs(
                60
            )));
            let there = kept * BUFFER_BYTES as u64;
            assert!(there == 0 || entry.has(&(0..there)), "{from:?}");
            assert!(
                there == all.end || !entry.has(&(there..there + 1)),
                "{from:?}"
            );
        }
        let reason = cache.report().reason.expect("is said");
        assert!(reason.contains("mirrors"), "{reason}");
    }

    static NO_TURNS: Semaphore = Semaphore::const_new(0);

    /// Another request may bring them long before there is a turn.
    #[test]
    fn bytes_that_have_arrived_wait_for_no_turn() {
        let folder = tempfile::tempdir().expect("a folder");
        let (_cache, entry) = opened(folder.path(), TILE_BYTES);
        let bytes = vec![7; TILE];
        let runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = { runtime }.enable_time().build().expect("a runtime");
        let mut waits = Waits::default();
        runtime.block_on(async {
            let turn = waits.turn(&entry, Some(&NO_TURNS), 0);
            let turn = tokio::time::timeout(Duration::from_secs(60), turn);
            let mut arriving = Arriving::new(0, entry.buffer().expect("a buffer"));
            arriving.push(&bytes);
            let written = async { entry.write(&[arriving.finish()]) };
            let (turn, written) = futures_util::join!(turn, written);
            written.expect("is written");
            assert!(turn.expect("ends").is_none());
            // Found unreadable, they have to be requested.
            let turn = waits.turn(&entry, Some(&NO_TURNS), 0);
            let turn = tokio::time::timeout(2 * PAUSE_MAX, turn);
            assert!(turn.await.is_err());
        });
    }
}
