//! Stream capture: which mode a thread is in, and which functions may not be called while somebody captures.
//!
//! Nothing is captured here: the setting `capturing` says that some other thread does, in the usual (global) mode.

use std::cell::Cell;

use crate::status::{INVALID_VALUE, Outcome};

const RELAXED: u32 = 2;

thread_local! {
    /// 0 is global, 1 thread-local, 2 relaxed.
    static MODE: Cell<u32> = const { Cell::new(0) };
}

/// Sets the calling thread's mode; returns the one before.
pub(crate) fn exchange(mode: u32) -> Outcome<u32> {
    if mode > RELAXED {
        return Err(INVALID_VALUE);
    }
    Ok(MODE.replace(mode))
}

/// Whether a function may not be called while another thread captures ("potentially unsafe API calls" in CUDA's guide, and what the
/// manual says of single functions).
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
    );
    always || (unsafe_unless_relaxed && MODE.get() != RELAXED)
}
