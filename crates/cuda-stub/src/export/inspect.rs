//! Functions for tests, beside the driver's own. `Stub` in `harness.rs` has them with Rust's types.

use std::ffi::{c_char, c_int};

use super::{In, Out};
use crate::driver::{Lock, changed};
use crate::memory;
use crate::status::{INVALID_VALUE, Outcome, SUCCESS};

super::inspecting_functions! {
    fn tload_cuda_stub_set(key: In<c_char>, value: In<c_char>) -> c_int {
        status(set(key, value))
    }

    fn tload_cuda_stub_live(kind: In<c_char>) -> i64 {
        let driver = Lock::take();
        kind.text().ok().and_then(|kind| driver.live(kind)).unwrap_or(-1)
    }

    fn tload_cuda_stub_count(name: In<c_char>) -> i64 {
        let driver = Lock::take();
        name.text().map_or(-1, |name| driver.counters.get(name))
    }

    fn tload_cuda_stub_violation(text: Out<c_char>, len: usize) -> i64 {
        let driver = Lock::take();
        let violation = driver.counters.violation();
        if len > 0 && text.put_text(violation, len).is_err() {
            return -1;
        }
        i64::try_from(violation.len()).unwrap_or(i64::MAX)
    }

    fn tload_cuda_stub_reset() -> c_int {
        Lock::take().reset();
        changed();
        0
    }

    fn tload_cuda_stub_adopt(start: usize, len: usize, ordinal: c_int) -> c_int {
        status(Lock::take().adopt(start, len, ordinal))
    }

    fn tload_cuda_stub_disown(start: usize) -> c_int {
        status(memory::disown(&mut Lock::take(), start))
    }
}

fn set(key: In<c_char>, value: In<c_char>) -> Outcome {
    let (key, value) = (key.text()?, value.text()?);
    let mut driver = Lock::take();
    driver.settings.set(key, value).ok_or(INVALID_VALUE)?;
    driver.forget_pace();
    changed();
    Ok(())
}

fn status(outcome: Outcome) -> c_int {
    let status = outcome.err().unwrap_or(SUCCESS);
    c_int::try_from(status).expect("statuses are small")
}
