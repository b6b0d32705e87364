//! Output for the terminal and for programs: quantities with units, tables, colours, progress,
//! errors and JSON.

pub(crate) mod answer;
pub(crate) mod error;
pub(crate) mod failure;
pub(crate) mod json;
pub(crate) mod progress;
pub(crate) mod style;
pub(crate) mod table;
pub(crate) mod verbosity;
