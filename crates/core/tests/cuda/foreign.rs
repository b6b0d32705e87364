//! Streams and memory of a caller: the driver's functions, called as another library would call
//! them.

#![expect(unsafe_code, reason = "calls functions of the driver")]

use std::ffi::c_int;

use tload_cuda_stub::Stub;

type Status = u32;

/// Returns a function of the driver by its exact name.
fn function<F: Copy>(name: &str) -> F {
    let address = Stub::load().symbol(name).expect("the stub has it");
    assert_eq!(size_of::<F>(), size_of_val(&address), "a function pointer");
    // SAFETY: each caller below gives the type that CUDA's manual has for the name.
    unsafe { std::mem::transmute_copy(&address) }
}

/// Runs `work` with the context of GPU `ordinal` current.
fn bound<T>(ordinal: usize, work: impl FnOnce() -> T) -> T {
    let retain: extern "C" fn(*mut u64, c_int) -> Status = function("cuDevicePrimaryCtxRetain");
    let release: extern "C" fn(c_int) -> Status = function("cuDevicePrimaryCtxRelease_v2");
    let push: extern "C" fn(u64) -> Status = function("cuCtxPushCurrent_v2");
    let pop: extern "C" fn(*mut u64) -> Status = function("cuCtxPopCurrent_v2");
    let device = c_int::try_from(ordinal).expect("small");
    let mut context = 0;
    assert_eq!(retain(&raw mut context, device), 0);
    assert_eq!(push(context), 0);
    let result = work();
    assert_eq!(pop(&raw mut context), 0);
    assert_eq!(release(device), 0);
    result
}

/// Stream of the caller, which keeps its context alive.
#[derive(Debug)]
pub(crate) struct Stream {
    ordinal: usize,
    pub(crate) raw: u64,
}

impl Stream {
    pub(crate) fn new(ordinal: usize) -> Self {
        let retain: extern "C" fn(*mut u64, c_int) -> Status = function("cuDevicePrimaryCtxRetain");
        let create: extern "C" fn(*mut u64, u32) -> Status = function("cuStreamCreate");
        let begin: extern "C" fn(u32) -> Status = function("cuInit");
        assert_eq!(begin(0), 0);
        let (mut context, mut raw) = (0, 0);
        let device = c_int::try_from(ordinal).expect("small");
        assert_eq!(retain(&raw mut context, device), 0);
        assert_eq!(bound(ordinal, || create(&raw mut raw, 1)), 0);
        Self { ordinal, raw }
    }

    /// Allocates memory in the order of the stream; `None` if the device has no more.
    pub(crate) fn allocate(&self, bytes: usize) -> Option<u64> {
        let allocate: extern "C" fn(*mut u64, usize, u64) -> Status = function("cuMemAllocAsync");
        let mut address = 0;
        let status = bound(self.ordinal, || allocate(&raw mut address, bytes, self.raw));
        (status == 0).then_some(address)
    }

    /// Submits a write to the memory, which must finish before the load may use it.
    pub(crate) fn fill(&self, address: u64, bytes: usize) {
        let fill: extern "C" fn(u64, u8, usize, u64) -> Status = function("cuMemsetD8Async");
        let status = bound(self.ordinal, || fill(address, 0xAA, bytes, self.raw));
        assert_eq!(status, 0);
    }

    /// Copies memory of any GPU, as a peer's stream may.
    pub(crate) fn copy(&self, to: u64, from: u64, bytes: usize) {
        let copy: extern "C" fn(u64, u64, usize, u64) -> Status = function("cuMemcpyDtoDAsync_v2");
        let status = bound(self.ordinal, || copy(to, from, bytes, self.raw));
        assert_eq!(status, 0);
    }

    /// Submits work that takes as long as a copy, and delays all later work in the stream.
    pub(crate) fn dally(&self, address: u64) {
        let copy: extern "C" fn(u64, *const u8, usize, u64) -> Status =
            function("cuMemcpyHtoDAsync_v2");
        let byte = 0x55_u8;
        let status = bound(self.ordinal, || copy(address, &raw const byte, 1, self.raw));
        assert_eq!(status, 0);
    }

    pub(crate) fn free(&self, address: u64) {
        let free: extern "C" fn(u64, u64) -> Status = function("cuMemFreeAsync");
        assert_eq!(bound(self.ordinal, || free(address, self.raw)), 0);
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let destroy: extern "C" fn(u64) -> Status = function("cuStreamDestroy_v2");
        let release: extern "C" fn(c_int) -> Status = function("cuDevicePrimaryCtxRelease_v2");
        assert_eq!(bound(self.ordinal, || destroy(self.raw)), 0);
        let device = c_int::try_from(self.ordinal).expect("small");
        assert_eq!(release(device), 0);
    }
}
