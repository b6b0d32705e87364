//! What a load found out about depth, for its report.

use std::time::Duration;

use super::InFlight;

/// Why the limit is what it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settled {
    /// Somebody asked for it.
    Fixed,
    /// The load was never held back by depth: it was too short to tell.
    NeverDeep,
    /// The load was never held back by depth, but by memory: by its limit, and by a receiver that was slow to take.
    Memory,
    /// The load ended before more was tried, or too little was left for more to pay.
    Unfinished,
    /// It may not be deeper.
    Ceiling,
    /// More in flight brought no more: reads only waited longer.
    OnlyQueued,
    /// More in flight brought a little more, but not enough for the memory that it takes.
    LittleGain,
    /// More in flight made it slower.
    Slower,
}

impl Settled {
    /// In words.
    pub fn text(self) -> &'static str {
        match self {
            Self::Fixed => "fixed",
            Self::NeverDeep => "depth was not the limit",
            Self::Memory => "memory was the limit",
            Self::Unfinished => "the load ended before more was tried",
            Self::Ceiling => "it may not be deeper",
            Self::OnlyQueued => "more brought no more",
            Self::LittleGain => "more brought too little",
            Self::Slower => "more was slower",
        }
    }

    /// By what more in flight brought, as a ratio.
    pub(super) fn by(gain: f64) -> Self {
        match gain {
            _ if gain < 0.97 => Self::Slower,
            _ if gain < 1.03 => Self::OnlyQueued,
            _ => Self::LittleGain,
        }
    }
}

/// What a load found out about the depth of one group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DepthReport {
    /// The limit now; while a probe is on its way, the one that it is compared with.
    pub limit: InFlight,
    /// When that became the limit, since the load's start.
    pub changed_at: Duration,
    /// How often it has changed; probes that led to nothing are not counted.
    pub changes: u32,
    /// Greatest rate measured over a sample, bytes per second; 0 if there was none.
    pub best_rate: u64,
    /// Why it is not deeper.
    pub settled: Settled,
}
