//! Files of one entry: an object's bytes at their offsets, and a stamp for each tile of them.
//!
//! ```text
//!  v1/3f/3f2a…/contents.safetensors   sparse; a plain file once every tile is present
//!             /stamps                 see `stamp.rs`; locked (shared) while the entry is open
//!             /claims                 empty; its locks are described in `claims.rs`
//!             /entry.json             for people: URL without secrets, validators, length
//! ```
//!
//! Bytes are returned only if they match their stamp. Several processes may write the same tile:
//! they write the same bytes, since the entry's name includes the object's validator.

mod presence;

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, IoSlice};
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;

use super::Shared;
use super::arriving::{Arrived, Arriving, TILE};
use super::buffers::{ALIGNMENT, BUFFER_BYTES, BUFFER_TILES};
use super::claims::Claim;
use super::files::{Place, describe, open_file, set_direct};
use super::open_entries::OpenEntry;
use super::stamp::{STAMP_BYTES, TILE_BYTES, TILE_CRC, bytes_of, checksum, stamp, stamped, tiles};
use crate::Identity;
use crate::memory::{Filled, Lease};
use crate::sync::lock::Mutex;
use crate::sync::per_process::process_id;

/// Name of the file of stamps.
pub(super) const STAMPS: &str = "stamps";

/// Name of the empty file whose locks are the claims. Not that of the stamps: on some network file
/// systems both kinds of locks are one.
const CLAIMS: &str = "claims";

/// Name of the description.
pub(super) const DESCRIPTION: &str = "entry.json";

/// Number of damaged tiles after which the rest of an entry is not read either: each costs a
/// request of its own.
const DAMAGED_MAX: usize = 16;

/// Most tiles that one search looks at.
const SEARCHED_TILES: usize = 1024;

/// Number of tiles, 16 MiB, whose requests take little time however they are sent.
const FEW_TILES: u64 = 256;

/// Attempts to open an entry that is being evicted.
const ATTEMPTS: usize = 10;

/// Time after which a process that has written nothing to an entry, or a disk that has taken
/// nothing, no longer delays loads: it may be stopped, or never answer.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// Pause before another attempt.
const EVICTION_PAUSE: Duration = Duration::from_millis(1);

/// Entry that is open: it is not evicted meanwhile.
#[derive(Debug)]
pub struct Entry {
    pub(super) shared: Arc<Shared>,
    place: Place,
    /// Name of the file of the contents.
    name: &'static str,
    len: u64,
    seed: u64,
    contents: File,
    stamps: File,
    #[expect(dead_code, reason = "counts until the entry is closed")]
    open: OpenEntry,
    /// Process that opened the entry: forked processes share the lock of the stamps.
    process: u32,
    pub(super) claims: Option<Arc<File>>,
    pub(super) is_writable: bool,
    is_direct: AtomicBool,
    /// Number of calls that wrote whole sectors.
    pub(super) calls: AtomicU64,
    /// Damaged tiles, whose stamps stay where the cache cannot be written to.
    damaged: Mutex<BTreeSet<u64>>,
    /// Set when the bytes turn out to be wrong.
    is_cleared: AtomicBool,
    /// Number of reads that wait for tiles that other openings have claimed.
    pub(super) waiting: Mutex<usize>,
    /// Last time when a read of any opening waited.
    pub(super) contended: Mutex<Option<Instant>>,
    /// Set when another process that has claimed tiles stands still: loads no longer wait.
    pub(super) is_alone: AtomicBool,
}

/// Result of a search for a range.
#[derive(Debug)]
pub(super) enum Found {
    /// Verified bytes from the beginning of the range, and where they are in the buffer.
    Bytes(Filled, Range<usize>),
    /// Nothing is there up to this offset.
    Absent(u64),
}

impl Entry {
    /// Opens an entry, and creates it if it does not exist. `name` is that of the file of its
    /// contents.
    ///
    /// # Errors
    ///
    /// Errors of the file system.
    pub(super) fn open(
        shared: &Arc<Shared>,
        place: &Place,
        name: &'static str,
        len: u64,
        description: &str,
    ) -> io::Result<Self> {
        let mut failure = io::Error::other("the entry is being evicted");
        for _ in 0..ATTEMPTS {
            let opened = place.open(true).and_then(|folder| {
                let (stamps, is_writable) = open_file(&folder, STAMPS)?;
                Ok((folder, stamps, is_writable))
            });
            let (folder, stamps, is_writable) = match opened {
                // Another process evicted the entry right after its directory was created.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    failure = error;
                    continue;
                }
                opened => opened?,
            };
            // `flock` fails on file systems without locks. Other processes may then evict an entry
            // in use, which stays readable.
            let locked = flock(&stamps, FlockOperation::NonBlockingLockShared);
            let open = match locked {
                Err(Errno::WOULDBLOCK) => None,
                Ok(()) | Err(_) => OpenEntry::new(&stamps)?,
            };
            let Some(open) = open else {
                // Another process holds the lock to evict the entry: it moves it away within
                // microseconds.
                pause();
                continue;
            };
            match place.open(false).and_then(|folder| folder.stat(STAMPS)) {
                Ok(there) if there.st_ino == stamps.metadata()?.ino() => {}
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                // Evicted before the lock was taken.
                Ok(_) | Err(_) => continue,
            }
            let (contents, is_also_writable) = open_file(&folder, name)?;
            let is_writable = is_writable && is_also_writable;
            if is_writable {
                if contents.metadata()?.len() != len {
                    contents.set_len(len)?;
                }
                describe(&folder, description)?;
                // Record the last use for eviction. The present is the only time that a process may
                // set on a file of another user that it can write to.
                if stamps.set_modified(SystemTime::now()).is_err() {
                    let _ = folder.touch(STAMPS);
                }
            } else {
                shared.stop("the cache directory cannot be written to");
            }
            let claims = is_writable.then(|| open_file(&folder, CLAIMS));
            return Ok(Self {
                claims: claims.and_then(|opened| Some(Arc::new(opened.ok()?.0))),
                shared: Arc::clone(shared),
                place: place.clone(),
                name,
                len,
                seed: seed_of(&place.name),
                is_direct: AtomicBool::new(set_direct(&contents, true)),
                calls: AtomicU64::new(0),
                contents,
                stamps,
                open,
                is_writable,
                damaged: Mutex::default(),
                process: process_id(),
                is_cleared: AtomicBool::new(false),
                waiting: Mutex::default(),
                contended: Mutex::default(),
                is_alone: AtomicBool::new(false),
            });
        }
        Err(failure)
    }

    /// Path of the object's bytes.
    pub fn path(&self) -> PathBuf {
        self.place.path().join(self.name)
    }

    /// Returns whether a file that was opened by this path is that of the object's bytes.
    pub fn is_file(&self, found: Identity) -> bool {
        let own = self.contents.metadata();
        own.is_ok_and(|own| (own.dev(), own.ino()) == (found.device, found.inode))
    }

    /// Returns whether the first `len` bytes of a window at `offset`, whole tiles, are those that
    /// were written. Damaged tiles are absent from then on.
    pub fn verify(&self, offset: u64, filled: &Filled, len: usize) -> bool {
        let run = tiles(&(offset..offset + len as u64));
        let stamps = self.stamps_of(&run);
        let mut is_good = !self.is_cleared();
        for ((tile, start), stamp) in run.zip((0..len).step_by(TILE)).zip(stamps) {
            let found = filled.crc(TILE_CRC, start..len.min(start + TILE));
            if stamp.map(u64::from) != Some(found) {
                is_good = false;
                if stamp.is_some() {
                    self.forget(tile);
                }
            }
        }
        is_good
    }

    /// Length of the object, bytes.
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// Keeps the first bytes of the object unless they are already there.
    pub(crate) fn keep_first(self: &Arc<Self>, bytes: &[u8]) {
        let len = bytes.len() as u64;
        let whole = if len == self.len {
            len
        } else {
            len - len % TILE_BYTES
        };
        let mut at = 0;
        while at < whole {
            let end = (at + BUFFER_BYTES as u64).min(whole);
            let missing = self.stamps_of(&tiles(&(at..end)));
            if missing.iter().any(Option::is_none) {
                let wait = || self.waits().then(|| self.wait_for_buffer())?;
                let index = |at: u64| usize::try_from(at).unwrap_or(usize::MAX);
                match self.buffer().or_else(wait) {
                    Some(buffer) => {
                        let mut arriving = Arriving::new(at, buffer);
                        arriving.push(&bytes[index(at)..index(end)]);
                        self.keep(vec![arriving.finish()], None);
                    }
                    None => self.leave_out(end - at),
                }
            }
            at = end;
        }
    }

    /// Returns a file of claims that no other load of this opening has: the locks of one open file
    /// do not exclude each other. A lone load takes the file that is open already.
    pub(crate) fn claims_of_load(&self) -> Option<Arc<File>> {
        let own = Arc::clone(self.claims.as_ref()?);
        // Two owners are left: the entry and this variable.
        if Arc::strong_count(&own) == 2 {
            return Some(own);
        }
        let folder = self.place.open(false);
        let opened = folder.and_then(|folder| open_file(&folder, CLAIMS));
        Some(opened.map_or(own, |(file, _)| Arc::new(file)))
    }

    /// Claims tiles, so that no other load requests them; `None` if another one has claimed some of
    /// them. A load passes its own file of claims.
    pub(super) fn claim(&self, of_load: Option<&Arc<File>>, tiles: &Range<u64>) -> Option<Claim> {
        let Some(file) = of_load.or(self.claims.as_ref()) else {
            return Some(Claim::without_lock(tiles.clone()));
        };
        Claim::try_new(file, tiles.clone())
    }

    /// Returns whether a tile has not been written.
    pub(super) fn is_absent(&self, tile: u64) -> bool {
        self.is_distrusted() || self.is_cleared() || self.stamps_of(&(tile..tile + 1))[0].is_none()
    }

    /// Returns the time of the last write to the entry, by any process. That of the stamps would
    /// be the time of the last opening.
    pub(super) fn last_written(&self) -> Option<SystemTime> {
        self.contents.metadata().ok()?.modified().ok()
    }

    /// Looks for a range, which is not empty. Blocks.
    pub(super) fn find(&self, range: &Range<u64>) -> Found {
        let mut wanted = tiles(range);
        wanted.end = wanted.end.min(wanted.start + SEARCHED_TILES as u64);
        let all = || Found::Absent(bytes_of(&wanted, self.len).end);
        if self.is_distrusted() || self.is_cleared() {
            return all();
        }
        let near = wanted.start..wanted.end.min(wanted.start + BUFFER_TILES as u64);
        let present: Vec<u32> = (self.stamps_of(&near).into_iter())
            .map_while(|stamp| stamp)
            .collect();
        if present.is_empty() {
            let stamps = self.stamps_of(&wanted);
            let absent = stamps.iter().take_while(|stamp| stamp.is_none()).count() as u64;
            let run = wanted.start..wanted.start + absent.max(1);
            return Found::Absent(bytes_of(&run, self.len).end);
        }
        let supply = self.shared.disk.supplies.for_read(present.len());
        let Some(mut buffer) = supply.wait(PATIENCE) else {
            return all();
        };
        let mut run = near.start..near.start + present.len() as u64;
        let read = |run: &Range<u64>, buffer: &mut Lease| {
            let bytes = bytes_of(run, self.len);
            self.read(bytes.start, bytes.end, buffer)
        };
        let came = read(&run, &mut buffer).unwrap_or_else(|_| {
            // One bad sector fails the whole read. Retry tile by tile, since the other tiles are
            // not damaged.
            run.end = run.start + 1;
            read(&run, &mut buffer).unwrap_or(0)
        });
        let bytes = bytes_of(&run, self.len);
        let buffer = buffer.written(came);
        let is_good: Vec<bool> = (run.clone().zip(present))
            .map(|(tile, crc)| {
                let tile = bytes_of(&(tile..tile + 1), self.len);
                let from = usize::try_from(tile.start - bytes.start).unwrap_or(usize::MAX);
                let to = usize::try_from(tile.end - bytes.start).unwrap_or(usize::MAX);
                let tile = buffer.bytes().get(from..to);
                tile.is_some_and(|tile| checksum(tile) == crc)
            })
            .collect();
        for (tile, is_good) in run.clone().zip(&is_good) {
            if !is_good {
                self.forget(tile);
            }
        }
        let alike = is_good.iter().take_while(|is| **is == is_good[0]).count() as u64;
        let end = bytes_of(&(run.start..run.start + alike), self.len).end;
        if !is_good[0] {
            return Found::Absent(end);
        }
        let skipped = usize::try_from(range.start - bytes.start).unwrap_or(usize::MAX);
        let shown = usize::try_from(end.min(range.end) - bytes.start).unwrap_or(usize::MAX);
        Found::Bytes(buffer, skipped..shown)
    }

    /// Returns the checksums of tiles that have been written.
    fn stamps_of(&self, tiles: &Range<u64>) -> Vec<Option<u32>> {
        let count = usize::try_from(tiles.end - tiles.start).unwrap_or(usize::MAX);
        let mut bytes = vec![0; count * STAMP_BYTES];
        let mut came = 0;
        while came < bytes.len() {
            let at = tiles.start * STAMP_BYTES as u64 + came as u64;
            match self.stamps.read_at(&mut bytes[came..], at) {
                Ok(0) => break,
                Ok(more) => came += more,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
        bytes[came..].fill(0);
        let stamps = bytes.chunks_exact(STAMP_BYTES);
        let numbered = tiles.clone().zip(stamps);
        numbered
            .map(|(tile, found)| stamped(self.seed, tile, found))
            .collect()
    }

    /// Reads into the buffer, up to the offset `end`, and returns how many bytes came.
    fn read(&self, start: u64, end: u64, buffer: &mut Lease) -> io::Result<usize> {
        let wanted = usize::try_from(end - start).unwrap_or(usize::MAX);
        // Direct I/O reads whole sectors, except at the end of the file.
        let asked = wanted.next_multiple_of(ALIGNMENT).min(buffer.len());
        let mut came = 0;
        while came < wanted {
            let at = start + came as u64;
            let was_direct = self.is_direct.load(Ordering::Acquire);
            match self.contents.read_at(buffer.bytes_mut(came..asked), at) {
                Ok(0) => break,
                Ok(more) => came += more,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => self.without_direct(error, was_direct)?,
            }
        }
        Ok(came.min(wanted))
    }

    /// Writes neighbours, whole tiles, with one call, and then their stamps. Blocks.
    ///
    /// # Errors
    ///
    /// Errors of the file system.
    pub(super) fn write(&self, all: &[Arrived]) -> io::Result<u64> {
        let Some((last, before)) = all.split_last().filter(|_| !self.is_cleared()) else {
            // The entry was cleared after this write was queued, so its bytes may be wrong.
            return Ok(0);
        };
        let (mut at, end) = (all[0].start, last.start + last.bytes().len() as u64);
        let (run, len) = (tiles(&(at..end)), end - at);
        let checksums = || all.iter().flat_map(|one| one.checksums.iter().copied());
        if !self.is_distrusted() && checksums().map(Some).eq(self.stamps_of(&run)) {
            // Another process has written these tiles.
            return Ok(0);
        }
        let (whole, rest) = last
            .bytes()
            .split_at(last.bytes().len() / ALIGNMENT * ALIGNMENT);
        let before = before.iter().map(Arrived::bytes);
        let mut left: Vec<_> = before.chain([whole]).map(IoSlice::new).collect();
        let mut left = &mut left[..];
        // Removes the last one if it is empty and alone.
        IoSlice::advance_slices(&mut left, 0);
        while !left.is_empty() {
            let was_direct = self.is_direct.load(Ordering::Acquire);
            self.calls.fetch_add(1, Ordering::Relaxed);
            match write_at(&self.contents, left, at) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(more) => {
                    at += more as u64;
                    IoSlice::advance_slices(&mut left, more);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => self.without_direct(error, was_direct)?,
            }
        }
        if !rest.is_empty() {
            self.write_rest(at, rest)?;
        }
        let at = run.start * STAMP_BYTES as u64;
        let stamps = run.zip(checksums());
        let stamps = stamps.flat_map(|(tile, crc)| stamp(self.seed, tile, crc));
        self.stamps.write_all_at(&stamps.collect::<Vec<_>>(), at)?;
        if self.is_cleared() {
            // The entry was cleared during this write: drop the stamps that it wrote.
            self.stamps.set_len(0)?;
        }
        Ok(len)
    }

    /// Writes the end of the object, which is no whole sector.
    fn write_rest(&self, start: u64, rest: &[u8]) -> io::Result<()> {
        if !self.is_direct.load(Ordering::Acquire) {
            return self.contents.write_all_at(rest, start);
        }
        let file = self.place.open(false)?.file(self.name, OFlags::WRONLY)?;
        file.write_all_at(rest, start)
    }

    /// Goes on without direct I/O if that may be what the file system refused in a call that began
    /// with it. Other threads may have found out meanwhile.
    fn without_direct(&self, error: io::Error, was_direct: bool) -> io::Result<()> {
        if error.raw_os_error() != Some(Errno::INVAL.raw_os_error()) || !was_direct {
            return Err(error);
        }
        // Switch direct I/O off before the flag: a write that sees the flag off must not be refused
        // because of direct I/O.
        set_direct(&self.contents, false);
        self.is_direct.store(false, Ordering::Release);
        Ok(())
    }

    /// Makes a damaged tile absent.
    fn forget(&self, tile: u64) {
        if self.damaged.lock().insert(tile) {
            self.shared.count_damaged_tile();
        }
        if self.is_writable {
            let nothing = [0; STAMP_BYTES];
            let at = tile * STAMP_BYTES as u64;
            if let Err(error) = self.stamps.write_all_at(&nothing, at) {
                tracing::debug!(%error, "cannot clear the stamp of a damaged tile");
            }
        }
    }

    /// Returns whether so much is damaged that none of the entry is read: all of it is requested
    /// and written again.
    fn is_distrusted(&self) -> bool {
        self.damaged.lock().len() >= DAMAGED_MAX
    }

    pub(super) fn is_cleared(&self) -> bool {
        self.is_cleared.load(Ordering::SeqCst)
    }

    /// Makes all tiles absent: the object's bytes turned out to be wrong. Returns false if they
    /// were before.
    pub(crate) fn clear(&self) -> bool {
        if self.is_cleared.swap(true, Ordering::SeqCst) {
            return false;
        }
        if self.is_writable
            && let Err(error) = self.stamps.set_len(0)
        {
            self.shared.stop(&format!("cannot clear an entry: {error}"));
        }
        true
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        // A forked process shares the lock, which would last as long as that process.
        if self.process == process_id() {
            let _ = flock(&self.stamps, FlockOperation::Unlock);
        }
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "the other process may be stopped: nothing may wait for it"
)]
fn pause() {
    std::thread::sleep(EVICTION_PAUSE);
}

/// Writes some of these bytes, and returns how many.
#[cfg(target_os = "linux")]
fn write_at(file: &File, bytes: &[IoSlice<'_>], at: u64) -> io::Result<usize> {
    Ok(rustix::io::pwritev(file, bytes, at)?)
}

#[cfg(not(target_os = "linux"))]
fn write_at(file: &File, bytes: &[IoSlice<'_>], at: u64) -> io::Result<usize> {
    file.write_at(&bytes[0], at)
}

/// Returns the seed of the stamps of the entry of this name.
pub(super) fn seed_of(name: &str) -> u64 {
    let seed = name.get(..16).map(|seed| u64::from_str_radix(seed, 16));
    seed.and_then(Result::ok).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::super::tests::opened;
    use super::*;

    const LEN: u64 = 1 << 20;

    /// Returns bytes of the object that have arrived.
    fn arrived(entry: &Entry, start: u64, bytes: &[u8]) -> Arrived {
        let mut arriving = Arriving::new(start, entry.buffer().expect("a buffer"));
        arriving.push(bytes);
        arriving.finish()
    }

    fn write(entry: &Entry, start: u64, bytes: &[u8]) {
        let arrived = arrived(entry, start, bytes);
        entry.write(&[arrived]).expect("writes");
    }

    #[test]
    fn neighbours_are_written_with_one_call() {
        const LAST: usize = TILE + 100;
        let folder = tempfile::tempdir().expect("a folder");
        let len = 2 * LEN + LAST as u64;
        let (_cache, entry) = opened(folder.path(), len);
        let all: Vec<u8> = (0..=250).cycle().take(2 * BUFFER_BYTES + LAST).collect();
        let buffers = all.chunks(BUFFER_BYTES).zip((0..).step_by(BUFFER_BYTES));
        let neighbours: Vec<_> = buffers
            .map(|(bytes, start)| arrived(&entry, start, bytes))
            .collect();
        let calls = || entry.calls.load(Ordering::Relaxed);
        let before = calls();
        assert_eq!(entry.write(&neighbours).expect("writes"), len);
        // A file system that refuses direct writes does so at the first call, which is repeated.
        assert!(calls() - before <= 2, "{} calls", calls() - before);
        assert!(entry.find_all(0..len).expect("is there") == all);
        // Another process has written all of them.
        let before = calls();
        assert_eq!(entry.write(&neighbours).expect("writes nothing"), 0);
        assert_eq!(calls(), before);
    }

    /// A fork duplicates the files that are open, with their locks.
    #[test]
    fn lock_ends_with_the_entry_whatever_forked_processes_have() {
        let folder = tempfile::tempdir().expect("a folder");
        let (_cache, entry) = opened(folder.path(), LEN);
        let forked = entry.stamps.try_clone().expect("a duplicate");
        let place = entry.place.open(false).expect("is there");
        let (other, _) = open_file(&place, STAMPS).expect("opens");
        let lock = || flock(&other, FlockOperation::NonBlockingLockExclusive);
        assert_eq!(lock(), Err(Errno::WOULDBLOCK));
        drop(entry);
        assert_eq!(lock(), Ok(()));
        drop(forked);
    }

    #[test]
    fn damaged_tile_counts_once_where_its_stamp_cannot_be_cleared() {
        let folder = tempfile::tempdir().expect("a folder");
        let (cache, entry) = opened(folder.path(), LEN);
        let mut entry = Arc::into_inner(entry).expect("is open once");
        let slab = crate::memory::Slab::new(TILE, 2, Arc::default()).expect("little memory");
        let filled = |byte| {
            let lease = slab.try_lease(TILE).expect("free");
            lease.fill_from(&vec![byte; TILE])
        };
        let right = filled(7);
        write(&entry, 0, right.bytes());
        assert!(entry.verify(0, &right, TILE));
        entry.is_writable = false;
        for _ in 0..DAMAGED_MAX {
            assert!(!entry.verify(0, &filled(8), TILE));
        }
        assert_eq!(cache.report().damaged_bytes, TILE_BYTES);
        assert!(!entry.is_distrusted());
    }

    #[test]
    fn half_of_the_wanted_tiles_is_enough() {
        let folder = tempfile::tempdir().expect("a folder");
        let (_cache, entry) = opened(folder.path(), LEN);
        write(&entry, TILE_BYTES, &vec![7; 2 * TILE]);
        let at = |start: u64, end: u64| start * TILE_BYTES..end * TILE_BYTES;
        let few = |tile: u64, byte: u64| tile * TILE_BYTES + byte..tile * TILE_BYTES + byte + 1;
        for (ranges, wanted) in [
            (vec![at(1, 2)], true),
            (vec![few(1, 5)], true),
            (vec![at(0, 4)], true),
            (vec![at(0, 5)], false),
            (vec![few(0, 5)], false),
            (vec![at(3, 4), few(1, 0)], true),
            // Tiles that several ranges share count once.
            (vec![few(0, 1), few(0, 3), few(0, 5), few(1, 0)], true),
            (vec![], true),
        ] {
            assert_eq!(entry.has_most_of(&ranges), wanted, "{ranges:?}");
        }
    }

    /// The rest is requested for one extent at a time, in short requests of few connections.
    #[test]
    fn large_objects_of_which_much_is_missing_are_not_read_like_files() {
        let folder = tempfile::tempdir().expect("a folder");
        let (_cache, entry) = opened(folder.path(), 8192 * TILE_BYTES);
        for (all, missing) in [(100, 50), (400, 200), (1024, 256), (8192, 512)] {
            let write = |tiles: Range<u64>| {
                let stamps: Vec<u8> = tiles
                    .clone()
                    .flat_map(|it| stamp(entry.seed, it, 7))
                    .collect();
                let at = tiles.start * STAMP_BYTES as u64;
                entry.stamps.write_all_at(&stamps, at).expect("writes");
            };
            entry.stamps.set_len(0).expect("empties");
            let wanted = 0..all * TILE_BYTES;
            let ranges = std::slice::from_ref(&wanted);
            write(missing + 1..all);
            assert!(!entry.has_most_of(ranges), "{missing} of {all}");
            write(missing..missing + 1);
            assert!(entry.has_most_of(ranges), "{missing} of {all}");
        }
    }
}
