//! Checks that no compiler makes: the size of files, the places of unsafe code, the direction of
//! dependencies between modules, the vocabulary.
//!
//! Every rule is a function that maps a file's path and text to complaints, so that it can be
//! tested on texts of its own.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::files::read;

/// Maximum number of lines of a file, without blank ones and without tests.
const LINES_MAX: usize = 500;

/// Words without meaning. The vocabulary is in ARCHITECTURE.md.
const BANNED: [&str; 11] = [
    "chunk", "block", "segment", "part", "manager", "handle", "helper", "util", "common", "misc",
    "data",
];

/// Names with banned words from other projects.
const NAMES_OF_OTHERS: [(&str, &str); 1] =
    [("DataType", "the structure is called so in DLPack's ABI")];

/// Modules of the core from the bottom to the top: each may use those of lower ranks only. Modules
/// of one rank may not use each other. `testing` is above all; only tests may use it.
const RANKS: [&[&str]; 16] = [
    &[
        "crc",
        "error",
        "over",
        "per_process",
        "retry",
        "room",
        "side_by_side",
        "stall",
        "sync",
    ],
    // One of the two: the driver, or its substitute.
    &["cuda", "no_cuda"],
    &["buffer", "format", "plan", "tally", "within"],
    &["source"],
    // A request names how a source is read (`CacheMode`).
    &["request", "tensor"],
    // The report formats sizes as `request` does.
    &[
        "budget",
        "checkpoint",
        "destinations",
        "engine",
        "receivers",
        "schedule",
    ],
    // A sink waits as an engine does (`Wait`).
    &["probe", "report", "sink", "sources"],
    &["verify"],
    &["pipeline"],
    &["lane", "parked"],
    &["prepare", "provide"],
    &["delivery", "stream"],
    &["copy"],
    &["load"],
    &["read_one"],
    &["testing"],
];

struct Source {
    /// Path from the root of the repository.
    path: String,
    text: String,
}

impl Source {
    fn is_test(&self) -> bool {
        self.path.ends_with("/tests.rs")
    }

    /// Returns the lines before the inline tests, which come last in a file.
    fn code(&self) -> impl Iterator<Item = &str> {
        let tests = |line: &&str| line.trim() == "#[cfg(test)]";
        let mut lines = self.text.lines().peekable();
        std::iter::from_fn(move || {
            let line = lines.next()?;
            // `#[cfg(test)] mod tests;` may be among the modules.
            let opens_tests = tests(&line) && lines.peek().is_some_and(|next| next.ends_with('{'));
            (!opens_tests).then_some(line)
        })
    }

    /// Returns the same lines without comments.
    fn statements(&self) -> impl Iterator<Item = &str> {
        self.code()
            .map(|line| line.split("//").next().unwrap_or_default())
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn text(path: &Path) -> String {
    String::from_utf8(read(path)).expect("sources are UTF-8")
}

/// Reads every Rust file below `crates/*/src`.
fn sources() -> Vec<Source> {
    let crates = root().join("crates");
    let mut found = Vec::new();
    for krate in std::fs::read_dir(&crates).expect("the workspace has crates") {
        collect(&krate.expect("listed").path().join("src"), &mut found);
    }
    found.sort();
    let relative = |path: PathBuf| {
        let path = path.strip_prefix(&crates).expect("below").to_owned();
        format!("crates/{}", path.to_str().expect("UTF-8"))
    };
    found
        .into_iter()
        .map(|path| Source {
            text: text(&path),
            path: relative(path),
        })
        .collect()
}

fn collect(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten() {
        let path = entry.expect("listed").path();
        if path.is_dir() {
            collect(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

fn identifiers(line: &str) -> impl Iterator<Item = &str> {
    line.split(|c: char| !c.is_alphanumeric() && c != '_')
        .filter(|word| !word.is_empty())
}

/// Splits a name: `ReadHTTPFile_2` → `read`, `httpfile`, `2`; good enough to find whole words.
fn words(name: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut after_lower = false;
    for c in name.chars() {
        if c == '_' || c == '-' || c == '.' || (after_lower && c.is_uppercase()) {
            words.push(String::new());
        }
        after_lower = c.is_lowercase();
        if c.is_alphanumeric() {
            words
                .last_mut()
                .expect("one at least")
                .extend(c.to_lowercase());
        }
    }
    words
}

fn length(source: &Source) -> Vec<String> {
    let lines = source.code().filter(|line| !line.trim().is_empty()).count();
    let long = !source.is_test() && lines > LINES_MAX;
    long.then(|| format!("{lines} lines, at most {LINES_MAX} are allowed"))
        .into_iter()
        .collect()
}

fn opening(source: &Source) -> Vec<String> {
    let opens = source.text.starts_with("//! ");
    (!opens)
        .then(|| {
            "does not open with `//!`: its responsibilities, its limits, its callers".to_owned()
        })
        .into_iter()
        .collect()
}

fn banned_words(source: &Source) -> Vec<String> {
    let mut complaints = Vec::new();
    let mut check = |what: &str, name: &str| {
        let allowed = NAMES_OF_OTHERS.iter().any(|(other, _)| *other == name);
        let found = words(name).into_iter().find(|word| {
            let singular = word.strip_suffix('s').unwrap_or(word);
            BANNED.contains(&word.as_str()) || BANNED.contains(&singular)
        });
        if let Some(word) = found.filter(|_| !allowed) {
            complaints.push(format!("{what} `{name}` has the word `{word}`"));
        }
    };
    for component in source.path.split('/').skip(3) {
        check("file or folder", component.trim_end_matches(".rs"));
    }
    for line in source.statements() {
        let mut names = identifiers(line).peekable();
        while let Some(keyword) = names.next() {
            let declares = [
                "fn", "struct", "enum", "trait", "type", "mod", "const", "static", "union",
            ];
            if let (true, Some(name)) = (declares.contains(&keyword), names.peek()) {
                check(keyword, name);
            }
        }
    }
    complaints
}

fn notes(source: &Source) -> Vec<String> {
    let numbered = |line: &str| {
        line.split('#')
            .skip(1)
            .any(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
    };
    source
        .text
        .lines()
        .enumerate()
        .filter_map(|(index, line)| {
            let number = index + 1;
            if line.contains("FIXME") {
                Some(format!("line {number}: fix a FIXME before it is committed"))
            } else if line.contains("TODO") && !numbered(line) {
                Some(format!("line {number}: a TODO must name its issue: #123"))
            } else {
                None
            }
        })
        .collect()
}

fn rank(module: &str) -> Option<usize> {
    RANKS.iter().position(|modules| modules.contains(&module))
}

/// Returns the edges of the core that do not point downwards.
fn directions(source: &Source) -> Vec<String> {
    let Some(path) = source.path.strip_prefix("crates/core/src/") else {
        return Vec::new();
    };
    let module = path
        .split('/')
        .next()
        .unwrap_or(path)
        .trim_end_matches(".rs");
    if module == "lib" {
        return Vec::new();
    }
    let Some(own) = rank(module) else {
        return vec![format!("module `{module}` has no rank in tidy.rs")];
    };
    let mut complaints = Vec::new();
    for line in source.statements() {
        for used in line.split("crate::").skip(1) {
            let Some(used) = identifiers(used).next().filter(|name| *name != module) else {
                continue;
            };
            // Names re-exported at the root begin with a capital letter: docs and tests use them.
            let is_module = used.starts_with(|c: char| c.is_lowercase());
            if is_module && rank(used).is_none_or(|theirs| theirs >= own) {
                complaints.push(format!(
                    "uses `crate::{used}`, which is not below `{module}`"
                ));
            }
        }
    }
    complaints
}

fn has_unsafe(source: &Source) -> bool {
    source
        .statements()
        .any(|line| identifiers(line).any(|word| word == "unsafe"))
}

/// Returns the files in which ARCHITECTURE.md allows unsafe code.
fn listed(architecture: &str) -> BTreeSet<&str> {
    architecture
        .lines()
        .skip_while(|line| line.trim() != "## Unsafe code")
        .skip(1)
        .take_while(|line| !line.starts_with("## "))
        .filter_map(|line| line.strip_prefix("- `")?.split('`').next())
        .collect()
}

fn unsafe_files(architecture: &str, sources: &[Source]) -> Vec<String> {
    let listed = listed(architecture);
    let found: BTreeSet<_> = sources
        .iter()
        .filter(|source| has_unsafe(source))
        .map(|source| source.path.as_str())
        .collect();
    let unlisted = found.difference(&listed).map(|path| {
        format!("{path}: has unsafe code and is not in ARCHITECTURE.md, `## Unsafe code`")
    });
    let stale = listed
        .difference(&found)
        .map(|path| format!("{path}: is in ARCHITECTURE.md, `## Unsafe code`, and has none"));
    unlisted.chain(stale).collect()
}

fn complaints(rule: fn(&Source) -> Vec<String>) -> Vec<String> {
    sources()
        .iter()
        .flat_map(|source| {
            rule(source)
                .into_iter()
                .map(|complaint| format!("{}: {complaint}", source.path))
        })
        .collect()
}

fn assert_none(complaints: &[String]) {
    assert!(complaints.is_empty(), "\n{}", complaints.join("\n"));
}

#[test]
fn files_are_short() {
    assert_none(&complaints(length));
}

#[test]
fn files_open_with_module_docs() {
    assert_none(&complaints(opening));
}

#[test]
fn names_use_the_vocabulary() {
    assert_none(&complaints(banned_words));
}

#[test]
fn todos_name_their_issue() {
    assert_none(&complaints(notes));
}

#[test]
fn modules_depend_downwards() {
    assert_none(&complaints(directions));
}

#[test]
fn unsafe_code_is_where_the_architecture_says() {
    let architecture = text(&root().join("ARCHITECTURE.md"));
    assert_none(&unsafe_files(&architecture, &sources()));
}

mod rules {
    use super::*;

    fn source(path: &str, text: &str) -> Source {
        Source {
            path: path.to_owned(),
            text: text.to_owned(),
        }
    }

    #[test]
    fn sources_of_repository_are_found() {
        let paths: Vec<_> = sources().into_iter().map(|source| source.path).collect();
        for path in [
            "crates/core/src/lib.rs",
            "crates/core/src/engine/uring/ring.rs",
        ] {
            assert!(
                paths.iter().any(|found| found == path),
                "{path} is not in {paths:?}"
            );
        }
    }

    #[test]
    fn length_counts_code_without_blank_lines_and_tests() {
        let code = "x\n\n".repeat(500);
        let tests = format!("{code}#[cfg(test)]\nmod tests {{\n{code}");
        assert_none(&length(&source("a.rs", &tests)));
        let outside = format!("#[cfg(test)]\nmod tests;\n{code}");
        assert_eq!(length(&source("a.rs", &outside)).len(), 1);
    }

    #[test]
    fn banned_words_match_whole_words_in_both_cases() {
        assert_eq!(words("MetadataVisitor"), ["metadata", "visitor"]);
        assert_eq!(words("a_partition"), ["a", "partition"]);
        let bad = source(
            "crates/a/src/io_utils.rs",
            "struct DataChunk;\nfn part_of() {}\nlet data = 1;",
        );
        assert_eq!(banned_words(&bad).len(), 3);
        let good = source(
            "crates/a/src/x.rs",
            "fn metadata() {} // fn data()\nstruct DataType;",
        );
        assert_none(&banned_words(&good));
    }

    #[test]
    fn fixme_and_todo_without_issue_are_found() {
        let text = "// TODO: later\n// TODO(#12): with an issue\n// FIXME #12\n";
        assert_eq!(notes(&source("a.rs", text)).len(), 2);
    }

    #[test]
    fn edges_that_point_up_are_found() {
        let path = "crates/core/src/engine/pread.rs";
        assert_none(&directions(&source(
            path,
            "use crate::buffer::Lease;\nuse crate::engine::Job;",
        )));
        assert_eq!(directions(&source(path, "use crate::sink::Sink;")).len(), 1);
        assert_eq!(
            directions(&source(path, "let x = crate::schedule::Depth;")).len(),
            1
        );
        assert_eq!(directions(&source("crates/core/src/new.rs", "")).len(), 1);
        assert_none(&directions(&source(
            "crates/cli/src/a.rs",
            "use crate::anything;",
        )));
    }

    #[test]
    fn unsafe_code_and_its_list_are_compared_both_ways() {
        let architecture =
            "# A\n- `z.rs`: no\n## Unsafe code\n\n- `a.rs`: why\n- `b.rs`: why\n## B\n- `c.rs`: no";
        let sources = [
            source("a.rs", "unsafe { x() }"),
            source("b.rs", "#![forbid(unsafe_code)] // unsafe"),
            source("c.rs", "unsafe impl Send for X {}"),
        ];
        let complaints = unsafe_files(architecture, &sources);
        assert_eq!(complaints.len(), 2);
        assert!(complaints[0].starts_with("c.rs") && complaints[1].starts_with("b.rs"));
    }
}
