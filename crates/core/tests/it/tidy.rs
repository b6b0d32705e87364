//! Checks that no compiler makes: the size of files, the direction of imports between modules of
//! the core, the vocabulary, docs at the top of each file. Cargo checks the imports between crates;
//! rustc and clippy check that unsafe code is declared, in the file and with a reason.
//!
//! Every rule is a function that maps a file's path and text to complaints, so that it can be
//! tested on texts of its own.

use std::path::{Path, PathBuf};

use crate::files::read;

/// Maximum number of lines of a file, without blank ones, comments and tests.
const LINES_MAX: usize = 450;

/// Words without meaning. The vocabulary is in docs/glossary.md.
const BANNED: [&str; 11] = [
    "chunk", "block", "segment", "part", "manager", "handle", "helper", "util", "common", "misc",
    "data",
];

/// Names with banned words from other projects.
const NAMES_OF_OTHERS: [(&str, &str); 9] = [
    ("Segment", "the term of Tink's streaming AEAD"),
    ("segment", "as above"),
    ("segments_of", "as above"),
    ("SEGMENT_BYTES", "as above"),
    ("SEGMENTS_MAX", "as above"),
    ("DataType", "the structure is called so in DLPack's ABI"),
    ("Data", "a type of `http_body::Body`"),
    ("data", "a function of `safetensors::View`"),
    ("data_len", "a function of `safetensors::View`"),
];

/// Modules of the core from the bottom to the top: each may use those of lower ranks only. Modules
/// of one rank do not use each other. Those of the first rank are in crates below. The folder
/// `load` has ranks of its own, since it holds a load from the request to the stream.
const RANKS: [&[&str]; 14] = [
    &[
        "checkpoint",
        "copy",
        "crc",
        "cuda",
        "error",
        "format",
        "memory",
        "plan",
        "ranks",
        "schedule",
        "storage",
        "sync",
        "verify",
    ],
    &["options"],
    &["report"],
    &["load::device_map", "tensor"],
    &[
        "engine",
        "load::budget",
        "load::destinations",
        "load::metrics",
    ],
    &["load::load_target", "load::near_gpu", "sink"],
    &["load::check"],
    &["groups"],
    &["load::conversions", "load::pipeline", "load::wanted"],
    &[
        "load::device_alloc",
        "load::lane",
        "load::orphaned",
        "load::source_table",
        "load::staging",
    ],
    &["load::prepare", "load::stream", "load::unified"],
    &["load::outputs"],
    &["load"],
    &[
        "custom_store",
        "load::read_one",
        "manifest_object",
        "probe",
        "reads",
    ],
];

/// Files that re-export items of the modules for users.
const FACE: [&str; 4] = ["cache", "extend", "internal", "lib"];

pub(crate) struct Source {
    /// Path from the root of the repository.
    pub(crate) path: String,
    pub(crate) text: String,
}

impl Source {
    fn is_test(&self) -> bool {
        self.path.ends_with("/tests.rs")
    }

    /// Returns the lines before the inline tests, which come last in a file.
    pub(crate) fn code(&self) -> impl Iterator<Item = &str> {
        let tests = |line: &&str| {
            line.trim() == "#[cfg(test)]" || line.trim().starts_with("#[cfg(all(test,")
        };
        let mut lines = self.text.lines().peekable();
        std::iter::from_fn(move || {
            let line = lines.next()?;
            // `#[cfg(test)] mod tests;` may be among the modules.
            let opens_tests = tests(&line) && lines.peek().is_some_and(|next| next.ends_with('{'));
            (!opens_tests).then_some(line)
        })
    }

    /// Returns the same lines without comments.
    pub(crate) fn statements(&self) -> impl Iterator<Item = &str> {
        self.code()
            .map(|line| line.split("//").next().unwrap_or_default())
    }
}

pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

pub(crate) fn text(path: &Path) -> String {
    String::from_utf8(read(path)).expect("sources are UTF-8")
}

/// Reads every Rust file below `crates/*/src`.
pub(crate) fn sources() -> Vec<Source> {
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
    let lines = source.statements();
    let lines = lines.filter(|line| !line.trim().is_empty()).count();
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

/// Files that start threads by the standard library's functions: the one that checks the room for
/// others, and one that only asks the system how many it would start. Crates
/// for tests need no check.
const OWN_THREADS: [&str; 5] = [
    "crates/base/src/sync/threads.rs",
    "crates/storage/src/object/store_client.rs",
    "crates/cuda-stub/",
    "crates/testbed/",
    "crates/testing/",
];

/// Finds threads that are started whether or not the address space has room for them.
fn unchecked_threads(source: &Source) -> Vec<String> {
    if source.is_test() || OWN_THREADS.iter().any(|own| source.path.starts_with(own)) {
        return Vec::new();
    }
    let starts = |line: &&str| line.contains("thread::Builder") || line.contains("thread::spawn(");
    let found = source.statements().filter(starts);
    found
        .map(|line| format!("use tload_base::sync::threads: {}", line.trim()))
        .collect()
}

/// Returns the rank of a module: its own, or that of the nearest folder that it is in.
fn rank(path: &[&str]) -> Option<(String, usize)> {
    let find = |name: String| {
        let mut ranks = RANKS.iter();
        let rank = ranks.position(|names| names.contains(&&*name))?;
        Some((name, rank))
    };
    let mut depths = (1..=path.len()).rev();
    depths.find_map(|depth| find(path[..depth].join("::")))
}

/// Complains about imports of the core that do not point downwards.
fn directions(source: &Source) -> Vec<String> {
    let Some(path) = source.path.strip_prefix("crates/core/src/") else {
        return Vec::new();
    };
    let path = path.trim_end_matches(".rs").trim_end_matches("/mod");
    let path: Vec<_> = path.split('/').collect();
    if let [name] = path[..]
        && FACE.contains(&name)
    {
        return Vec::new();
    }
    let Some((module, own)) = rank(&path) else {
        return vec![format!("module `{}` has no rank in tidy.rs", path[0])];
    };
    let parent = &path[..path.len() - 1];
    let mut complaints = Vec::new();
    // Visibilities name modules too, and import nothing.
    for line in source.statements().filter(|line| !line.contains("pub(in ")) {
        let absolute = line.split("crate::").skip(1).map(|used| (&[][..], used));
        let is_relative = !line.contains("super::super::");
        let relative = line.split("super::").skip(1).filter(|_| is_relative);
        let relative = relative.map(|used| (parent, used));
        for (base, used) in absolute.chain(relative) {
            let names = identifiers(used).take(3);
            let used: Vec<_> = base.iter().copied().chain(names).collect();
            // Items that are re-exported at the root have a capital letter; docs and tests use
            // them.
            let is_module = used
                .first()
                .is_some_and(|name| name.starts_with(|c: char| c.is_lowercase()));
            let ranked = rank(&used);
            let is_own = ranked.as_ref().is_some_and(|(name, _)| *name == module);
            if is_module && !is_own && ranked.is_none_or(|(_, theirs)| theirs >= own) {
                complaints.push(format!(
                    "uses `{}`, which is not below `{module}`",
                    used.join("::")
                ));
            }
        }
    }
    complaints
}

/// Folders of modules that decide without I/O, so that tests need none.
const PURE: [&str; 2] = ["crates/format/src/", "crates/plan/src/"];

/// Names that do I/O, start threads, or look at clocks and the environment.
const IMPURE: [&str; 9] = [
    "std::env",
    "std::fs",
    "std::net",
    "std::process",
    "std::thread",
    "Instant::now",
    "SystemTime",
    "libc::",
    "rustix::",
];

fn impurities(source: &Source) -> Vec<String> {
    if !PURE.iter().any(|folder| source.path.starts_with(folder)) {
        return Vec::new();
    }
    let found = IMPURE.iter().filter(|name| {
        let mut lines = source.statements();
        lines.any(|line| line.contains(**name))
    });
    found
        .map(|name| format!("`{name}` in a module that is pure"))
        .collect()
}

/// Options whose names are no words of English, so that a text with one means the option.
const OPTIONS: [&str; 10] = [
    "memory_limit",
    "extent_bytes",
    "in_flight_bytes",
    "follow_symlinks",
    "range_bytes",
    "cache=",
    "device=",
    "engine=",
    "order=",
    "verify=",
];

/// Crates above `tload`, which show options by their own names, and crates for tests.
const WITHOUT_MARKS: [&str; 11] = [
    "cli",
    "cuda-stub",
    "py",
    "pydelta",
    "pymemory",
    "pyreads",
    "serve",
    "soundness",
    "synth",
    "testbed",
    "testing",
];

/// Complains about texts of `tload` and of the crates below it that name an option without a mark,
/// which the command would show by its name in Rust, and about marks that [`tload::Error`] does not
/// know.
fn unmarked_options(source: &Source) -> Vec<String> {
    let is_exempt = WITHOUT_MARKS.iter().any(|name| {
        let folder = format!("crates/{name}/");
        source.path.starts_with(&folder)
    });
    if is_exempt {
        return Vec::new();
    }
    // Log messages are for developers.
    let lines = source
        .statements()
        .filter(|line| !line.contains("tracing::"));
    let texts = lines.flat_map(|line| line.split('"').skip(1).step_by(2));
    let mut complaints = Vec::new();
    for text in texts.filter(|text| text.contains(' ')) {
        for name in OPTIONS {
            let mut found = text.match_indices(name);
            if found.any(|(at, _)| is_unmarked(&text[..at])) {
                complaints.push(format!("{text:?} names `{name}` without ‹›"));
            }
        }
        for mark in text.split('‹').skip(1) {
            let name = mark.split(['›', '=']).next().unwrap_or_default();
            let shown = tload::Error::new(tload::ErrorKind::Io, format!("‹{name}›"));
            if !name.contains('{') && shown.message().starts_with('‹') {
                complaints.push(format!("‹{name}› in {text:?} is not in option_names.rs"));
            }
        }
    }
    complaints
}

/// Returns whether a name behind `before` is neither marked nor the end of a longer name.
fn is_unmarked(before: &str) -> bool {
    !before.ends_with(|c: char| c == '‹' || c == '_' || c.is_alphanumeric())
}

/// Comments that say why a short timeout of a test depends on no machine.
const REASONS: [&str; 2] = ["busy machine", "ny stage"];

/// Lines above a timeout that may say why it may be short.
const REASON_LINES: usize = 3;

/// Complains about timeouts of less than a second in tests: on a busy machine they may end another
/// stage than the one that the test is about. `growing_timeouts.rs` makes them longer until they
/// do not.
fn short_timeouts(path: &str, text: &str) -> Vec<String> {
    const SHORT: [&str; 7] = [
        "from_millis(",
        "from_micros(",
        "from_nanos(",
        "00ms\"",
        "\"0.",
        "=0.",
        ": 0.",
    ];
    let lines: Vec<_> = text.lines().collect();
    let is_short = |line: &str| {
        let values = line.replace(": 0.0}", "");
        line.contains("timeout") && SHORT.iter().any(|short| values.contains(short))
    };
    let has_reason = |index: usize| {
        let above = &lines[index.saturating_sub(REASON_LINES)..=index];
        let said = |line: &&str| REASONS.iter().any(|reason| line.contains(reason));
        above.iter().any(said)
    };
    let short = (0..lines.len()).filter(|index| is_short(lines[*index]) && !has_reason(*index));
    short
        .map(|index| {
            let number = index + 1;
            format!(
                "{path}:{number}: a short timeout may expire at another stage on a busy machine: \
                 use `until_it_stalls`, or say in a comment why any stage will do"
            )
        })
        .collect()
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
fn threads_start_where_there_is_room() {
    assert_none(&complaints(unchecked_threads));
}

#[test]
fn planning_is_pure() {
    assert_none(&complaints(impurities));
}

#[test]
fn timeouts_of_tests_expire_where_they_should() {
    let root = root();
    let mut files = Vec::new();
    for krate in std::fs::read_dir(root.join("crates")).expect("the workspace has crates") {
        collect(&krate.expect("listed").path().join("tests"), &mut files);
    }
    let python = std::fs::read_dir(root.join("tests")).expect("there are Python tests");
    let python = python.map(|entry| entry.expect("listed").path());
    files.extend(python.filter(|path| path.extension().is_some_and(|it| it == "py")));
    files.retain(|path| !path.ends_with("tidy.rs"));
    assert!(files.len() > 100);
    let found: Vec<_> = files
        .iter()
        .flat_map(|path| short_timeouts(&path.display().to_string(), &text(path)))
        .collect();
    assert_none(&found);
}

#[test]
fn options_in_texts_are_marked() {
    assert_none(&complaints(unmarked_options));
}

mod rules {
    use super::*;

    #[test]
    fn threads_of_tests_are_not_checked() {
        let text = "thread::spawn(run);\n#[cfg(test)]\nmod tests {\nthread::spawn(run);\n}\n";
        let path = "crates/serve/src/lib.rs";
        assert_eq!(unchecked_threads(&source(path, text)).len(), 1);
        assert_none(&unchecked_threads(&source(
            "crates/testbed/src/lib.rs",
            text,
        )));
    }

    #[test]
    fn purity_is_of_statements_in_pure_modules() {
        let text = "use std::fs; // std::net\n";
        let path = "crates/plan/src/split.rs";
        assert_eq!(impurities(&source(path, text)).len(), 1);
        assert_none(&impurities(&source(
            "crates/core/src/engine/shared.rs",
            text,
        )));
    }

    #[test]
    fn short_timeouts_need_a_reason() {
        let found = |text: &str| short_timeouts("a", text).len();
        for line in [
            "it.timeout = Some(Duration::from_millis(300));",
            "(\"open_timeout\", \"0.3\"),",
            "tload.verify(url, timeout=0.3)",
            "{\"read_timeout\": 0.2}",
            "tload.Options(timeout=\"200ms\")",
        ] {
            assert_eq!(found(line), 1, "{line}");
            let told = format!("// Any stage may be the one that it ends.\n{line}");
            assert_eq!(found(&told), 0, "{line}");
        }
        assert_eq!(found("it.timeout = Some(Duration::from_secs(60));"), 0);
        assert_eq!(found("let pause = Duration::from_millis(5);"), 0);
    }

    fn source(path: &str, text: &str) -> Source {
        Source {
            path: path.to_owned(),
            text: text.to_owned(),
        }
    }

    #[test]
    fn sources_of_repository_are_found() {
        let paths: Vec<_> = sources().into_iter().map(|source| source.path).collect();
        for path in ["crates/core/src/lib.rs", "crates/engine/src/uring/ring.rs"] {
            assert!(
                paths.iter().any(|found| found == path),
                "{path} is not in {paths:?}"
            );
        }
    }

    #[test]
    fn length_counts_code_without_blank_lines_and_tests() {
        let code = "x\n\n// y\n".repeat(LINES_MAX);
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
    fn upward_imports_are_detected() {
        let path = "crates/core/src/engine/shared.rs";
        assert_none(&directions(&source(
            path,
            "use crate::memory::Lease;\nuse crate::engine::Job;",
        )));
        assert_eq!(directions(&source(path, "use crate::sink::Sink;")).len(), 1);
        assert_eq!(
            directions(&source(path, "let x = crate::load::Loader;")).len(),
            1
        );
        let path = "crates/core/src/load/lane.rs";
        assert_none(&directions(&source(path, "use super::pipeline::Feed;")));
        assert_eq!(
            directions(&source(path, "use super::stream::Handover;")).len(),
            1
        );
        let path = "crates/core/src/load/stream/mod.rs";
        assert_none(&directions(&source(path, "use super::lane::Refused;")));
        assert_eq!(directions(&source(path, "use super::Loader;")).len(), 1);
        assert_eq!(directions(&source("crates/core/src/new.rs", "")).len(), 1);
        assert_none(&directions(&source(
            "crates/cli/src/a.rs",
            "use crate::anything;",
        )));
    }

    #[test]
    fn unmarked_and_unknown_options_are_found() {
        let found = |line: &str| {
            let text = format!("//! A\n{line}\n");
            let path = "crates/core/src/a.rs".to_owned();
            unmarked_options(&Source { path, text }).len()
        };
        assert_eq!(found("f(\"raise memory_limit\")"), 1);
        assert_eq!(found("f(\"use cache=auto\")"), 1);
        assert_eq!(found("f(\"use ‹cach=auto›\")"), 1);
        for good in [
            "f(\"raise ‹memory_limit›, or use ‹cache=auto›\")",
            "f(\"memory_limit\", \"‹{name}› is 0\")",
            "f(\"a\") // memory_limit of b",
        ] {
            assert_eq!(found(good), 0, "{good}");
        }
    }
}
