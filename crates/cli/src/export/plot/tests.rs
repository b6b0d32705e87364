//! Tests of plots, with made-up results. `TLOAD_BLESS=1 cargo test -p tload-cli plot` accepts a
//! change of `sweep.svg`.

use std::path::PathBuf;

use roxmltree::{Document, Node};
use tload::Report;
use tload_testbed::assert_recorded;

use super::*;
use crate::bench::page_cache::Found;
use crate::bench::results::Sample;
use crate::bench::testing::{plan, results, sample};
use crate::bench::{CacheState, Contender, Mode, Plan};

const LOCATION: &str = "models/<b>&\"llama\"";

/// Defaults, and depths 4, 8 and 16 with extents of 1 and of 4 MiB.
fn swept() -> Plan {
    let mut plan = plan(7, 3);
    for (index, cell) in plan.cells.iter_mut().enumerate() {
        let configuration = &mut cell.configuration;
        if index == 0 {
            (
                configuration.options.depth,
                configuration.options.extent_bytes,
            ) = (None, None);
        } else {
            configuration.options.depth = Some(4 << ((index - 1) / 2));
            configuration.options.extent_bytes = Some(1 << (20 + 2 * ((index - 1) % 2)));
        }
    }
    plan
}

/// Three rounds, 10 MB/s apart, of loads that are faster from cell to cell. `ceiling` is that of a
/// cell.
fn measured(plan: &Plan, ceiling: impl Fn(f64) -> f64) -> Results {
    let mut results = results(plan);
    results.checkpoint.synthetic = None;
    results.checkpoint.location = LOCATION.to_owned();
    for cell in 0..plan.cells.len() {
        let index = f64::from(u32::try_from(cell).unwrap());
        for round in 1..=plan.rounds {
            let rate = |base: f64| base + 1e7 * f64::from(round);
            let mut load = sample(round, Contender::Tload, rate(1.5e9 + 5e7 * index));
            let asked = plan.cells[cell].configuration.options.extent_bytes;
            load.measurement.report = Some(chosen(asked.unwrap_or(1 << 20)));
            results.add(cell, load);
            let others = [
                (Contender::Ceiling, ceiling(index)),
                (Contender::Fio, 1.9e9),
            ];
            for (contender, base) in others {
                results.add(cell, sample(round, contender, rate(base)));
            }
        }
    }
    results.complete = true;
    results
}

/// Returns the report of a load with eight reads of `extent_bytes`.
fn chosen(extent_bytes: u64) -> Report {
    let mut report = Report::default();
    report.depth = 8;
    report.extent_bytes = extent_bytes;
    report.in_flight_bytes = 8 * extent_bytes;
    report
}

fn of_class<'a>(document: &'a Document<'_>, class: &str) -> Vec<Node<'a, 'a>> {
    let has = |node: &Node<'_, '_>| node.attribute("class") == Some(class);
    document.descendants().filter(has).collect()
}

fn counts<const N: usize>(svg: &str, classes: [&str; N]) -> [usize; N] {
    let document = Document::parse(svg).expect("XML");
    classes.map(|class| of_class(&document, class).len())
}

fn texts(svg: &str) -> Vec<String> {
    let document = Document::parse(svg).expect("XML");
    let texts = document
        .descendants()
        .filter(|node| node.has_tag_name("text"));
    texts
        .map(|node| node.text().unwrap_or_default().to_owned())
        .collect()
}

/// Lines of a contender: from one side to the other, and from point to point.
fn lines(svg: &str, class: &str) -> (usize, usize) {
    let document = Document::parse(svg).expect("XML");
    let lines = of_class(&document, class);
    let paths = lines.iter().map(|line| line.attribute("d").unwrap());
    let across = paths.filter(|path| path.ends_with("h640")).count();
    (across, lines.len() - across)
}

/// Positions and texts of the marks of loads.
fn points(svg: &str) -> Vec<(f64, f64, String)> {
    let document = Document::parse(svg).expect("XML");
    let place = |node: Node<'_, '_>| {
        let path = node.attribute("d").unwrap();
        let (start, _) = path[1..].split_once('m').unwrap();
        let (x, y) = start.split_once(' ').unwrap();
        let title = node.first_element_child().unwrap().text().unwrap();
        (x.parse().unwrap(), y.parse().unwrap(), title.to_owned())
    };
    of_class(&document, "point")
        .into_iter()
        .map(place)
        .collect()
}

fn near(one: f64, other: f64) -> bool {
    // Coordinates have one decimal.
    (one - other).abs() < 0.3
}

#[test]
fn legend_names_reads_that_stayed_below_requested_extent() {
    let mut results = measured(&swept(), |_| 2e9);
    let samples = results.cells.iter_mut().flat_map(|cell| &mut cell.samples);
    for report in samples.filter_map(|sample| sample.measurement.report.as_mut()) {
        *report = chosen(1 << 20);
    }
    let svg = Plot.render(&results);
    assert!(svg.contains(">4 MiB (reads of 1 MiB)<"), "{svg}");
    assert!(svg.contains(">1 MiB<"), "{svg}");
}

#[test]
fn sweep_plot_has_points_whiskers_and_ceilings() {
    let svg = Plot.render(&measured(&swept(), |_| 2e9));
    assert_eq!(counts(&svg, ["point", "whisker"]), [7, 7]);
    // The defaults, and a line for each size of extents.
    assert_eq!(lines(&svg, "tload"), (1, 2));
    // Ceilings are the same everywhere, so each is one line and no series has its own.
    assert_eq!(lines(&svg, "ceiling"), (1, 0));
    assert_eq!(lines(&svg, "fio"), (1, 0));
    let texts = texts(&svg);
    assert!(texts[0].starts_with(LOCATION), "{texts:?}");
    assert!(texts[0].contains("4.0 GiB in 4 shards"), "{texts:?}");
    assert!(texts[1].starts_with("ext4 on nvme0n1"), "{texts:?}");
    assert!(!texts[1].contains("not complete"), "{texts:?}");
    for text in ["GB/s", "default", "1 MiB", "4 MiB", "4", "8", "16", "2.0"] {
        assert!(texts.iter().any(|it| it == text), "{text}: {texts:?}");
    }
    for name in ["ceiling: raw reads", "fio"] {
        // On its line and in the legend.
        assert_eq!(texts.iter().filter(|it| *it == name).count(), 2, "{name}");
    }
}

#[test]
fn marks_are_where_their_values_are() {
    let svg = Plot.render(&measured(&swept(), |_| 2e9));
    let points = points(&svg);
    let named = |name: &str| {
        let mut found = points.iter().filter(|(.., title)| title.contains(name));
        let &(x, y, _) = found.next().expect("a point");
        (x, y)
    };
    assert_eq!(
        points[0].2,
        "tload, default, here depth 8: 1.52 GB/s, 1.51–1.53 in 3 rounds; read 8 × 1.0 MiB"
    );
    // The first point of each series: their logarithms are equally far apart.
    let (four, eight, sixteen) = (
        named("depth 4:"),
        named("depth 8: 1.67"),
        named("depth 16:"),
    );
    assert!(near(eight.0 - four.0, sixteen.0 - eight.0), "{points:?}");
    assert!(eight.0 - four.0 > 200.0, "{points:?}");
    // The choice of the core is at its position; series are a few pixels apart.
    assert!((named("default").0 - eight.0).abs() < 12.0, "{points:?}");
    // From 0 at 496 in equal steps: 1.57 GB/s at depth 4, 1.67 at 8.
    assert!(
        near((496.0 - four.1) / 1.57, (496.0 - eight.1) / 1.67),
        "{points:?}"
    );
    assert!(eight.1 < four.1);
}

#[test]
fn differing_ceilings_get_one_line_per_series() {
    let rising = measured(&swept(), |index| 1.6e9 + 6e7 * index);
    let svg = Plot.render(&rising);
    // One for the defaults and one for each series; fio still has one in all.
    assert_eq!(lines(&svg, "ceiling"), (1, 2));
    assert_eq!(lines(&svg, "fio"), (1, 0));
    let document = Document::parse(&svg).expect("XML");
    for line in of_class(&document, "ceiling") {
        assert_eq!(line.attribute("stroke-dasharray"), Some("7 4"));
        assert_ne!(line.attribute("stroke"), Some("#333"));
    }
}

#[test]
fn each_mode_and_cache_state_has_its_panel() {
    let mut plan = swept();
    for cell in &mut plan.cells[3..] {
        cell.mode = Mode::Keep;
    }
    let svg = Plot.render(&measured(
        &plan,
        |index| if index < 3.0 { 2e9 } else { 1e9 },
    ));
    assert_eq!(lines(&svg, "ceiling"), (2, 0));
    let count = |name: &str| texts(&svg).iter().filter(|it| *it == name).count();
    assert_eq!(["stream", "keep", "GB/s"].map(count), [1, 1, 2]);
    // A series has one style, and one entry in the legend.
    assert_eq!(["default", "1 MiB", "4 MiB"].map(count), [1, 1, 1]);

    // A requested cold run that was not cold is not drawn as cold.
    let mut results = measured(&swept(), |_| 2e9);
    for sample in &mut results.cells[3].samples {
        sample.measurement.residency.found = Found::Mixed;
    }
    let mut mixed = sample(4, Contender::Tload, 9e9);
    mixed.measurement.residency.found = Found::Mixed;
    results.add(3, mixed);
    let texts = texts(&Plot.render(&results));
    let count = |name: &str| texts.iter().filter(|it| *it == name).count();
    assert_eq!(["cold", "not cold"].map(count), [1, 1]);
}

#[test]
fn x_axis_is_setting_with_most_values() {
    let mut plan = plan(6, 1);
    for (index, cell) in plan.cells.iter_mut().enumerate() {
        cell.configuration.options.depth = Some([8, 4][index / 3]);
        cell.configuration.options.extent_bytes = Some([16 << 20, 512 << 10, 3 << 19][index % 3]);
    }
    let texts = texts(&Plot.render(&measured(&plan, |_| 2e9)));
    for text in ["512 KiB", "1.5 MiB", "16 MiB", "depth 8", "depth 4"] {
        assert!(texts.iter().any(|it| it == text), "{text}: {texts:?}");
    }
    assert!(
        texts.iter().any(|it| it.starts_with("extent: bytes")),
        "{texts:?}"
    );
    assert!(!texts.iter().any(|it| it == "default"), "{texts:?}");
}

#[test]
fn results_without_sweep_are_drawn_as_bars() {
    let mut plan = plan(2, 3);
    plan.cells[1] = plan.cells[0].clone();
    plan.cells[1].cache_state = CacheState::Warm;
    let mut results = measured(&plan, |_| 2e9);
    for sample in &mut results.cells[1].samples {
        sample.measurement.residency.found = Found::Warm;
    }
    // Summarised again with one more sample.
    let mut warm: Sample = sample(4, Contender::Tload, 1.7e9);
    warm.measurement.residency.found = Found::Warm;
    results.add(1, warm);
    let svg = Plot.render(&results);
    let found = counts(&svg, ["tload", "ceiling", "fio", "whisker", "point"]);
    assert_eq!(found, [2, 2, 2, 6, 0]);
    let texts = texts(&svg);
    for text in ["cold", "warm", "tload", "ceiling: raw reads", "fio", "1.52"] {
        assert!(texts.iter().any(|it| it == text), "{text}: {texts:?}");
    }
}

#[test]
fn unmeasured_cells_are_not_drawn() {
    for plan in [swept(), plan(1, 1)] {
        let svg = Plot.render(&results(&plan));
        let found = counts(&svg, ["point", "whisker", "tload", "ceiling", "fio"]);
        assert_eq!(found, [0; 5]);
        let texts = texts(&svg);
        assert!(texts[1].ends_with("not complete"), "{texts:?}");
    }
}

#[test]
fn sweep_plot_matches_recorded_svg() {
    let mut results = measured(&swept(), |_| 2e9);
    // Facts of the machine that runs the test.
    (results.host.cores, results.host.architecture) = (Some(8), "x86_64");
    (results.host.cpu, results.host.memory_bytes) = (None, None);
    let svg = Plot.render(&results);
    let path: PathBuf = [env!("CARGO_MANIFEST_DIR"), "src/export/plot/sweep.svg"]
        .iter()
        .collect();
    assert_recorded(&path, &svg);
}
