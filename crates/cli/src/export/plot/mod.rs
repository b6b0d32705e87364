//! Plot of the speeds as SVG, which the crate `tload-html` draws.

use std::path::Path;

use tload::{Error, ErrorKind, Result};

use super::Format;
use super::plain::plain;
use crate::bench::results::Results;

pub(super) struct Plot;

impl Plot {
    /// Returns a plot for `path`, whose extension must be that of SVG.
    pub(super) fn for_path(path: &Path) -> Result<Self> {
        let extension = path.extension().unwrap_or_default();
        if extension.eq_ignore_ascii_case("svg") {
            return Ok(Self);
        }
        let message = format!(
            "--plot draws SVG, but {} does not end in .svg",
            path.display()
        );
        let hint = "use a name with .svg: browsers show it, and rsvg-convert or Inkscape convert it to .png";
        Err(Error::new(ErrorKind::InvalidRequest, message).with_hint(hint))
    }
}

impl Format for Plot {
    fn render(&self, results: &Results) -> String {
        tload_html::plot(&plain(results))
    }
}

#[cfg(test)]
mod tests;
