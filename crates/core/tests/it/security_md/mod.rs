//! Promises about security and the tests that show them. `docs/promises.md` is generated from the
//! files of this folder; SECURITY.md states the promises in short, and links to each section.

mod bytes;
mod copies;
mod credentials;
mod endings;
mod files;
mod memory;
mod objects;
mod paths;
mod secrets;
mod serving;

use std::path::{Path, PathBuf};

use tload_testbed::assert_recorded;

use crate::files::read;

const SECTIONS: [&Section; 10] = [
    &files::FILES,
    &memory::MEMORY,
    &paths::PATHS,
    &bytes::BYTES,
    &objects::OBJECTS,
    &credentials::CREDENTIALS,
    &secrets::SECRETS,
    &copies::COPIES,
    &serving::SERVING,
    &endings::ENDINGS,
];

const INTRODUCTION: &str = "\
# What is promised

Promises about security, each followed by the tests that show it. A promise holds to the extent that
its tests do. [Security](reference/security.md) says what is not promised.

`tests/` holds tests in Python, `crates/` tests in Rust; those in `crates/core/tests/cuda` run on a
simulated CUDA driver. This page is generated from `crates/core/tests/it/security_md`, and a test
checks that each test exists. To generate it again:
`TLOAD_BLESS=1 cargo test -p tload --test it security_md`.
";

/// Most columns of a line of prose.
const COLUMNS_MAX: usize = 100;

/// Promises about one subject.
struct Section {
    heading: &'static str,
    /// Paragraph before the promises, or nothing.
    introduction: &'static str,
    promises: &'static [Promise],
}

struct Promise {
    /// Statement in Markdown, without line breaks.
    says: &'static str,
    /// Tests that show it: `path::name`, with the path from the root of the repository.
    tests: &'static [&'static str],
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn text(path: &Path) -> Option<String> {
    let is_there = path.exists();
    is_there.then(|| String::from_utf8(read(path)).expect("UTF-8"))
}

fn page(sections: &[&Section]) -> String {
    let mut lines: Vec<String> = INTRODUCTION.lines().map(str::to_owned).collect();
    for section in sections {
        lines.push(String::new());
        lines.push(format!("## {}", section.heading));
        lines.push(String::new());
        if !section.introduction.is_empty() {
            lines.extend(wrapped(section.introduction, ""));
            lines.push(String::new());
        }
        for promise in section.promises {
            lines.extend(wrapped(promise.says, "- "));
            // Four columns: fewer do not nest a list in the docs site.
            let tests = promise.tests.iter();
            lines.extend(tests.map(|test| format!("    - `{test}`")));
        }
    }
    lines.join("\n") + "\n"
}

/// Wraps a paragraph: `mark` opens its first line and indents the others.
fn wrapped(text: &str, mark: &str) -> Vec<String> {
    let mut lines = vec![mark.to_owned()];
    for word in text.split(' ') {
        let line = lines.last_mut().expect("not empty");
        let columns = line.chars().count() + 1 + word.chars().count();
        if line.len() == mark.len() {
            line.push_str(word);
        } else if columns <= COLUMNS_MAX {
            *line += " ";
            *line += word;
        } else {
            lines.push(" ".repeat(mark.len()) + word);
        }
    }
    lines
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

fn complaints(sections: &[&Section], text_of: impl Fn(&str) -> Option<String>) -> Vec<String> {
    let mut complaints = Vec::new();
    for promise in sections.iter().flat_map(|section| section.promises) {
        if promise.tests.is_empty() {
            complaints.push(format!("names no test: {}", promise.says));
        }
        for test in promise.tests {
            let found = test.rsplit_once("::").is_some_and(|(file, name)| {
                text_of(file).is_some_and(|text| has_test(&text, name))
            });
            if !found {
                complaints.push(format!("there is no test {test}"));
            }
        }
    }
    complaints
}

/// Returns the anchor of a heading in the docs site and on GitHub.
fn anchor(heading: &str) -> String {
    let kept = heading.chars().filter(|c| c.is_alphanumeric() || *c == ' ');
    kept.collect::<String>()
        .to_ascii_lowercase()
        .replace(' ', "-")
}

#[test]
fn each_promise_has_a_test() {
    let complaints = complaints(&SECTIONS, |file| text(&root().join(file)));
    assert!(complaints.is_empty(), "\n{}", complaints.join("\n"));
}

#[test]
fn page_matches_promises() {
    let path = root().join("docs/promises.md");
    assert_recorded(&path, &page(&SECTIONS));
}

#[test]
fn security_md_links_to_every_section() {
    let security = text(&root().join("SECURITY.md")).expect("is in the repository");
    let mut linked: Vec<_> = security
        .split("(docs/promises.md#")
        .skip(1)
        .filter_map(|rest| rest.split(')').next())
        .collect();
    let mut sections = SECTIONS.map(|section| anchor(section.heading));
    linked.sort_unstable();
    linked.dedup();
    sections.sort_unstable();
    assert_eq!(linked, sections);
}

#[test]
fn promise_without_test_is_detected() {
    let file = |name: &str| match name {
        "a.rs" => Some("#[test]\n#[cfg(unix)]\nfn one() {}\nfn two() {}\n// fn three()".to_owned()),
        "a.py" => Some("def test_one(x: int) -> None:\ndef helps() -> None:".to_owned()),
        _ => None,
    };
    let found = |tests: &'static [&'static str]| {
        let promises = Box::leak(Box::new([Promise {
            says: "It is so.",
            tests,
        }]));
        let section = Section {
            heading: "A",
            introduction: "",
            promises,
        };
        complaints(&[&section], file)
    };
    assert_eq!(found(&["a.rs::one", "a.py::test_one"]), [""; 0]);
    for test in [
        &["a.rs::two"],
        &["a.rs::on"],
        &["a.rs::three"],
        &["a.py::helps"],
        &["b.rs::one"],
        &["a.rs"],
    ] {
        assert_eq!(found(test), [format!("there is no test {}", test[0])]);
    }
    assert_eq!(found(&[]), ["names no test: It is so."]);
}

#[test]
fn paragraphs_are_wrapped() {
    let words = "word ".repeat(40);
    let lines = wrapped(words.trim_end(), "- ");
    let columns: Vec<_> = lines.iter().map(|line| line.chars().count()).collect();
    // Nineteen words of five columns each, and the last one without a space after it.
    assert_eq!(columns, [96, 96, 11]);
    assert!(lines[1].starts_with("  word"));
    assert_eq!(wrapped("word", ""), ["word"]);
    assert_eq!(
        anchor("Server, cache and mirrors"),
        "server-cache-and-mirrors"
    );
}
