//! Timeouts that are the subject of a test. One that is long for an idle machine may expire on a
//! busy one before the load reaches the stage that it is to end there.

use std::time::Duration;

/// Timeouts to try, one after another.
pub(crate) const TIMEOUTS: [Duration; 4] = [
    Duration::from_millis(300),
    Duration::from_secs(2),
    Duration::from_secs(15),
    Duration::from_secs(100),
];

/// Calls `load` with increasing timeouts until it returns something: until the timeout has ended
/// the stage that the test is about.
#[track_caller]
pub(crate) fn until_it_stalls<T>(load: impl FnMut(Duration) -> Option<T>) -> T {
    let found = TIMEOUTS.into_iter().find_map(load);
    found.expect("the load reaches the stage that stalls")
}
