//! Layout of a chart: frames, axes, lines and points. Does not know results.

use super::chart::{Bar, BarGroup, Body, Chart, Curve, Panel, Point, Sweep, contender};
use super::marks::{Entry, FIRST, INK, PAPER, Style, pen};
use super::svg::{Anchor, At, Colours, Pen, Position, Rectangle, Svg, at};
use crate::bench::Contender;
use crate::quantity::float;
use crate::stats::Spread;

const GRID: &str = "#ddd";
const LEFT: f64 = 72.0;
const TOP: f64 = 96.0;
const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 400.0;
/// Height of a panel if there are several.
const PANEL_HEIGHT: f64 = 280.0;
/// Gap between panels, for the values of the axis and the labels of the next panel.
const PANEL_GAP: f64 = 88.0;
const BELOW: f64 = 64.0;
/// Width of a group: fits three bars with their values above and three names below.
const GROUP_WIDTH: f64 = 128.0;
const LEGEND_GAP: f64 = 24.0;
const LEGEND_ROW: f64 = 20.0;
const NAME_ROW: f64 = 16.0;
/// Width of a letter at size 12, rounded up.
const LETTER: f64 = 7.0;
/// Length at which a title is shortened in the middle; locations can be long. The subtitle has a
/// smaller font.
const TITLE_LETTERS: usize = 88;
const SUBTITLE_LETTERS: usize = 120;
/// Maximum width over which series at one value are spread, so that their whiskers do not overlap.
const SPREAD_WIDTH: f64 = 24.0;

impl Chart {
    /// Returns the SVG, in the colours of a file of its own or of the page around it.
    pub(super) fn draw(&self, colours: Colours) -> String {
        let (body, legend) = match &self.body {
            Body::Sweep(sweep) => (sweep.size(), sweep.legend()),
            Body::Bars(groups) => (size_of_bars(groups), legend_of_bars(groups)),
        };
        let letters = legend.iter().map(|entry| entry.label.chars().count()).max();
        let legend_width = 48.0 + LETTER * count(letters.unwrap_or(0));
        let height = body.1.max(LEGEND_ROW * count(legend.len()));
        let mut svg = Svg::new(
            LEFT + body.0 + LEGEND_GAP + legend_width,
            TOP + height + BELOW,
            colours,
        );
        let title = shorten(&self.title, TITLE_LETTERS);
        svg.text(at(LEFT, 28.0), 16, Anchor::Start, &title);
        let subtitle = shorten(&self.subtitle, SUBTITLE_LETTERS);
        svg.text(at(LEFT, 48.0), 12, Anchor::Start, &subtitle);
        match &self.body {
            Body::Sweep(sweep) => sweep.draw(&mut svg),
            Body::Bars(groups) => bars(&mut svg, groups, body.0),
        }
        for (row, entry) in legend.iter().enumerate() {
            let y = TOP + 8.0 + LEGEND_ROW * count(row);
            entry.draw(&mut svg, LEFT + body.0 + LEGEND_GAP, y);
        }
        svg.finish()
    }
}

fn count(items: usize) -> f64 {
    float(items as u64)
}

fn shorten(text: &str, most: usize) -> String {
    let letters: Vec<char> = text.chars().collect();
    if letters.len() <= most {
        return text.to_owned();
    }
    let half = most / 2;
    let (head, tail) = (&letters[..half], &letters[letters.len() - half..]);
    head.iter().chain(['…'].iter()).chain(tail).collect()
}

/// Axis of speeds, and the plot area next to it.
struct Frame {
    top: f64,
    width: f64,
    height: f64,
    /// GB/s between grid lines; `most` is the speed at the top.
    step: f64,
    most: f64,
}

impl Frame {
    /// Returns a frame up to the fastest of `rates`, bytes per second, in about five round steps.
    fn new(top: f64, width: f64, height: f64, rates: impl Iterator<Item = f64>) -> Self {
        let fastest = rates.fold(0.0, f64::max) / 1e9;
        let fastest = if fastest > 0.0 { fastest } else { 1.0 };
        let least = fastest / 5.0;
        let power = 10_f64.powf(least.log10().floor());
        let steps = [1.0, 2.0, 5.0, 10.0].map(|digit| digit * power);
        let fits = |step: &f64| *step >= least;
        let step = steps.into_iter().find(fits).unwrap_or(least);
        Self {
            top,
            width,
            height,
            step,
            // A speed close to the last step needs some space above it.
            most: ((fastest * 1.02) / step).ceil() * step,
        }
    }

    fn y(&self, bytes_per_second: f64) -> f64 {
        self.top + self.height * (1.0 - bytes_per_second / 1e9 / self.most)
    }

    fn bottom(&self) -> f64 {
        self.top + self.height
    }

    fn draw(&self, svg: &mut Svg, label: &str) {
        let digits = [1.0, 0.1, 0.01, 0.001]
            .iter()
            // Powers of ten are not exact.
            .take_while(|unit| self.step < **unit * 0.99)
            .count();
        let mut rate = 0.0;
        while rate < self.most + self.step / 2.0 {
            let y = self.y(rate * 1e9);
            let colour = if rate > 0.0 { GRID } else { INK };
            self.across(svg, y, plain("grid", colour));
            let left = at(LEFT - 8.0, y + 4.0);
            svg.text(left, 12, Anchor::End, &format!("{rate:.digits$}"));
            rate += self.step;
        }
        svg.text(at(LEFT - 8.0, self.top - 16.0), 12, Anchor::End, "GB/s");
        if !label.is_empty() {
            svg.text(at(LEFT, self.top - 16.0), 12, Anchor::Start, label);
        }
    }

    fn across(&self, svg: &mut Svg, y: f64, pen: Pen) {
        svg.line(pen, &format!("M{} {}h{}", At(LEFT), At(y), At(self.width)));
    }

    fn below(&self, svg: &mut Svg, x: f64, distance: f64, text: &str) {
        svg.text(at(x, self.bottom() + distance), 12, Anchor::Middle, text);
    }

    fn whisker(&self, svg: &mut Svg, x: f64, rate: &Spread, colour: &'static str) {
        let (left, x) = (At(x - 3.0), At(x));
        let (low, high) = (At(self.y(rate.min)), At(self.y(rate.max)));
        let path = format!("M{x} {low}V{high}M{left} {low}h6M{left} {high}h6");
        svg.line(plain("whisker", colour), &path);
    }
}

/// Returns the pen for a solid line that belongs to no contender.
fn plain(class: &'static str, colour: &'static str) -> Pen {
    Pen {
        class,
        colour,
        dashes: "",
    }
}

impl Sweep {
    fn panel_height(&self) -> f64 {
        if self.panels.len() > 1 {
            PANEL_HEIGHT
        } else {
            HEIGHT
        }
    }

    fn size(&self) -> (f64, f64) {
        let panels = count(self.panels.len());
        let height = (self.panel_height() + PANEL_GAP) * panels - PANEL_GAP;
        (WIDTH, height)
    }

    /// Returns the labels of series without duplicates: a series has the same style in all panels.
    fn labels(&self) -> Vec<&str> {
        let mut labels = Vec::new();
        for series in self.panels.iter().flat_map(|panel| &panel.series) {
            if !labels.contains(&series.label.as_str()) {
                labels.push(&series.label);
            }
        }
        labels
    }

    fn legend(&self) -> Vec<Entry> {
        let series = || self.panels.iter().flat_map(|panel| &panel.series);
        let named = |(index, label): (usize, &str)| {
            let series = series().find(|series| series.label == label)?;
            Some(Entry::for_series(Style::new(index, series), series))
        };
        let labels = self.labels().into_iter().enumerate();
        let mut entries: Vec<Entry> = labels.filter_map(named).collect();
        for contender in [Contender::Ceiling, Contender::Fio] {
            let mut curves = series().flat_map(|series| &series.curves);
            let mut levels = self.panels.iter().flat_map(|panel| &panel.levels);
            let is_drawn = levels.any(|level| level.contender == contender)
                || curves.any(|it| it.contender == contender && !it.points.is_empty());
            entries.extend(is_drawn.then(|| Entry::for_contender(contender)));
        }
        entries
    }

    fn draw(&self, svg: &mut Svg) {
        let labels = self.labels();
        let height = self.panel_height();
        let axis = Axis::new(self);
        for (index, panel) in self.panels.iter().enumerate() {
            let top = TOP + (height + PANEL_GAP) * count(index);
            let rates = panel.points().map(|point| point.rate.max);
            let levels = panel.levels.iter().map(|level| level.rate);
            let frame = Frame::new(top, WIDTH, height, rates.chain(levels));
            frame.draw(svg, &panel.label);
            self.values(svg, &frame, &axis);
            panel.draw(svg, &frame, &axis, &labels);
        }
    }

    fn values(&self, svg: &mut Svg, frame: &Frame, axis: &Axis) {
        let mut free = 0.0;
        for (value, name) in &self.ticks {
            let x = axis.x(*value);
            let path = format!("M{} {}v5", At(x), At(frame.bottom()));
            svg.line(plain("tick", INK), &path);
            let half = LETTER * count(name.chars().count()) / 2.0;
            if x - half >= free {
                frame.below(svg, x, 20.0, name);
                free = x + half + LETTER;
            }
        }
        frame.below(svg, LEFT + WIDTH / 2.0, 40.0, self.axis);
    }
}

impl Panel {
    fn points(&self) -> impl Iterator<Item = &Point> {
        let curves = self.series.iter().flat_map(|series| &series.curves);
        curves.flat_map(|curve| &curve.points)
    }

    fn draw(&self, svg: &mut Svg, frame: &Frame, axis: &Axis, labels: &[&str]) {
        for level in &self.levels {
            let y = frame.y(level.rate);
            frame.across(svg, y, pen(level.contender, INK));
            // One name is above its line at the right, the other below its line at the left,
            // because the lines may be close to each other.
            let (place, anchor) = if level.contender == Contender::Ceiling {
                (at(LEFT + WIDTH, y - 5.0), Anchor::End)
            } else {
                (at(LEFT + 4.0, y + 14.0), Anchor::Start)
            };
            svg.text(place, 12, anchor, contender(level.contender));
        }
        let gap = (SPREAD_WIDTH / count(self.series.len().max(1))).min(5.0);
        let middle = count(self.series.len().saturating_sub(1)) / 2.0;
        for (index, series) in self.series.iter().enumerate() {
            let known = labels.iter().position(|label| *label == series.label);
            let style = Style::new(known.unwrap_or(index), series);
            let shift = (count(index) - middle) * gap;
            let place = |point: &Point| {
                let y = frame.y(point.rate.median);
                Some(at(axis.x(point.at?) + shift, y))
            };
            for curve in &series.curves {
                let pen = pen(curve.contender, style.colour);
                if series.is_default {
                    // The defaults are compared with every value, so their line spans the panel.
                    for point in &curve.points {
                        frame.across(svg, frame.y(point.rate.median), pen);
                    }
                } else {
                    polyline(svg, pen, curve, place);
                }
                let loads = curve.points.iter();
                for point in loads.filter(|_| curve.contender == Contender::Tload) {
                    let Some(Position { x, y }) = place(point) else {
                        continue;
                    };
                    frame.whisker(svg, x, &point.rate, style.colour);
                    svg.area("point", style.colour, &style.path(x, y), &point.hover);
                }
            }
        }
    }
}

fn polyline(svg: &mut Svg, pen: Pen, curve: &Curve, place: impl Fn(&Point) -> Option<Position>) {
    let text = |Position { x, y }| format!("{} {}", At(x), At(y));
    let places: Vec<String> = curve.points.iter().filter_map(place).map(text).collect();
    if places.len() > 1 {
        svg.line(pen, &format!("M{}", places.join("L")));
    }
}

/// Axis of the swept setting.
struct Axis {
    first: f64,
    last: f64,
}

impl Axis {
    fn new(sweep: &Sweep) -> Self {
        let points = sweep.panels.iter().flat_map(Panel::points);
        let ticks = sweep.ticks.iter().map(|(value, _)| *value);
        let all = Spread::new(points.filter_map(|point| point.at).chain(ticks));
        let (first, last) = all.map_or((0.0, 1.0), |all| (all.min, all.max));
        Self { first, last }
    }

    /// Returns the coordinate of `value`, with a margin at both ends.
    fn x(&self, value: f64) -> f64 {
        let share = (value - self.first) / (self.last - self.first).max(f64::EPSILON);
        LEFT + WIDTH * (0.05 + 0.9 * share)
    }
}

fn size_of_bars(groups: &[BarGroup]) -> (f64, f64) {
    let names = groups.iter().map(|group| group.labels.len()).max();
    let width = WIDTH.max(GROUP_WIDTH * count(groups.len()));
    (width, HEIGHT + NAME_ROW * count(names.unwrap_or(0)))
}

fn legend_of_bars(groups: &[BarGroup]) -> Vec<Entry> {
    let bars = || groups.iter().flat_map(|group| &group.bars);
    [Contender::Tload, Contender::Ceiling, Contender::Fio]
        .into_iter()
        .filter(|contender| bars().any(|bar| bar.contender == *contender))
        .map(Entry::for_contender)
        .collect()
}

fn bars(svg: &mut Svg, groups: &[BarGroup], width: f64) {
    let rates = groups.iter().flat_map(|group| &group.bars);
    let frame = Frame::new(TOP, width, HEIGHT, rates.map(|bar| bar.rate.max));
    frame.draw(svg, "");
    let group_width = width / count(groups.len().max(1));
    for (index, group) in groups.iter().enumerate() {
        let middle = LEFT + group_width * (count(index) + 0.5);
        for (row, label) in group.labels.iter().enumerate() {
            frame.below(svg, middle, 20.0 + NAME_ROW * count(row), label);
        }
        let width = (group_width * 0.8 / count(group.bars.len().max(1))).min(56.0);
        let left = middle - width * count(group.bars.len()) / 2.0;
        for (index, bar) in group.bars.iter().enumerate() {
            frame.bar(svg, left + width * count(index), width, bar);
        }
    }
}

impl Frame {
    fn bar(&self, svg: &mut Svg, left: f64, width: f64, bar: &Bar) {
        let (fill, colour) = match bar.contender {
            Contender::Tload => (FIRST, FIRST),
            Contender::Ceiling | Contender::Fio | Contender::Peer => (PAPER, INK),
        };
        let y = self.y(bar.rate.median);
        let place = Rectangle {
            corner: at(left + 3.0, y),
            width: width - 6.0,
            height: self.bottom() - y,
        };
        svg.rectangle(pen(bar.contender, colour), fill, &place, &bar.hover);
        let middle = left + width / 2.0;
        self.whisker(svg, middle, &bar.rate, INK);
        let above = at(middle, self.y(bar.rate.max) - 5.0);
        let value = format!("{:.2}", bar.rate.median / 1e9);
        svg.text(above, 12, Anchor::Middle, &value);
    }
}
