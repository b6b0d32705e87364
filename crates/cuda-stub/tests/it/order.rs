//! Detection of memory used without an order, and none for the same use in order.

use crate::driver::*;

const NON_BLOCKING: usize = 1;

#[test]
fn pinned_buffer_overwritten_before_copy_is_violation() {
    let session = session();
    let (stream, done) = (stream(NON_BLOCKING).unwrap(), event(2).unwrap());
    let memory = alloc(1000).unwrap();
    let buffer = Buffer::new(1000, 1);
    register(buffer.start(), 1000).unwrap();

    session.stub.set("copy_delay_us", FOR_EVER);
    htod_async(memory, buffer.start(), 1000, stream).unwrap();
    event_record(done, stream).unwrap();
    assert_eq!(event_query(done), Err(NOT_READY));
    buffer.fill(2);
    session.stub.set("copy_delay_us", "0");
    event_synchronize(done).unwrap();
    assert_eq!(session.violations(), 1);
    assert!(
        session
            .stub
            .last_violation()
            .contains("written before its copy")
    );
    // The bytes at the time of the copy arrive.
    assert_eq!(read(memory, 1000), [2; 1000]);

    htod_async(memory, buffer.start(), 1000, stream).unwrap();
    event_record(done, stream).unwrap();
    event_synchronize(done).unwrap();
    buffer.fill(3);
    context_synchronize().unwrap();
    assert_eq!(session.violations(), 1, "{}", session.stub.last_violation());
}

#[test]
fn pageable_buffer_is_reusable_immediately() {
    let session = session();
    let stream = stream(NON_BLOCKING).unwrap();
    let memory = alloc(10).unwrap();
    let buffer = Buffer::new(10, 1);
    session.stub.set("copy_delay_us", FOR_EVER);
    htod_async(memory, buffer.start(), 10, stream).unwrap();
    buffer.fill(2);
    session.stub.set("copy_delay_us", "0");
    stream_synchronize(stream).unwrap();
    assert_eq!(read(memory, 10), [1; 10]);
    assert_eq!(session.violations(), 0);
}

#[test]
fn use_on_another_stream_needs_an_order_after_the_allocation() {
    let session = session();
    let (one, two) = (stream(NON_BLOCKING).unwrap(), stream(NON_BLOCKING).unwrap());
    let born = event(2).unwrap();

    // Waiting for an event orders, and so does the stream itself.
    let memory = alloc_async(10, one).unwrap();
    event_record(born, one).unwrap();
    memset_async(memory, 1, 10, one).unwrap();
    stream_wait(two, born).unwrap();
    memset_async(memory, 2, 10, two).unwrap();
    // So does waiting on the host.
    let memory = alloc_async(10, one).unwrap();
    stream_synchronize(one).unwrap();
    memset_async(memory, 2, 10, two).unwrap();
    assert_eq!(session.violations(), 0, "{}", session.stub.last_violation());

    // An event from before the allocation does not.
    let memory = alloc_async(10, one).unwrap();
    stream_wait(two, born).unwrap();
    memset_async(memory, 2, 10, two).unwrap();
    assert_eq!(session.violations(), 1);
    assert!(
        session
            .stub
            .last_violation()
            .contains("after its allocation")
    );
}

#[test]
fn order_goes_through_third_streams() {
    let session = session();
    let streams = [(); 3].map(|()| stream(NON_BLOCKING).unwrap());
    let memory = alloc_async(10, streams[0]).unwrap();
    for pair in streams.windows(2) {
        let event = event(2).unwrap();
        event_record(event, pair[0]).unwrap();
        stream_wait(pair[1], event).unwrap();
        event_destroy(event).unwrap();
    }
    memset_async(memory, 2, 10, streams[2]).unwrap();
    assert_eq!(session.violations(), 0, "{}", session.stub.last_violation());
}

#[test]
fn stream_wait_uses_record_at_call() {
    let session = session();
    let (one, two) = (stream(NON_BLOCKING).unwrap(), stream(NON_BLOCKING).unwrap());
    let event = event(2).unwrap();
    event_record(event, one).unwrap();
    stream_wait(two, event).unwrap();
    let memory = alloc_async(10, one).unwrap();
    event_record(event, one).unwrap();
    memset_async(memory, 2, 10, two).unwrap();
    assert_eq!(session.violations(), 1);
}

#[test]
fn legacy_stream_orders_blocking_streams() {
    let session = session();
    let (blocking, free) = (stream(0).unwrap(), stream(NON_BLOCKING).unwrap());
    let memory = alloc_async(10, blocking).unwrap();
    memset_async(memory, 1, 10, 0).unwrap();
    let memory = alloc_async(10, 0).unwrap();
    memset_async(memory, 1, 10, blocking).unwrap();
    memset_async(memory, 1, 10, 2).unwrap();
    assert_eq!(session.violations(), 0, "{}", session.stub.last_violation());
    memset_async(memory, 1, 10, free).unwrap();
    assert_eq!(session.violations(), 1);
}

#[test]
fn free_must_be_ordered_after_all_uses() {
    let session = session();
    let (one, two) = (stream(NON_BLOCKING).unwrap(), stream(NON_BLOCKING).unwrap());
    let event = event(2).unwrap();
    let fresh = || {
        let memory = alloc_async(10, one).unwrap();
        event_record(event, one).unwrap();
        stream_wait(two, event).unwrap();
        memset_async(memory, 1, 10, two).unwrap();
        memory
    };
    let memory = fresh();
    event_record(event, two).unwrap();
    stream_wait(one, event).unwrap();
    free_async(memory, one).unwrap();
    let memory = fresh();
    stream_synchronize(two).unwrap();
    free(memory).unwrap();
    assert_eq!(session.violations(), 0, "{}", session.stub.last_violation());

    let memory = fresh();
    free_async(memory, one).unwrap();
    assert_eq!(session.violations(), 1);
    assert!(
        session
            .stub
            .last_violation()
            .contains("freed by cuMemFreeAsync")
    );
    assert_eq!(session.stub.live("allocations"), 0);
}

#[test]
fn immediate_free_without_host_wait_is_violation() {
    let session = session();
    let stream = stream(NON_BLOCKING).unwrap();
    let memory = alloc(10).unwrap();
    memset_async(memory, 1, 10, stream).unwrap();
    context_synchronize().unwrap();
    free(memory).unwrap();
    assert_eq!(session.violations(), 0, "{}", session.stub.last_violation());
    let memory = alloc(10).unwrap();
    memset_async(memory, 1, 10, stream).unwrap();
    // Whether this loses the context depends on whether the fill has run.
    let _ = free(memory);
    assert_eq!(session.violations(), 1);
    assert_eq!(session.stub.live("allocations"), 0);
}

#[test]
fn memory_freed_before_its_copy_loses_context() {
    let session = session();
    let (stream, done) = (stream(NON_BLOCKING).unwrap(), event(2).unwrap());
    let buffer = Buffer::new(10, 1);
    let memory = alloc(10).unwrap();
    session.stub.set("copy_delay_us", FOR_EVER);
    htod_async(memory, buffer.start(), 10, stream).unwrap();
    event_record(done, stream).unwrap();
    free(memory).unwrap();
    assert_eq!(session.violations(), 1);
    session.stub.set("copy_delay_us", "0");
    assert_eq!(event_synchronize(done), Err(ILLEGAL_ADDRESS));
    // Every later call fails with it, and still frees its argument.
    assert_eq!(alloc(10), Err(ILLEGAL_ADDRESS));
    assert_eq!(event_query(done), Err(ILLEGAL_ADDRESS));
    assert_eq!(event_destroy(done), Err(ILLEGAL_ADDRESS));
    assert_eq!(stream_destroy(stream), Err(ILLEGAL_ADDRESS));
    assert_eq!(session.stub.live("events"), 0);
    assert_eq!(session.stub.live("streams"), 0);
    // Another device's context is not lost.
    set_current(retain(1).unwrap()).unwrap();
    let other = alloc(10).unwrap();
    free(other).unwrap();
    release(1).unwrap();
    set_current(session.context).unwrap();
}

#[test]
fn unregister_before_copy_completes_is_violation() {
    let session = session();
    let stream = stream(NON_BLOCKING).unwrap();
    let buffer = Buffer::new(10, 1);
    let memory = alloc(10).unwrap();
    let copied = || {
        register(buffer.start(), 10).unwrap();
        htod_async(memory, buffer.start(), 10, stream).unwrap();
    };
    copied();
    stream_synchronize(stream).unwrap();
    unregister(buffer.start()).unwrap();
    copied();
    poll("the copy runs", || stream_query(stream).is_ok());
    unregister(buffer.start()).unwrap();
    assert_eq!(session.violations(), 0, "{}", session.stub.last_violation());
    session.stub.set("copy_delay_us", "50000");
    copied();
    unregister(buffer.start()).unwrap();
    // The driver has waited, so that its copy does not read freed memory.
    assert_eq!(session.stub.count("copied_bytes"), 30);
    assert_eq!(session.violations(), 1);
    assert!(
        session
            .stub
            .last_violation()
            .contains("unregistered before")
    );
}

#[test]
fn adopted_memory_misuse_is_violation() {
    let session = session();
    let stream = stream(NON_BLOCKING).unwrap();
    let foreign = Buffer::new(10, 1);
    session.stub.adopt(foreign.pointer(), 10, 0);
    memset_async(foreign.start(), 1, 10, stream).unwrap();
    stream_synchronize(stream).unwrap();
    session.stub.disown(foreign.pointer());
    assert_eq!(session.violations(), 0);
    session.stub.adopt(foreign.pointer(), 10, 0);
    memset_async(foreign.start(), 1, 10, stream).unwrap();
    session.stub.disown(foreign.pointer());
    assert_eq!(session.violations(), 1);
    let _ = stream_synchronize(stream);
}
