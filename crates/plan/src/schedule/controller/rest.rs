//! Schedule of the probes of one limit.

use std::time::Duration;

/// Samples between two probes: initially, and at most. Further probes become rarer until the pause
/// is this long.
const REST_MIN: u32 = 3;
pub(super) const REST_MAX: u32 = 16;
const REST_MIN_SETTLED: u32 = 8;
const REST_TIME: Duration = Duration::from_millis(500);

/// Schedule of the probes: when the next one is due, and its direction.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rest {
    /// Samples until the next probe.
    pub(super) left: u32,
    /// Samples between two probes.
    pub(super) length: u32,
    pub(super) probes: u32,
}

impl Default for Rest {
    fn default() -> Self {
        Self {
            left: REST_MIN,
            length: REST_MIN,
            probes: 0,
        }
    }
}

impl Rest {
    /// Makes probes rarer after one was rejected; samples take `took` each.
    pub(super) fn lengthen(&mut self, took: Duration) {
        let in_time = REST_TIME.as_nanos() / took.as_nanos().max(1);
        let in_time = u32::try_from(in_time).unwrap_or(u32::MAX);
        let most = in_time.clamp(REST_MIN_SETTLED, REST_MAX);
        if self.probes.is_multiple_of(2) {
            self.length = (self.length * 2).min(most);
        }
        self.left = self.length;
    }
}
