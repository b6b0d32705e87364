//! The stub's C functions with Rust's types, for these tests: each call goes through the address
//! that the loader gives.

#![expect(unsafe_code, reason = "calls C functions by address")]
#![expect(clippy::unwrap_used, reason = "all of this is for tests")]

use std::ffi::{CString, c_char, c_void};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tload_cuda_stub::Stub;

pub(crate) const INVALID_VALUE: u32 = 1;
pub(crate) const OUT_OF_MEMORY: u32 = 2;
pub(crate) const NOT_INITIALIZED: u32 = 3;
pub(crate) const INVALID_DEVICE: u32 = 101;
pub(crate) const INVALID_CONTEXT: u32 = 201;
pub(crate) const INVALID_HANDLE: u32 = 400;
pub(crate) const NOT_READY: u32 = 600;
pub(crate) const ILLEGAL_ADDRESS: u32 = 700;
pub(crate) const CONTEXT_IS_DESTROYED: u32 = 709;
pub(crate) const STREAM_CAPTURE_UNSUPPORTED: u32 = 900;
pub(crate) const LAUNCH_FAILED: u32 = 719;

/// Delay that outlasts every test, unless the test resets it.
pub(crate) const FOR_EVER: &str = "3600000000";

pub(crate) type Result<T = ()> = std::result::Result<T, u32>;

/// The driver and a context of device 0, bound to this thread. Faults and counters are per process:
/// one test at a time.
pub(crate) struct Session {
    pub(crate) stub: &'static Stub,
    pub(crate) context: u64,
    _turn: MutexGuard<'static, ()>,
}

static TURN: Mutex<()> = Mutex::new(());

pub(crate) fn session() -> Session {
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let stub = Stub::load();
    stub.reset();
    init().unwrap();
    let context = retain(0).unwrap();
    set_current(context).unwrap();
    stub.reset();
    Session {
        stub,
        context,
        _turn: turn,
    }
}

impl Session {
    pub(crate) fn violations(&self) -> i64 {
        self.stub.count("violations")
    }

    /// Ends the test: the context is destroyed with all that is in it.
    fn end(&self) {
        self.stub.reset();
        // Some tests have released or unbound it themselves.
        let _ = release(0);
        let _ = set_current(0);
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.end();
    }
}

fn status(status: u32) -> Result {
    if status == 0 { Ok(()) } else { Err(status) }
}

/// Argument as the register that carries it.
fn call(name: &str, arguments: [usize; 5]) -> Result {
    type Function = extern "C" fn(usize, usize, usize, usize, usize) -> u32;
    let address = Stub::load().symbol(name).expect(name);
    // SAFETY: a function of the driver. All its arguments are integers and pointers, which one
    // calling convention passes in registers of their own, so that further ones do no harm.
    let function = unsafe { std::mem::transmute::<*mut c_void, Function>(address.as_ptr()) };
    let [first, second, third, fourth, fifth] = arguments;
    status(function(first, second, third, fourth, fifth))
}

/// Calls a function that stores its result at its first argument.
fn get<T: Default>(name: &str, arguments: [usize; 4]) -> Result<T> {
    let mut result = T::default();
    let out = (&raw mut result).expose_provenance();
    let [second, third, fourth, fifth] = arguments;
    call(name, [out, second, third, fourth, fifth])?;
    Ok(result)
}

fn word(value: u64) -> usize {
    usize::try_from(value).unwrap()
}

fn ordinal(value: i32) -> usize {
    usize::try_from(value.cast_unsigned()).unwrap()
}

pub(crate) fn init() -> Result {
    call("cuInit", [0; 5])
}

pub(crate) fn version() -> Result<i32> {
    get("cuDriverGetVersion", [0; 4])
}

pub(crate) fn device_count() -> Result<i32> {
    get("cuDeviceGetCount", [0; 4])
}

pub(crate) fn device(of: i32) -> Result<i32> {
    get("cuDeviceGet", [ordinal(of), 0, 0, 0])
}

pub(crate) fn attribute(what: usize, of: i32) -> Result<i32> {
    get("cuDeviceGetAttribute", [what, ordinal(of), 0, 0])
}

pub(crate) fn device_text(name: &str, of: i32) -> Result<String> {
    let mut text = vec![0_u8; 64];
    let start = text.as_mut_ptr().expose_provenance();
    call(name, [start, text.len(), ordinal(of), 0, 0])?;
    let len = text.iter().position(|byte| *byte == 0).unwrap();
    text.truncate(len);
    Ok(String::from_utf8(text).unwrap())
}

pub(crate) fn uuid(of: i32) -> Result<[u8; 16]> {
    get("cuDeviceGetUuid_v2", [ordinal(of), 0, 0, 0])
}

pub(crate) fn error_name(of: u32) -> Result<String> {
    let mut text = std::ptr::null::<c_char>();
    let out = (&raw mut text).expose_provenance();
    call(
        "cuGetErrorName",
        [usize::try_from(of).unwrap(), out, 0, 0, 0],
    )?;
    // SAFETY: the function has succeeded, so it points to a text that stays.
    let text = unsafe { std::ffi::CStr::from_ptr(text) };
    Ok(text.to_str().unwrap().to_owned())
}

/// Returns the address and the status of the search.
pub(crate) fn proc_address(symbol: &str, version: usize) -> Result<(usize, u32)> {
    let symbol = CString::new(symbol).unwrap();
    let (mut address, mut found) = (0_usize, 9_u32);
    let out = (&raw mut address).expose_provenance();
    let status = (&raw mut found).expose_provenance();
    let symbol = symbol.as_ptr().expose_provenance();
    call("cuGetProcAddress_v2", [symbol, out, version, 0, status])?;
    Ok((address, found))
}

pub(crate) fn retain(of: i32) -> Result<u64> {
    get("cuDevicePrimaryCtxRetain", [ordinal(of), 0, 0, 0])
}

pub(crate) fn release(of: i32) -> Result {
    call("cuDevicePrimaryCtxRelease_v2", [ordinal(of), 0, 0, 0, 0])
}

pub(crate) fn set_current(context: u64) -> Result {
    call("cuCtxSetCurrent", [word(context), 0, 0, 0, 0])
}

pub(crate) fn current() -> Result<u64> {
    get("cuCtxGetCurrent", [0; 4])
}

pub(crate) fn push(context: u64) -> Result {
    call("cuCtxPushCurrent_v2", [word(context), 0, 0, 0, 0])
}

pub(crate) fn pop() -> Result<u64> {
    get("cuCtxPopCurrent_v2", [0; 4])
}

pub(crate) fn context_synchronize() -> Result {
    call("cuCtxSynchronize", [0; 5])
}

/// Returns free and total bytes.
pub(crate) fn memory() -> Result<(usize, usize)> {
    let mut total = 0_usize;
    let out = (&raw mut total).expose_provenance();
    let free = get("cuMemGetInfo_v2", [out, 0, 0, 0])?;
    Ok((free, total))
}

pub(crate) fn alloc(len: usize) -> Result<usize> {
    get("cuMemAlloc_v2", [len, 0, 0, 0])
}

pub(crate) fn free(address: usize) -> Result {
    call("cuMemFree_v2", [address, 0, 0, 0, 0])
}

pub(crate) fn alloc_async(len: usize, stream: u64) -> Result<usize> {
    get("cuMemAllocAsync", [len, word(stream), 0, 0])
}

pub(crate) fn alloc_from(pool: u64, len: usize, stream: u64) -> Result<usize> {
    get(
        "cuMemAllocFromPoolAsync",
        [len, word(pool), word(stream), 0],
    )
}

pub(crate) fn free_async(address: usize, stream: u64) -> Result {
    call("cuMemFreeAsync", [address, word(stream), 0, 0, 0])
}

pub(crate) fn default_pool(of: i32) -> Result<u64> {
    get("cuDeviceGetDefaultMemPool", [ordinal(of), 0, 0, 0])
}

pub(crate) fn pool_create(of: i32) -> Result<u64> {
    // allocType, handleTypes, location.type and location.id, then pointer, limit and reserved
    // bytes.
    let mut properties = [0_u32; 22];
    (properties[0], properties[2], properties[3]) = (1, 1, of.cast_unsigned());
    let start = properties.as_ptr().expose_provenance();
    get("cuMemPoolCreate", [start, 0, 0, 0])
}

pub(crate) fn pool_destroy(pool: u64) -> Result {
    call("cuMemPoolDestroy", [word(pool), 0, 0, 0, 0])
}

pub(crate) fn pool_get(pool: u64, attribute: usize) -> Result<u64> {
    let mut value = 0_u64;
    let out = (&raw mut value).expose_provenance();
    call("cuMemPoolGetAttribute", [word(pool), attribute, out, 0, 0])?;
    Ok(value)
}

pub(crate) fn pool_set(pool: u64, attribute: usize, mut value: u64) -> Result {
    let value = (&raw mut value).expose_provenance();
    call(
        "cuMemPoolSetAttribute",
        [word(pool), attribute, value, 0, 0],
    )
}

pub(crate) fn pool_trim(pool: u64, keep: usize) -> Result {
    call("cuMemPoolTrimTo", [word(pool), keep, 0, 0, 0])
}

pub(crate) fn register(start: usize, len: usize) -> Result {
    call("cuMemHostRegister_v2", [start, len, 1, 0, 0])
}

/// Registers memory that the device only reads.
pub(crate) fn register_read_only(start: usize, len: usize) -> Result {
    call("cuMemHostRegister_v2", [start, len, 1 | 8, 0, 0])
}

pub(crate) fn unregister(start: usize) -> Result {
    call("cuMemHostUnregister", [start, 0, 0, 0, 0])
}

pub(crate) fn host_alloc(len: usize) -> Result<usize> {
    get("cuMemHostAlloc", [len, 0, 0, 0])
}

pub(crate) fn host_free(start: usize) -> Result {
    call("cuMemFreeHost", [start, 0, 0, 0, 0])
}

pub(crate) fn htod_async(to: usize, from: usize, len: usize, stream: u64) -> Result {
    call("cuMemcpyHtoDAsync_v2", [to, from, len, word(stream), 0])
}

pub(crate) fn copy_rows(described: &[usize; 16], stream: u64) -> Result {
    let described = described.as_ptr().expose_provenance();
    call("cuMemcpy2DAsync_v2", [described, word(stream), 0, 0, 0])
}

pub(crate) fn dtoh_async(to: usize, from: usize, len: usize, stream: u64) -> Result {
    call("cuMemcpyDtoHAsync_v2", [to, from, len, word(stream), 0])
}

pub(crate) fn dtod_async(to: usize, from: usize, len: usize, stream: u64) -> Result {
    call("cuMemcpyDtoDAsync_v2", [to, from, len, word(stream), 0])
}

/// Copies of a batch: destination, source and length of each.
pub(crate) type Copies<'a> = &'a [(usize, usize, usize)];

/// Calls `cuMemcpyBatchAsync` with one set of attributes. An error comes with the index of the copy
/// that failed.
pub(crate) fn batch(
    copies: Copies<'_>,
    order: u32,
    stream: u64,
) -> std::result::Result<(), (u32, usize)> {
    type Function = extern "C" fn(
        *const usize,
        *const usize,
        *const usize,
        usize,
        *const u32,
        *const usize,
        usize,
        *mut usize,
        u64,
    ) -> u32;
    let [to, from, lengths] = columns(copies);
    let (attributes, first, mut failed) = ([order, 0, 0, 0, 0, 0], 0, 7777);
    let address = Stub::load().symbol("cuMemcpyBatchAsync").expect("exported");
    // SAFETY: the function of CUDA 12.8, by its declaration.
    let function = unsafe { std::mem::transmute::<*mut c_void, Function>(address.as_ptr()) };
    let code = function(
        to.as_ptr(),
        from.as_ptr(),
        lengths.as_ptr(),
        copies.len(),
        attributes.as_ptr(),
        &raw const first,
        1,
        &raw mut failed,
        stream,
    );
    status(code).map_err(|code| (code, failed))
}

/// As [`batch`], by the function of CUDA 13.0, which does not report an index.
pub(crate) fn batch_v2(copies: Copies<'_>, order: u32, stream: u64) -> Result {
    type Function = extern "C" fn(
        *const usize,
        *const usize,
        *const usize,
        usize,
        *const u32,
        *const usize,
        usize,
        u64,
    ) -> u32;
    let [to, from, lengths] = columns(copies);
    let (attributes, first) = ([order, 0, 0, 0, 0, 0], 0);
    let address = Stub::load().symbol("cuMemcpyBatchAsync_v2");
    let address = address.expect("exported").as_ptr();
    // SAFETY: the function of CUDA 13.0, by its declaration.
    let function = unsafe { std::mem::transmute::<*mut c_void, Function>(address) };
    status(function(
        to.as_ptr(),
        from.as_ptr(),
        lengths.as_ptr(),
        copies.len(),
        attributes.as_ptr(),
        &raw const first,
        1,
        stream,
    ))
}

fn columns(copies: Copies<'_>) -> [Vec<usize>; 3] {
    [
        copies.iter().map(|copy| copy.0).collect(),
        copies.iter().map(|copy| copy.1).collect(),
        copies.iter().map(|copy| copy.2).collect(),
    ]
}

pub(crate) fn htod(to: usize, from: usize, len: usize) -> Result {
    call("cuMemcpyHtoD_v2", [to, from, len, 0, 0])
}

pub(crate) fn dtoh(to: usize, from: usize, len: usize) -> Result {
    call("cuMemcpyDtoH_v2", [to, from, len, 0, 0])
}

pub(crate) fn memset_async(to: usize, byte: u8, len: usize, stream: u64) -> Result {
    call("cuMemsetD8Async", [to, byte.into(), len, word(stream), 0])
}

pub(crate) fn stream(flags: usize) -> Result<u64> {
    get("cuStreamCreate", [flags, 0, 0, 0])
}

pub(crate) fn stream_destroy(stream: u64) -> Result {
    call("cuStreamDestroy_v2", [word(stream), 0, 0, 0, 0])
}

pub(crate) fn stream_synchronize(stream: u64) -> Result {
    call("cuStreamSynchronize", [word(stream), 0, 0, 0, 0])
}

pub(crate) fn stream_query(stream: u64) -> Result {
    call("cuStreamQuery", [word(stream), 0, 0, 0, 0])
}

pub(crate) fn stream_wait(stream: u64, event: u64) -> Result {
    call("cuStreamWaitEvent", [word(stream), word(event), 0, 0, 0])
}

pub(crate) fn event(flags: usize) -> Result<u64> {
    get("cuEventCreate", [flags, 0, 0, 0])
}

pub(crate) fn event_destroy(event: u64) -> Result {
    call("cuEventDestroy_v2", [word(event), 0, 0, 0, 0])
}

pub(crate) fn event_record(event: u64, stream: u64) -> Result {
    call("cuEventRecord", [word(event), word(stream), 0, 0, 0])
}

pub(crate) fn context_record(context: u64, event: u64) -> Result {
    call("cuCtxRecordEvent", [word(context), word(event), 0, 0, 0])
}

pub(crate) fn event_query(event: u64) -> Result {
    call("cuEventQuery", [word(event), 0, 0, 0, 0])
}

pub(crate) fn event_synchronize(event: u64) -> Result {
    call("cuEventSynchronize", [word(event), 0, 0, 0, 0])
}

pub(crate) fn elapsed(start: u64, end: u64) -> Result<f32> {
    get("cuEventElapsedTime_v2", [word(start), word(end), 0, 0])
}

/// A 32-bit attribute of a pointer.
pub(crate) fn pointer_int(attribute: usize, address: usize) -> Result<u32> {
    get("cuPointerGetAttribute", [attribute, address, 0, 0])
}

/// A 64-bit attribute of a pointer.
pub(crate) fn pointer_long(attribute: usize, address: usize) -> Result<u64> {
    get("cuPointerGetAttribute", [attribute, address, 0, 0])
}

/// Host memory whose bytes a test may change while the driver reads them.
pub(crate) struct Buffer(Box<[std::cell::UnsafeCell<u8>]>);

impl Buffer {
    pub(crate) fn new(len: usize, byte: u8) -> Self {
        Self((0..len).map(|_| byte.into()).collect())
    }

    pub(crate) fn start(&self) -> usize {
        self.0.as_ptr().expose_provenance()
    }

    pub(crate) fn pointer(&self) -> *mut u8 {
        std::cell::UnsafeCell::raw_get(self.0.as_ptr())
    }

    pub(crate) fn fill(&self, byte: u8) {
        // SAFETY: the memory is this buffer's, in cells. The stub's workers may read it meanwhile,
        // as a device would.
        unsafe { std::ptr::write_bytes(self.pointer(), byte, self.0.len()) };
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        // SAFETY: all of the buffer; tests read it when copies into it have run.
        unsafe { std::slice::from_raw_parts(self.pointer(), self.0.len()) }.to_vec()
    }
}

/// Returns the contents of device memory, by a copy that waits.
pub(crate) fn read(from: usize, len: usize) -> Vec<u8> {
    let buffer = Buffer::new(len, 0);
    dtoh(buffer.start(), from, len).unwrap();
    buffer.bytes()
}

pub(crate) fn poll(what: &str, mut ready: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !ready() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::yield_now();
    }
}

/// One page of memory in two mappings: one for writing, and one that can only be read.
pub(crate) struct Shared {
    pub(crate) written: *mut u8,
    pub(crate) read: usize,
}

impl Shared {
    pub(crate) const LEN: usize = 4096;

    pub(crate) fn new() -> Self {
        // SAFETY: the name is a text; the descriptor is checked below.
        let memory = unsafe { libc::memfd_create(c"shared".as_ptr(), 0) };
        assert!(memory >= 0, "memory can be shared");
        // SAFETY: the descriptor is this function's own.
        let sized = unsafe { libc::ftruncate(memory, 4096) };
        assert_eq!(sized, 0);
        let map = |rights| {
            // SAFETY: a new mapping at an address of the kernel's choice replaces nothing.
            let start = unsafe {
                libc::mmap(
                    std::ptr::null_mut(),
                    Self::LEN,
                    rights,
                    libc::MAP_SHARED,
                    memory,
                    0,
                )
            };
            assert_ne!(start, libc::MAP_FAILED);
            start.cast::<u8>()
        };
        let written = map(libc::PROT_READ | libc::PROT_WRITE);
        let read = map(libc::PROT_READ).expose_provenance();
        // SAFETY: the descriptor is this function's own; the mappings stay.
        unsafe { libc::close(memory) };
        Self { written, read }
    }

    pub(crate) fn write(&self, byte: u8) {
        // SAFETY: the page is mapped for writing until the value is dropped.
        unsafe { self.written.write_bytes(byte, Self::LEN) };
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let read = std::ptr::with_exposed_provenance_mut::<u8>(self.read);
        for start in [self.written, read] {
            // SAFETY: mapped in `new`, and no other owner is left.
            unsafe { libc::munmap(start.cast(), Self::LEN) };
        }
    }
}
