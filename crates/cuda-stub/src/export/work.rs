//! Functions of copies, fills, streams and events.

use std::ffi::{c_int, c_uint};

use super::Out;
use crate::copy::{self, Return, Side};
use crate::event;
use crate::status::INVALID_VALUE;
use crate::stream::{self, Kind};

/// Stream of functions without a stream argument.
const DEFAULT: u64 = 0;

super::driver_functions! {
    Context fn cuMemcpyHtoDAsync_v2(to: usize, from: usize, len: usize, stream: u64) |driver, here| {
        let (from, to) = (Side::Host(from), Side::Device(to));
        copy::submit(driver, from, to, len, stream, here, Return::AtOnce)
    };

    Context fn cuMemcpyDtoHAsync_v2(to: usize, from: usize, len: usize, stream: u64) |driver, here| {
        let (from, to) = (Side::Device(from), Side::Host(to));
        copy::submit(driver, from, to, len, stream, here, Return::AtOnce)
    };

    Context fn cuMemcpyDtoDAsync_v2(to: usize, from: usize, len: usize, stream: u64) |driver, here| {
        let (from, to) = (Side::Device(from), Side::Device(to));
        copy::submit(driver, from, to, len, stream, here, Return::AtOnce)
    };

    Context fn cuMemcpyHtoD_v2(to: usize, from: usize, len: usize) |driver, here| {
        let (from, to) = (Side::Host(from), Side::Device(to));
        copy::submit(driver, from, to, len, DEFAULT, here, Return::WhenDone)
    };

    Context fn cuMemcpyDtoH_v2(to: usize, from: usize, len: usize) |driver, here| {
        let (from, to) = (Side::Device(from), Side::Host(to));
        copy::submit(driver, from, to, len, DEFAULT, here, Return::WhenDone)
    };

    // Without the host, so that the copy need not wait for it: "no host-side synchronization is
    // performed".
    Context fn cuMemcpyDtoD_v2(to: usize, from: usize, len: usize) |driver, here| {
        let (from, to) = (Side::Device(from), Side::Device(to));
        copy::submit(driver, from, to, len, DEFAULT, here, Return::AtOnce)
    };

    // Does not wait for the host: "memset functions are asynchronous with respect to the host".
    Context fn cuMemsetD8_v2(to: usize, byte: u8, len: usize) |driver, here| {
        copy::fill(driver, to, byte, len, DEFAULT, here)
    };

    Context fn cuMemsetD8Async(to: usize, byte: u8, len: usize, stream: u64) |driver, here| {
        copy::fill(driver, to, byte, len, stream, here)
    };

    Context fn cuStreamCreate(stream: Out<u64>, flags: c_uint) |driver, here| {
        stream.check()?;
        let blocking = is_blocking(flags)?;
        stream.put(driver.start(here, Kind::Created, blocking)?)
    };

    // Priorities change nothing here.
    Context fn cuStreamCreateWithPriority(
        stream: Out<u64>,
        flags: c_uint,
        _priority: c_int,
    ) |driver, here| {
        stream.check()?;
        let blocking = is_blocking(flags)?;
        stream.put(driver.start(here, Kind::Created, blocking)?)
    };

    Release fn cuStreamDestroy_v2(stream: u64) |driver, _| driver.destroy_stream(stream);

    Context fn cuStreamSynchronize(stream: u64) |driver, here| {
        stream::synchronize(driver, stream, here)
    };

    Context fn cuStreamQuery(stream: u64) |driver, here| driver.query_stream(stream, here);

    Context fn cuStreamWaitEvent(stream: u64, event: u64, _flags: c_uint) |driver, here| {
        driver.stream_waits(stream, event, here)
    };

    Context fn cuStreamGetCtx(stream: u64, context: Out<u64>) |driver, here| {
        let stream = driver.stream(stream, here)?;
        let ordinal = driver.ordinal_of(stream);
        context.put(driver.known(ordinal).context)
    };

    Context fn cuEventCreate(event: Out<u64>, flags: c_uint) |driver, here| {
        event.check()?;
        event.put(driver.create_event(here, flags)?)
    };

    Release fn cuEventDestroy_v2(event: u64) |driver, _| driver.destroy_event(event);

    Context fn cuEventRecord(event: u64, stream: u64) |driver, here| {
        driver.record(event, stream, here)
    };

    Context fn cuCtxRecordEvent(context: u64, event: u64) |driver, _| {
        let ordinal = crate::context::find(driver, context)?;
        driver.record_context(event, ordinal)
    };

    Context fn cuEventQuery(event: u64) |driver, _| driver.query_event(event);

    Context fn cuEventSynchronize(event: u64) |driver, _| event::synchronize(driver, event);

    Context fn cuEventElapsedTime(milliseconds: Out<f32>, start: u64, end: u64) |driver, _| {
        milliseconds.put(driver.elapsed(start, end)?)
    };

    Context fn cuEventElapsedTime_v2(milliseconds: Out<f32>, start: u64, end: u64) |driver, _| {
        milliseconds.put(driver.elapsed(start, end)?)
    };
}

/// Returns whether a stream with these flags is ordered with the legacy default stream.
fn is_blocking(flags: u32) -> Result<bool, u32> {
    match flags {
        0 => Ok(true),
        1 => Ok(false),
        _ => Err(INVALID_VALUE),
    }
}
