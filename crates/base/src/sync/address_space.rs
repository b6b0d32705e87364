//! Room in the process's address space, where that is limited (`ulimit -v`).
//!
//! A process whose addresses are used up cannot allocate a single byte, and the allocator ends it.
//! Threads and large allocations take most addresses. They are refused, which is an error,
//! while some are left for the rest of the process: for small allocations, which cannot fail
//! without its end.

use std::io;

use rustix::param::page_size;
use rustix::process::{Resource, getrlimit};

use crate::error::{Error, ErrorKind, Result};

/// Addresses left to the rest of the process, bytes: a thread without its own heap takes a
/// page for each small allocation. Without any check, 247 of 806 loads of 24 objects were ended by
/// the allocator, at limits from 55 to 1249 MiB; with this, none of 254 (2026-11, debug build). Of
/// 142, three were before this waited for threads to take their heap.
const RESERVE_BYTES: usize = 96 << 20;

/// Addresses that a thread takes, bytes: its stack, and the heap that glibc gives it if it can.
pub(super) const THREAD_BYTES: usize = 66 << 20;

/// Allocations below this length are not checked.
const ROOM_BYTES_MIN: usize = 1 << 20;

/// Requires room for `bytes` in addition to the reserve. Reads a file of the system if addresses
/// are limited, and does nothing otherwise.
///
/// # Errors
///
/// `ENOMEM`.
pub fn require(bytes: usize) -> io::Result<()> {
    let needed = bytes.saturating_add(RESERVE_BYTES) as u64;
    match free_bytes() {
        Some(free) if free < needed => Err(io::Error::from_raw_os_error(libc::ENOMEM)),
        _ => Ok(()),
    }
}

/// Returns how many threads there is room for, at most `wanted`.
pub fn threads_fitting(wanted: usize) -> usize {
    let Some(free) = free_bytes() else {
        return wanted;
    };
    let room = free.saturating_sub(RESERVE_BYTES as u64);
    usize::try_from(room / THREAD_BYTES as u64).map_or(wanted, |fitting| fitting.min(wanted))
}

/// Returns empty memory for `len` bytes, whose number comes from a file or a server.
///
/// # Errors
///
/// [`ErrorKind::OutOfMemory`].
pub fn vec_for(len: usize) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let is_there = len < ROOM_BYTES_MIN || require(len).is_ok();
    if is_there && bytes.try_reserve_exact(len).is_ok() {
        return Ok(bytes);
    }
    Err(Error::new(
        ErrorKind::OutOfMemory,
        format!("cannot allocate {len} bytes of memory"),
    )
    .with_hint("raise the process's address-space limit (ulimit -v), or that of its container"))
}

/// Returns whether the process's addresses are limited.
pub(super) fn is_limited() -> bool {
    !cfg!(miri) && getrlimit(Resource::As).current.is_some()
}

/// Returns the addresses that the process may still take, bytes; `None` if they are not limited.
fn free_bytes() -> Option<u64> {
    if cfg!(miri) {
        return None;
    }
    let limit = getrlimit(Resource::As).current?;
    let statm = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = statm.split(' ').next()?.parse().ok()?;
    Some(limit.saturating_sub(pages * page_size() as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_limit_there_is_room() {
        if getrlimit(Resource::As).current.is_some() {
            return;
        }
        require(usize::MAX).expect("no limit");
        assert_eq!(threads_fitting(7), 7);
        assert_eq!(vec_for(10).expect("ten bytes").capacity(), 10);
        let error = vec_for(usize::MAX).expect_err("all of it");
        assert_eq!(error.kind(), ErrorKind::OutOfMemory);
    }
}
