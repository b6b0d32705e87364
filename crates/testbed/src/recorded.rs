//! Generated files of the repository: pages, help texts, pictures. A test compares each with what
//! it should be; with `TLOAD_BLESS=1` in the environment, the test writes it instead.

use std::path::Path;

/// Asserts that the file at `path` has exactly this text.
///
/// # Panics
///
/// If the file differs or is missing, with the first different line.
#[track_caller]
pub fn assert_recorded(path: &Path, text: &str) {
    if is_blessed() {
        std::fs::write(path, text).expect("the repository is writable");
    }
    let found = std::fs::read_to_string(path).unwrap_or_default();
    assert_same(path, &found, text);
}

/// Asserts that the file at `path` has this text between its marks `begin` and `end`. The rest of
/// the file is written by hand.
///
/// # Panics
///
/// If the text differs, with its first different line, or if the file lacks one of the marks.
#[track_caller]
pub fn assert_recorded_between(path: &Path, begin: &str, end: &str, text: &str) {
    let page = std::fs::read_to_string(path).unwrap_or_default();
    let (before, rest) = page.split_once(begin).expect("the page has the first mark");
    let (found, after) = rest.split_once(end).expect("the page has the second mark");
    if is_blessed() {
        assert_recorded(path, &[before, begin, text, end, after].concat());
    } else {
        assert_same(path, found, text);
    }
}

#[track_caller]
fn assert_same(path: &Path, found: &str, wanted: &str) {
    let mut pairs = found.lines().zip(wanted.lines());
    let differs = pairs.find(|(found, wanted)| found != wanted);
    assert!(
        found == wanted,
        "{} is out of date (TLOAD_BLESS=1 rewrites it): {differs:#?}",
        path.display()
    );
}

fn is_blessed() -> bool {
    std::env::var_os("TLOAD_BLESS").is_some()
}
