//! Waterfall of the starts of a process: phases summarised over the samples, as rows with bars.
//! Pure.

use serde::{Deserialize, Serialize};

use super::Spread;
use crate::output::table::Align;
use tload_quantity::{float, format_seconds};

pub(crate) const HEADER: [(&str, Align); 6] = [
    ("phase", Align::Left),
    ("times", Align::Right),
    ("start", Align::Right),
    ("duration", Align::Right),
    ("min–max", Align::Right),
    ("waterfall until the first tensor", Align::Left),
];

/// Phase whose end is the end of the bars.
const FIRST_TENSOR: &str = "first tensor";

/// Characters of the longest bar.
const WIDTH: usize = 40;

/// One phase of one start.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Step {
    pub(crate) phase: String,
    /// Seconds since the process was started.
    pub(crate) start_seconds: f64,
    pub(crate) seconds: f64,
}

impl Step {
    fn end(&self) -> f64 {
        self.start_seconds + self.seconds
    }
}

/// One phase over all starts.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct PhaseSummary {
    pub(crate) phase: String,
    /// Occurrences in one start before the first tensor: each connection is one.
    pub(crate) times: Spread,
    /// Seconds from the start of the process to the first occurrence.
    pub(crate) start_seconds: Spread,
    /// Seconds from the beginning of the first occurrence to the end of the last one.
    pub(crate) seconds: Spread,
}

/// Summarises the phases of several starts, in the order in which they begin.
pub(crate) fn summaries(starts: &[&[Step]]) -> Vec<PhaseSummary> {
    let mut names: Vec<&str> = Vec::new();
    for phase in starts.iter().flat_map(|start| start.iter()) {
        if !names.contains(&phase.phase.as_str()) {
            names.push(&phase.phase);
        }
    }
    let mut summaries: Vec<_> = names
        .iter()
        .filter_map(|name| summary(name, starts))
        .collect();
    summaries.sort_by(|a, b| a.start_seconds.median.total_cmp(&b.start_seconds.median));
    summaries
}

fn summary(name: &str, starts: &[&[Step]]) -> Option<PhaseSummary> {
    // Occurrences in each start: number, beginning, end.
    let spans = starts.iter().filter_map(|start| {
        let first_tensor = start.iter().find(|phase| phase.phase == FIRST_TENSOR);
        let last = first_tensor.map_or(f64::INFINITY, Step::end);
        let early = |phase: &&Step| phase.phase == name && phase.start_seconds <= last;
        let times = start.iter().filter(early).count();
        let begin = start
            .iter()
            .filter(early)
            .map(|it| it.start_seconds)
            .min_by(f64::total_cmp)?;
        let end = start.iter().filter(early).map(Step::end);
        Some((times, begin, end.max_by(f64::total_cmp)?))
    });
    let spans: Vec<_> = spans.collect();
    Some(PhaseSummary {
        phase: name.to_owned(),
        times: Spread::new(spans.iter().map(|(times, ..)| float(*times as u64)))?,
        start_seconds: Spread::new(spans.iter().map(|(_, begin, _)| *begin))?,
        seconds: Spread::new(spans.iter().map(|(_, begin, end)| end - begin))?,
    })
}

/// Returns a row for each summary.
pub(crate) fn rows(summaries: &[PhaseSummary]) -> Vec<Vec<String>> {
    let end = |it: &PhaseSummary| it.start_seconds.median + it.seconds.median;
    let first_tensor = summaries.iter().find(|it| it.phase == FIRST_TENSOR);
    let ends = || summaries.iter().map(end);
    let total = first_tensor.map_or_else(|| ends().fold(0.0, f64::max), end);
    let row = |it: &PhaseSummary| {
        vec![
            it.phase.clone(),
            format!("{:.0}", it.times.median),
            format_seconds(it.start_seconds.median),
            format_seconds(it.seconds.median),
            format!(
                "{}–{}",
                format_seconds(it.seconds.min),
                format_seconds(it.seconds.max)
            ),
            bar(it.start_seconds.median, end(it), total),
        ]
    };
    summaries.iter().map(row).collect()
}

/// Draws a phase that lasts from `begin` to `end` of `total` seconds, with `›` if it goes on.
fn bar(begin: f64, end: f64, total: f64) -> String {
    let goes_on = end > total * 1.001;
    let (first, last) = (column(begin, total), column(end, total));
    let first = first.min(WIDTH - 1);
    let marks = last.saturating_sub(first).max(1);
    let tail = if goes_on { "›" } else { "" };
    format!("{}{}{tail}", " ".repeat(first), "█".repeat(marks))
}

/// Returns the column of a time, rounded.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "between 0 and WIDTH"
)]
fn column(at: f64, total: f64) -> usize {
    let share = if total > 0.0 { at / total } else { 0.0 };
    (share.clamp(0.0, 1.0) * float(WIDTH as u64)).round() as usize
}

#[cfg(test)]
#[expect(clippy::float_cmp, reason = "these are exact")]
mod tests {
    use super::*;

    fn phase(phase: &str, start_seconds: f64, seconds: f64) -> Step {
        Step {
            phase: phase.to_owned(),
            start_seconds,
            seconds,
        }
    }

    fn start() -> Vec<Step> {
        vec![
            phase("headers", 0.25, 0.5),
            phase("connect", 0.25, 0.125),
            phase("connect", 0.5, 0.125),
            phase("first tensor", 0.75, 0.25),
            // After the first tensor: another connection is no part of the start.
            phase("connect", 2.0, 0.125),
            phase("all tensors", 1.0, 3.0),
        ]
    }

    #[test]
    fn phases_are_summarised_up_to_the_first_tensor() {
        let (one, mut other) = (start(), start());
        other[0].seconds = 0.75;
        let found = summaries(&[&one, &other]);
        let names: Vec<_> = found.iter().map(|it| it.phase.as_str()).collect();
        assert_eq!(names, ["headers", "connect", "first tensor", "all tensors"]);
        assert_eq!(found[0].seconds.median, 0.625);
        assert_eq!((found[0].seconds.min, found[0].seconds.max), (0.5, 0.75));
        assert_eq!(found[1].times.median, 2.0);
        assert_eq!(found[1].start_seconds.median, 0.25);
        assert_eq!(found[1].seconds.median, 0.375);
        assert!(summaries(&[]).is_empty());
    }

    #[test]
    fn bars_end_with_the_first_tensor() {
        let samples = start();
        let rows = rows(&summaries(&[&samples]));
        let cell = |row: usize| rows[row].last().expect("the bar").clone();
        assert_eq!(cell(0), format!("{}{}", " ".repeat(10), "█".repeat(20)));
        assert_eq!(cell(2), format!("{}{}", " ".repeat(30), "█".repeat(10)));
        assert_eq!(cell(3), format!("{}█›", " ".repeat(39)));
        assert_eq!(rows[1][1..4], ["2", "250.0 ms", "375.0 ms"]);
    }
}
