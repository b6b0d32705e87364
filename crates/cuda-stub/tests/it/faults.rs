//! Injected faults, and the driver in a forked child.

use crate::driver::*;

#[test]
fn injected_fault_fails_function() {
    let session = session();
    session
        .stub
        .set("fail", "cuMemAlloc_v2:2:2:1;cuEventCreate:999");
    assert!(alloc(1).is_ok());
    assert_eq!(alloc(1), Err(OUT_OF_MEMORY));
    assert!(alloc(1).is_ok());
    assert_eq!((event(0), event(0)), (Err(999), Err(999)));
    assert_eq!(session.stub.count("cuMemAlloc_v2"), 3);
    assert_eq!(session.stub.count("cuEventCreate"), 2);
    assert_eq!(session.stub.live("allocations"), 2);
    session.stub.reset();
    assert!(event(0).is_ok());
    assert_eq!(session.stub.count("cuMemAlloc_v2"), 0);
}

#[test]
fn failing_copy_loses_context() {
    let session = session();
    let stream = stream(1).unwrap();
    let (memory, buffer) = (alloc(10).unwrap(), Buffer::new(10, 4));
    register(buffer.start(), 10).unwrap();
    session.stub.set("fail", "copy:719:2");
    htod_async(memory, buffer.start(), 10, stream).unwrap();
    stream_synchronize(stream).unwrap();
    session.stub.set("copy_delay_us", FOR_EVER);
    htod_async(memory, buffer.start(), 10, stream).unwrap();
    assert_eq!(stream_query(stream), Err(NOT_READY));
    session.stub.set("copy_delay_us", "0");
    assert_eq!(stream_synchronize(stream), Err(LAUNCH_FAILED));
    assert_eq!(memset_async(memory, 1, 10, stream), Err(LAUNCH_FAILED));
    // Memory is freed all the same, without a violation: nothing can be waited for any more.
    assert_eq!(unregister(buffer.start()), Err(LAUNCH_FAILED));
    assert_eq!(free(memory), Err(LAUNCH_FAILED));
    assert_eq!(session.stub.live("registrations"), 0);
    assert_eq!(session.stub.live("allocations"), 0);
    assert_eq!(session.violations(), 0);
    release(0).unwrap();
    // A context that is created anew is not lost.
    retain(0).unwrap();
    assert!(alloc(10).is_ok());
}

#[test]
fn invalid_text_is_rejected() {
    let session = session();
    let refused = std::panic::catch_unwind(|| session.stub.set("colour", "red"));
    assert!(refused.is_err());
    let refused = std::panic::catch_unwind(|| session.stub.live("cats"));
    assert!(refused.is_err());
}

#[test]
fn forked_child_gets_not_initialized() {
    let _session = session();
    assert_eq!(child::status(), i32::try_from(NOT_INITIALIZED).unwrap());
}

mod child {
    #![expect(unsafe_code, reason = "forks")]

    /// Returns the driver's status in a forked child, as its exit status; 99 when two functions
    /// differ.
    pub(crate) fn status() -> i32 {
        // SAFETY: the child calls two functions that take no lock there, allocates nothing of its
        // own, and exits.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let status = (super::init(), super::set_current(0));
            let same = status.0 == status.1;
            let code = status.0.err().filter(|_| same).unwrap_or(99);
            // SAFETY: ends the child without running what belongs to its parent.
            unsafe { libc::_exit(i32::try_from(code).unwrap_or(98)) };
        }
        let mut status = 0;
        // SAFETY: the child was just made, and the status is this function's.
        unsafe { libc::waitpid(child, &raw mut status, 0) };
        libc::WEXITSTATUS(status)
    }
}
