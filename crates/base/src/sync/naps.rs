//! Naps of threads that poll, because what they wait for does not wake them.

use std::cell::Cell;
use std::time::Duration;

/// Longest nap of a thread whose naps are short, and the time by which the system may prolong it.
const SHORT: Duration = Duration::from_micros(1);

thread_local! {
    static LONGEST: Cell<Duration> = const { Cell::new(Duration::MAX) };
}

/// Makes the naps of the calling thread short. Unless told otherwise, Linux prolongs each by up to
/// 50 µs.
pub fn shorten() {
    LONGEST.set(SHORT);
    #[cfg(target_os = "linux")]
    {
        let slack = u64::try_from(SHORT.as_nanos()).ok();
        let slack = slack.and_then(std::num::NonZeroU64::new);
        if let Err(error) = rustix::thread::set_current_timer_slack(slack) {
            tracing::debug!(%error, "cannot shorten the naps of a thread");
        }
    }
}

/// Returns how long the calling thread may nap that would like to do so for `wanted`.
#[must_use]
#[inline]
pub fn at_most(wanted: Duration) -> Duration {
    LONGEST.get().min(wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn naps_are_shortened_on_the_thread_that_asks_for_it() {
        let long = Duration::from_millis(1);
        let short = std::thread::spawn(move || {
            shorten();
            #[cfg(target_os = "linux")]
            assert_eq!(rustix::thread::current_timer_slack().ok(), Some(1000));
            at_most(long)
        });
        assert_eq!(short.join().expect("no panic"), SHORT);
        assert_eq!(at_most(long), long);
    }
}
