//! Fuzz targets: any bytes in; right results or typed errors out, never a panic.
//!
//! Each target is a function of bytes that panics when the crate violates a guarantee. `fuzz/` at
//! the root of the repository runs the targets under libFuzzer; `tests/it/fuzz.rs` replays its
//! corpora, and thousands of inputs made from seeds, with a plain `cargo test`. To add a target,
//! add a file here, a line in [`TARGETS`], and a line in `fuzz/Cargo.toml`.

mod header;
mod index;
mod input;
mod listing;
mod load;
mod location;
mod manifest;
mod plan;
mod sealed;
mod slice;
mod tensorizer;
mod xet;

use tload_base::error::{Error, printable};

pub use input::Input;

/// Target: its name, which is also the name of its corpus, and its function.
pub type Target = (&'static str, fn(&[u8]));

/// All targets.
pub const TARGETS: [Target; 11] = [
    ("header", header::check),
    ("index", index::check),
    ("listing", listing::check),
    ("load", load::check),
    ("location", location::check),
    ("manifest", manifest::check),
    ("plan", plan::check),
    ("sealed", sealed::check),
    ("slice", slice::check),
    ("tensorizer", tensorizer::check),
    ("xet", xet::check),
];

/// Runs the target `name` on `input`.
///
/// # Panics
///
/// Panics when a guarantee is violated, and when there is no target of that name.
pub fn run(name: &str, input: &[u8]) {
    let target = TARGETS.iter().find(|(known, _)| *known == name);
    let (_, check) = target.expect("the name of a target");
    check(input);
}

/// Checks what holds for every error, whatever the bytes were: it can be printed, and is short.
fn assert_fit_to_print(error: &Error) {
    const LONGEST: usize = 16 << 10;
    let chain = error.chain();
    assert!(chain.len() < LONGEST, "an error of {} bytes", chain.len());
    for line in chain.lines() {
        assert_eq!(line, printable(line), "an error with control characters");
    }
    assert!(!error.to_string().contains('\n'), "an error of two lines");
}
