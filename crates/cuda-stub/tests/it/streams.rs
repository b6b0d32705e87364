//! Streams and events: asynchronous, ordered, and removed when destroyed.

use crate::driver::*;

const NON_BLOCKING: usize = 1;

#[test]
fn copies_are_asynchronous_and_in_order() {
    let session = session();
    let (stream, event) = (stream(NON_BLOCKING).unwrap(), event(2).unwrap());
    assert_eq!(event_query(event), Ok(()), "never recorded");
    let (memory, out) = (alloc(10).unwrap(), Buffer::new(10, 0));
    register(out.start(), 10).unwrap();
    session.stub.set("copy_delay_us", FOR_EVER);
    memset_async(memory, 5, 10, stream).unwrap();
    dtoh_async(out.start(), memory, 10, stream).unwrap();
    memset_async(memory, 6, 10, stream).unwrap();
    event_record(event, stream).unwrap();
    assert_eq!(event_query(event), Err(NOT_READY));
    assert_eq!(stream_query(stream), Err(NOT_READY));
    assert_eq!(out.bytes(), [0; 10]);
    session.stub.set("copy_delay_us", "0");
    stream_synchronize(stream).unwrap();
    assert_eq!(event_query(event), Ok(()));
    assert_eq!(out.bytes(), [5; 10]);
    assert_eq!(read(memory, 10), [6; 10]);
}

#[test]
fn copies_between_devices_memory() {
    let session = session();
    let from = alloc(10).unwrap();
    set_current(retain(1).unwrap()).unwrap();
    let to = alloc(10).unwrap();
    let stream = stream(NON_BLOCKING).unwrap();
    memset_async(from, 9, 10, stream).unwrap();
    dtod_async(to, from, 10, stream).unwrap();
    stream_synchronize(stream).unwrap();
    assert_eq!(read(to, 10), [9; 10]);
    release(1).unwrap();
    set_current(session.context).unwrap();
}

#[test]
fn stream_waits_for_event_of_other_device() {
    let session = session();
    let (one, event) = (stream(NON_BLOCKING).unwrap(), event(2).unwrap());
    let (memory, buffer) = (alloc(10).unwrap(), Buffer::new(10, 4));
    session.stub.set("copy_delay_us", FOR_EVER);
    htod_async(memory, buffer.start(), 10, one).unwrap();
    event_record(event, one).unwrap();
    set_current(retain(1).unwrap()).unwrap();
    let two = stream(NON_BLOCKING).unwrap();
    assert_eq!(
        event_record(event, two),
        Err(INVALID_HANDLE),
        "of another context"
    );
    stream_wait(two, event).unwrap();
    let copy = alloc(10).unwrap();
    memset_async(copy, 1, 10, two).unwrap();
    assert_eq!(stream_query(two), Err(NOT_READY));
    dtod_async(copy, memory, 10, two).unwrap();
    session.stub.set("copy_delay_us", "0");
    stream_synchronize(two).unwrap();
    assert_eq!(read(copy, 10), [4; 10]);
    release(1).unwrap();
    set_current(session.context).unwrap();
}

#[test]
fn legacy_stream_alternates_with_blocking_streams() {
    let session = session();
    let (blocking, free) = (stream(0).unwrap(), stream(NON_BLOCKING).unwrap());
    let (memory, buffer) = (alloc(10).unwrap(), Buffer::new(10, 4));
    session.stub.set("copy_delay_us", FOR_EVER);
    htod_async(memory, buffer.start(), 10, blocking).unwrap();
    memset_async(memory, 1, 10, 0).unwrap();
    memset_async(memory, 2, 10, 2).unwrap();
    memset_async(memory, 3, 10, free).unwrap();
    stream_synchronize(free).unwrap();
    for waiting in [0, 1, 2, blocking] {
        assert_eq!(stream_query(waiting), Err(NOT_READY), "{waiting}");
    }
    session.stub.set("copy_delay_us", "0");
    stream_synchronize(2).unwrap();
    assert_eq!(stream_query(blocking), Ok(()));
    assert_eq!(read(memory, 10), [2; 10]);
}

#[test]
fn second_record_replaces_first() {
    let session = session();
    let (one, two) = (stream(NON_BLOCKING).unwrap(), stream(NON_BLOCKING).unwrap());
    let event = event(2).unwrap();
    let (memory, buffer) = (alloc(10).unwrap(), Buffer::new(10, 4));
    session.stub.set("copy_delay_us", FOR_EVER);
    htod_async(memory, buffer.start(), 10, one).unwrap();
    event_record(event, one).unwrap();
    assert_eq!(event_query(event), Err(NOT_READY));
    event_record(event, two).unwrap();
    event_synchronize(event).unwrap();
    context_record(session.context, event).unwrap();
    assert_eq!(event_query(event), Err(NOT_READY), "all of the context");
    session.stub.set("copy_delay_us", "0");
    event_synchronize(event).unwrap();
}

#[test]
fn queued_work_runs_after_stream_destroyed() {
    let session = session();
    let stream = stream(NON_BLOCKING).unwrap();
    let (memory, buffer) = (alloc(10).unwrap(), Buffer::new(10, 4));
    session.stub.set("copy_delay_us", FOR_EVER);
    htod_async(memory, buffer.start(), 10, stream).unwrap();
    stream_destroy(stream).unwrap();
    assert_eq!(session.stub.live("streams"), 0);
    assert_eq!(session.stub.live("threads"), 1);
    for status in [
        stream_destroy(stream),
        stream_synchronize(stream),
        htod_async(memory, buffer.start(), 10, stream),
    ] {
        assert_eq!(status, Err(INVALID_HANDLE));
    }
    session.stub.set("copy_delay_us", "0");
    context_synchronize().unwrap();
    poll("the worker ends", || session.stub.live("threads") == 0);
    assert_eq!(read(memory, 10), [4; 10]);
}

#[test]
fn unknown_streams_and_events_are_rejected() {
    let _session = session();
    let event = event(0).unwrap();
    event_destroy(event).unwrap();
    for status in [
        event_destroy(event),
        event_record(event, 0),
        event_query(event),
        event_synchronize(event),
        stream_wait(0, event),
        stream_destroy(0),
        stream_synchronize(12345),
    ] {
        assert_eq!(status, Err(INVALID_HANDLE));
    }
    assert_eq!(crate::driver::event(8), Err(INVALID_VALUE));
    assert_eq!(stream(2), Err(INVALID_VALUE));
}

#[test]
fn thread_default_stream_ends_with_thread() {
    let session = session();
    let context = session.context;
    let memory = alloc(10).unwrap();
    std::thread::spawn(move || {
        set_current(context).unwrap();
        memset_async(memory, 1, 10, 2).unwrap();
        stream_synchronize(2).unwrap();
    })
    .join()
    .unwrap();
    poll("the worker ends", || session.stub.live("threads") == 0);
}

#[test]
fn bandwidth_limit_serialises_device_copies() {
    let session = session();
    let streams = [(); 2].map(|()| stream(NON_BLOCKING).unwrap());
    let (memory, buffer) = (alloc(1000).unwrap(), Buffer::new(1000, 4));
    let (start, end) = (event(0).unwrap(), event(0).unwrap());
    assert_eq!(elapsed(start, end), Err(INVALID_HANDLE));
    // 1000 bytes take 20 ms, and each stream copies them twice.
    session.stub.set("bandwidth", "50000");
    event_record(start, streams[0]).unwrap();
    // Else its copies could begin before that is stamped.
    stream_wait(streams[1], start).unwrap();
    for stream in [streams[0], streams[1], streams[0], streams[1]] {
        htod_async(memory, buffer.start(), 1000, stream).unwrap();
    }
    for stream in streams {
        event_record(end, stream).unwrap();
        stream_wait(streams[1], end).unwrap();
    }
    event_record(end, streams[1]).unwrap();
    event_synchronize(end).unwrap();
    // No copy is faster than that; how much slower it is depends on the machine.
    assert!(elapsed(start, end).unwrap() >= 79.0);
    let untimed = event(2).unwrap();
    event_record(untimed, 0).unwrap();
    event_synchronize(untimed).unwrap();
    assert_eq!(elapsed(start, untimed), Err(INVALID_HANDLE));
}
