//! Tests behind the promises of SECURITY.md: each bullet is followed by the tests that show it, and
//! each of those tests exists.

use std::path::Path;

use crate::files::read;

const HEADING: &str = "## What is promised";

fn root() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Returns `path` and `name` of a line such as ``  - `path::name` ``.
fn named(line: &str) -> Option<(&str, &str)> {
    line.strip_prefix("  - `")?
        .strip_suffix('`')?
        .rsplit_once("::")
}

/// Returns whether `text`, which is Rust or Python, has a test of this name.
fn has_test(text: &str, name: &str) -> bool {
    let lines: Vec<_> = text.lines().map(str::trim).collect();
    lines.iter().enumerate().any(|(at, line)| {
        let line = line.trim_start_matches("async ");
        if line
            .strip_prefix("def ")
            .is_some_and(|it| it.starts_with(&format!("{name}(")))
        {
            return name.starts_with("test_");
        }
        let is_function = line
            .strip_prefix("fn ")
            .is_some_and(|it| it.starts_with(&format!("{name}(")));
        // Other attributes may stand between `#[test]` and the function.
        let mut before = lines[..at]
            .iter()
            .rev()
            .take_while(|line| line.starts_with("#["));
        is_function && before.any(|line| *line == "#[test]")
    })
}

fn complaints(security: &str, text_of: impl Fn(&str) -> Option<String>) -> Vec<String> {
    let mut complaints = Vec::new();
    let mut promises: Vec<(&str, usize)> = Vec::new();
    let lines = security.lines().skip_while(|line| *line != HEADING).skip(1);
    for line in lines.take_while(|line| !line.starts_with("## ")) {
        if let Some(promise) = line.strip_prefix("- ") {
            promises.push((promise, 0));
        } else if line.trim_start().starts_with("- ") {
            match (named(line), promises.last_mut()) {
                (Some((file, name)), Some((_, tests))) => {
                    *tests += 1;
                    if text_of(file).is_none_or(|text| !has_test(&text, name)) {
                        complaints.push(format!("{file} has no test {name}"));
                    }
                }
                _ => complaints.push(format!("is not a test of a promise: {line}")),
            }
        }
    }
    if promises.is_empty() {
        complaints.push(format!("has no promise below {HEADING:?}"));
    }
    let untested = promises.iter().filter(|(_, tests)| *tests == 0);
    complaints.extend(untested.map(|(promise, _)| format!("names no test: {promise}")));
    complaints
}

#[test]
fn each_promise_of_security_md_has_a_test() {
    let text = |path: &Path| {
        let is_there = path.exists();
        is_there.then(|| String::from_utf8(read(path)).expect("UTF-8"))
    };
    let security = text(&root().join("SECURITY.md")).expect("is in the repository");
    let complaints = complaints(&security, |file| text(&root().join(file)));
    assert!(
        complaints.is_empty(),
        "SECURITY.md:\n{}",
        complaints.join("\n")
    );
}

#[test]
fn promise_without_test_is_detected() {
    let page =
        |promises: &str| format!("# Security\n\n{HEADING}\n\n### A\n\n{promises}\n## B\n\n- c\n");
    let file = |name: &str| match name {
        "a.rs" => Some("#[test]\n#[cfg(unix)]\nfn one() {}\nfn two() {}\n// fn three()".to_owned()),
        "a.py" => Some("def test_one(x: int) -> None:\ndef helps() -> None:".to_owned()),
        _ => None,
    };
    let found = |promises: &str| complaints(&page(promises), file);
    let good = "- Promise of `b`,\n  in two lines.\n  - `a.rs::one`\n  - `a.py::test_one`\n";
    assert_eq!(found(good), Vec::<String>::new());
    for (line, complaint) in [
        ("  - `a.rs::two`", "a.rs has no test two"),
        ("  - `a.rs::on`", "a.rs has no test on"),
        ("  - `a.rs::three`", "a.rs has no test three"),
        ("  - `a.py::helps`", "a.py has no test helps"),
        ("  - `b.rs::one`", "b.rs has no test one"),
        ("  - a.rs::one", "is not a test of a promise:   - a.rs::one"),
        (
            "    - `a.rs::one`",
            "is not a test of a promise:     - `a.rs::one`",
        ),
        (
            "- Another promise `a.rs::one`.",
            "names no test: Another promise `a.rs::one`.",
        ),
    ] {
        assert_eq!(found(&format!("{good}{line}\n")), [complaint]);
    }
    assert_eq!(found("").len(), 1);
    assert_eq!(complaints("# Security\n", file).len(), 1);
}
