//! Sentences that close a benchmark: what the load reaches of what the storage can do, and of the
//! best of a sweep.

use super::results::{CellResults, Results};
use super::warnings::ABOVE_CEILING;
use super::{CacheState, Contender, sweep, table};

/// Meaning of a column of the table.
const RATIO: &str = "tload ratio: the speed of the load divided by that of its row";

/// Returns the sentences below the table.
pub(crate) fn sentences(results: &Results) -> Vec<String> {
    let mut summaries = results.cells.iter().flat_map(|cell| &cell.summaries);
    let has_ratio = summaries.any(|summary| summary.tload_ratio.is_some());
    let mut sentences: Vec<_> = has_ratio.then(|| RATIO.to_owned()).into_iter().collect();
    let cells = results.cells.iter().filter(|cell| sweep::is_default(cell));
    sentences.extend(cells.clone().filter_map(reached));
    sentences.extend(cells.flat_map(compared));
    sentences.extend(sweep::verdicts(results).iter().map(ToString::to_string));
    sentences
}

/// Compares the load with other loaders, and these with the ceiling.
fn compared(cell: &CellResults) -> impl Iterator<Item = String> {
    let peers = cell.summaries.iter().filter(|it| it.contender.is_peer());
    peers.filter_map(|it| {
        let (mode, name) = (table::mode(cell), table::contender(cell, it.contender));
        let faster = it.tload_ratio?.median;
        let share = it.ceiling_ratio.map(|ratio| {
            let storage = storage(cell);
            format!(
                ", which loads at {:.2} of what {storage} can do",
                ratio.median
            )
        });
        let share = share.filter(|_| cell.cache_state_verified);
        Some(format!(
            "{mode}: tload is {faster:.2} times as fast as {name}{}",
            share.unwrap_or_default()
        ))
    })
}

fn storage(cell: &CellResults) -> &'static str {
    match cell.cell.cache_state {
        CacheState::Cold => "this disk",
        CacheState::Warm => "the page cache",
        CacheState::Remote => "this store",
    }
}

/// Compares the load with the ceiling. A load far above it was not measured well, which is a
/// warning.
fn reached(cell: &CellResults) -> Option<String> {
    let mut summaries = cell.summaries.iter();
    let ceiling = summaries.find(|it| it.contender == Contender::Ceiling)?;
    let ratio = ceiling.tload_ratio?.median;
    let storage = storage(cell);
    let mode = table::mode(cell);
    (ratio <= ABOVE_CEILING && cell.cache_state_verified)
        .then(|| format!("{mode}: tload reads at {ratio:.2} of what {storage} can do"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::page_cache::Found;
    use crate::bench::testing::{plan, results, sample};

    /// Measures a load and its ceiling, with defaults.
    fn measured(state: CacheState, load: f64) -> Vec<String> {
        let mut plan = plan(1, 1);
        let cell = &mut plan.cells[0];
        cell.cache_state = state;
        cell.configuration.options.depth = None;
        cell.configuration.options.extent_bytes = None;
        let mut results = results(&plan);
        for (contender, speed) in [(Contender::Tload, load), (Contender::Ceiling, 2e9)] {
            let mut sample = sample(1, contender, speed);
            sample.measurement.residency.found = match state {
                CacheState::Cold => Found::Cold,
                CacheState::Warm => Found::Warm,
                CacheState::Remote => Found::Remote,
            };
            results.add(0, sample);
        }
        sentences(&results)
    }

    #[test]
    fn other_loaders_are_compared_with_the_load_and_the_ceiling() {
        let peer = Contender::Peer(&tload_against::PEERS[0]);
        let mut plan = plan(1, 1);
        plan.cells[0].configuration.options.depth = None;
        plan.cells[0].configuration.options.extent_bytes = None;
        let mut results = results(&plan);
        for (contender, speed) in [(Contender::Tload, 1.8e9), (peer, 1e9)] {
            results.add(0, sample(1, contender, speed));
        }
        let sentence = "stream: tload is 1.80 times as fast as safetensors";
        assert_eq!(sentences(&results), [RATIO, sentence]);
        results.add(0, sample(1, Contender::Ceiling, 2e9));
        let sentence = sentence.to_owned() + ", which loads at 0.50 of what this disk can do";
        assert_eq!(sentences(&results)[2], sentence);
    }

    #[test]
    fn benchmark_ends_in_a_sentence() {
        for (state, storage) in [
            (CacheState::Cold, "this disk"),
            (CacheState::Warm, "the page cache"),
            (CacheState::Remote, "this store"),
        ] {
            let sentence = format!("stream: tload reads at 0.98 of what {storage} can do");
            assert_eq!(measured(state, 1.96e9), [RATIO.to_owned(), sentence]);
        }
        // Measured wrong, as a warning says.
        assert_eq!(measured(CacheState::Cold, 3e9), [RATIO]);
        assert_eq!(sentences(&results(&plan(1, 1))), Vec::<String>::new());
    }
}
