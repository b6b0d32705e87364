//! Page of a benchmark: bars beside their ceilings, the sweep as a heat map and as curves, and all
//! samples.

use tload_base::options::format_bytes;

use super::{Bench, Cell, Contender, Setting};
use crate::page::{Badge, Bar, Bars, Field, Item, Page, Table, text};
use crate::plot::plot_in_page;
use crate::quantity::{float, format_count, format_rate, format_seconds};
use crate::waterfall::waterfall;

/// Most groups of bars; those of a sweep are in its heat map.
const GROUPS_MAX: usize = 12;

/// Strongest colour of a heat map, percent: text on it stays legible.
const SHADE_MAX: f64 = 45.0;

/// Returns the page of a benchmark.
#[must_use]
pub fn bench_page(bench: &Bench) -> String {
    let (level, badge) = if bench.failure.is_some() {
        ("fail", "failed")
    } else if bench.is_complete {
        ("ok", "complete")
    } else {
        ("warn", "not complete")
    };
    let mut page = Page {
        title: format!("tload bench: {}", text(&bench.checkpoint)),
        kind: "benchmark",
        heading: text(&bench.checkpoint),
        badge: Some(Badge {
            text: badge.to_owned(),
            level,
        }),
        ..Page::default()
    };
    page.lead.extend(bench.verdicts.iter().map(|it| text(it)));
    page.lead.push(text(&bench.subtitle()));
    if let Some(failure) = &bench.failure {
        page.failure("The benchmark failed", failure);
    }
    bench.figures(&mut page);
    let warnings: Vec<_> = bench.warnings.iter().map(|it| text(it)).collect();
    if !warnings.is_empty() {
        page.section("Caveats", "", vec![Item::Notes(warnings)]);
    }
    bench.comparison(&mut page);
    bench.starts(&mut page);
    bench.sweep(&mut page);
    let mut tables = Vec::new();
    if !bench.rows.is_empty() {
        let titles: Vec<_> = bench.head.iter().map(String::as_str).collect();
        let table = Table::new("Medians", &titles).with_rows(bench.rows.iter().cloned());
        tables.push(Item::Table(table));
    }
    tables.extend(bench.samples());
    page.section("All numbers", "", tables);
    bench.run.add_to(&mut page);
    page.document()
}

fn median(cell: &Cell, contender: Contender) -> Option<f64> {
    Some(cell.summary(contender)?.bytes_per_second.median)
}

impl Bench {
    /// Adds the numbers of the first cell, which has the defaults in a sweep.
    fn figures(&self, page: &mut Page) {
        let Some(cell) = self.cells.first() else {
            return;
        };
        page.figure("tload", median(cell, Contender::Tload).map(format_rate));
        let ceiling = cell.summary(Contender::Ceiling);
        page.figure(
            "Ceiling",
            ceiling.map(|it| format_rate(it.bytes_per_second.median)),
        );
        let ratio = ceiling.and_then(|it| it.tload_ratio);
        page.figure("Of the ceiling", ratio.map(|ratio| format!("{ratio:.2}")));
        page.figure("Rounds", Some(self.rounds.to_string()));
        page.figure("Engine", Some(text(&cell.engine)));
    }

    fn comparison(&self, page: &mut Page) {
        let is_shown = |cell: &&Cell| {
            let few = self.cells.len() <= GROUPS_MAX;
            (few || cell.settings() == "defaults") && !cell.summaries.is_empty()
        };
        let cells: Vec<_> = self
            .cells
            .iter()
            .filter(is_shown)
            .take(GROUPS_MAX)
            .collect();
        let summaries = || cells.iter().flat_map(|cell| &cell.summaries);
        let most = summaries()
            .map(|it| it.bytes_per_second.max)
            .fold(0.0, f64::max);
        if most <= 0.0 {
            return;
        }
        let percent = |rate: f64| rate / most * 100.0;
        let mut rows = Vec::new();
        for cell in &cells {
            for (index, summary) in cell.summaries.iter().enumerate() {
                let rate = summary.bytes_per_second;
                let name = text(&summary.name);
                let label = if cells.len() > 1 && index == 0 {
                    format!("{name} ({}, {})", cell.grid(), cell.settings())
                } else {
                    name
                };
                rows.push(Bar {
                    label,
                    values: vec![
                        format_rate(rate.median),
                        summary
                            .tload_ratio
                            .map_or_else(String::new, |it| format!("{it:.2}")),
                    ],
                    length: percent(rate.median),
                    range: Some((percent(rate.min), percent(rate.max) - percent(rate.min))),
                    colour: match summary.contender {
                        Contender::Tload => "a",
                        Contender::Ceiling | Contender::Fio => "hollow",
                        Contender::Peer => "b",
                    },
                    begins_group: index == 0,
                    ..Bar::default()
                });
            }
            rows.extend(cell.failures.iter().map(|(name, reason)| Bar {
                label: format!("{}: {}", text(name), text(reason)),
                values: vec!["failed".to_owned(), String::new()],
                ..Bar::default()
            }));
        }
        let rounds = format_count(self.rounds, "round");
        let bars = Bars {
            caption: format!(
                "Medians of {rounds}; the thin line is the range, the ratio that of tload to it"
            ),
            head: ["contender", "speed", "ratio", "in proportion"]
                .map(str::to_owned)
                .into(),
            rows,
        };
        let intro = "The ceiling reads the same bytes with the same engine, but builds no tensors.";
        page.section("Comparison", intro, vec![Item::Bars(bars)]);
    }

    fn starts(&self, page: &mut Page) {
        let bars = self
            .starts
            .iter()
            .map(|(name, phases)| Item::Bars(waterfall(text(name), phases)));
        let intro = "From the start of a new process to its last tensor. Phases overlap.";
        page.section("Start", intro, bars.collect());
    }

    fn sweep(&self, page: &mut Page) {
        let swept = self.all_swept();
        let Some(across) = swept.first().copied() else {
            return;
        };
        let down = swept.get(1).copied();
        let mut grids: Vec<String> = Vec::new();
        for grid in self.cells.iter().map(Cell::grid) {
            if !grids.contains(&grid) {
                grids.push(grid);
            }
        }
        let maps = grids
            .iter()
            .filter_map(|grid| self.heat_map(grid, across, down));
        let mut items: Vec<_> = maps.map(Item::Table).collect();
        items.push(Item::Picture(
            "Speeds over the swept setting",
            plot_in_page(self),
        ));
        let intro =
            "Medians in GB/s: the stronger the colour, the faster. The fastest has a frame.";
        page.section("Sweep", intro, items);
    }

    /// Returns the speeds of one grid as a table with colours.
    fn heat_map(&self, grid: &str, across: Setting, down: Option<Setting>) -> Option<Table> {
        let cells = || self.cells.iter().filter(|cell| cell.grid() == grid);
        let swept = || cells().filter(|cell| across.of(&cell.asked).is_some());
        let medians = || swept().filter_map(|cell| median(cell, Contender::Tload));
        let best = medians().fold(0.0, f64::max);
        let worst = medians().fold(f64::INFINITY, f64::min);
        let has =
            |cell: &Cell, setting: Setting, value: u64| setting.of(&cell.asked) == Some(value);
        let field = |column: u64, row: Option<u64>| {
            let found = cells().find(|cell| {
                let in_row = down.zip(row).is_none_or(|(down, row)| has(cell, down, row));
                has(cell, across, column) && in_row
            });
            let Some(rate) = found.and_then(|cell| median(cell, Contender::Tload)) else {
                return Field::from("–".to_owned());
            };
            let share = (rate - worst) / (best - worst).max(f64::EPSILON);
            Field {
                text: format!("{:.2}", rate / 1e9),
                shade: Some(percent(share * SHADE_MAX)),
                is_best: rate >= best,
            }
        };
        if best <= 0.0 {
            return None;
        }
        let columns = self.values(across);
        let (first, _) = across.axis().split_once(':')?;
        let corner = match down {
            Some(down) => format!("{} \\ {first}", down.axis().split_once(':')?.0),
            None => first.to_owned(),
        };
        let titles = columns
            .iter()
            .map(|value| format!("#{}", across.names(*value).0));
        let titles: Vec<_> = std::iter::once(corner).chain(titles).collect();
        let titles: Vec<_> = titles.iter().map(String::as_str).collect();
        let defaults = cells().find(|cell| cell.settings() == "defaults");
        let defaults = defaults.and_then(|cell| median(cell, Contender::Tload));
        let caption = match defaults {
            Some(rate) => format!("{grid}; the defaults reach {}", format_rate(rate)),
            None => grid.to_owned(),
        };
        let mut table = Table::new(caption, &titles);
        let rows = match down {
            Some(down) => self.values(down).into_iter().map(Some).collect(),
            None => vec![None],
        };
        for row in rows {
            let name = match (down, row) {
                (Some(down), Some(row)) => down.names(row).0,
                _ => "GB/s".to_owned(),
            };
            let fields = columns.iter().map(|column| field(*column, row));
            table
                .rows
                .push(std::iter::once(name.into()).chain(fields).collect());
        }
        Some(table)
    }

    /// Returns the runs of all cells, folded; nothing before the first.
    fn samples(&self) -> Option<Item> {
        let titles = [
            "round",
            "contender",
            "cell",
            "page cache",
            "#time",
            "#speed",
            "#CPU",
            "#peak memory",
            "#first tensor",
        ];
        let or_dash = |text: Option<String>| text.unwrap_or_else(|| "–".to_owned());
        let rows = self.cells.iter().flat_map(|cell| {
            let settings = format!("{}, {}, {}", cell.mode, cell.engine, cell.settings());
            cell.samples.iter().map(move |sample| {
                vec![
                    sample.round.to_string(),
                    sample.contender.clone(),
                    settings.clone(),
                    sample.found.clone(),
                    format_seconds(sample.seconds),
                    format_rate(sample.bytes_per_second),
                    or_dash(sample.cpu_seconds.map(format_seconds)),
                    or_dash(sample.peak_rss_bytes.map(format_bytes)),
                    or_dash(sample.first_tensor_seconds.map(format_seconds)),
                ]
            })
        });
        let runs: usize = self.cells.iter().map(|cell| cell.samples.len()).sum();
        let caption = format!("All {}", format_count(runs as u64, "run"));
        let table = Table::new(caption, &titles).of_size(80_000).with_rows(rows);
        let table = table.folded();
        (runs > 0).then_some(Item::Table(table))
    }
}

/// Rounds a share of 100.
fn percent(share: f64) -> u8 {
    let all = 0..=100_u8;
    let nearest = all.min_by(|one, other| {
        let distance = |it: u8| (float(it.into()) - share).abs();
        distance(*one).total_cmp(&distance(*other))
    });
    nearest.unwrap_or(0)
}
