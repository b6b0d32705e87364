//! Tests of memory that several processes map.

#![expect(unsafe_code, reason = "writes to memory and reads views of it")]

use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::mm::{MapFlags, ProtFlags, mmap};

use super::memory::create;
use super::*;
use crate::mapping::HUGE_PAGE_BYTES;
use crate::sync::per_process::forks;

/// Writes `bytes` at the start of the memory.
fn write(memory: &SharedMemory, bytes: &[u8]) {
    assert!(bytes.len() <= memory.len());
    // SAFETY: inside the mapping, which this test owns.
    unsafe { ptr::copy(bytes.as_ptr(), memory.start().as_ptr(), bytes.len()) };
}

#[test]
fn view_shows_bytes_written_before_and_after() {
    let memory = SharedMemory::new(10_000).expect("room");
    assert_eq!(memory.len(), 12_288);
    write(&memory, b"before");
    let view = SharedView::reserve(10_000, 1, Box::new(|_| ())).expect("addresses");
    view.show(&memory).expect("maps");
    // SAFETY: written above, by this thread.
    assert_eq!(unsafe { view.bytes(0..6) }, b"before");
    write(&memory, b"after ");
    // SAFETY: as above.
    assert_eq!(unsafe { view.bytes(0..6) }, b"after ");
}

#[test]
fn memory_is_allocated_at_once_where_it_could_run_out() {
    for (allocates, bytes) in [(false, 0), (true, 1 << 20)] {
        let memory = create(1 << 20, allocates).expect("room");
        let found = rustix::fs::fstat(&memory).expect("open");
        assert_eq!(found.st_blocks * 512, bytes);
    }
}

#[test]
fn long_views_begin_where_huge_pages_may() {
    // Reservations are made from top to bottom: each one of these moves the next.
    for len in [HUGE_PAGE_BYTES, HUGE_PAGE_BYTES + 1, 3 << 20, 5 << 20] {
        let page = SharedView::reserve(1, 1, Box::new(|_| ())).expect("addresses");
        let view = SharedView::reserve(len, 1, Box::new(|_| ())).expect("addresses");
        assert!(view.start().addr().get().is_multiple_of(HUGE_PAGE_BYTES));
        let memory = SharedMemory::new(len).expect("room");
        view.show(&memory).expect("maps");
        drop(page);
    }
}

#[test]
fn view_outlives_memory_of_its_writer() {
    let memory = SharedMemory::new(4096).expect("room");
    write(&memory, b"kept");
    let view = SharedView::reserve(4096, 1, Box::new(|_| ())).expect("addresses");
    view.show(&memory).expect("maps");
    drop(memory);
    // SAFETY: written above, by this thread.
    assert_eq!(unsafe { view.bytes(0..4) }, b"kept");
}

#[test]
fn sealed_memory_cannot_be_mapped_for_writing() {
    let memory = SharedMemory::new(4096).expect("room");
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a null hint and a fresh mapping.
    let mapped = unsafe {
        mmap(
            ptr::null_mut(),
            4096,
            protection,
            MapFlags::SHARED,
            &memory,
            0,
        )
    };
    assert_eq!(mapped.expect_err("sealed"), rustix::io::Errno::PERM);
    let shorter = rustix::fs::ftruncate(&memory, 0);
    assert_eq!(shorter.expect_err("sealed"), rustix::io::Errno::PERM);
}

#[test]
fn view_rejects_shorter_memory() {
    let memory = SharedMemory::new(4096).expect("room");
    let view = SharedView::reserve(8192, 1, Box::new(|_| ())).expect("addresses");
    let error = view.show(&memory).expect_err("too short");
    assert_eq!(
        error.message(),
        "the shared memory has 4096 bytes, and its region 8192"
    );
}

#[test]
fn writable_view_is_a_copy_of_the_pages_written() {
    let memory = SharedMemory::new(8192).expect("room");
    write(&memory, b"shared");
    let reserve = || SharedView::reserve(8192, 1, Box::new(|_| ())).expect("addresses");
    let (own, other) = (reserve().writable(true), reserve());
    own.show(&memory).expect("maps");
    other.show(&memory).expect("maps");
    // SAFETY: mapped for writing, and no reference to these bytes exists.
    unsafe { own.start().as_ptr().write(b'S') };
    // SAFETY: written above, by this thread.
    assert_eq!(unsafe { own.bytes(0..6) }, b"Shared");
    // SAFETY: as above.
    assert_eq!(unsafe { other.bytes(0..6) }, b"shared");
}

#[test]
fn private_pages_leave_other_pages_shared() {
    let memory = SharedMemory::new(8192).expect("room");
    write(&memory, b"shared");
    let view = SharedView::reserve(8192, 1, Box::new(|_| ())).expect("addresses");
    view.show(&memory).expect("maps");
    // SAFETY: no reference to the second page exists.
    unsafe { view.make_private(4096..8192) }.expect("maps");
    // SAFETY: inside the view.
    let second = unsafe { view.start().add(4096) };
    // SAFETY: private to this test now.
    unsafe { second.write(7) };
    // SAFETY: written above, by this thread.
    assert_eq!(unsafe { view.bytes(0..6) }, b"shared");
    // SAFETY: as above.
    assert_eq!(unsafe { view.bytes(4096..4097) }, [7]);
}

#[test]
fn last_user_releases_view() {
    let released = Arc::<AtomicU32>::default();
    let counted = Arc::clone(&released);
    let count = move |end| {
        assert_eq!(end, ViewEnd::Released, "it never showed anything");
        counted.fetch_add(1, Ordering::SeqCst);
    };
    let view = SharedView::reserve(1, 2, Box::new(count)).expect("addresses");
    view.user_done();
    assert_eq!(released.load(Ordering::SeqCst), 0);
    view.user_done();
    assert_eq!(released.load(Ordering::SeqCst), 1);
}

#[test]
fn view_that_showed_memory_ends_when_it_is_unmapped() {
    let memory = SharedMemory::new(4096).expect("room");
    // Another test may fork meanwhile.
    let ends = loop {
        let before = forks();
        let ends = Arc::<std::sync::Mutex<Vec<_>>>::default();
        let seen = Arc::clone(&ends);
        let note = move |end| seen.lock().expect("not poisoned").push(end);
        let view = SharedView::reserve(4096, 1, Box::new(note)).expect("addresses");
        view.show(&memory).expect("maps");
        view.user_done();
        drop(view);
        if forks() == before {
            break ends.lock().expect("not poisoned").clone();
        }
    };
    assert_eq!(ends, [ViewEnd::Released, ViewEnd::Unmapped]);
}

#[test]
fn view_of_forked_process_is_never_unmapped() {
    let memory = SharedMemory::new(4096).expect("room");
    let note = |end| panic!("ended: {end:?}");
    let view = SharedView::reserve(4096, 1, Box::new(note)).expect("addresses");
    view.show(&memory).expect("maps");
    // SAFETY: the child exits at once.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: ends the child without running what the parent has registered.
        unsafe { libc::_exit(0) };
    }
    // SAFETY: a child of this process.
    assert_eq!(unsafe { libc::waitpid(child, ptr::null_mut(), 0) }, child);
    drop(view);
}
