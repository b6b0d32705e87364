//! Decides when the progress of a file is recorded in its journal. Pure; called by `executor`.
//!
//! A record waits for the disk, but adds little work: the bytes must reach the disk anyway before
//! the file gets its name, and one thread writes one journal at a time.

use std::time::{Duration, Instant};

/// Time between two records of a file: a killed process loses at most about as much progress, plus
/// the time that the records of other files take.
const INTERVAL: Duration = Duration::from_secs(2);

/// Time between two looks at all files. Files that take less are not recorded at all.
pub(super) const STEP: Duration = Duration::from_millis(200);

/// Progress of a file as far as its journal has it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Recorded {
    bytes: u64,
    /// Time of the last record; `None` if there is no journal.
    at: Option<Instant>,
}

impl Recorded {
    /// Creates the state after a record of `bytes` at the time `now`.
    pub(super) fn new(bytes: u64, now: Instant) -> Self {
        Self {
            bytes,
            at: Some(now),
        }
    }

    /// Creates the state of a file of which the journal of an earlier copy has `bytes`.
    pub(super) fn resumed(bytes: u64, now: Instant) -> Self {
        Self {
            bytes,
            at: (bytes > 0).then_some(now),
        }
    }

    /// Returns the bytes that the journal has.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns whether progress of `written` bytes is due to be recorded: the first bytes at once,
    /// further records after [`INTERVAL`].
    pub(super) fn is_due(&self, written: u64, now: Instant) -> bool {
        let waited = self.at.is_none_or(|at| now.duration_since(at) >= INTERVAL);
        waited && written > self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_bytes_are_due_at_once_and_others_after_interval() {
        let start = Instant::now();
        let after = |millis| start + Duration::from_millis(millis);
        let fresh = Recorded::resumed(0, start);
        let resumed = Recorded::resumed(10, start);
        for (recorded, written, now, wanted) in [
            (fresh, 0, after(60_000), false),
            (fresh, 1, start, true),
            (resumed, 11, after(1_999), false),
            (resumed, 11, after(2_000), true),
            (resumed, 10, after(60_000), false),
            (Recorded::new(5, after(1_000)), 6, after(2_000), false),
            (Recorded::new(5, after(1_000)), 6, after(3_000), true),
        ] {
            assert_eq!(
                recorded.is_due(written, now),
                wanted,
                "{recorded:?} {written}"
            );
        }
    }
}
