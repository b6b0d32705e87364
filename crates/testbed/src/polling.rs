//! Pause of tests that look at a condition again and again.

use std::time::Duration;

/// Pauses between two looks at a condition. A loop without a pause takes a core from other tests.
#[expect(
    clippy::disallowed_methods,
    reason = "a pause between two looks is no wait for a time"
)]
pub fn pause_between_looks() {
    std::thread::sleep(Duration::from_micros(500));
}
