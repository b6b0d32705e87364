//! Pages and pictures of results: what `--html` and `--plot` of the command write, and what
//! notebooks show of a report.
//!
//! Programs depend on the crate `tload`. This one is of its command and its Python package, is
//! released with them, and may change in any release.
//!
//! Everything here is a function of plain values: no I/O, no clock, no environment, no types of a
//! load. A caller fills in [`Load`], [`Bench`] or [`Doctor`], partly from the JSON
//! that the command prints, and gets the text of a file:
//!
//! ```text
//!  Load, Bench, Doctor, reports ─▶ page: sections of items ─▶ templates/*.html ─▶ one file
//!                       └─▶ plot: chart ─▶ draw ─▶ svg
//! ```
//!
//! A page needs nothing else: styles and pictures are in it, and it has no script. It follows the
//! reader's light or dark mode, and fits a phone. Whatever comes from files, stores and machines is
//! escaped by the templates, and control characters are made visible before.

mod bench;
mod doctor;
mod facts;
mod load;
mod page;
mod plot;
mod quantity;
mod stats;
#[cfg(test)]
mod tests;
mod timeline;
mod verified;
mod waterfall;

pub use bench::{Bench, Cell, Contender, Sample, Settings, Summary, bench_page};
pub use doctor::{Doctor, doctor_page};
pub use facts::{Run, options};
pub use load::{Load, ShardRow, TensorRow, load_page, report_fragment, report_page};
pub use plot::plot;
pub use stats::Spread;
pub use timeline::{Moment, Samples};
pub use verified::verified_fragment;
pub use waterfall::Phase;
