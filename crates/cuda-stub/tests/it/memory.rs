//! Device memory, pools and pinned host memory: ownership and free bytes.

use crate::driver::*;

const MIB: usize = 1 << 20;

#[test]
fn memory_is_accounted_to_the_byte_and_runs_out() {
    let session = session();
    session.stub.set("memory", "1000");
    assert_eq!(memory(), Ok((1000, 1000)));
    let first = alloc(600).unwrap();
    assert_eq!(memory(), Ok((400, 1000)));
    assert_eq!(alloc(401), Err(OUT_OF_MEMORY));
    let second = alloc(400).unwrap();
    assert_eq!(memory(), Ok((0, 1000)));
    free(first).unwrap();
    session.stub.set("busy", "300");
    assert_eq!(memory(), Ok((300, 1000)));
    assert_eq!(alloc(301), Err(OUT_OF_MEMORY));
    free(second).unwrap();
    assert_eq!(session.stub.live("allocations"), 0);
    assert_eq!(session.stub.live("allocated_bytes"), 0);
    assert_eq!(session.stub.count("peak_allocated_bytes"), 1000);
    assert_eq!(alloc(0), Err(INVALID_VALUE));
}

#[test]
fn memory_of_integrated_device_holds_pinned_memory() {
    let session = session();
    session.stub.set("memory", "10000");
    let buffer = Buffer::new(4000, 1);
    register(buffer.start(), 4000).unwrap();
    assert_eq!(memory(), Ok((10000, 10000)));
    session.stub.set("kind", "coherent");
    assert_eq!(memory(), Ok((10000, 10000)), "two memories");
    session.stub.set("kind", "integrated");
    assert_eq!(memory(), Ok((6000, 10000)));
    let pinned = host_alloc(1000).unwrap();
    assert_eq!(alloc(5001), Err(OUT_OF_MEMORY));
    let device = alloc(5000).unwrap();
    assert_eq!(memory(), Ok((0, 10000)));
    assert_eq!(host_alloc(1), Err(OUT_OF_MEMORY));
    host_free(pinned).unwrap();
    free(device).unwrap();
    // The page cache is not free, but gives way.
    session.stub.set("cached", "5500");
    assert_eq!(memory(), Ok((500, 10000)));
    free(alloc(6000).unwrap()).unwrap();
    unregister(buffer.start()).unwrap();
}

/// A copy from ordinary memory that such a device reads takes the bytes when it runs. Elsewhere
/// such an address is an error.
#[test]
fn integrated_device_copies_from_ordinary_memory() {
    let session = session();
    let (from, stream) = (Buffer::new(100, 7), stream(0).unwrap());
    let to = alloc(100).unwrap();
    assert_eq!(
        dtod_async(to, from.start(), 100, stream),
        Err(INVALID_VALUE)
    );
    session.stub.set("kind", "integrated");
    dtod_async(to, from.start(), 100, stream).unwrap();
    stream_synchronize(stream).unwrap();
    assert_eq!(read(to, 100), vec![7; 100]);
    assert_eq!(session.violations(), 0);
}

#[test]
fn fresh_memory_is_poisoned() {
    let _session = session();
    let memory = alloc(5000).unwrap();
    assert_eq!(read(memory, 5000), vec![0xDB; 5000]);
}

#[test]
fn copies_outside_one_live_allocation_are_rejected() {
    let session = session();
    let buffer = Buffer::new(100, 1);
    let memory = alloc(100).unwrap();
    htod(memory, buffer.start(), 100).unwrap();
    htod(memory + 99, buffer.start(), 1).unwrap();
    for (to, len) in [
        (memory + 1, 100),
        (memory - 1, 2),
        (memory + 100, 1),
        (16, 1),
    ] {
        assert_eq!(htod(to, buffer.start(), len), Err(INVALID_VALUE));
    }
    assert_eq!(htod(memory, 0, 1), Err(INVALID_VALUE));
    // Device memory is no host memory.
    assert_eq!(htod(memory, memory, 1), Err(INVALID_VALUE));
    assert_eq!(free(memory + 1), Err(INVALID_VALUE));
    free(memory).unwrap();
    assert_eq!(htod(memory, buffer.start(), 1), Err(INVALID_VALUE));
    assert_eq!(free(memory), Err(INVALID_VALUE));
    assert_eq!(free(0), Ok(()));
    assert_eq!(session.violations(), 0);
}

#[test]
fn overlapping_or_inner_registration_is_rejected() {
    let session = session();
    let buffer = Buffer::new(300, 1);
    let start = buffer.start();
    register(start, 100).unwrap();
    for (start, len) in [(start, 100), (start + 99, 5), (start + 10, 10)] {
        assert_eq!(register(start, len), Err(712));
    }
    register(start + 100, 100).unwrap();
    assert_eq!(session.stub.live("registrations"), 2);
    assert_eq!(session.stub.live("registered_bytes"), 200);

    let memory = alloc(300).unwrap();
    htod(memory, start + 50, 50).unwrap();
    assert_eq!(
        htod(memory, start + 50, 51),
        Err(INVALID_VALUE),
        "across two"
    );
    assert_eq!(
        htod(memory, start + 150, 100),
        Err(INVALID_VALUE),
        "pinned in places"
    );
    htod(memory, start + 200, 100).unwrap();
    assert_eq!(session.stub.count("pinned_copies"), 1);
    assert_eq!(session.stub.count("pageable_copies"), 1);
    assert_eq!(session.stub.count("copied_bytes"), 150);

    assert_eq!(unregister(start + 1), Err(713));
    unregister(start).unwrap();
    assert_eq!(unregister(start), Err(713));
    unregister(start + 100).unwrap();
    assert_eq!(session.stub.live("registrations"), 0);
    assert_eq!(session.violations(), 0);
}

#[test]
fn long_registrations_can_be_made_to_fail() {
    let session = session();
    let buffer = Buffer::new(200, 1);
    session.stub.set("register_max", "100");
    assert_eq!(register(buffer.start(), 101), Err(OUT_OF_MEMORY));
    register(buffer.start(), 100).unwrap();
    register(buffer.start() + 100, 100).unwrap();
}

#[test]
fn read_only_memory_is_registered_with_the_flag_where_the_device_allows_it() {
    let session = session();
    let shared = Shared::new();
    let written = shared.written.expose_provenance();
    assert_eq!(attribute(113, 0), Ok(1));
    assert_eq!(register(shared.read, Shared::LEN), Err(INVALID_VALUE));
    register_read_only(shared.read, Shared::LEN).unwrap();
    // Memory that can be written to needs no flag.
    register(written, Shared::LEN).unwrap();
    unregister(shared.read).unwrap();
    unregister(written).unwrap();
    session.stub.set("read_only_register", "0");
    assert_eq!(attribute(113, 0), Ok(0));
    assert_eq!(register_read_only(shared.read, Shared::LEN), Err(801));
    assert_eq!(session.stub.live("registrations"), 0);
}

#[test]
fn write_through_another_mapping_before_the_copy_has_run_is_a_violation() {
    let session = session();
    let shared = Shared::new();
    shared.write(1);
    register_read_only(shared.read, Shared::LEN).unwrap();
    let (memory, stream) = (alloc(Shared::LEN).unwrap(), stream(1).unwrap());
    htod_async(memory, shared.read, Shared::LEN, stream).unwrap();
    stream_synchronize(stream).unwrap();
    shared.write(2);
    assert_eq!(session.violations(), 0, "the copy had run");
    assert_eq!(session.stub.count("read_only_copies"), 1);
    assert_eq!(read(memory, Shared::LEN), vec![1; Shared::LEN]);
    session.stub.set("stalled", "0");
    htod_async(memory, shared.read, Shared::LEN, stream).unwrap();
    shared.write(3);
    session.stub.set("stalled", "");
    stream_synchronize(stream).unwrap();
    assert_eq!(session.violations(), 1);
    let violation = session.stub.last_violation();
    assert!(violation.contains("was written before"), "{violation}");
    unregister(shared.read).unwrap();
}

#[test]
fn host_memory_can_be_allocated() {
    let session = session();
    let host = host_alloc(MIB).unwrap();
    assert_eq!(session.stub.live("host_allocations"), 1);
    assert_eq!(unregister(host), Err(713));
    assert_eq!(register(host, 1), Err(712));
    let memory = alloc(MIB).unwrap();
    htod(memory, host, MIB).unwrap();
    assert_eq!(session.stub.count("pinned_copies"), 1);
    assert_eq!(host_free(host + 1), Err(INVALID_VALUE));
    host_free(host).unwrap();
    assert_eq!(session.stub.live("host_allocations"), 0);
}

#[test]
fn pointer_attributes_report_memory_kind() {
    let session = session();
    let buffer = Buffer::new(10, 1);
    let memory = alloc(100).unwrap();
    assert_eq!(pointer_int(2, memory + 5), Ok(2));
    assert_eq!(pointer_int(9, memory), Ok(0));
    assert_eq!(pointer_long(1, memory), Ok(session.context));
    assert_eq!(pointer_long(11, memory + 5), Ok(memory as u64));
    assert_eq!(pointer_long(12, memory + 5), Ok(100));
    assert_eq!(pointer_int(2, memory + 100), Err(INVALID_VALUE));
    assert_eq!(pointer_int(2, buffer.start()), Err(INVALID_VALUE));
    register(buffer.start(), 10).unwrap();
    assert_eq!(pointer_int(2, buffer.start()), Ok(1));
    unregister(buffer.start()).unwrap();
}

#[test]
fn pool_keeps_bytes_up_to_threshold() {
    let session = session();
    let stream = stream(1).unwrap();
    let pool = default_pool(0).unwrap();
    let state = || [5, 6, 7, 8].map(|attribute| pool_get(pool, attribute).unwrap());
    pool_set(pool, 6, 0).unwrap();
    pool_set(pool, 8, 0).unwrap();
    let memory = alloc_async(100, stream).unwrap();
    assert_eq!(state(), [100, 100, 100, 100]);
    // The stub gives bytes back when the free runs.
    free_async(memory, stream).unwrap();
    let free = || crate::driver::memory().unwrap().0;
    assert_eq!(free(), (1 << 30) - 100);
    stream_synchronize(stream).unwrap();
    assert_eq!(state(), [0, 100, 0, 100]);
    assert_eq!(free(), 1 << 30);

    pool_set(pool, 4, 60).unwrap();
    assert_eq!(pool_get(pool, 4), Ok(60));
    let memory = alloc_async(100, stream).unwrap();
    free_async(memory, stream).unwrap();
    stream_synchronize(stream).unwrap();
    assert_eq!(pool_get(pool, 5), Ok(60));
    pool_trim(pool, 10).unwrap();
    assert_eq!(pool_get(pool, 5), Ok(10));
    pool_set(pool, 4, 0).unwrap();

    assert_eq!(pool_destroy(pool), Err(INVALID_VALUE));
    let own = pool_create(1).unwrap();
    assert_eq!(session.stub.live("pools"), 1);
    let memory = alloc_from(own, 100, stream).unwrap();
    assert_eq!(pointer_int(9, memory), Ok(1));
    pool_destroy(own).unwrap();
    assert_eq!(alloc_from(own, 100, stream), Err(INVALID_VALUE));
    assert_eq!(session.stub.live("pools"), 1, "its memory is alive");
    free_async(memory, stream).unwrap();
    stream_synchronize(stream).unwrap();
    assert_eq!(session.stub.live("pools"), 0);
    assert_eq!(session.violations(), 0);
}

#[test]
fn pool_at_limit_returns_out_of_memory() {
    let session = session();
    session.stub.set("memory", "1000");
    let stream = stream(1).unwrap();
    let first = alloc_async(1000, stream).unwrap();
    assert_eq!(alloc_async(1, stream), Err(OUT_OF_MEMORY));
    free_async(first, stream).unwrap();
    // A driver may let the same stream have the memory before; the stub waits until the free has
    // run.
    stream_synchronize(stream).unwrap();
    alloc_async(1000, stream).unwrap();
    assert_eq!(alloc(1), Err(OUT_OF_MEMORY));
    // Destroying the context frees what the pool holds.
    release(0).unwrap();
    retain(0).unwrap();
    assert_eq!(memory(), Ok((1000, 1000)));
}

#[test]
fn adopted_memory_acts_as_device_memory() {
    let session = session();
    let (foreign, buffer) = (Buffer::new(100, 0), Buffer::new(100, 7));
    session.stub.adopt(foreign.pointer(), 100, 1);
    assert_eq!(pointer_int(9, foreign.start()), Ok(1));
    htod(foreign.start() + 10, buffer.start(), 90).unwrap();
    assert_eq!(foreign.bytes()[..11], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7]);
    assert_eq!(free(foreign.start()), Err(INVALID_VALUE));
    assert_eq!(session.stub.live("allocations"), 0);
    session.stub.disown(foreign.pointer());
    assert_eq!(htod(foreign.start(), buffer.start(), 1), Err(INVALID_VALUE));
    assert_eq!(session.violations(), 0);
}
