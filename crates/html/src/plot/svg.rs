//! Writer of SVG: the few elements of a plot, with attributes and texts escaped.
//!
//! Written by hand because it is small. Of the libraries, plotters has had no release since 2024
//! and draws a dashed line as hundreds of short ones; others change every month, or bring dozens of
//! crates.

use std::fmt::{Display, Write};

/// Coordinate, rounded to a tenth of a pixel: finer than any screen, and the file stays small.
pub(super) struct At(pub(super) f64);

impl Display for At {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Adding 0.0 turns negative zero into zero; otherwise files that look the same would
        // differ.
        let tenths = (self.0 * 10.0).round() + 0.0;
        write!(f, "{}", tenths / 10.0)
    }
}

/// Alignment of a text at its coordinate.
#[derive(Clone, Copy)]
pub(super) enum Anchor {
    Start,
    Middle,
    End,
}

/// Style and class of a line.
#[derive(Clone, Copy)]
pub(super) struct Pen {
    pub(super) class: &'static str,
    pub(super) colour: &'static str,
    /// Lengths of dashes and gaps; empty for none.
    pub(super) dashes: &'static str,
}

/// Position in the picture, in pixels from the upper left corner.
#[derive(Clone, Copy)]
pub(super) struct Position {
    pub(super) x: f64,
    pub(super) y: f64,
}

pub(super) fn at(x: f64, y: f64) -> Position {
    Position { x, y }
}

/// Upper left corner and size of a rectangle.
pub(super) struct Rectangle {
    pub(super) corner: Position,
    pub(super) width: f64,
    pub(super) height: f64,
}

/// Colours of a picture.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Colours {
    /// Dark on white, whatever is around it.
    Own,
    /// Ink, paper and grid of the page that it is in, which may be dark.
    OfPage,
}

pub(super) struct Svg {
    text: String,
    colours: Colours,
}

impl Svg {
    /// Returns an empty picture. Fonts are those of the viewer's system.
    pub(super) fn new(width: f64, height: f64, colours: Colours) -> Self {
        let mut svg = Self {
            text: String::new(),
            colours,
        };
        let view = format!("0 0 {} {}", At(width), At(height));
        svg.tag(
            "svg",
            &[
                ("xmlns", &"http://www.w3.org/2000/svg"),
                ("viewBox", &view),
                ("width", &At(width)),
                ("height", &At(height)),
                ("role", &"img"),
                ("font-family", &"system-ui, sans-serif"),
            ],
        );
        if colours == Colours::OfPage {
            svg.attribute("aria-label", &"Speeds over the swept setting");
        }
        svg.text.push_str(">\n");
        let white = [
            ("width", &"100%" as _),
            ("height", &"100%" as _),
            ("fill", &svg.colour("#fff") as _),
        ];
        svg.tag("rect", &white);
        svg.close("rect", "");
        svg
    }

    pub(super) fn text(&mut self, position: Position, size: u8, anchor: Anchor, text: &str) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        self.tag(
            "text",
            &[
                ("x", &At(position.x)),
                ("y", &At(position.y)),
                ("font-size", &size),
                ("text-anchor", &anchor),
            ],
        );
        let text = escape(text);
        let _ = writeln!(self.text, ">{text}</text>");
    }

    /// Draws a line along `path`.
    pub(super) fn line(&mut self, pen: Pen, path: &str) {
        self.tag("path", &[("class", &pen.class), ("d", &path)]);
        self.stroke(pen);
        self.attribute("fill", &"none");
        self.close("path", "");
    }

    /// Fills the area inside `path`. `hover` is shown under the pointer.
    pub(super) fn area(
        &mut self,
        class: &'static str,
        colour: &'static str,
        path: &str,
        hover: &str,
    ) {
        let fill = self.colour(colour);
        self.tag("path", &[("class", &class), ("d", &path), ("fill", &fill)]);
        self.close("path", hover);
    }

    /// Draws a filled rectangle with an edge, and `hover` like [`area`](Self::area).
    pub(super) fn rectangle(
        &mut self,
        pen: Pen,
        fill: &'static str,
        place: &Rectangle,
        hover: &str,
    ) {
        let fill = self.colour(fill);
        self.tag(
            "rect",
            &[
                ("class", &pen.class),
                ("x", &At(place.corner.x)),
                ("y", &At(place.corner.y)),
                ("width", &At(place.width)),
                ("height", &At(place.height)),
                ("fill", &fill),
            ],
        );
        self.stroke(pen);
        self.close("rect", hover);
    }

    /// Returns a colour of the page in place of one that is legible on white only.
    fn colour(&self, colour: &'static str) -> &'static str {
        match (self.colours, colour) {
            (Colours::OfPage, "#333" | "#000000") => "currentColor",
            (Colours::OfPage, "#fff") => "var(--paper)",
            (Colours::OfPage, "#ddd") => "var(--line)",
            (Colours::Own | Colours::OfPage, colour) => colour,
        }
    }

    /// Returns the file.
    pub(super) fn finish(mut self) -> String {
        self.text.push_str("</svg>\n");
        self.text
    }

    fn tag(&mut self, name: &'static str, attributes: &[(&str, &dyn Display)]) {
        let _ = write!(self.text, "<{name}");
        for (name, value) in attributes {
            self.attribute(name, value);
        }
    }

    fn attribute(&mut self, name: &str, value: &dyn Display) {
        let _ = write!(self.text, " {name}=\"{}\"", escape(&value.to_string()));
    }

    fn stroke(&mut self, pen: Pen) {
        self.attribute("stroke", &self.colour(pen.colour));
        self.attribute("stroke-width", &1.5);
        if !pen.dashes.is_empty() {
            self.attribute("stroke-dasharray", &pen.dashes);
        }
    }

    fn close(&mut self, name: &'static str, hover: &str) {
        let _ = if hover.is_empty() {
            writeln!(self.text, "/>")
        } else {
            let hover = escape(hover);
            writeln!(self.text, "><title>{hover}</title></{name}>")
        };
    }
}

/// Escapes text for elements and attributes. Characters that XML cannot express become U+FFFD.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            // XML parsers turn white space in attributes into spaces, and a carriage return into a
            // line feed.
            '\t' | '\n' | '\r' => escaped.push(' '),
            '\0'..='\u{1f}' | '\u{fffe}' | '\u{ffff}' => escaped.push('\u{fffd}'),
            other => escaped.push(other),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn svg_escapes_any_text() {
        let text = "a<b> & \"c\" ]]> 'd'\n\u{1b}[0m\0\u{ffff} é";
        let mut svg = Svg::new(10.0, 10.0, Colours::Own);
        svg.text(at(1.0, 2.0), 12, Anchor::Start, text);
        let pen = Pen {
            class: text,
            colour: "#000",
            dashes: "",
        };
        let place = Rectangle {
            corner: at(0.0, 0.0),
            width: 1.0,
            height: 1.0,
        };
        svg.rectangle(pen, "#fff", &place, text);
        let svg = svg.finish();
        let document = roxmltree::Document::parse(&svg).expect("XML");
        let shown = "a<b> & \"c\" ]]> 'd' \u{fffd}[0m\u{fffd}\u{fffd} é";
        let texts: Vec<_> = document.descendants().filter_map(|it| it.text()).collect();
        let texts: Vec<_> = texts.into_iter().filter(|it| it.trim() != "").collect();
        // Two elements, each counted with the text in it.
        assert_eq!(texts, [shown; 4]);
        let class = document
            .descendants()
            .find_map(|it| it.attribute("class"))
            .expect("a class");
        assert_eq!(class, shown);
    }

    #[test]
    fn coordinates_are_short() {
        let shown = [1.0, 2.25, -0.01, 1.0 / 3.0].map(|it| At(it).to_string());
        assert_eq!(shown, ["1", "2.3", "0", "0.3"]);
    }
}
