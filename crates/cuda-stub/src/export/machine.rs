//! Functions of the driver itself, devices, primary contexts and the current context.

use std::ffi::{c_char, c_int, c_uint, c_void};

use super::{In, Out};
use crate::capture;
use crate::context;
use crate::device;
use crate::driver::{self, Driver};
use crate::status::{INVALID_VALUE, NO_DEVICE, NOT_FOUND, STUB_LIBRARY, describe};

super::driver_functions! {
    Nothing fn cuInit(flags: c_uint) |driver, _| {
        if driver.settings.stub_library {
            return Err(STUB_LIBRARY);
        }
        if flags != 0 {
            return Err(INVALID_VALUE);
        }
        if driver.settings.devices == 0 {
            return Err(NO_DEVICE);
        }
        driver::initialised();
        Ok(())
    };

    Nothing fn cuDriverGetVersion(version: Out<c_int>) |driver, _| {
        version.put(driver.settings.version)
    };

    Nothing fn cuGetErrorName(error: u32, text: Out<In<c_char>>) |_, _| {
        let (name, _) = describe(error).ok_or(INVALID_VALUE)?;
        text.put(In(name.as_ptr().cast()))
    };

    Nothing fn cuGetErrorString(error: u32, text: Out<In<c_char>>) |_, _| {
        let (_, string) = describe(error).ok_or(INVALID_VALUE)?;
        text.put(In(string.as_ptr().cast()))
    };

    Nothing fn cuGetProcAddress_v2(
        symbol: In<c_char>,
        function: Out<*mut c_void>,
        version: c_int,
        _flags: u64,
        status: Out<c_uint>,
    ) |driver, _| {
        let (address, found) = look_up(driver, symbol.text()?, version);
        function.put(address)?;
        if address.is_null() && status.check().is_err() {
            return Err(NOT_FOUND);
        }
        status.put_if_wanted(found);
        Ok(())
    };

    Nothing fn cuThreadExchangeStreamCaptureMode(mode: Out<u32>) |_, _| {
        let before = capture::exchange(mode.get()?)?;
        mode.put(before)
    };

    Init fn cuDeviceGetCount(count: Out<c_int>) |driver, _| {
        count.put(driver.settings.devices)
    };

    Init fn cuDeviceGet(device: Out<c_int>, ordinal: c_int) |driver, _| {
        driver.device(ordinal)?;
        device.put(ordinal)
    };

    Init fn cuDeviceGetName(name: Out<c_char>, len: c_int, device: c_int) |driver, _| {
        driver.device(device)?;
        let len = usize::try_from(len).map_err(|_| INVALID_VALUE)?;
        name.put_text("tload CUDA stub", len)
    };

    Init fn cuDeviceTotalMem_v2(bytes: Out<usize>, device: c_int) |driver, _| {
        driver.device(device)?;
        bytes.put(driver.settings.memory)
    };

    Init fn cuDeviceGetAttribute(value: Out<c_int>, what: c_uint, device: c_int) |driver, _| {
        driver.device(device)?;
        value.put(attribute(what, device))
    };

    Init fn cuDeviceGetPCIBusId(text: Out<c_char>, len: c_int, device: c_int) |driver, _| {
        driver.device(device)?;
        let len = usize::try_from(len).map_err(|_| INVALID_VALUE)?;
        let bus = attribute(PCI_BUS_ID, device);
        text.put_text(&format!("0000:{bus:02X}:00.0"), len)
    };

    Init fn cuDeviceGetUuid(uuid: Out<[u8; 16]>, device: c_int) |driver, _| {
        driver.device(device)?;
        uuid.put(name_of(device))
    };

    Init fn cuDeviceGetUuid_v2(uuid: Out<[u8; 16]>, device: c_int) |driver, _| {
        driver.device(device)?;
        uuid.put(name_of(device))
    };

    Init fn cuDeviceGetDefaultMemPool(pool: Out<u64>, device: c_int) |driver, _| {
        pool.put(driver.device(device)?.default_pool)
    };

    Init fn cuDeviceGetMemPool(pool: Out<u64>, device: c_int) |driver, _| {
        pool.put(driver.device(device)?.pool)
    };

    Init fn cuDeviceSetMemPool(device: c_int, pool: u64) |driver, _| {
        driver.set_pool(device, pool)
    };

    Init fn cuDevicePrimaryCtxRetain(context: Out<u64>, device: c_int) |driver, _| {
        context.check()?;
        context.put(device::retain(driver, device)?)
    };

    Init fn cuDevicePrimaryCtxRelease_v2(device: c_int) |driver, _| {
        device::release(driver, device)
    };

    Init fn cuDevicePrimaryCtxGetState(
        device: c_int,
        flags: Out<c_uint>,
        active: Out<c_int>,
    ) |driver, _| {
        let is_active = driver.device(device)?.retains > 0;
        flags.put(0)?;
        active.put(c_int::from(is_active))
    };

    Init fn cuCtxSetCurrent(context: u64) |driver, _| context::set(driver, context);

    Init fn cuCtxGetCurrent(context: Out<u64>) |driver, _| {
        context.put(context::current(driver))
    };

    Init fn cuCtxPushCurrent_v2(context: u64) |driver, _| context::push(driver, context);

    Init fn cuCtxPopCurrent_v2(context: Out<u64>) |driver, _| {
        context.put_if_wanted(context::pop(driver)?);
        Ok(())
    };

    Context fn cuCtxGetDevice(device: Out<c_int>) |_, here| device.put(here);

    // One priority: "0 to 0" means that there is no choice.
    Context fn cuCtxGetStreamPriorityRange(least: Out<c_int>, greatest: Out<c_int>) |_, _| {
        least.put_if_wanted(0);
        greatest.put_if_wanted(0);
        Ok(())
    };

    Context fn cuCtxSynchronize() context::synchronize;
}

const PCI_BUS_ID: u32 = 33;

/// Returns a device attribute by its number in `cuda.h`. Attributes not listed are 0: features that
/// the stub lacks.
fn attribute(what: u32, device: i32) -> i32 {
    match what {
        // Limits of kernel sizes, which some libraries query: those of a Hopper device.
        1 => 1024,
        10 => 32,
        16 => 132,
        39 => 2048,
        // CAN_MAP_HOST_MEMORY, ASYNC_ENGINE_COUNT and UNIFIED_ADDRESSING.
        19 | 41 => 1,
        40 => 3,
        PCI_BUS_ID => device + 1,
        // COMPUTE_CAPABILITY_MAJOR; the minor one, 76, is 0.
        75 => 9,
        // CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, HOST_REGISTER_SUPPORTED,
        // READ_ONLY_HOST_REGISTER_SUPPORTED and MEMORY_POOLS_SUPPORTED.
        91 | 99 | 113 | 115 => 1,
        // Among them INTEGRATED (18), PCI_DEVICE_ID (34), PCI_DOMAIN_ID (50) and HOST_NUMA_ID
        // (134).
        _ => 0,
    }
}

/// Returns a device's UUID, unlike that of any real device and the same in all processes.
fn name_of(device: i32) -> [u8; 16] {
    let mut bytes = *b"tload-cuda-stub\0";
    bytes[15] = device.to_le_bytes()[0];
    bytes
}

/// Looks up an exported function by its name in `cuda.h`, with or without a suffix, and returns its
/// address and the status of the search.
fn look_up(driver: &Driver, symbol: &str, version: c_int) -> (*mut c_void, c_uint) {
    const FOUND: c_uint = 0;
    const SYMBOL_NOT_FOUND: c_uint = 1;
    const VERSION_NOT_SUFFICIENT: c_uint = 2;
    let nothing = std::ptr::null_mut();
    let suffixed = format!("{symbol}_v2");
    let mut names = [symbol, &suffixed];
    // Unlike those of other functions, its two versions differ in their arguments.
    if symbol == "cuMemcpyBatchAsync" && version.min(driver.settings.version) >= since(&suffixed) {
        names.reverse();
    }
    if driver
        .settings
        .missing
        .iter()
        .any(|it| names.contains(&it.as_str()))
    {
        return (nothing, SYMBOL_NOT_FOUND);
    }
    let address = names
        .into_iter()
        .map(super::address)
        .find(|address| !address.is_null());
    match address {
        None => (nothing, SYMBOL_NOT_FOUND),
        Some(_) if driver.settings.version < since(symbol) => (nothing, SYMBOL_NOT_FOUND),
        Some(_) if version < since(symbol) => (nothing, VERSION_NOT_SUFFICIENT),
        Some(address) => (address, FOUND),
    }
}

/// Returns the CUDA version that introduced a function, if it is later than the version that this
/// crate's callers require.
fn since(symbol: &str) -> i32 {
    match symbol {
        "cuCtxRecordEvent" => 12_050,
        "cuEventElapsedTime_v2" | "cuMemcpyBatchAsync" => 12_080,
        "cuMemcpyBatchAsync_v2" => 13_000,
        _ => 0,
    }
}
