//! Results of the depth control, for the report.

use std::time::Duration;

use super::InFlight;

/// Reason for the current limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitReason {
    /// The caller set it.
    Fixed,
    /// Depth never limited the load: it was too short to tell.
    NeverDeep,
    /// Memory limited the load, and depth never did, or not at this limit: the memory limit was
    /// reached and the consumer was slow to take tensors.
    Memory,
    /// The load ended before a higher limit was tried, or too little was left to read for a higher
    /// limit to pay off.
    Unfinished,
    /// The limit is at its maximum.
    Ceiling,
    /// Throughput plateaued: with more in flight, reads only waited longer.
    OnlyQueued,
    /// More in flight increased throughput a little, but not enough for the memory that it takes.
    LittleGain,
    /// More in flight decreased throughput.
    Slower,
}

impl LimitReason {
    /// Returns the reason in words.
    pub fn text(self) -> &'static str {
        match self {
            Self::Fixed => "fixed",
            Self::NeverDeep => "depth was not the limit",
            Self::Memory => "memory was the limit",
            Self::Unfinished => "the load ended before a higher limit was tried",
            Self::Ceiling => "hit the maximum",
            Self::OnlyQueued => "throughput plateaued",
            Self::LittleGain => "gain too small",
            Self::Slower => "a higher limit was slower",
        }
    }

    /// Returns the reason for a throughput ratio between a higher limit and this one.
    pub(super) fn by(gain: f64) -> Self {
        match gain {
            _ if gain < 0.97 => Self::Slower,
            _ if gain < 1.03 => Self::OnlyQueued,
            _ => Self::LittleGain,
        }
    }
}

/// Result of the depth control of one group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DepthReport {
    /// Current limit; during a probe, the limit that the probe is compared with.
    pub limit: InFlight,
    /// Time since the load's start when this limit was set.
    pub changed_at: Duration,
    /// Number of changes; rejected probes are not counted.
    pub changes: u32,
    /// Highest rate measured over a sample, bytes per second; 0 if there was none.
    pub best_rate: u64,
    /// Reason why the limit is not higher.
    pub limit_reason: LimitReason,
}
