//! Batches of copies: ordered as a whole, without an order inside, and refused where the driver
//! refuses them.

use crate::driver::*;

const NON_BLOCKING: usize = 1;
const ANY_ORDER: u32 = 3;

#[test]
fn batch_runs_in_stream_order() {
    let session = session();
    let stream = stream(NON_BLOCKING).unwrap();
    let (memory, buffer) = (alloc(30).unwrap(), Buffer::new(30, 4));
    register(buffer.start(), 30).unwrap();
    session.stub.set("copy_delay_us", FOR_EVER);
    memset_async(memory, 1, 30, stream).unwrap();
    let copies = [
        (memory, buffer.start(), 10),
        (memory + 20, buffer.start() + 10, 10),
    ];
    batch(&copies, ANY_ORDER, stream).unwrap();
    let behind = event(2).unwrap();
    event_record(behind, stream).unwrap();
    assert_eq!(event_query(behind), Err(NOT_READY));
    session.stub.set("copy_delay_us", "0");
    event_synchronize(behind).unwrap();
    let expected = [[4; 10], [1; 10], [4; 10]].concat();
    assert_eq!(read(memory, 30), expected);
    batch_v2(&copies[..1], ANY_ORDER, stream).unwrap();
    stream_synchronize(stream).unwrap();
    assert_eq!(session.stub.count("cuMemcpyBatchAsync"), 1);
    assert_eq!(session.stub.count("cuMemcpyBatchAsync_v2"), 1);
    // The read above is of pageable memory.
    assert_eq!(session.stub.count("pinned_copies"), 3);
    assert_eq!(session.violations(), 0, "{}", session.stub.last_violation());
}

#[test]
fn buffer_overwritten_before_batch_runs_is_violation() {
    let session = session();
    let stream = stream(NON_BLOCKING).unwrap();
    let (memory, buffer) = (alloc(20).unwrap(), Buffer::new(20, 4));
    register(buffer.start(), 20).unwrap();
    session.stub.set("copy_delay_us", FOR_EVER);
    let copies = [
        (memory, buffer.start(), 10),
        (memory + 10, buffer.start() + 10, 10),
    ];
    batch(&copies, ANY_ORDER, stream).unwrap();
    buffer.fill(5);
    session.stub.set("copy_delay_us", "0");
    stream_synchronize(stream).unwrap();
    assert_eq!(session.violations(), 2, "{}", session.stub.last_violation());
}

#[test]
fn dependent_copies_of_one_batch_are_violation() {
    let session = session();
    let stream = stream(NON_BLOCKING).unwrap();
    let (memory, buffer) = (alloc(40).unwrap(), Buffer::new(40, 4));
    let host = buffer.start();
    for (violations, copies) in [
        (0, [(memory, host, 10), (memory + 10, host, 10)]),
        (1, [(memory, host, 10), (memory + 9, host + 10, 10)]),
        (1, [(memory, host, 10), (memory + 20, memory + 5, 10)]),
        (1, [(memory + 5, host, 30), (memory + 10, host + 30, 5)]),
    ] {
        let before = session.violations();
        batch(&copies, ANY_ORDER, stream).unwrap();
        stream_synchronize(stream).unwrap();
        assert_eq!(session.violations() - before, violations, "{copies:?}");
    }
}

#[test]
fn invalid_batches_are_refused() {
    let session = session();
    let stream = stream(NON_BLOCKING).unwrap();
    let (memory, buffer) = (alloc(20).unwrap(), Buffer::new(20, 4));
    let one = [(memory, buffer.start(), 10)];
    let whole = usize::MAX;
    assert_eq!(batch(&[], ANY_ORDER, stream), Err((INVALID_VALUE, whole)));
    for order in [0, 4] {
        assert_eq!(batch(&one, order, stream), Err((INVALID_VALUE, whole)));
    }
    for legacy in [0, 1] {
        assert_eq!(batch(&one, ANY_ORDER, legacy), Err((INVALID_VALUE, whole)));
        assert_eq!(batch_v2(&one, ANY_ORDER, legacy), Err(INVALID_VALUE));
    }
    assert_eq!(batch(&one, ANY_ORDER, 12345), Err((INVALID_HANDLE, whole)));
    session.stub.set("capturing", "1");
    assert_eq!(
        batch_v2(&one, ANY_ORDER, stream),
        Err(STREAM_CAPTURE_UNSUPPORTED)
    );
    session.stub.set("capturing", "0");
    assert_eq!(session.stub.count("pageable_copies"), 0);
}

/// The index is of the copy that fails, and others may have been queued.
#[test]
fn failing_batch_may_have_queued_a_part() {
    let session = session();
    let stream = stream(NON_BLOCKING).unwrap();
    let (memory, buffer) = (alloc(30).unwrap(), Buffer::new(30, 4));
    memset_async(memory, 1, 30, stream).unwrap();
    let host = buffer.start();
    let copies = [
        (memory, host, 10),
        (memory + 25, host, 10),
        (memory + 10, host, 10),
    ];
    let failed = Err((INVALID_VALUE, 1));
    assert_eq!(batch(&copies, ANY_ORDER, stream), failed);
    stream_synchronize(stream).unwrap();
    let expected = [[1; 10], [4; 10], [1; 10]].concat();
    assert_eq!(read(memory, 30), expected);
    session.stub.set("fail", "batch_copy:999:2:1");
    let valid = [copies[0], copies[2]];
    assert_eq!(batch(&valid, ANY_ORDER, stream), Err((999, 0)));
    assert_eq!(batch_v2(&valid, ANY_ORDER, stream), Ok(()));
    stream_synchronize(stream).unwrap();
    assert_eq!(read(memory, 20), [4; 20]);
}

#[test]
fn lookup_returns_version_of_batch_that_caller_knows() {
    let session = session();
    let address = |name| {
        let symbol = session.stub.symbol(name).expect(name);
        symbol.as_ptr().expose_provenance()
    };
    let (old, new) = (
        address("cuMemcpyBatchAsync"),
        address("cuMemcpyBatchAsync_v2"),
    );
    assert_ne!(old, new);
    assert_eq!(proc_address("cuMemcpyBatchAsync", 12_070), Ok((0, 2)));
    for version in [12_080, 13_000] {
        assert_eq!(proc_address("cuMemcpyBatchAsync", version), Ok((old, 0)));
    }
    session.stub.set("version", "13000");
    assert_eq!(proc_address("cuMemcpyBatchAsync", 12_080), Ok((old, 0)));
    assert_eq!(proc_address("cuMemcpyBatchAsync", 13_000), Ok((new, 0)));
    session.stub.set("version", "12040");
    assert_eq!(proc_address("cuMemcpyBatchAsync", 13_000), Ok((0, 1)));
}
