//! State before `cuInit`, and settings from the environment. One test in a process of its own: both
//! can be observed once.

#![expect(
    unsafe_code,
    reason = "sets the environment, and calls C functions by address"
)]

use std::ffi::c_void;

use tload_cuda_stub::Stub;

const NOT_INITIALIZED: u32 = 3;

#[test]
fn calls_before_init_fail_and_environment_applies() {
    // SAFETY: the only test of this process, which has read nothing of the environment yet.
    unsafe { std::env::set_var("TLOAD_CUDA_STUB_DEVICES", "5") };
    let stub = Stub::load();
    let count = stub.symbol("cuDeviceGetCount").unwrap().as_ptr();
    // SAFETY: the driver's declaration of this function.
    let count: extern "C" fn(&mut i32) -> u32 =
        unsafe { std::mem::transmute::<*mut c_void, _>(count) };
    let init = stub.symbol("cuInit").unwrap().as_ptr();
    // SAFETY: as above.
    let init: extern "C" fn(u32) -> u32 = unsafe { std::mem::transmute::<*mut c_void, _>(init) };

    let mut devices = 0;
    assert_eq!(count(&mut devices), NOT_INITIALIZED);
    assert_eq!(init(1), 1, "flags are 0");
    assert_eq!(count(&mut devices), NOT_INITIALIZED);
    assert_eq!(init(0), 0);
    assert_eq!(count(&mut devices), 0);
    assert_eq!(devices, 5);
    stub.set("devices", "3");
    assert_eq!((count(&mut devices), devices), (0, 3));
    stub.reset();
    assert_eq!(
        (count(&mut devices), devices),
        (0, 5),
        "reset goes back to the environment"
    );
}
