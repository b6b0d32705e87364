//! Content of a plot: the setting on the axis, the cells of each line, and the shared ceilings.
//! Pure; `draw` does the layout.

use crate::bench::{Bench, Cell, Contender, Setting, Summary};
use crate::quantity::{float, format_count, short_bytes};
use crate::stats::Spread;

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
    Bars(Vec<BarGroup>),
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

pub(super) struct BarGroup {
    pub(super) labels: Vec<String>,
    pub(super) bars: Vec<Bar>,
}

pub(super) struct Bar {
    pub(super) contender: Contender,
    pub(super) rate: Spread,
    pub(super) hover: String,
}

const OTHERS: [Contender; 2] = [Contender::Ceiling, Contender::Fio];

pub(super) fn contender(contender: Contender) -> &'static str {
    match contender {
        Contender::Tload => "tload",
        Contender::Ceiling => "ceiling: raw reads",
        Contender::Fio => "fio",
        Contender::Peer => "another loader",
    }
}

impl Chart {
    pub(super) fn new(results: &Bench) -> Self {
        let names = Names::new(results);
        Self {
            title: results.checkpoint.clone(),
            subtitle: results.subtitle(),
            body: match results.swept() {
                Some(setting) => Body::Sweep(sweep(results, setting, &names)),
                None => Body::Bars(bars(results, &names)),
            },
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
    fn new(results: &Bench) -> Self {
        let varies = |differs: &dyn Fn(&Cell, &Cell) -> bool| {
            let mut pairs = results.cells.iter().zip(results.cells.iter().skip(1));
            pairs.any(|(one, other)| differs(one, other))
        };
        Self {
            with_mode: varies(&|one, other| one.mode != other.mode),
            with_cache: varies(&|one, other| one.cache != other.cache),
            with_engine: varies(&|one, other| one.engine_asked != other.engine_asked),
            settings: Setting::ALL
                .into_iter()
                .filter(|setting| results.values(*setting).len() > 1)
                .collect(),
        }
    }

    /// Returns the labels of mode and state of the page cache.
    fn of_panel(&self, cell: &Cell) -> Vec<String> {
        let mut names = Vec::new();
        names.extend(self.with_mode.then(|| cell.mode.clone()));
        names.extend(self.with_cache.then(|| cell.cache.clone()));
        names
    }

    /// Returns the labels of the engine and of settings other than `swept`.
    fn of_configuration(&self, cell: &Cell, swept: Option<Setting>) -> Vec<String> {
        let mut names = Vec::new();
        names.extend(self.with_engine.then(|| engine(cell)));
        let shown = self.settings.iter().filter(|it| Some(**it) != swept);
        names.extend(shown.filter_map(|setting| {
            let value = setting.of(&cell.asked)?;
            let name = setting.names(value).1;
            let used = cell
                .unreached_extent
                .filter(|_| *setting == Setting::Extent);
            Some(match used {
                Some(used) => format!("{name} (reads of {})", short_bytes(used)),
                None => name,
            })
        }));
        names
    }
}

/// Returns the requested engine, and the one that was used if it differs.
fn engine(cell: &Cell) -> String {
    if cell.engine_asked == cell.engine {
        cell.engine.clone()
    } else {
        format!("{} ({})", cell.engine_asked, cell.engine)
    }
}

fn sweep(results: &Bench, setting: Setting, names: &Names) -> Sweep {
    let mut panels: Vec<Vec<&Cell>> = Vec::new();
    for cell in &results.cells {
        match panels.iter_mut().find(|it| is_one_panel(it[0], cell)) {
            Some(panel) => panel.push(cell),
            None => panels.push(vec![cell]),
        }
    }
    let value = |value| (float(value).log2(), setting.names(value).0);
    Sweep {
        axis: setting.axis(),
        ticks: results.values(setting).into_iter().map(value).collect(),
        panels: panels
            .into_iter()
            .map(|cells| panel(&cells, setting, names))
            .collect(),
    }
}

/// Returns whether two cells share a panel. Cells that were not cold, although requested, do not
/// share one with those that were.
fn is_one_panel(one: &Cell, other: &Cell) -> bool {
    one.mode == other.mode && one.cache == other.cache
}

fn panel(cells: &[&Cell], setting: Setting, names: &Names) -> Panel {
    let levels: Vec<Level> = OTHERS
        .into_iter()
        .filter_map(|contender| level(cells, contender))
        .collect();
    let mut series: Vec<(&Cell, Series)> = Vec::new();
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
fn level(cells: &[&Cell], contender: Contender) -> Option<Level> {
    let medians = cells
        .iter()
        .filter_map(|cell| Some(summary(cell, contender)?.bytes_per_second.median));
    let medians = Spread::new(medians)?;
    (medians.max <= medians.min * NEARLY_SAME).then_some(Level {
        contender,
        rate: medians.median,
    })
}

fn start(cell: &Cell, setting: Setting, names: &Names) -> Series {
    let mut labels = names.of_configuration(cell, Some(setting));
    let is_default = setting.of(&cell.asked).is_none();
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
fn is_one_series(one: &Cell, other: &Cell, swept: Setting) -> bool {
    let (a, b) = (&one.asked, &other.asked);
    let mut others = Setting::ALL.iter().filter(|setting| **setting != swept);
    one.engine_asked == other.engine_asked
        && swept.of(a).is_none() == swept.of(b).is_none()
        && others.all(|setting| setting.of(a) == setting.of(b))
}

fn point(cell: &Cell, summary: &Summary, setting: Setting) -> Point {
    let asked = setting.of(&cell.asked);
    let value = asked.or_else(|| setting.of(&cell.used));
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
fn hover(cell: &Cell, name: &str, summary: &Summary) -> String {
    let rate = summary.bytes_per_second;
    let reads = match summary.contender {
        Contender::Tload => cell.reads.clone(),
        Contender::Ceiling | Contender::Fio | Contender::Peer => String::new(),
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
        format_count(summary.samples, "round"),
    )
}

fn summary(cell: &Cell, contender: Contender) -> Option<&Summary> {
    cell.summaries.iter().find(|it| it.contender == contender)
}

fn bars(results: &Bench, names: &Names) -> Vec<BarGroup> {
    let group = |cell: &Cell| {
        let mut labels = names.of_panel(cell);
        labels.extend(names.of_configuration(cell, None));
        let name = labels.join(", ");
        let name = if name.is_empty() {
            cell.mode.clone()
        } else {
            name
        };
        let bar = |summary: &Summary| Bar {
            contender: summary.contender,
            rate: summary.bytes_per_second,
            hover: hover(cell, &name, summary),
        };
        let is_drawn = |it: &&Summary| it.contender != Contender::Peer;
        let bars = cell.summaries.iter().filter(is_drawn).map(bar).collect();
        BarGroup { labels, bars }
    };
    results.cells.iter().map(group).collect()
}
