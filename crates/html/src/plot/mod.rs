//! Plot of the speeds as SVG: `chart` holds the content, `draw` the layout, `marks` the colours and
//! symbols, `svg` the syntax.

mod chart;
mod draw;
mod marks;
mod svg;

use tload_base::error::printable;

use self::chart::Chart;
use self::svg::Colours;
use crate::bench::Bench;

/// Returns a file with the plot of the speeds over the swept setting with the most values, together
/// with the ceiling; without a sweep, a group of bars for each cell.
#[must_use]
pub fn plot(results: &Bench) -> String {
    Chart::new(results).draw(Colours::Own)
}

/// Returns the same plot for a page, in its colours. Its texts are as those of the page.
pub(crate) fn plot_in_page(results: &Bench) -> String {
    let svg = Chart::new(results).draw(Colours::OfPage);
    let lines: Vec<_> = svg.lines().map(printable).collect();
    lines.join("\n")
}
