//! Content of a plot: the setting on the axis, the cells of each line, and the shared ceilings.
//! Pure; `draw` does the layout.

use crate::bench::results::{CellResults, Results, Summary};
use crate::bench::stats::Spread;
use crate::bench::table::{self, describe_checkpoint, describe_host, short_bytes};
use crate::bench::{Configuration, Contender};
use crate::output::quantity::{float, format_count};

/// Ratio up to which the ceilings of one panel are drawn as one.
const NEARLY_SAME: f64 = 1.05;

pub(super) struct Chart {
    pub(super) title: String,
    pub(super) subtitle: String,
    pub(super) body: Body,
}

pub(super) enum Body {
    Sweep(Sweep),
    /// A group of bars for each cell, if no setting was swept.
    Bars(Vec<Group>),
}

pub(super) struct Sweep {
    pub(super) axis: &'static str,
    /// Binary logarithms and labels of the requested values.
    pub(super) ticks: Vec<(f64, String)>,
    pub(super) panels: Vec<Panel>,
}

/// Cells of one mode and state of the page cache, which share a ceiling.
pub(super) struct Panel {
    pub(super) label: String,
    pub(super) series: Vec<Series>,
    pub(super) levels: Vec<Level>,
}

/// Cells that differ in the swept setting only.
pub(super) struct Series {
    pub(super) label: String,
    /// True if the core chose the swept setting; there is at most one point then.
    pub(super) is_default: bool,
    pub(super) curves: Vec<Curve>,
}

pub(super) struct Curve {
    pub(super) contender: Contender,
    pub(super) points: Vec<Point>,
}

pub(super) struct Point {
    /// Binary logarithm of the swept setting; `None` if the choice of the core is unknown.
    pub(super) at: Option<f64>,
    pub(super) rate: Spread,
    pub(super) hover: String,
}

/// Ceiling that is nearly the same in a whole panel.
pub(super) struct Level {
    pub(super) contender: Contender,
    pub(super) rate: f64,
}

pub(super) struct Group {
    pub(super) labels: Vec<String>,
    pub(super) bars: Vec<Bar>,
}

pub(super) struct Bar {
    pub(super) contender: Contender,
    pub(super) rate: Spread,
    pub(super) hover: String,
}

/// Setting that can be swept.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Setting {
    Depth,
    Extent,
    Lanes,
}

const SETTINGS: [Setting; 3] = [Setting::Depth, Setting::Extent, Setting::Lanes];
const OTHERS: [Contender; 2] = [Contender::Ceiling, Contender::Fio];

pub(super) fn contender(contender: Contender) -> &'static str {
    match contender {
        Contender::Tload => "tload",
        Contender::Ceiling => "ceiling: raw reads",
        Contender::Fio => "fio",
    }
}

impl Chart {
    pub(super) fn new(results: &Results) -> Self {
        let mut facts = describe_host(&results.host);
        facts.push_str(", ");
        facts.push_str(&format_count(results.rounds.into(), "round"));
        if !results.complete {
            facts.push_str(", not complete");
        }
        let names = Names::new(results);
        Self {
            title: describe_checkpoint(&results.checkpoint),
            subtitle: facts,
            body: match swept(results) {
                Some(setting) => Body::Sweep(sweep(results, setting, &names)),
                None => Body::Bars(bars(results, &names)),
            },
        }
    }
}

/// Returns the setting with the most values, if any has several.
fn swept(results: &Results) -> Option<Setting> {
    let counts = SETTINGS.map(|setting| (values(results, setting).len(), setting));
    let mut best = None;
    for (count, setting) in counts {
        if count > best.map_or(1, |(most, _)| most) {
            best = Some((count, setting));
        }
    }
    best.map(|(_, setting)| setting)
}

/// Returns the requested values in ascending order.
fn values(results: &Results, setting: Setting) -> Vec<u64> {
    let cells = results.cells.iter();
    let mut values: Vec<u64> = cells
        .filter_map(|cell| setting.value(&cell.cell.configuration))
        .collect();
    values.sort_unstable();
    values.dedup();
    values
}

impl Setting {
    fn value(self, configuration: &Configuration) -> Option<u64> {
        let count = |count: usize| count as u64;
        match self {
            Self::Depth => configuration.options.depth.map(count),
            Self::Extent => configuration.options.extent_bytes,
            Self::Lanes => configuration.options.lanes.map(count),
        }
    }

    /// Returns the value that the core chose.
    fn effective(self, cell: &CellResults) -> Option<u64> {
        let sample = cell.samples(Contender::Tload).next_back()?;
        let report = sample.measurement.report.as_ref()?;
        let (extent_bytes, depth) = table::effective_reads(report);
        Some(match self {
            Self::Depth => depth as u64,
            Self::Extent => extent_bytes,
            Self::Lanes => report.lanes as u64,
        })
    }

    fn axis(self) -> &'static str {
        match self {
            Self::Depth => "depth: reads in flight (logarithmic)",
            Self::Extent => "extent: bytes of one read (logarithmic)",
            Self::Lanes => "lanes: threads that read (logarithmic)",
        }
    }

    /// Returns the labels of a value on the axis and in a series.
    fn names(self, value: u64) -> (String, String) {
        match self {
            Self::Depth => (value.to_string(), format!("depth {value}")),
            Self::Extent => (short_bytes(value), short_bytes(value)),
            Self::Lanes => (value.to_string(), format_count(value, "lane")),
        }
    }
}

/// Properties in which cells differ, for their labels.
struct Names {
    with_mode: bool,
    with_cache: bool,
    with_engine: bool,
    settings: Vec<Setting>,
}

impl Names {
    fn new(results: &Results) -> Self {
        let varies = |differs: &dyn Fn(&CellResults, &CellResults) -> bool| {
            let mut pairs = results.cells.iter().zip(results.cells.iter().skip(1));
            pairs.any(|(one, other)| differs(one, other))
        };
        Self {
            with_mode: varies(&|one, other| one.cell.mode != other.cell.mode),
            with_cache: varies(&|one, other| table::cache(one) != table::cache(other)),
            with_engine: varies(&|one, other| {
                one.cell.configuration.options.engine != other.cell.configuration.options.engine
            }),
            settings: SETTINGS
                .into_iter()
                .filter(|setting| values(results, *setting).len() > 1)
                .collect(),
        }
    }

    /// Returns the labels of mode and state of the page cache.
    fn of_panel(&self, cell: &CellResults) -> Vec<String> {
        let mut names = Vec::new();
        names.extend(self.with_mode.then(|| table::mode(cell)));
        names.extend(self.with_cache.then(|| table::cache(cell)));
        names
    }

    /// Returns the labels of the engine and of settings other than `swept`.
    fn of_configuration(&self, cell: &CellResults, swept: Option<Setting>) -> Vec<String> {
        let mut names = Vec::new();
        names.extend(self.with_engine.then(|| engine(cell)));
        let shown = self.settings.iter().filter(|it| Some(**it) != swept);
        names.extend(shown.filter_map(|setting| {
            let value = setting.value(&cell.cell.configuration)?;
            let name = setting.names(value).1;
            let used = table::unreached_extent(cell).filter(|_| *setting == Setting::Extent);
            Some(match used {
                Some((_, used)) => format!("{name} (reads of {})", short_bytes(used)),
                None => name,
            })
        }));
        names
    }
}

/// Returns the requested engine, and the one that was used if it differs.
fn engine(cell: &CellResults) -> String {
    let (asked, used) = (
        cell.cell.configuration.options.engine.to_string(),
        table::engine(cell),
    );
    if asked == used {
        asked
    } else {
        format!("{asked} ({used})")
    }
}

fn sweep(results: &Results, setting: Setting, names: &Names) -> Sweep {
    let mut panels: Vec<Vec<&CellResults>> = Vec::new();
    for cell in &results.cells {
        match panels.iter_mut().find(|it| is_one_panel(it[0], cell)) {
            Some(panel) => panel.push(cell),
            None => panels.push(vec![cell]),
        }
    }
    let value = |value| (float(value).log2(), setting.names(value).0);
    Sweep {
        axis: setting.axis(),
        ticks: values(results, setting).into_iter().map(value).collect(),
        panels: panels
            .into_iter()
            .map(|cells| panel(&cells, setting, names))
            .collect(),
    }
}

/// Returns whether two cells share a panel. Cells that were not cold, although requested, do not
/// share one with those that were.
fn is_one_panel(one: &CellResults, other: &CellResults) -> bool {
    one.cell.mode == other.cell.mode && table::cache(one) == table::cache(other)
}

fn panel(cells: &[&CellResults], setting: Setting, names: &Names) -> Panel {
    let levels: Vec<Level> = OTHERS
        .into_iter()
        .filter_map(|contender| level(cells, contender))
        .collect();
    let mut series: Vec<(&CellResults, Series)> = Vec::new();
    for cell in cells {
        let mut known = series.iter();
        let found = known.position(|(first, _)| is_one_series(first, cell, setting));
        let index = found.unwrap_or_else(|| {
            series.push((cell, start(cell, setting, names)));
            series.len() - 1
        });
        for curve in &mut series[index].1.curves {
            let is_level = levels.iter().any(|it| it.contender == curve.contender);
            let summary = summary(cell, curve.contender).filter(|_| !is_level);
            let point = summary.map(|summary| point(cell, summary, setting));
            curve.points.extend(point);
        }
    }
    let mut series: Vec<Series> = series.into_iter().map(|(_, series)| series).collect();
    for curve in series.iter_mut().flat_map(|it| &mut it.curves) {
        let at = |point: &Point| point.at.unwrap_or_default();
        curve
            .points
            .sort_by(|one, other| at(one).total_cmp(&at(other)));
    }
    Panel {
        label: names.of_panel(cells[0]).join(", "),
        series,
        levels,
    }
}

/// Returns the median of the contender's medians, if these are nearly the same.
fn level(cells: &[&CellResults], contender: Contender) -> Option<Level> {
    let medians = cells
        .iter()
        .filter_map(|cell| Some(summary(cell, contender)?.bytes_per_second.median));
    let medians = Spread::new(medians)?;
    (medians.max <= medians.min * NEARLY_SAME).then_some(Level {
        contender,
        rate: medians.median,
    })
}

fn start(cell: &CellResults, setting: Setting, names: &Names) -> Series {
    let mut labels = names.of_configuration(cell, Some(setting));
    let is_default = setting.value(&cell.cell.configuration).is_none();
    if is_default {
        labels.insert(0, "default".to_owned());
    } else if labels.is_empty() {
        labels.push("tload".to_owned());
    }
    let contenders = [Contender::Tload, Contender::Ceiling, Contender::Fio];
    let curve = |contender| Curve {
        contender,
        points: Vec::new(),
    };
    Series {
        label: labels.join(", "),
        is_default,
        curves: contenders.map(curve).into(),
    }
}

/// Returns whether two cells of one panel differ only in the value of the swept setting.
fn is_one_series(one: &CellResults, other: &CellResults, swept: Setting) -> bool {
    let (a, b) = (&one.cell.configuration, &other.cell.configuration);
    let mut others = SETTINGS.iter().filter(|setting| **setting != swept);
    a.options.engine == b.options.engine
        && swept.value(a).is_none() == swept.value(b).is_none()
        && others.all(|setting| setting.value(a) == setting.value(b))
}

fn point(cell: &CellResults, summary: &Summary, setting: Setting) -> Point {
    let asked = setting.value(&cell.cell.configuration);
    let value = asked.or_else(|| setting.effective(cell));
    let name = match (asked, value) {
        (Some(value), _) => setting.names(value).1,
        (None, Some(value)) => format!("default, here {}", setting.names(value).1),
        (None, None) => "default".to_owned(),
    };
    Point {
        at: value.map(|value| float(value.max(1)).log2()),
        rate: summary.bytes_per_second,
        hover: hover(cell, &name, summary),
    }
}

/// Returns the text under the pointer. It includes the reads, because memory and tensor sizes may
/// have made them smaller than requested.
fn hover(cell: &CellResults, name: &str, summary: &Summary) -> String {
    let rate = summary.bytes_per_second;
    let reads = match summary.contender {
        Contender::Tload => table::reads(cell),
        Contender::Ceiling | Contender::Fio => String::new(),
    };
    let reads = if reads.is_empty() {
        reads
    } else {
        format!("; read {reads}")
    };
    format!(
        "{}, {name}: {:.2} GB/s, {:.2}–{:.2} in {}{reads}",
        contender(summary.contender),
        rate.median / 1e9,
        rate.min / 1e9,
        rate.max / 1e9,
        format_count(summary.samples as u64, "round"),
    )
}

fn summary(cell: &CellResults, contender: Contender) -> Option<&Summary> {
    cell.summaries.iter().find(|it| it.contender == contender)
}

fn bars(results: &Results, names: &Names) -> Vec<Group> {
    let group = |cell: &CellResults| {
        let mut labels = names.of_panel(cell);
        labels.extend(names.of_configuration(cell, None));
        let name = labels.join(", ");
        let name = if name.is_empty() {
            table::mode(cell)
        } else {
            name
        };
        let bar = |summary: &Summary| Bar {
            contender: summary.contender,
            rate: summary.bytes_per_second,
            hover: hover(cell, &name, summary),
        };
        let bars = cell.summaries.iter().map(bar).collect();
        Group { labels, bars }
    };
    results.cells.iter().map(group).collect()
}
