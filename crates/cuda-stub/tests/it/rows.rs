//! Copies of rows: at even distances on both sides, in stream order, and refused where the driver
//! refuses them.

use crate::driver::*;

const NON_BLOCKING: usize = 1;

/// Three rows of 4 bytes, 6 apart in host memory and 10 apart on the device.
fn rows(memory: usize, host: usize) -> [usize; 16] {
    [0, 0, 1, host, 0, 0, 6, 0, 0, 2, 0, memory, 0, 10, 4, 3]
}

#[test]
fn rows_arrive_at_their_distances() {
    let session = session();
    let stream = stream(NON_BLOCKING).unwrap();
    let (memory, buffer) = (alloc(24).unwrap(), Buffer::new(16, 4));
    register(buffer.start(), 16).unwrap();
    memset_async(memory, 1, 24, stream).unwrap();
    copy_rows(&rows(memory, buffer.start()), stream).unwrap();
    stream_synchronize(stream).unwrap();
    let expected = [[4; 4].as_slice(), &[1; 6], &[4; 4], &[1; 6], &[4; 4]].concat();
    assert_eq!(read(memory, 24), expected);
    // Without rows, nothing is copied, wherever it is.
    for (field, value) in [(14, 0), (15, 0)] {
        let mut none = rows(12, 34);
        none[field] = value;
        copy_rows(&none, stream).unwrap();
    }
    // The offset of one row and one byte.
    let mut offset = rows(memory - 10, buffer.start());
    offset[8] = 1;
    copy_rows(&offset, stream).unwrap();
    stream_synchronize(stream).unwrap();
    assert_eq!(session.violations(), 0, "{}", session.stub.last_violation());
}

#[test]
fn rows_that_leave_their_memory_or_overlap_are_refused() {
    let session = session();
    let stream = stream(NON_BLOCKING).unwrap();
    let (memory, buffer) = (alloc(24).unwrap(), Buffer::new(16, 4));
    let refused = [
        (2, 2),
        (9, 1),
        (6, 3),
        (13, 3),
        (6, 1 << 31),
        (13, 1 << 31),
        (15, 4),
        (14, 5),
        (0, 3),
        (11, memory + 1),
    ];
    for (field, value) in refused {
        let mut wrong = rows(memory, buffer.start());
        wrong[field] = value;
        assert_eq!(copy_rows(&wrong, stream), Err(INVALID_VALUE), "{field}");
    }
    assert_eq!(
        copy_rows(&rows(memory, buffer.start()), 12345),
        Err(INVALID_HANDLE)
    );
    assert_eq!(session.stub.count("pageable_copies"), 0);
}

#[test]
fn buffer_overwritten_before_its_rows_are_copied_is_violation() {
    let session = session();
    let stream = stream(NON_BLOCKING).unwrap();
    let (memory, buffer) = (alloc(24).unwrap(), Buffer::new(16, 4));
    register(buffer.start(), 16).unwrap();
    session.stub.set("copy_delay_us", FOR_EVER);
    copy_rows(&rows(memory, buffer.start()), stream).unwrap();
    buffer.fill(5);
    session.stub.set("copy_delay_us", "0");
    stream_synchronize(stream).unwrap();
    assert_eq!(session.violations(), 3, "{}", session.stub.last_violation());
}
