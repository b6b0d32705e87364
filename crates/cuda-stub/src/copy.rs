//! Copies and fills: the checks made by the call, and the work of the stream's thread.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::clock::Clock;
use crate::driver::{Lock, changed};
use crate::event::Stamp;
use crate::mapping;
use crate::memory::{self, Memory};
use crate::settings::Kind;
use crate::status::{ILLEGAL_ADDRESS, INVALID_VALUE, Outcome, Status};
use crate::stream::{self, LEGACY, Touch};

/// Item of work of a stream.
#[derive(Debug)]
pub(crate) enum Work {
    Nothing,
    Stamp(Stamp),
    Free(Arc<Memory>),
    Fill(Arc<Memory>, usize, usize, u8),
    Copy(Copy),
}

#[derive(Debug)]
pub(crate) struct Copy {
    from: From,
    to: usize,
    len: usize,
    /// Device memory on either side, which must be alive when the copy runs.
    memory: Vec<Arc<Memory>>,
    fails: Option<Status>,
}

#[derive(Debug)]
enum From {
    Address(usize),
    /// Pinned host memory, and its checksum at the call.
    Pinned(usize, u64),
    /// Contents of pageable host memory at the call.
    Taken(Vec<u8>),
}

/// One side of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Device(usize),
    Host(usize),
}

/// Time at which a function returns, relative to its copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Return {
    AtOnce,
    WhenDone,
}

pub(crate) fn submit(
    driver: &mut Lock,
    from: Side,
    to: Side,
    len: usize,
    named: u64,
    here: i32,
    returns: Return,
) -> Outcome {
    let stream = driver.stream(named, here)?;
    if len == 0 {
        return Ok(());
    }
    let is_pageable = queue(driver, stream, from, to, len)?;
    // A copy to pageable memory returns when it is done, as documented: the caller's memory is not
    // the driver's to keep.
    let to_pageable = is_pageable && matches!(to, Side::Host(_));
    if to_pageable || returns == Return::WhenDone {
        return stream::wait(driver, stream);
    }
    Ok(())
}

/// Rows at even distances.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rows {
    pub(crate) from: Side,
    pub(crate) to: Side,
    /// Bytes from one row to the next, of the source and of the destination.
    pub(crate) pitches: [usize; 2],
    pub(crate) width: usize,
    pub(crate) count: usize,
}

/// Queues the copy of all rows: none, if one of them leaves its memory.
pub(crate) fn submit_rows(driver: &mut Lock, rows: Rows, named: u64, here: i32) -> Outcome {
    let stream = driver.stream(named, here)?;
    if rows.width == 0 || rows.count == 0 {
        return Ok(());
    }
    let row = |side: Side, pitch: usize, index: usize| {
        let (Side::Device(start) | Side::Host(start)) = side;
        let start = index.checked_mul(pitch)?.checked_add(start)?;
        Some(match side {
            Side::Device(_) => Side::Device(start),
            Side::Host(_) => Side::Host(start),
        })
    };
    let last = row(rows.to, rows.pitches[1], rows.count - 1).ok_or(INVALID_VALUE)?;
    if let (Side::Device(start), Side::Device(last)) = (rows.to, last)
        && driver.settings.kind == Kind::Discrete
    {
        driver.device_range(start, last - start + rows.width)?;
    }
    for index in 0..rows.count {
        let from = row(rows.from, rows.pitches[0], index).ok_or(INVALID_VALUE)?;
        let to = row(rows.to, rows.pitches[1], index).ok_or(INVALID_VALUE)?;
        queue(driver, stream, from, to, rows.width)?;
    }
    Ok(())
}

/// Copy of a batch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BatchCopy {
    pub(crate) to: usize,
    pub(crate) from: usize,
    pub(crate) len: usize,
}

/// Queues the copies of one batch, and passes the index of each to `failed` in case that it fails.
///
/// The driver promises no order within a batch, so the last copy comes first here, and those
/// before one that fails stay queued. Copies that depend on each other are a violation.
pub(crate) fn submit_batch(
    driver: &mut Lock,
    copies: &[BatchCopy],
    named: u64,
    here: i32,
    failed: impl Fn(usize),
) -> Outcome {
    // "Must not be legacy NULL stream."
    if LEGACY.contains(&named) {
        return Err(INVALID_VALUE);
    }
    let stream = driver.stream(named, here)?;
    if depend_on_order(copies) {
        driver.violation("copies of a batch depend on each other".to_owned());
    }
    for (index, copy) in copies.iter().enumerate().rev() {
        failed(index);
        if let Some(status) = driver.settings.fault("batch_copy") {
            return Err(status);
        }
        // All addresses are of one space.
        let [from, to] = [copy.from, copy.to].map(|address| match address {
            _ if driver.touches_device(address, 1) => Side::Device(address),
            _ => Side::Host(address),
        });
        queue(driver, stream, from, to, copy.len)?;
    }
    failed(usize::MAX);
    Ok(())
}

/// Returns whether a destination overlaps another range of the batch.
fn depend_on_order(copies: &[BatchCopy]) -> bool {
    let both = |copy: &BatchCopy| [(copy.from, copy.len, 0), (copy.to, copy.len, 1)];
    let mut ranges: Vec<_> = copies.iter().flat_map(both).collect();
    ranges.sort_unstable();
    // Ends of what is read and of what is written, so far.
    let mut ends = [0, 0];
    ranges.into_iter().any(|(start, len, written)| {
        let overlaps = start < ends[1] || (written == 1 && start < ends[0]);
        ends[written] = ends[written].max(start.saturating_add(len));
        overlaps
    })
}

/// Checks a copy of at least one byte and queues it; returns whether its host memory is pageable.
fn queue(driver: &mut Lock, stream: u64, from: Side, to: Side, len: usize) -> Outcome<bool> {
    if len == 0 {
        return Err(INVALID_VALUE);
    }
    let mut copy = Copy {
        from: From::Address(0),
        to: 0,
        len,
        memory: Vec::new(),
        fails: None,
    };
    let mut touches = Vec::new();
    let mut is_pageable = false;
    for side in [from, to] {
        match side {
            // Such a device reads ordinary memory at the time of the copy, not at that of the call.
            Side::Device(address)
                if driver.settings.kind != Kind::Discrete
                    && !driver.touches_device(address, len) => {}
            Side::Device(address) => {
                let memory = driver.device_range(address, len)?;
                touches.push(Touch::Device(memory.base));
                copy.memory.push(memory);
            }
            Side::Host(address) => {
                if address == 0 || driver.touches_device(address, len) {
                    return Err(INVALID_VALUE);
                }
                let pinned = driver.host_range(address, len)?;
                let is_read_only = driver.is_read_only(pinned);
                driver
                    .counters
                    .add("read_only_copies", i64::from(is_read_only));
                touches.extend(pinned.map(Touch::Pinned));
                is_pageable = pinned.is_none();
            }
        }
    }
    copy.from = match from {
        Side::Device(address) => From::Address(address),
        Side::Host(address) if is_pageable => From::Taken(mapping::snapshot(address, len)),
        Side::Host(address) => From::Pinned(address, mapping::checksum(address, len)),
    };
    let (Side::Device(address) | Side::Host(address)) = to;
    copy.to = address;
    copy.fails = driver.settings.fault("copy");
    if let (Side::Host(_), _) | (_, Side::Host(_)) = (from, to) {
        let kind = if is_pageable {
            "pageable_copies"
        } else {
            "pinned_copies"
        };
        driver.counters.add(kind, 1);
    }
    driver.submit(stream, &Clock::default(), &touches, Work::Copy(copy));
    Ok(is_pageable)
}

pub(crate) fn fill(
    driver: &mut Lock,
    to: usize,
    byte: u8,
    len: usize,
    named: u64,
    here: i32,
) -> Outcome {
    let stream = driver.stream(named, here)?;
    if len == 0 {
        return Ok(());
    }
    let memory = driver.device_range(to, len)?;
    let touch = Touch::Device(memory.base);
    let work = Work::Fill(memory, to, len, byte);
    driver.submit(stream, &Clock::default(), &[touch], work);
    Ok(())
}

/// Runs one item of work. In a lost context nothing is done, but memory is still released.
pub(crate) fn run(driver: &mut Lock, ordinal: i32, work: Work) {
    match work {
        Work::Nothing => {}
        Work::Stamp(stamp) => stamp.set(),
        Work::Free(memory) => memory::release(driver, &memory),
        Work::Fill(memory, to, len, byte) => {
            touching(driver, ordinal, &[memory], || mapping::fill(to, len, byte));
        }
        Work::Copy(copy) => run_copy(driver, ordinal, &copy),
    }
}

fn run_copy(driver: &mut Lock, ordinal: i32, copy: &Copy) {
    pace(driver, ordinal, copy.len);
    if let Some(status) = copy.fails {
        driver.lose(ordinal, status);
        return;
    }
    let mut arrived = None;
    let is_done = touching(driver, ordinal, &copy.memory, || match &copy.from {
        From::Address(from) => mapping::copy(*from, copy.to, copy.len),
        From::Taken(bytes) => {
            mapping::copy(bytes.as_ptr().expose_provenance(), copy.to, copy.len);
        }
        From::Pinned(from, _) => {
            mapping::copy(*from, copy.to, copy.len);
            // Checksum of the bytes that arrived, not of the source, which may have changed since.
            arrived = Some(mapping::checksum(copy.to, copy.len));
        }
    });
    if !is_done {
        return;
    }
    let len = i64::try_from(copy.len).unwrap_or(i64::MAX);
    driver.counters.add("copied_bytes", len);
    if let (From::Pinned(from, before), Some(arrived)) = (&copy.from, arrived)
        && *before != arrived
    {
        driver.violation(format!(
            "host memory at {from:#x} was written before its copy of {len} bytes had run"
        ));
    }
}

/// Runs `work` without the lock while the memory is held, and returns whether it did. Dead memory
/// loses the context.
fn touching(driver: &mut Lock, ordinal: i32, memory: &[Arc<Memory>], work: impl FnOnce()) -> bool {
    if driver.lost(ordinal).is_err() {
        return false;
    }
    if memory.iter().any(|memory| !memory.is_alive()) {
        driver.lose(ordinal, ILLEGAL_ADDRESS);
        return false;
    }
    for memory in memory {
        memory.begin();
    }
    driver.unlocked(work);
    for memory in memory {
        memory.end();
    }
    changed();
    true
}

/// Waits as long as the settings say that a copy takes. Changed settings take effect at once.
fn pace(driver: &mut Lock, ordinal: i32, len: usize) {
    let start = Instant::now();
    let bandwidth = driver.settings.bandwidth;
    let engine = driver.known(ordinal).engine_free.max(start) + duration(len, bandwidth);
    if bandwidth > 0 {
        driver.known(ordinal).engine_free = engine;
    }
    while driver.lost(ordinal).is_ok() {
        let mut end = start + driver.settings.copy_delay;
        if bandwidth > 0 && driver.settings.bandwidth == bandwidth {
            end = end.max(engine);
        }
        if driver.settings.stalled.contains(&ordinal) {
            driver.wait_while(|driver| {
                driver.settings.stalled.contains(&ordinal) && driver.lost(ordinal).is_ok()
            });
            continue;
        }
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break;
        }
        driver.wait_for(left);
    }
}

/// Returns the time that `len` bytes take; 0 without a limit.
fn duration(len: usize, bandwidth: u64) -> Duration {
    let nanos = u64::try_from(len)
        .unwrap_or(u64::MAX)
        .saturating_mul(1_000_000_000)
        .checked_div(bandwidth);
    Duration::from_nanos(nanos.unwrap_or(0))
}
