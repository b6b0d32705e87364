//! Reads a file once, from its first byte to its last, and computes checksums of the whole and of
//! byte ranges.
//!
//! Several reads are in flight at a time, each of one window; they are consumed in order. The whole
//! is hashed on a separate thread, as SHA-256 takes longer than reading. Memory is bounded
//! whatever the length of a file or tensor: `READS_FAR` · 2 + `WINDOWS_WAITING` windows and a few
//! more.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::Scope;

use crc_fast::CrcAlgorithm;
use crossbeam_channel::{Receiver, Sender, bounded};
use sha2::{Digest as _, Sha256};

use super::Shared;
use super::compare::{Computed, Span, Wanted};
use crate::digest::{Algorithm, Digest};
use crate::error::{Error, ErrorKind, Result};
use crate::storage::Source;
use crate::sync::threads::Builder;

/// Length of one read, bytes.
const WINDOW_BYTES: u64 = 4 << 20;

/// Reads in flight for a local file: enough that the next window is there when one has been
/// consumed.
const READS_NEAR: usize = 4;

/// Reads in flight for an object, where each takes a round trip.
const READS_FAR: usize = 8;

/// Windows that wait to be hashed.
const WINDOWS_WAITING: usize = 2;

/// Checksum that is being computed.
enum Running {
    Crc(Algorithm, crc_fast::Digest),
    Sha256(Sha256),
    Blake3(Box<blake3::Hasher>),
}

impl Running {
    fn new(algorithm: Algorithm) -> Self {
        let crc = |crc| Self::Crc(algorithm, crc_fast::Digest::new(crc));
        match algorithm {
            Algorithm::Crc32c => crc(CrcAlgorithm::Crc32Iscsi),
            Algorithm::Crc64Nvme => crc(CrcAlgorithm::Crc64Nvme),
            Algorithm::Crc32 => crc(CrcAlgorithm::Crc32IsoHdlc),
            Algorithm::Sha256 => Self::Sha256(Sha256::new()),
            Algorithm::Blake3 => Self::Blake3(Box::default()),
        }
    }

    fn take(&mut self, bytes: &[u8]) {
        match self {
            Self::Crc(_, crc) => crc.update(bytes),
            Self::Sha256(sha) => sha.update(bytes),
            Self::Blake3(hasher) => {
                hasher.update(bytes);
            }
        }
    }

    fn finish(self) -> Digest {
        let digest = match self {
            Self::Crc(algorithm, crc) => {
                // Either CRC is in the low bytes of the 64 bits.
                let bytes = crc.finalize().to_be_bytes();
                Digest::new(algorithm, &bytes[bytes.len() - algorithm.len()..])
            }
            Self::Sha256(sha) => Digest::new(Algorithm::Sha256, &sha.finalize()),
            Self::Blake3(hasher) => Digest::new(Algorithm::Blake3, hasher.finalize().as_bytes()),
        };
        digest.expect("as many bytes as the algorithm has")
    }
}

/// Set of checksums of the same bytes.
struct Several(Vec<Running>);

impl Several {
    fn new(algorithms: &[Algorithm]) -> Self {
        Self(algorithms.iter().map(|&one| Running::new(one)).collect())
    }

    fn take(&mut self, bytes: &[u8]) {
        self.0.iter_mut().for_each(|one| one.take(bytes));
    }

    fn finish(self) -> Vec<Digest> {
        self.0.into_iter().map(Running::finish).collect()
    }
}

/// Checksums of byte ranges of a file, whose bytes come in order.
struct Spans<'a> {
    waiting: std::collections::btree_map::Iter<'a, Span, Vec<Algorithm>>,
    next: Option<(&'a Span, &'a Vec<Algorithm>)>,
    running: Vec<(Span, Several)>,
    done: BTreeMap<Span, Vec<Digest>>,
}

impl<'a> Spans<'a> {
    fn new(wanted: &'a BTreeMap<Span, Vec<Algorithm>>) -> Self {
        let mut waiting = wanted.iter();
        let next = waiting.next();
        Self {
            waiting,
            next,
            running: Vec::new(),
            done: BTreeMap::new(),
        }
    }

    /// Consumes the bytes from offset `start`.
    fn take(&mut self, start: u64, bytes: &[u8]) {
        let end = start + bytes.len() as u64;
        while let Some((span, algorithms)) = self.next.filter(|(span, _)| span.0 < end) {
            self.running.push((*span, Several::new(algorithms)));
            self.next = self.waiting.next();
        }
        for (span, several) in &mut self.running {
            let inside = |offset: u64| {
                usize::try_from(offset.clamp(start, end) - start).expect("within a window")
            };
            several.take(&bytes[inside(span.0)..inside(span.1)]);
        }
        let ended = self.running.extract_if(.., |(span, _)| span.1 <= end);
        self.done
            .extend(ended.map(|(span, several)| (span, several.finish())));
    }

    /// Returns all digests. Empty ranges at the end of the file have not begun, and are added here.
    fn finish(mut self) -> BTreeMap<Span, Vec<Digest>> {
        let rest = self.next.into_iter().chain(self.waiting);
        self.done.extend(
            rest.filter(|(span, _)| span.0 == span.1)
                .map(|(span, algorithms)| (*span, Several::new(algorithms).finish())),
        );
        self.done
    }
}

/// Computes the digests that are wanted of a file, and requires that the file does not change
/// meanwhile.
///
/// # Errors
///
/// Errors of reading, [`ErrorKind::Changed`], [`ErrorKind::Cancelled`], [`ErrorKind::OutOfMemory`]
/// if no thread can be started.
pub(super) fn compute(source: &dyn Source, wanted: &Wanted, shared: &Shared) -> Result<Computed> {
    let cancel = AtomicBool::new(false);
    let computed = std::thread::scope(|scope| {
        let computed = in_order(scope, source, wanted, shared, &cancel);
        // End readers that wait for a cancelled or failed file.
        cancel.store(true, Ordering::Relaxed);
        computed
    })?;
    match source.as_file() {
        Some(file) => file.verify_present()?,
        None => source.verify_unchanged()?,
    }
    Ok(computed)
}

fn in_order<'scope, 'env>(
    scope: &'scope Scope<'scope, 'env>,
    source: &'env dyn Source,
    wanted: &'env Wanted,
    shared: &'env Shared,
    cancel: &'env AtomicBool,
) -> Result<Computed> {
    let readers = read(scope, source, cancel)?;
    let (sender, receiver) = bounded::<Arc<Vec<u8>>>(WINDOWS_WAITING);
    let whole = Builder::new()
        .spawn_scoped(scope, move || {
            let mut several = Several::new(&wanted.whole);
            receiver.iter().for_each(|bytes| several.take(&bytes));
            several.finish()
        })
        .map_err(Error::cannot_start_thread)?;
    let mut spans = Spans::new(&wanted.spans);
    for (index, range) in windows(source.len()).enumerate() {
        if shared.is_cancelled() {
            return Err(crate::full_scan::cancelled());
        }
        let Ok(window) = readers[index % readers.len()].recv() else {
            return Err(Error::new(ErrorKind::Io, "a reading thread ended early")
                .with_location(source.location())
                .with_hint("this is a bug in tload; please report it"));
        };
        let bytes = Arc::new(window?);
        if bytes.len() as u64 != range.end - range.start {
            let message = "is shorter than when it was opened";
            return Err(Error::new(ErrorKind::Changed, message)
                .with_location(source.location())
                .with_range(range));
        }
        // Sending cannot fail: the receiver lives as long as the sender.
        let _ = sender.send(Arc::clone(&bytes));
        spans.take(range.start, &bytes);
        shared.done(bytes.len() as u64);
    }
    drop(sender);
    let whole = whole.join();
    Ok(Computed {
        whole: whole.unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
        spans: spans.finish(),
    })
}

/// Starts the reading threads: the first has the first window and then every `count`-th, the next
/// starts with the second. Each keeps one window ready.
fn read<'scope, 'env>(
    scope: &'scope Scope<'scope, 'env>,
    source: &'env dyn Source,
    cancel: &'env AtomicBool,
) -> Result<Vec<Receiver<Result<Vec<u8>>>>> {
    let most = if source.as_object().is_some() {
        READS_FAR
    } else {
        READS_NEAR
    };
    let count = windows(source.len()).count().clamp(1, most);
    let mut receivers = Vec::with_capacity(count);
    for first in 0..count {
        let (sender, receiver): (Sender<Result<Vec<u8>>>, _) = bounded(1);
        let work = move || {
            for range in windows(source.len()).skip(first).step_by(count) {
                if cancel.load(Ordering::Relaxed) {
                    return;
                }
                let len = usize::try_from(range.end - range.start).expect("a window");
                if sender.send(source.fetch(range.start, len)).is_err() {
                    return;
                }
            }
        };
        Builder::new()
            .spawn_scoped(scope, work)
            .map_err(Error::cannot_start_thread)?;
        receivers.push(receiver);
    }
    Ok(receivers)
}

/// Returns the windows of a file of `len` bytes, in order.
fn windows(len: u64) -> impl Iterator<Item = Range<u64>> {
    let count = len.div_ceil(WINDOW_BYTES);
    (0..count).map(move |index| {
        let start = index * WINDOW_BYTES;
        start..(start + WINDOW_BYTES).min(len)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Computes a digest in one call.
    fn of(algorithm: Algorithm, bytes: &[u8]) -> Digest {
        let mut one = Running::new(algorithm);
        one.take(bytes);
        one.finish()
    }

    #[test]
    fn checksums_are_those_of_the_standards() {
        // The check values of "123456789" in reveng's catalogue of CRCs; SHA-256 by coreutils.
        for (algorithm, wanted) in [
            (Algorithm::Crc32c, "crc32c:e3069283"),
            (Algorithm::Crc64Nvme, "crc64nvme:ae8b14860a799888"),
            (
                Algorithm::Sha256,
                "sha256:15e2b0d3c33891ebb0f1ef609ec419420c20e320ce94c65fbc8c3312448eb225",
            ),
        ] {
            assert_eq!(of(algorithm, b"123456789").to_string(), wanted);
        }
        let empty = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(of(Algorithm::Sha256, b"").to_string(), empty);
    }

    #[test]
    fn span_digests_do_not_depend_on_window_size() {
        let bytes: Vec<u8> = (0..=255).collect();
        let spans = [
            (0, 0),
            (0, 10),
            (3, 7),
            (5, 200),
            (10, 10),
            (10, 11),
            (255, 256),
            (256, 256),
        ];
        let wanted: BTreeMap<Span, _> = spans
            .into_iter()
            .map(|span| (span, vec![Algorithm::Crc64Nvme, Algorithm::Sha256]))
            .collect();
        for step in [1, 3, 7, 64, 256] {
            let mut running = Spans::new(&wanted);
            for (index, piece) in bytes.chunks(step).enumerate() {
                running.take((index * step) as u64, piece);
            }
            let found = running.finish();
            assert_eq!(found.len(), spans.len(), "{step}");
            for ((start, end), digests) in found {
                let at = |offset| usize::try_from(offset).expect("small");
                let alone = &bytes[at(start)..at(end)];
                let wanted = [
                    of(Algorithm::Crc64Nvme, alone),
                    of(Algorithm::Sha256, alone),
                ];
                assert_eq!(digests, wanted, "{start}..{end} by {step}");
            }
        }
    }

    /// The result for a file must hold for the file at its path.
    #[test]
    fn file_replaced_or_removed_during_scan_is_error() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a");
        std::fs::write(&path, "good").expect("a file");
        let location = crate::options::Location::from_path(&path);
        let source = crate::storage::FileSource::open(&location).expect("opens");
        let mut wanted = Wanted::default();
        wanted.add_whole([Algorithm::Sha256]);
        let shared = Shared::default();
        compute(&source, &wanted, &shared).expect("the file is unchanged");
        let other = folder.path().join("b");
        std::fs::write(&other, "evil").expect("a file");
        std::fs::rename(&other, &path).expect("replaces");
        let error = compute(&source, &wanted, &shared).expect_err("replaced");
        assert_eq!(error.kind(), ErrorKind::Changed);
        assert!(
            error.message().contains("replaced by another file"),
            "{error}"
        );
        std::fs::remove_file(&path).expect("removes");
        let error = compute(&source, &wanted, &shared).expect_err("removed");
        assert_eq!(error.kind(), ErrorKind::Changed);
        assert!(error.message().contains("it was removed"), "{error}");
    }

    #[test]
    fn windows_cover_a_file_once() {
        assert_eq!(windows(0).count(), 0);
        for len in [
            1,
            WINDOW_BYTES - 1,
            WINDOW_BYTES,
            WINDOW_BYTES + 1,
            5 * WINDOW_BYTES,
        ] {
            let mut at = 0;
            for range in windows(len) {
                assert_eq!(range.start, at);
                assert!(range.start < range.end);
                at = range.end;
            }
            assert_eq!(at, len);
        }
    }
}
