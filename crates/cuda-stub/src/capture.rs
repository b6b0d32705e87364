//! Stream capture: the mode of each thread, and the functions that are forbidden during a capture.
//!
//! Nothing is captured here: the setting `capturing` claims that another thread captures in the
//! default (global) mode.

use std::cell::Cell;

use crate::status::{INVALID_VALUE, Outcome};

const RELAXED: u32 = 2;

thread_local! {
    /// Capture mode of the thread: 0 is global, 1 thread-local, 2 relaxed.
    static MODE: Cell<u32> = const { Cell::new(0) };
}

/// Sets the calling thread's mode; returns the one before.
pub(crate) fn exchange(mode: u32) -> Outcome<u32> {
    if mode > RELAXED {
        return Err(INVALID_VALUE);
    }
    Ok(MODE.replace(mode))
}

/// Returns whether a function is forbidden while another thread captures ("potentially unsafe API
/// calls" in the CUDA guide, and the manual pages of single functions).
pub(crate) fn forbids(function: &str) -> bool {
    let always = matches!(function, "cuCtxRecordEvent" | "cuCtxSynchronize");
    let unsafe_unless_relaxed = matches!(
        function,
        "cuEventQuery"
            | "cuEventSynchronize"
            | "cuStreamQuery"
            | "cuStreamSynchronize"
            | "cuMemAlloc_v2"
            | "cuMemFree_v2"
            | "cuMemHostRegister_v2"
            | "cuMemHostUnregister"
            | "cuMemHostAlloc"
            | "cuMemFreeHost"
            | "cuStreamDestroy_v2"
            | "cuEventDestroy_v2"
            // Batches cannot be captured at all.
            | "cuMemcpyBatchAsync"
            | "cuMemcpyBatchAsync_v2"
    );
    always || (unsafe_unless_relaxed && MODE.get() != RELAXED)
}
