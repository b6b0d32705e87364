//! Functions of device memory, pools, pinned host memory and pointer attributes.

use std::ffi::{c_int, c_uint, c_void};

use super::{In, Out};
use crate::driver::Driver;
use crate::host;
use crate::memory::{self, Origin};
use crate::pool::{Pool, Value};
use crate::status::{INVALID_VALUE, Outcome};

/// Start of `CUmemPoolProps`, the same in all versions; `max` came with 12.2 in place of zeros.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct PoolProperties {
    kind: c_uint,
    exports: c_uint,
    location_kind: c_uint,
    location: c_int,
    security: *const c_void,
    max: usize,
}

super::driver_functions! {
    Context fn cuMemGetInfo_v2(free: Out<usize>, total: Out<usize>) |driver, here| {
        let memory = driver.settings.memory;
        let used = driver.taken(here) + driver.settings.cached;
        free.put(memory.saturating_sub(used))?;
        total.put(memory)
    };

    Context fn cuMemAlloc_v2(address: Out<usize>, len: usize) |driver, here| {
        address.check()?;
        address.put(driver.allocate(here, len)?)
    };

    Release fn cuMemFree_v2(address: usize) |driver, _| memory::free(driver, address);

    Context fn cuMemAllocAsync(address: Out<usize>, len: usize, stream: u64) |driver, here| {
        address.check()?;
        address.put(driver.allocate_async(len, None, stream, here)?)
    };

    Context fn cuMemAllocFromPoolAsync(
        address: Out<usize>,
        len: usize,
        pool: u64,
        stream: u64,
    ) |driver, here| {
        address.check()?;
        address.put(driver.allocate_async(len, Some(pool), stream, here)?)
    };

    Release fn cuMemFreeAsync(address: usize, stream: u64) |driver, here| {
        driver.free_async(address, stream, here)
    };

    Init fn cuMemPoolCreate(pool: Out<u64>, properties: In<PoolProperties>) |driver, _| {
        const PINNED: c_uint = 1;
        const DEVICE: c_uint = 1;
        pool.check()?;
        let properties = properties.get()?;
        let is_known = properties.kind == PINNED && properties.location_kind == DEVICE;
        if !is_known || driver.device(properties.location).is_err() {
            return Err(INVALID_VALUE);
        }
        driver.known(properties.location);
        pool.put(driver.new_pool(properties.location, properties.max, false))
    };

    Init fn cuMemPoolDestroy(pool: u64) |driver, _| driver.destroy_pool(pool);

    Init fn cuMemPoolSetAttribute(pool: u64, attribute: c_uint, value: In<c_void>) |driver, _| {
        let value = if Pool::is_int(attribute) {
            Value::Int(In::<c_int>(value.0.cast()).get()?)
        } else {
            Value::Long(In::<u64>(value.0.cast()).get()?)
        };
        driver.pool(pool)?.set(attribute, value)
    };

    Init fn cuMemPoolGetAttribute(pool: u64, attribute: c_uint, value: Out<c_void>) |driver, _| {
        match driver.pool(pool)?.get(attribute)? {
            Value::Int(number) => value.of::<c_int>().put(number),
            Value::Long(number) => value.of::<u64>().put(number),
        }
    };

    Init fn cuMemPoolTrimTo(pool: u64, keep: usize) |driver, _| {
        driver.pool(pool)?.trim(keep);
        Ok(())
    };

    Context fn cuMemHostRegister_v2(start: usize, len: usize, flags: c_uint) |driver, here| {
        driver.register(start, len, flags, here)
    };

    Release fn cuMemHostUnregister(start: usize) |driver, _| host::unregister(driver, start);

    Context fn cuMemHostAlloc(start: Out<usize>, len: usize, flags: c_uint) |driver, here| {
        start.check()?;
        start.put(driver.allocate_host(len, flags, here)?)
    };

    Release fn cuMemFreeHost(start: usize) |driver, _| host::free(driver, start);

    Context fn cuMemHostGetFlags(flags: Out<c_uint>, address: usize) |driver, _| {
        flags.put(driver.host_flags(address)?)
    };

    Context fn cuPointerGetAttribute(
        value: Out<c_void>,
        attribute: c_uint,
        address: usize,
    ) |driver, _| {
        value.check()?;
        pointer_attribute(driver, value, attribute, address)
    };
}

/// Stores an attribute of an address. Ordinary host memory is unknown to the driver:
/// `INVALID_VALUE`.
fn pointer_attribute(
    driver: &mut Driver,
    value: Out<c_void>,
    attribute: u32,
    address: usize,
) -> Outcome {
    const HOST: c_uint = 1;
    const DEVICE: c_uint = 2;
    let of_device = driver.device_range(address, 1).ok();
    let (kind, ordinal, start, len) = if let Some(memory) = &of_device {
        (DEVICE, memory.ordinal, memory.base, memory.len)
    } else {
        let start = driver.host_range(address, 1)?.ok_or(INVALID_VALUE)?;
        let pinned = &driver.pinned[&start];
        (HOST, pinned.ordinal, start, pinned.len)
    };
    match attribute {
        // CONTEXT
        1 => value.of().put(driver.known(ordinal).context),
        // MEMORY_TYPE
        2 => value.of().put(kind),
        // DEVICE_POINTER, and HOST_POINTER, which device memory does not have.
        3 => value.of().put(address),
        4 if kind == HOST => value.of().put(address),
        // BUFFER_ID: for pinned memory its start serves as one.
        7 => {
            let start = u64::try_from(start).expect("addresses have 64 bits");
            let serial = of_device.map_or(start, |memory| memory.serial);
            value.of().put(serial)
        }
        // IS_MANAGED
        8 => value.of().put(0_u32),
        // DEVICE_ORDINAL
        9 => value.of().put(ordinal),
        // RANGE_START_ADDR and RANGE_SIZE
        11 => value.of().put(start),
        12 => value.of().put(len),
        // MAPPED
        13 => value.of().put(1_u32),
        // MEMPOOL_HANDLE
        17 => {
            let pool = match of_device.map(|memory| memory.origin) {
                Some(Origin::Pool(pool)) => pool,
                Some(Origin::Plain | Origin::Adopted) | None => 0,
            };
            value.of().put(pool)
        }
        _ => Err(INVALID_VALUE),
    }
}
