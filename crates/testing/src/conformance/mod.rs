//! Contracts as suites: requirements for every implementation of a source, an engine or a sink.
//!
//! Call [`source_suite`], [`engine_suite`] and [`sink_suite`] from a test, and
//! [`troubled_engine_suite`] over storage that can fail. A failed check does not stop the others;
//! all failures are shown.

mod engine;
mod sink;
mod source;
mod troubled;

pub use engine::{
    EngineRequest, EngineUnderTest, Shrink, engine_suite, engine_suite_within_sources,
};
pub use sink::{SinkRequest, sink_suite};
pub use source::{SourceUnderTest, source_suite};
pub use troubled::{Trouble, TroubledEngine, troubled_engine_suite};

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs every check; panics at the end if one of them did.
fn run_all(name: &str, checks: &[(&str, &dyn Fn())]) {
    let failures: Vec<String> = checks
        .iter()
        .filter_map(|(check, run)| {
            let panic = catch_unwind(AssertUnwindSafe(run)).err()?;
            Some(format!("{name}: {check}: {}", text(&*panic)))
        })
        .collect();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

fn text(panic: &(dyn Any + Send)) -> &str {
    panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("panicked")
}
