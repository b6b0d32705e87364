//! Requirements of tests that not every machine meets: such tests are skipped with a message, or
//! fail.
//!
//! `TLOAD_REQUIRE=fio,shm` turns a skip for one of these names into a failure, `TLOAD_REQUIRE=all`
//! every skip.

use std::io::Write;

/// Returns the value of `found`. On an error, prints that the test is skipped and why, or panics if
/// `TLOAD_REQUIRE` names `name`.
#[track_caller]
pub(crate) fn requirement<T>(name: &str, found: Result<T, String>) -> Option<T> {
    found_or_skipped(name, found, is_required)
}

/// Like [`requirement`], for properties of the machine that no package provides: only the name
/// requires them, `all` does not.
#[track_caller]
pub(crate) fn of_machine<T>(name: &str, found: Result<T, String>) -> Option<T> {
    found_or_skipped(name, found, is_named)
}

#[track_caller]
fn found_or_skipped<T>(
    name: &str,
    found: Result<T, String>,
    is_required: fn(&str, &str) -> bool,
) -> Option<T> {
    match found {
        Ok(found) => Some(found),
        Err(reason) => {
            let required = std::env::var_os("TLOAD_REQUIRE").unwrap_or_default();
            assert!(
                !is_required(name, &required.to_string_lossy()),
                "TLOAD_REQUIRE names {name}, which is missing: {reason}"
            );
            say(&format!("SKIPPED: needs {name}: {reason}"));
            None
        }
    }
}

fn is_named(name: &str, required: &str) -> bool {
    required.split(',').any(|required| required.trim() == name)
}

fn is_required(name: &str, required: &str) -> bool {
    is_named(name, required) || is_named("all", required)
}

/// Prints a line past the test harness, which shows the output of a test only if it fails.
fn say(line: &str) {
    // A closed standard error is no reason to fail.
    drop(writeln!(std::io::stderr(), "{line}"));
}

#[test]
fn requirement_is_met_by_name_or_all() {
    assert!(is_required("fio", "uring, fio"));
    assert!(is_required("fio", "all"));
    assert!(!is_required("fio", "uring,fiona"));
    assert!(!is_required("fio", ""));
}
