//! `docs/unsafe.md`: every file with unsafe code and the reason that it states.
//!
//! The compiler refuses unsafe code in a file or item without `expect(unsafe_code, reason = "…")`,
//! and such a line where no code is unsafe.

use std::fmt::Write as _;

use tload_testbed::assert_recorded;

use super::REPOSITORY;
use crate::tidy::{Source, root, sources};

const INTRODUCTION: &str = "\
# Unsafe code

Unsafe code is denied in the whole workspace, except in these files. Each of them states why it has
some, and the compiler refuses the statement where it does not hold. Every unsafe block does one
operation, and a comment states its conditions and what upholds them.

This page is generated from the sources; `TLOAD_BLESS=1 cargo test -p tload --test it pages`
generates it again.

| file | reason |
|---|---|
";

/// Returns the reasons for unsafe code in a file, outside of its tests.
fn reasons(source: &Source) -> Vec<String> {
    let code: String = source.code().flat_map(|line| [line, "\n"]).collect();
    let expectations = code.split("unsafe_code,").skip(1);
    let mut found: Vec<_> = expectations
        .filter_map(|rest| {
            rest.trim_start()
                .strip_prefix("reason = \"")?
                .split('"')
                .next()
        })
        .map(str::to_owned)
        .collect();
    found.dedup();
    found
}

fn page(sources: &[Source]) -> String {
    let mut page = INTRODUCTION.to_owned();
    for source in sources {
        let path = &source.path;
        let reasons = reasons(source).join("; ");
        if !reasons.is_empty() {
            writeln!(page, "| [`{path}`]({REPOSITORY}/{path}) | {reasons} |")
                .expect("writing to a string succeeds");
        }
    }
    page
}

#[test]
fn page_lists_unsafe_code() {
    assert_recorded(&root().join("docs/unsafe.md"), &page(&sources()));
}

#[test]
fn reasons_are_found_in_files_and_items() {
    let text = "//! A\n#![expect(unsafe_code, reason = \"one\")]\n#[expect(\n    unsafe_code,\n    \
                reason = \"two\"\n)]\nfn f() {}\n#[cfg(test)]\nmod tests {\n    \
                #[expect(unsafe_code, reason = \"three\")]\n";
    let (path, text) = ("crates/a/src/a.rs".to_owned(), text.to_owned());
    let source = Source { path, text };
    assert_eq!(reasons(&source), ["one", "two"]);
    let page = page(&[source]);
    assert!(page.ends_with("| one; two |\n"), "{page}");
}
