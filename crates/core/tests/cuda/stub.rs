//! The driver of these tests: alone with it, and a look into its memory.

#![expect(unsafe_code, reason = "looks into memory that the stub calls a device")]

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tload::{Tensor, release_staging};
use tload_cuda_stub::Stub;

/// How long tests wait for what must come.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// What the driver counts, and nobody may leave behind.
const KINDS: [&str; 7] = [
    "allocations",
    "allocated_bytes",
    "registrations",
    "streams",
    "events",
    "contexts",
    "host_allocations",
];

/// The driver, to oneself. At the end: nothing may have been left behind or done wrong.
pub(crate) struct Cuda {
    pub(crate) stub: &'static Stub,
    _alone: MutexGuard<'static, ()>,
}

/// Takes the driver, as new.
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
    /// That nobody has used or freed memory without being ordered behind its other uses.
    pub(crate) fn assert_in_order(&self) {
        assert_eq!(
            self.stub.count("violations"),
            0,
            "{}",
            self.stub.last_violation()
        );
    }

    /// That nothing is left of any load, once the lanes of those that were dropped have ended.
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
            std::thread::yield_now();
        }
        assert_eq!(left(), [], "left behind");
        // A context that goes takes with it what is in it: that must have been nothing.
        assert_eq!(self.stub.count("abandoned"), 0, "left in a context");
    }

    /// After a fault: everything of the load is gone, and the driver is as new. Nothing is expected of what was in a lost context.
    pub(crate) fn recover(&self) {
        self.assert_in_order();
        let started = Instant::now();
        while self.stub.live("contexts") > 0 && started.elapsed() < PATIENCE {
            release_staging();
            std::thread::yield_now();
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

/// What is in a tensor, wherever it is. The stub's device memory is memory of this process.
pub(crate) fn bytes(tensor: &Tensor) -> Vec<u8> {
    if tensor.byte_len() == 0 {
        return Vec::new();
    }
    if tensor.ordinal().is_none() && tensor.target().is_none() {
        return tensor.bytes().to_vec();
    }
    let len = usize::try_from(tensor.byte_len()).expect("small");
    // SAFETY: the stub's memory is host memory, the tensor (or the test, of memory that it lends) keeps it, and all of its bytes
    // have arrived.
    unsafe { std::slice::from_raw_parts(tensor.as_ptr(), len) }.to_vec()
}
