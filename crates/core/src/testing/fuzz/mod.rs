//! What fuzzers ask of the crate: any bytes in; right answers or typed errors out, never a panic.
//!
//! Each target is a function of bytes that panics when the crate breaks a promise. `fuzz/` at the root of the repository runs them
//! under libFuzzer; `tests/it/fuzz.rs` replays its corpora, and thousands of inputs that follow from seeds, with nothing but
//! `cargo test`. A new target is a file here, a line in [`TARGETS`], and a line in `fuzz/Cargo.toml`.

mod header;
mod index;
mod input;
mod listing;
mod load;
mod location;
mod manifest;
mod plan;
mod slice;

use crate::error::{Error, printable};

pub use input::Input;

/// A target: its name, which is also the name of its corpus, and what it asks.
pub type Target = (&'static str, fn(&[u8]));

/// All of them.
pub const TARGETS: [Target; 8] = [
    ("header", header::check),
    ("index", index::check),
    ("listing", listing::check),
    ("load", load::check),
    ("location", location::check),
    ("manifest", manifest::check),
    ("plan", plan::check),
    ("slice", slice::check),
];

/// Asks the target `name` about `input`.
///
/// # Panics
///
/// When a promise is broken, and for a name that is none.
pub fn run(name: &str, input: &[u8]) {
    let target = TARGETS.iter().find(|(known, _)| *known == name);
    let (_, check) = target.expect("the name of a target");
    check(input);
}

/// What holds of every error, whatever the bytes were: it can be printed, and is short.
fn assert_fit_to_print(error: &Error) {
    const LONGEST: usize = 16 << 10;
    let chain = error.chain();
    assert!(chain.len() < LONGEST, "an error of {} bytes", chain.len());
    for line in chain.lines() {
        assert_eq!(line, printable(line), "an error that terminals obey");
    }
    assert!(!error.to_string().contains('\n'), "an error of two lines");
}
