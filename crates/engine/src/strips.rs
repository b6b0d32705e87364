//! One job that several threads fill: its window in strips, and what becomes of each.
//!
//! ```text
//! Job ─ split ─▶ strip, strip, … ─ a thread each ─▶ end ─ the last one ─▶ Done
//! ```
//!
//! The result is the one that a single thread would have had: all needed bytes, or the error of the
//! first bytes that cannot be read, about all bytes of the job. Strips behind a failed one stop,
//! those before it go on.

use std::ops::Range;

use super::fill::Fill;
use super::{Done, Job, Transfer};
use crate::crc::Polynomial;
use crate::error::{Error, Result};
use crate::memory::{PREFIX_STEP, Prefixes, Strip};
use crate::sync::lock::Mutex;

/// Job whose strips are being filled.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) source: usize,
    extent: usize,
    offset: u64,
    needed: usize,
    crc: Option<Polynomial>,
    /// Length of each strip but the last one.
    bytes: usize,
    ended: Mutex<Ended>,
}

/// Results of the strips that have ended.
#[derive(Debug, Default)]
struct Ended {
    transfer: Transfer,
    /// Number of the first strip that failed, and its error.
    failure: Option<(usize, Error)>,
    /// Number of bytes at the start of the window that are filled once all strips have ended.
    filled: usize,
    /// CRCs of each strip's bytes.
    prefixes: Vec<Option<Prefixes>>,
}

/// Returns the length of strips of about `bytes` bytes, and how many of them hold `needed` bytes.
/// Strips begin where prefixes of CRCs end, and where reads of a file with this `alignment` may
/// begin.
///
/// Worked example: 1,000,000 of 2,500,000 bytes. Strips of 1,015,808 bytes, which are 62 times 16
/// KiB, hold them in three.
pub(crate) fn division(bytes: usize, needed: usize, alignment: usize) -> (usize, usize) {
    let step = PREFIX_STEP.max(alignment);
    let bytes = bytes.max(1).next_multiple_of(step);
    (bytes, needed.div_ceil(bytes).max(1))
}

/// Divides a job into strips of about `bytes` bytes. Returns it as it is if one strip holds all of
/// it, and if its window is a view.
pub(crate) fn split(
    job: Job,
    bytes: usize,
    alignment: usize,
) -> std::result::Result<impl Iterator<Item = Strip<Shared>>, Job> {
    let (bytes, count) = division(bytes, job.needed, alignment);
    if count == 1 || job.lease.is_view() || !bytes.is_multiple_of(alignment) {
        return Err(job);
    }
    let shared = Shared {
        source: job.source,
        extent: job.extent,
        offset: job.offset,
        needed: job.needed,
        crc: job.lease.wanted_crc(),
        bytes,
        ended: Mutex::new(Ended {
            prefixes: (0..count).map(|_| None).collect(),
            ..Ended::default()
        }),
    };
    Ok(job.lease.split(bytes, count, shared))
}

impl Shared {
    /// CRC that the job asks for.
    pub(crate) fn wanted_crc(&self) -> Option<Polynomial> {
        self.crc
    }

    /// Returns the offset of a strip in the source, and the number of its bytes that are needed.
    pub(crate) fn wanted(&self, strip: &Range<usize>) -> (u64, usize) {
        let needed = self.needed.min(strip.end) - strip.start;
        (self.offset + strip.start as u64, needed)
    }

    /// Returns the bytes of the source that the whole job needs.
    pub(crate) fn job_range(&self) -> Range<u64> {
        self.offset..self.offset + self.needed as u64
    }
}

/// Returns whether a strip is not needed, because one before it has failed.
pub(crate) fn is_over(strip: &Strip<Shared>) -> bool {
    let shared = strip.shared();
    let failure = &shared.ended.lock().failure;
    let number = strip.range().start / shared.bytes;
    failure.as_ref().is_some_and(|(first, _)| *first < number)
}

/// Ends a strip, with the number of its bytes that are filled, and the state of its reads, if there
/// were any. Returns the job's end if no other strip of it is left.
pub(crate) fn end(
    strip: Strip<Shared>,
    result: Result<usize>,
    state: Option<Fill>,
) -> Option<Done> {
    let (start, shared) = (strip.range().start, strip.shared());
    let number = start / shared.bytes;
    let mut ended = shared.ended.lock();
    if let Some(mut state) = state {
        ended.prefixes[number] = state.take_prefixes();
        ended.transfer += state.transfer;
    }
    match result {
        Ok(len) => ended.filled = ended.filled.max(start + len),
        Err(error) => {
            let first = ended.failure.as_ref().map(|(first, _)| *first);
            if first.is_none_or(|first| number < first) {
                ended.failure = Some((number, error));
            }
        }
    }
    drop(ended);
    let (lease, shared) = strip.join()?;
    let mut ended = shared.ended.lock();
    let transfer = std::mem::take(&mut ended.transfer);
    let (result, window) = if let Some((_, error)) = ended.failure.take() {
        (Err(error), Some(lease))
    } else {
        // All strips are filled, and no byte between them is missing: each but the last one needed
        // all of its bytes.
        let filled = lease.written(ended.filled);
        let prefixes = joined(std::mem::take(&mut ended.prefixes));
        (Ok(filled.with_prefixes(prefixes)), None)
    };
    Some(Done {
        extent: shared.extent,
        result,
        window,
        transfer,
    })
}

/// Joins the CRCs of strips, if all have some.
fn joined(strips: Vec<Option<Prefixes>>) -> Option<Prefixes> {
    let join = |all: Option<Prefixes>, next: Option<Prefixes>| {
        let mut all = all?;
        all.append(&next?);
        Some(all)
    };
    strips.into_iter().reduce(join).flatten()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::*;
    use crate::error::ErrorKind;
    use crate::memory::Slab;

    const STEP: usize = PREFIX_STEP;

    fn job(window: usize, needed: usize) -> (Job, Arc<Slab>) {
        let slab = Slab::new(window, 1, Arc::default()).expect("little memory");
        let lease = slab.try_lease(window).expect("free");
        let job = Job {
            extent: 3,
            source: 0,
            offset: 1 << 20,
            needed,
            lease,
        };
        (job, slab)
    }

    /// Strips of four steps and the rest of a fifth one.
    fn strips() -> (Vec<Strip<Shared>>, Arc<Slab>) {
        let (job, slab) = job(5 * STEP, 5 * STEP - 10);
        let strips = split(job, STEP, 1).expect("several");
        (strips.collect(), slab)
    }

    fn failure(text: &'static str) -> Result<usize> {
        Err(Error::new(ErrorKind::Io, text))
    }

    #[test]
    fn division_has_an_example() {
        assert_eq!(division(1_000_000, 2_500_000, 4096), (1_015_808, 3));
        assert_eq!(division(0, 0, 1), (STEP, 1));
        assert_eq!(division(usize::MAX / 4, 9, 1 << 16).1, 1);
    }

    proptest! {
        #[test]
        fn strips_need_each_byte_of_the_job_once(
            window in 1_usize..300_000,
            shorter in 0_usize..300_000,
            bytes in 0_usize..100_000,
            alignment in prop::sample::select(vec![1_usize, 512, 4096, 1 << 15]),
        ) {
            let needed = window.saturating_sub(shorter);
            let (strip_bytes, count) = division(bytes, needed, alignment);
            let (job, _slab) = job(window, needed);
            let Ok(strips) = split(job, bytes, alignment) else {
                prop_assert_eq!(count, 1);
                return Ok(());
            };
            let strips: Vec<_> = strips.collect();
            prop_assert_eq!(strips.len(), count);
            let (mut at, mut sum) = (0, 0);
            for (number, strip) in strips.iter().enumerate() {
                let range = strip.range();
                prop_assert_eq!(range.start, at);
                prop_assert_eq!(range.start, number * strip_bytes);
                at = range.end;
                let (offset, wanted) = strip.shared().wanted(&range);
                prop_assert_eq!(offset, (1 << 20) + range.start as u64);
                prop_assert!(wanted > 0 && wanted <= range.len());
                prop_assert!(wanted == range.len() || number + 1 == count);
                sum += wanted;
            }
            prop_assert_eq!((at, sum), (window, needed));
        }

        #[test]
        fn first_failure_in_the_job_wins_in_any_order(
            order in Just((0..5_usize).collect::<Vec<_>>()).prop_shuffle(),
            failing in prop::collection::vec(any::<bool>(), 5),
        ) {
            let (strips, slab) = strips();
            let mut strips: Vec<_> = strips.into_iter().map(Some).collect();
            let mut done = Vec::new();
            for (nth, number) in order.iter().enumerate() {
                let strip = strips[*number].take().expect("each once");
                let failed = |it: &usize| failing[*it];
                prop_assert_eq!(is_over(&strip), order[..nth].iter().any(|it| failed(it) && it < number));
                let len = strip.range().len();
                let result = if failed(number) {
                    Err(Error::new(ErrorKind::Io, number.to_string()))
                } else {
                    Ok(len)
                };
                prop_assert!(!slab.has_free_slot());
                done.extend(end(strip, result, None));
                prop_assert_eq!(done.len(), usize::from(nth == 4));
            }
            let done = done.remove(0);
            match (done.result, failing.iter().position(|it| *it)) {
                (Ok(filled), None) => prop_assert_eq!(filled.bytes().len(), 5 * STEP),
                (Err(error), Some(first)) => {
                    prop_assert_eq!(error.message(), first.to_string());
                    prop_assert!(done.window.is_some());
                }
                (result, first) => prop_assert!(false, "{result:?}, {first:?}"),
            }
        }
    }

    #[test]
    fn strips_behind_a_failed_one_stop_and_those_before_it_go_on() {
        let (mut strips, _slab) = strips();
        assert!(end(strips.remove(2), failure("third"), None).is_none());
        let over: Vec<_> = strips.iter().map(is_over).collect();
        assert_eq!(over, [false, false, true, true]);
    }
}
