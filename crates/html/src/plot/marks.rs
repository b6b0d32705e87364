//! Styles of lines and points (colours, shapes, dashes), and the legend.

use super::chart::{Series, contender};
use super::svg::{Anchor, At, Pen, Rectangle, Svg, at};
use crate::bench::Contender;

/// Okabe and Ito's colours, which are distinguishable with any colour vision, without yellow, which
/// is hard to see on white.
const COLOURS: [&str; 7] = [
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000",
];
pub(super) const INK: &str = "#333";
pub(super) const PAPER: &str = "#fff";
/// Colour of a load that is the only one.
pub(super) const FIRST: &str = COLOURS[0];

/// Style of a series.
#[derive(Clone, Copy)]
pub(super) struct Style {
    pub(super) colour: &'static str,
    mark: Mark,
}

#[derive(Clone, Copy)]
enum Mark {
    Disc,
    Square,
    Triangle,
    Diamond,
}

impl Style {
    pub(super) fn new(index: usize, series: &Series) -> Self {
        // 3 marks and 7 colours have no common divisor, so combinations repeat after 21 series.
        const MARKS: [Mark; 3] = [Mark::Disc, Mark::Square, Mark::Triangle];
        Self {
            colour: COLOURS[index % COLOURS.len()],
            mark: if series.is_default {
                Mark::Diamond
            } else {
                MARKS[index % MARKS.len()]
            },
        }
    }

    /// Returns the path of the mark at a point.
    pub(super) fn path(self, x: f64, y: f64) -> String {
        let (x, y) = (At(x), At(y));
        match self.mark {
            Mark::Disc => format!("M{x} {y}m-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0z"),
            Mark::Square => format!("M{x} {y}m-3.5-3.5h7v7h-7z"),
            Mark::Triangle => format!("M{x} {y}m0-5l5 8.5h-10z"),
            Mark::Diamond => format!("M{x} {y}m0-6l6 6l-6 6l-6-6z"),
        }
    }
}

/// Returns the pen for a contender's lines and edges.
pub(super) fn pen(contender: Contender, colour: &'static str) -> Pen {
    let (class, dashes) = match contender {
        Contender::Tload => ("tload", ""),
        Contender::Ceiling => ("ceiling", "7 4"),
        Contender::Fio => ("fio", "1.5 3.5"),
        Contender::Peer => ("peer", ""),
    };
    Pen {
        class,
        colour,
        dashes,
    }
}

/// Line of the legend, for a series of loads or for a contender.
pub(super) struct Entry {
    pub(super) label: String,
    contender: Contender,
    style: Option<Style>,
}

impl Entry {
    pub(super) fn for_series(style: Style, series: &Series) -> Self {
        Self {
            label: series.label.clone(),
            contender: Contender::Tload,
            style: Some(style),
        }
    }

    pub(super) fn for_contender(it: Contender) -> Self {
        Self {
            label: contender(it).to_owned(),
            contender: it,
            style: None,
        }
    }

    pub(super) fn draw(&self, svg: &mut Svg, x: f64, y: f64) {
        let colour = match (self.style, self.contender) {
            (Some(style), _) => style.colour,
            (None, Contender::Tload) => FIRST,
            (None, Contender::Ceiling | Contender::Fio | Contender::Peer) => INK,
        };
        let key = Pen {
            class: "key",
            ..pen(self.contender, colour)
        };
        svg.line(key, &format!("M{} {}h28", At(x), At(y)));
        if let Some(style) = self.style {
            svg.area("key", colour, &style.path(x + 14.0, y), "");
        } else if self.contender == Contender::Tload {
            let place = Rectangle {
                corner: at(x + 6.0, y - 5.0),
                width: 16.0,
                height: 10.0,
            };
            svg.rectangle(key, colour, &place, "");
        }
        svg.text(at(x + 36.0, y + 4.0), 12, Anchor::Start, &self.label);
    }
}
