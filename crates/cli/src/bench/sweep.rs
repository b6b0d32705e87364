//! Comparison of the core's own choices with the best configuration of a sweep.

use std::fmt;

use super::Spread;
use super::results::{CellResults, Results};
use super::{Contender, table};
use tload_quantity::format_count;

/// Comparison of the defaults with the best cell of the same mode, state of the page cache and
/// engine.
#[derive(Debug, PartialEq)]
pub(crate) struct Verdict {
    /// Names that distinguish it from the other verdicts.
    names: Vec<String>,
    /// Speed of the defaults divided by the best, within each round: the median.
    ratio: f64,
    best: String,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.names.is_empty() {
            write!(f, "{}: ", self.names.join(", "))?;
        }
        write!(
            f,
            "defaults reach {:.2} of the best of the sweep ({})",
            self.ratio, self.best
        )
    }
}

/// Returns a verdict for each cell in which the core chose depth, extent and lanes, if there are
/// rivals with fixed settings.
pub(crate) fn verdicts(results: &Results) -> Vec<Verdict> {
    let defaults = || results.cells.iter().filter(|cell| is_default(cell));
    let varies = |name: &dyn Fn(&CellResults) -> String| {
        let mut names = defaults().map(name);
        let first = names.next();
        names.any(|name| Some(name) != first)
    };
    let parts: [&dyn Fn(&CellResults) -> String; 3] = [&table::mode, &table::cache, &asked_engine];
    let shown: Vec<_> = parts.into_iter().filter(|part| varies(part)).collect();
    let verdict = |cell: &CellResults| {
        let rivals = results
            .cells
            .iter()
            .filter(|other| !is_default(other) && is_rival(cell, other));
        let medians = rivals.filter_map(|rival| Some((median(rival)?, rival)));
        let (_, best) = medians.max_by(|(one, _), (other, _)| one.total_cmp(other))?;
        Some(Verdict {
            names: shown.iter().map(|name| name(cell)).collect(),
            ratio: ratio(cell, best)?,
            best: settings(best),
        })
    };
    defaults().filter_map(verdict).collect()
}

pub(super) fn is_default(cell: &CellResults) -> bool {
    let configuration = &cell.cell.configuration;
    configuration.options.depth.is_none()
        && configuration.options.extent_bytes.is_none()
        && configuration.options.lanes.is_none()
}

fn is_rival(cell: &CellResults, other: &CellResults) -> bool {
    cell.cell.mode == other.cell.mode
        && table::cache(cell) == table::cache(other)
        && cell.cell.configuration.options.engine == other.cell.configuration.options.engine
}

fn asked_engine(cell: &CellResults) -> String {
    cell.cell.configuration.options.engine.to_string()
}

fn median(cell: &CellResults) -> Option<f64> {
    let mut summaries = cell.summaries.iter();
    let summary = summaries.find(|summary| summary.contender == Contender::Tload)?;
    Some(summary.bytes_per_second.median)
}

fn ratio(cell: &CellResults, best: &CellResults) -> Option<f64> {
    let ratios = cell.counting(Contender::Tload).filter_map(|sample| {
        let theirs = best
            .counting(Contender::Tload)
            .find(|it| it.round == sample.round)?;
        let speed = theirs.measurement.bytes_per_second;
        (speed > 0.0).then_some(sample.measurement.bytes_per_second / speed)
    });
    Some(Spread::new(ratios)?.median)
}

/// Formats the settings of a cell: `depth 16, extent 4 MiB`.
fn settings(cell: &CellResults) -> String {
    let configuration = &cell.cell.configuration;
    let mut settings = Vec::new();
    settings.extend(
        configuration
            .options
            .depth
            .map(|depth| format!("depth {depth}")),
    );
    settings.extend(
        configuration
            .options
            .extent_bytes
            .map(|bytes| format!("extent {}", table::short_bytes(bytes))),
    );
    settings.extend(
        configuration
            .options
            .lanes
            .map(|lanes| format_count(lanes as u64, "lane")),
    );
    settings.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::Mode;
    use crate::bench::testing::{plan, results, sample};

    fn texts(results: &Results) -> Vec<String> {
        verdicts(results).iter().map(ToString::to_string).collect()
    }

    /// Cells 0 and 3 have defaults; 0 to 2 stream, 3 to 5 keep.
    fn swept() -> Results {
        let mut plan = plan(6, 2);
        for index in [0, 3] {
            plan.cells[index].configuration.options.depth = None;
            plan.cells[index].configuration.options.extent_bytes = None;
        }
        for cell in &mut plan.cells[3..] {
            cell.mode = Mode::Keep;
        }
        results(&plan)
    }

    #[test]
    fn verdict_compares_defaults_within_rounds() {
        let mut results = swept();
        // The disk halves its speed in round 2: the ratio does not move.
        for (round, speed) in [(1, 1.0), (2, 0.5)] {
            for (cell, rate) in [90.0, 80.0, 100.0].into_iter().enumerate() {
                results.add(cell, sample(round, Contender::Tload, rate * speed));
                results.add(cell, sample(round, Contender::Ceiling, 1000.0));
            }
        }
        assert_eq!(
            texts(&results),
            ["stream: defaults reach 0.90 of the best of the sweep (depth 16, extent 1 MiB)"]
        );
        // Only cells of its own mode are rivals.
        results.add(3, sample(1, Contender::Tload, 60.0));
        results.add(4, sample(1, Contender::Tload, 50.0));
        let text = texts(&results).pop().expect("two");
        assert!(
            text.starts_with("keep: defaults reach 1.20 of the best"),
            "{text}"
        );
    }

    #[test]
    fn verdicts_without_sweep_or_defaults_are_empty() {
        let mut alone = plan(1, 1);
        alone.cells[0].configuration.options.depth = None;
        alone.cells[0].configuration.options.extent_bytes = None;
        for plan in [alone, plan(3, 1)] {
            let mut results = results(&plan);
            for cell in 0..plan.cells.len() {
                results.add(cell, sample(1, Contender::Tload, 1e9));
            }
            assert_eq!(texts(&results), Vec::<String>::new());
        }
        assert_eq!(texts(&swept()), Vec::<String>::new());
    }
}
