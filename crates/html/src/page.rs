//! Page: a title, figures, and sections of items, which the templates turn into HTML.
//!
//! Texts are plain here. The templates escape them; [`text`] makes control characters visible
//! before.

use askama::Template;
use tload_base::error::printable;

/// Most characters of a text that comes from a file, a store or a machine, and of one in a table.
const TEXT_MAX: usize = 300;
const FIELD_MAX: usize = 160;

/// Most rows of a table, and bytes of its HTML: a page stays below 200 kB.
pub(crate) const ROWS_MAX: usize = 300;
const BYTES_MAX: usize = 24_000;

/// Most bytes of HTML around the text of a field.
const FIELD_BYTES: usize = 16;

/// Makes control characters visible, and shortens a long text in the middle.
pub(crate) fn text(raw: &str) -> String {
    shortened(raw, TEXT_MAX)
}

fn shortened(raw: &str, most: usize) -> String {
    let half = most / 2;
    let mut letters = raw.char_indices();
    let Some((head, _)) = letters.nth(half).filter(|_| letters.nth(half).is_some()) else {
        return printable(raw);
    };
    let tail = raw.char_indices().nth_back(half).map_or(head, |(at, _)| at);
    format!("{}…{}", printable(&raw[..head]), printable(&raw[tail..]))
}

/// One page, or the content of a notebook's cell.
#[derive(Debug, Default)]
pub(crate) struct Page {
    /// Title of the window.
    pub(crate) title: String,
    /// Kind of the result, above the heading.
    pub(crate) kind: &'static str,
    pub(crate) heading: String,
    /// Lines below the heading: the first is the most important one.
    pub(crate) lead: Vec<String>,
    /// Short state with a colour: `complete`, `2 warnings`.
    pub(crate) badge: Option<Badge>,
    pub(crate) figures: Vec<Figure>,
    pub(crate) sections: Vec<Section>,
    /// Origin of the page, at its end.
    pub(crate) foot: String,
}

/// Word with a colour.
#[derive(Debug)]
pub(crate) struct Badge {
    pub(crate) text: String,
    pub(crate) level: &'static str,
}

/// Number that people look for first.
#[derive(Debug)]
pub(crate) struct Figure {
    pub(crate) label: &'static str,
    pub(crate) value: String,
}

/// Heading with items below it.
#[derive(Debug)]
pub(crate) struct Section {
    pub(crate) heading: &'static str,
    pub(crate) intro: String,
    pub(crate) items: Vec<Item>,
}

/// Content of a section.
#[derive(Debug)]
pub(crate) enum Item {
    Facts(Vec<(String, String)>),
    Table(Table),
    Bars(Bars),
    Timeline(Timeline),
    /// Name and SVG of a picture of its own width, which scrolls where the page is narrower.
    Picture(&'static str, String),
    Findings(Vec<Finding>),
    Notes(Vec<String>),
    /// Folded text: its name, and lines.
    Text(&'static str, String),
}

#[derive(Debug, Default)]
pub(crate) struct Table {
    /// Shown above the table, or as the line that unfolds it.
    pub(crate) caption: String,
    pub(crate) is_folded: bool,
    pub(crate) head: Vec<Column>,
    pub(crate) rows: Vec<Vec<Field>>,
    /// Rows that are not in the page.
    pub(crate) left_out: usize,
    /// Bytes of HTML so far, and the most.
    bytes: usize,
    bytes_max: usize,
}

#[derive(Debug)]
pub(crate) struct Column {
    pub(crate) title: String,
    pub(crate) is_number: bool,
}

#[derive(Debug)]
pub(crate) struct Field {
    pub(crate) text: String,
    /// Strength of the colour behind the text, percent.
    pub(crate) shade: Option<u8>,
    pub(crate) is_best: bool,
}

impl From<String> for Field {
    fn from(text: String) -> Self {
        Self {
            text,
            shade: None,
            is_best: false,
        }
    }
}

impl Table {
    /// Returns a table; titles that begin with `#` are those of numbers.
    pub(crate) fn new(caption: impl Into<String>, titles: &[&str]) -> Self {
        let column = |title: &&str| Column {
            title: title.trim_start_matches('#').to_owned(),
            is_number: title.starts_with('#'),
        };
        Self {
            caption: caption.into(),
            head: titles.iter().map(column).collect(),
            bytes_max: BYTES_MAX,
            ..Self::default()
        }
    }

    /// Sets the most bytes of its HTML, for a table that its page is about.
    pub(crate) fn of_size(mut self, bytes: usize) -> Self {
        self.bytes_max = bytes;
        self
    }

    /// Adds rows of texts, up to the most that a page has.
    pub(crate) fn with_rows(mut self, rows: impl IntoIterator<Item = Vec<String>>) -> Self {
        for row in rows {
            if self.left_out > 0 || self.rows.len() == ROWS_MAX {
                self.left_out += 1;
                continue;
            }
            let row: Vec<_> = row.iter().map(|it| shortened(it, FIELD_MAX)).collect();
            self.bytes += row.iter().map(|field| html_bytes(field)).sum::<usize>();
            if self.bytes <= self.bytes_max {
                self.rows.push(row.into_iter().map(Field::from).collect());
            } else {
                self.left_out += 1;
            }
        }
        self
    }

    /// Hides the table until the reader unfolds it.
    pub(crate) fn folded(mut self) -> Self {
        self.is_folded = true;
        self
    }

    /// Returns the classes of the columns with numbers, which are aligned to the right.
    fn classes(&self) -> String {
        let numbers = self.head.iter().enumerate().filter(|(_, it)| it.is_number);
        let classes: Vec<_> = numbers
            .map(|(index, _)| format!("r{}", index + 1))
            .collect();
        classes.join(" ")
    }
}

/// Table with a bar in each row.
#[derive(Debug, Default)]
pub(crate) struct Bars {
    pub(crate) caption: String,
    /// Titles of the label, of the values, and of the bars.
    pub(crate) head: Vec<String>,
    pub(crate) rows: Vec<Bar>,
}

#[derive(Debug, Default)]
pub(crate) struct Bar {
    pub(crate) label: String,
    pub(crate) values: Vec<String>,
    /// Position and length of the bar, percent.
    pub(crate) start: f64,
    pub(crate) length: f64,
    /// Range of the samples, percent.
    pub(crate) range: Option<(f64, f64)>,
    /// Colour: `a` to `d`, `hollow` for ceilings.
    pub(crate) colour: &'static str,
    /// First row of a group.
    pub(crate) begins_group: bool,
}

/// Curves over time. The picture stretches, its labels do not.
#[derive(Debug)]
pub(crate) struct Timeline {
    pub(crate) title: &'static str,
    /// Curves in words, for readers who do not see them.
    pub(crate) description: String,
    pub(crate) curves: Vec<Curve>,
    /// Labels of the upper end, the middle and the end of the axes.
    pub(crate) top: String,
    pub(crate) half: String,
    pub(crate) end: String,
}

#[derive(Debug)]
pub(crate) struct Curve {
    pub(crate) name: &'static str,
    pub(crate) colour: &'static str,
    /// Path in a picture of 1000 by 100.
    pub(crate) path: String,
}

/// Result of a check.
#[derive(Debug)]
pub(crate) struct Finding {
    pub(crate) level: &'static str,
    pub(crate) title: String,
    pub(crate) value: String,
    pub(crate) advice: Option<String>,
    pub(crate) command: Option<String>,
}

const STYLE: &str = include_str!("../templates/style.css");

#[derive(Template)]
#[template(path = "page.html")]
struct Document<'a> {
    page: &'a Page,
    style: &'a str,
}

#[derive(Template)]
#[template(path = "fragment.html")]
struct Fragment<'a> {
    page: &'a Page,
    style: &'a str,
}

impl Page {
    /// Adds a section, unless it has no items.
    pub(crate) fn section(&mut self, heading: &'static str, intro: &str, items: Vec<Item>) {
        if !items.is_empty() {
            self.sections.push(Section {
                heading,
                intro: intro.to_owned(),
                items,
            });
        }
    }

    /// Adds the error that ended the work, with its causes and advice.
    pub(crate) fn failure(&mut self, title: &str, chain: &str) {
        let mut lines = chain.lines().map(|line| text(line.trim()));
        let finding = Finding {
            level: "fail",
            title: title.to_owned(),
            value: lines.next().unwrap_or_default(),
            advice: Some(lines.collect::<Vec<_>>().join("; ")).filter(|it| !it.is_empty()),
            command: None,
        };
        self.section("Error", "", vec![Item::Findings(vec![finding])]);
    }

    /// Adds a figure, unless it has no value.
    pub(crate) fn figure(&mut self, label: &'static str, value: Option<String>) {
        self.figures
            .extend(value.map(|value| Figure { label, value }));
    }

    /// Returns the file.
    pub(crate) fn document(&self) -> String {
        let document = Document {
            page: self,
            style: STYLE,
        };
        // A template fails only if a value cannot be displayed.
        document.render().unwrap_or_default()
    }

    /// Returns the content of a cell of a notebook.
    pub(crate) fn fragment(&self) -> String {
        let fragment = Fragment {
            page: self,
            style: STYLE,
        };
        fragment.render().unwrap_or_default()
    }
}

/// Returns the bytes that a field takes in HTML.
fn html_bytes(field: &str) -> usize {
    let escaped = field
        .bytes()
        .filter(|byte| b"<>&\"'".contains(byte))
        .count();
    field.len() + 4 * escaped + FIELD_BYTES
}

/// Rounds to a tenth, for positions.
#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "templates pass references"
)]
pub(crate) fn tenth(percent: &f64) -> f64 {
    (percent * 10.0).round() / 10.0
}
