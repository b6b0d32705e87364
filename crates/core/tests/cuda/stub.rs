//! Exclusive use of the stub driver, and access to its memory.

#![expect(unsafe_code, reason = "reads memory that the stub calls a device")]

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tload::{Tensor, release_staging};
use tload_cuda_stub::Stub;

/// Timeout for events that must happen.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Live objects that the driver counts and that must not leak.
const KINDS: [&str; 7] = [
    "allocations",
    "allocated_bytes",
    "registrations",
    "streams",
    "events",
    "contexts",
    "host_allocations",
];

/// Exclusive use of the driver. Dropping it asserts that nothing leaked and no order was violated.
pub(crate) struct Cuda {
    pub(crate) stub: &'static Stub,
    _alone: MutexGuard<'static, ()>,
}

/// Resets the driver and locks it for one test.
pub(crate) fn cuda() -> Cuda {
    static ALONE: Mutex<()> = Mutex::new(());
    let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let stub = Stub::load();
    release_staging();
    stub.reset();
    Cuda {
        stub,
        _alone: alone,
    }
}

impl Cuda {
    /// Asserts that no use or release of memory was unordered with its other uses.
    pub(crate) fn assert_in_order(&self) {
        assert_eq!(
            self.stub.count("violations"),
            0,
            "{}",
            self.stub.last_violation()
        );
    }

    /// Asserts that no load has leaked, once the lanes of dropped loads have ended.
    pub(crate) fn assert_nothing_left(&self) {
        let left = || {
            release_staging();
            let live = KINDS.map(|kind| (kind, self.stub.live(kind)));
            live.into_iter()
                .filter(|(_, count)| *count != 0)
                .collect::<Vec<_>>()
        };
        let started = Instant::now();
        while !left().is_empty() && started.elapsed() < PATIENCE {
            tload_testbed::pause_between_looks();
        }
        assert_eq!(left(), [], "leaked");
        // A destroyed context frees what it still contains, which must have been nothing.
        assert_eq!(self.stub.count("abandoned"), 0, "leaked into a context");
    }

    /// Waits after a fault until the load has released everything, and resets the driver. The
    /// contents of a lost context are not checked.
    pub(crate) fn recover(&self) {
        self.assert_in_order();
        let started = Instant::now();
        while self.stub.live("contexts") > 0 && started.elapsed() < PATIENCE {
            release_staging();
            tload_testbed::pause_between_looks();
        }
        let live = KINDS.map(|kind| (kind, self.stub.live(kind)));
        assert!(live.iter().all(|(_, count)| *count == 0), "{live:?}");
        self.stub.reset();
    }
}

impl Drop for Cuda {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        self.assert_nothing_left();
        self.assert_in_order();
    }
}

/// Returns the bytes of a tensor on any device. The stub's device memory is memory of this process.
pub(crate) fn bytes(tensor: &Tensor) -> Vec<u8> {
    if tensor.byte_len() == 0 {
        return Vec::new();
    }
    if tensor.ordinal().is_none() && tensor.target().is_none() {
        return tensor.bytes().to_vec();
    }
    let len = usize::try_from(tensor.byte_len()).expect("small");
    // SAFETY: the stub's memory is host memory, the tensor (or the test, for memory that it lends)
    // keeps it alive, and all of its bytes have arrived.
    unsafe { std::slice::from_raw_parts(tensor.as_ptr(), len) }.to_vec()
}
