//! A picture of the speeds, as SVG: `chart` what it shows, `draw` where that goes, `marks` what tells it apart, `svg` how it is written.

mod chart;
mod draw;
mod marks;
mod svg;

use std::path::Path;

use tload::{Error, ErrorKind, Result};

use self::chart::Chart;
use super::Format;
use crate::bench::results::Results;

pub(super) struct Plot;

impl Plot {
    /// For `path`, whose name says in which format.
    pub(super) fn of(path: &Path) -> Result<Self> {
        let extension = path.extension().unwrap_or_default();
        if extension.eq_ignore_ascii_case("svg") {
            return Ok(Self);
        }
        let message = format!("--plot draws SVG, and {} is no .svg", path.display());
        let hint =
            "name the file .svg: browsers show it, and rsvg-convert or Inkscape make a .png of it";
        Err(Error::new(ErrorKind::InvalidRequest, message).with_hint(hint))
    }
}

impl Format for Plot {
    fn render(&self, results: &Results) -> String {
        Chart::of(results).draw()
    }
}

#[cfg(test)]
mod tests;
