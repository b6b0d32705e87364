//! Tests that need something which not every machine has: skipped loudly, or not at all.
//!
//! `TLOAD_REQUIRE=fio,shm` turns a skip for one of these names into a failure, `TLOAD_REQUIRE=all` every skip.

use std::io::Write;

/// Whether `found` is there. If not: prints that the test is skipped and why, or panics when `TLOAD_REQUIRE` names `name`.
#[track_caller]
pub(crate) fn requirement<T>(name: &str, found: Result<T, String>) -> Option<T> {
    found_or_skipped(name, found, is_required)
}

/// The same for what no package brings, only another machine: `all` does not mean it, its name does.
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

/// Past the test harness, which shows what a test prints only when it fails.
fn say(line: &str) {
    // Nobody to tell is no reason to fail.
    drop(writeln!(std::io::stderr(), "{line}"));
}

#[test]
fn a_name_or_all_is_required() {
    assert!(is_required("fio", "uring, fio"));
    assert!(is_required("fio", "all"));
    assert!(!is_required("fio", "uring,fiona"));
    assert!(!is_required("fio", ""));
}
