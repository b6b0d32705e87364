//! Devices, contexts, versions, symbols, and the name of the library.

use std::ptr::NonNull;

use crate::driver::*;
use tload_cuda_stub::{Stub, folder, library};

#[test]
fn calls_without_context_fail() {
    let session = session();
    set_current(0).unwrap();
    assert_eq!(current(), Ok(0));
    for status in [
        memory().err(),
        alloc(1).err(),
        stream(0).err(),
        stream_synchronize(0).err(),
        register(4096, 1).err(),
        htod(1, 1, 1).err(),
    ] {
        assert_eq!(status, Some(INVALID_CONTEXT));
    }
    assert_eq!(pop(), Err(INVALID_CONTEXT));
    assert_eq!(set_current(77), Err(INVALID_CONTEXT));
    push(session.context).unwrap();
    assert_eq!(current(), Ok(session.context));
    std::thread::spawn(|| assert_eq!(current(), Ok(0)))
        .join()
        .unwrap();
    assert_eq!(pop(), Ok(session.context));
    assert_eq!(current(), Ok(0));
}

#[test]
fn attributes_tell_the_kind_of_memory() {
    let session = session();
    // Integrated, pageable memory, concurrent managed access, page tables of the host.
    let attributes = || [18, 88, 89, 100].map(|what| attribute(what, 0).unwrap());
    assert_eq!(attributes(), [0, 0, 0, 0]);
    for (kind, expected) in [
        ("integrated", [1, 1, 1, 1]),
        ("coherent", [0, 1, 1, 1]),
        ("discrete", [0, 0, 0, 0]),
    ] {
        session.stub.set("kind", kind);
        assert_eq!(attributes(), expected, "{kind}");
    }
}

/// A retain that arrived meanwhile once took the context that the release went on to empty.
#[test]
fn retain_waits_for_release_that_destroys() {
    let session = session();
    let stub = session.stub;
    let called = |name, calls| {
        while stub.count(name) < calls {
            std::thread::yield_now();
        }
    };
    let (context, buffer) = (retain(1).unwrap(), Buffer::new(10, 1));
    set_current(context).unwrap();
    let (stream, memory) = (stream(0).unwrap(), alloc(10).unwrap());
    stub.set("copy_delay_us", FOR_EVER);
    htod_async(memory, buffer.start(), 10, stream).unwrap();
    set_current(session.context).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| release(1).unwrap());
        called("cuDevicePrimaryCtxRelease_v2", 1);
        let second = scope.spawn(|| retain(1));
        called("cuDevicePrimaryCtxRetain", 2);
        let contexts = stub.live("contexts");
        stub.set("copy_delay_us", "0");
        assert_eq!(contexts, 1, "that of the session");
        assert_eq!(second.join().unwrap(), Ok(context));
        release(1).unwrap();
    });
}

#[test]
fn released_context_is_destroyed_with_its_contents() {
    let session = session();
    assert_eq!(session.stub.live("contexts"), 1);
    assert_eq!(retain(0), Ok(session.context));
    let buffer = Buffer::new(100, 1);
    register(buffer.start(), 100).unwrap();
    alloc(10).unwrap();
    alloc_async(10, stream(0).unwrap()).unwrap();
    event(0).unwrap();
    release(0).unwrap();
    assert_eq!(session.stub.live("allocations"), 2);
    release(0).unwrap();
    assert_eq!(session.stub.count("abandoned"), 5);
    for kind in [
        "contexts",
        "allocations",
        "allocated_bytes",
        "registrations",
        "registered_bytes",
        "streams",
        "events",
        "threads",
    ] {
        assert_eq!(session.stub.live(kind), 0, "{kind}");
    }
    assert_eq!(alloc(1), Err(CONTEXT_IS_DESTROYED));
    assert_eq!(release(0), Err(INVALID_CONTEXT));
    assert_eq!(retain(0), Ok(session.context));
    assert!(alloc(1).is_ok());
}

#[test]
fn device_count_follows_setting() {
    let session = session();
    assert_eq!((device_count(), device(1)), (Ok(2), Ok(1)));
    assert_eq!(
        (device(2), device(-1)),
        (Err(INVALID_DEVICE), Err(INVALID_DEVICE))
    );
    assert_ne!(uuid(0), uuid(1));
    assert_eq!(
        device_text("cuDeviceGetName", 0).unwrap(),
        "tload CUDA stub"
    );
    assert_eq!(
        device_text("cuDeviceGetPCIBusId", 1).unwrap(),
        "0000:02:00.0"
    );
    // Compute capability, pools, unified addressing, integrated, NUMA node.
    let attributes = [75, 76, 115, 41, 18, 134].map(|what| attribute(what, 0).unwrap());
    assert_eq!(attributes, [9, 0, 1, 1, 0, 0]);
    session.stub.set("devices", "3");
    assert_eq!(device(2), Ok(2));
    session.stub.set("devices", "0");
    assert_eq!(init(), Err(100));
}

#[test]
fn versions_symbols_and_names() {
    let session = session();
    assert_eq!(version(), Ok(12_080));
    assert_eq!(
        error_name(712).unwrap(),
        "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED"
    );
    assert_eq!(error_name(4711), Err(INVALID_VALUE));

    let exact = session.stub.symbol("cuMemHostRegister_v2").unwrap();
    let exact = exact.as_ptr().expose_provenance();
    assert_eq!(proc_address("cuMemHostRegister", 12_000), Ok((exact, 0)));
    assert_eq!(proc_address("cuMemHostRegister_v2", 12_000), Ok((exact, 0)));
    assert_eq!(proc_address("cuLaunchKernel", 12_000), Ok((0, 1)));
    assert_eq!(proc_address("cuCtxRecordEvent", 12_000), Ok((0, 2)));
    assert_ne!(proc_address("cuCtxRecordEvent", 12_080).unwrap().0, 0);

    session
        .stub
        .set("missing", "cuMemAllocAsync,cuMemHostRegister_v2");
    for symbol in ["cuMemAllocAsync", "cuMemHostRegister"] {
        assert_eq!(proc_address(symbol, 12_080), Ok((0, 1)));
    }
    session.stub.set("version", "12000");
    assert_eq!(version(), Ok(12_000));
    assert_eq!(proc_address("cuCtxRecordEvent", 12_080), Ok((0, 1)));
}

#[test]
fn stub_library_setting_fails_init() {
    let session = session();
    session.stub.set("stub_library", "1");
    assert_eq!(init(), Err(34));
    session.stub.reset();
    assert_eq!(init(), Ok(()));
}

#[test]
fn opened_library_is_found_by_name() {
    let stub = Stub::load();
    let again = loader::open("libcuda.so").expect("the stub is open under this name");
    let found = loader::symbol(again, "cuInit");
    assert_eq!(Some(found), stub.symbol("cuInit").map(NonNull::as_ptr));
}

#[test]
fn stub_directory_has_driver_under_both_names() {
    let folder = folder();
    for name in ["libcuda.so", "libcuda.so.1"] {
        let link = folder.path().join(name).canonicalize().unwrap();
        assert_eq!(link, library().canonicalize().unwrap());
    }
}

mod loader {
    #![expect(unsafe_code, reason = "asks the dynamic loader")]

    use std::ffi::{CString, c_void};

    pub(crate) fn open(name: &str) -> Option<*mut c_void> {
        let name = CString::new(name).expect("no zero bytes inside");
        // SAFETY: the name ends in a zero byte; nothing is loaded that is not loaded already.
        let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD) };
        (!library.is_null()).then_some(library)
    }

    pub(crate) fn symbol(library: *mut c_void, name: &str) -> *mut c_void {
        let name = CString::new(name).expect("no zero bytes inside");
        // SAFETY: the library is open, the name ends in a zero byte.
        unsafe { libc::dlsym(library, name.as_ptr()) }
    }
}
