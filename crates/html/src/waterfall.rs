//! Waterfall of the phases of a start: when each began, and how long it lasted.

use serde::Deserialize;

use crate::page::{Bar, Bars, text};
use crate::quantity::format_seconds;

/// Most phases that are drawn: a store may have a connection for each of hundreds of requests.
const PHASES_MAX: usize = 80;

/// Phase of the opening, of the load or of the start of a process.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Phase {
    /// Name, for example `headers`.
    pub phase: String,
    /// Seconds from the beginning until it began.
    pub start_seconds: f64,
    /// Duration in seconds.
    pub seconds: f64,
}

/// Draws phases in their order. They may overlap.
pub(crate) fn waterfall(caption: impl Into<String>, phases: &[Phase]) -> Bars {
    let end = |phase: &Phase| phase.start_seconds + phase.seconds;
    let total = phases.iter().map(end).fold(0.0, f64::max);
    let percent = |seconds: f64| {
        if total > 0.0 {
            (seconds / total * 100.0).clamp(0.0, 100.0)
        } else {
            0.0
        }
    };
    let bar = |phase: &Phase| Bar {
        label: text(&phase.phase),
        values: vec![
            format_seconds(phase.start_seconds),
            format_seconds(phase.seconds),
        ],
        start: percent(phase.start_seconds),
        length: percent(phase.seconds),
        colour: colour(&phase.phase),
        ..Bar::default()
    };
    Bars {
        caption: caption.into(),
        head: ["phase", "begins at", "lasts", "time"]
            .map(str::to_owned)
            .into(),
        rows: phases.iter().take(PHASES_MAX).map(bar).collect(),
    }
}

/// Returns the colour of a phase: reading, connecting, or preparing.
fn colour(phase: &str) -> &'static str {
    match phase {
        "first read" | "first tensor" | "all tensors" => "a",
        "client" | "credentials" | "dns" | "connect" | "threads" => "b",
        _ => "c",
    }
}
