//! Language rules that a program can check: how docs open, how long comments and pages are, which
//! words are not used. Every rule is a function of a text that returns complaints.

use std::path::Path;

use crate::files::read;

/// Most columns of a comment or of a line of a page, indentation included.
const COLUMNS_MAX: usize = 100;

/// Most characters of a cell of a Markdown table.
const CELL_MAX: usize = 160;

/// Pages with a limit on their lines, without generated ones. Guides have what most users need;
/// every other case is in the page of the same name below `docs/reference/`.
const PAGES: [(&str, usize); 9] = [
    ("README.md", 150),
    ("ARCHITECTURE.md", 92),
    ("SECURITY.md", 80),
    ("docs/sources.md", 80),
    ("docs/serve.md", 80),
    ("docs/cache.md", 80),
    ("docs/mirrors.md", 80),
    ("docs/scale-out.md", 80),
    ("docs/deploy.md", 80),
];

/// Words that the first line of a doc does not open with: it is a noun phrase or has a verb.
const OPENINGS: [&str; 11] = [
    "What", "Whether", "How", "Where", "Of", "The same", "Who", "Whoever", "Whom", "Whose", "That",
];

/// Pronouns for actors that have names: the caller, the lane, the engine, the server, the kernel.
const PRONOUNS: [&str; 3] = ["somebody", "nobody", "whoever"];

/// Places whose texts are records or belong to others.
const EXEMPT: [&str; 7] = [
    "benches/results/",
    "docs/design/",
    "docs/faults.md",
    "fuzz/corpus/",
    // Results of runs, rewritten by them.
    "tests/with_",
    // Names the pronouns.
    "crates/core/tests/it/language.rs",
    "tests/secrets.txt",
];

fn is_rust(path: &str) -> bool {
    Path::new(path)
        .extension()
        .is_some_and(|extension| extension == "rs")
}

fn is_word(text: &str, start: usize, len: usize) -> bool {
    let is_letter = |c: char| c.is_alphanumeric() || c == '_';
    let before = text[..start].chars().next_back();
    let after = text[start + len..].chars().next();
    !before.is_some_and(is_letter) && !after.is_some_and(is_letter)
}

fn has_word(text: &str, word: &str) -> bool {
    let lower = text.to_ascii_lowercase();
    lower
        .match_indices(word)
        .any(|(start, _)| is_word(&lower, start, word.len()))
}

/// Returns the first lines of docs: `///`, `//!`, and Python's docstrings and `#:`, with their
/// numbers.
fn doc_openings<'t>(path: &str, text: &'t str) -> Vec<(usize, &'t str)> {
    let is_python = !is_rust(path);
    let marks: &[&str] = if is_python {
        &["\"\"\"", "r\"\"\"", "#: "]
    } else {
        &["/// ", "//! "]
    };
    let mut openings = Vec::new();
    let mut in_doc = false;
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        let doc = marks.iter().find_map(|mark| line.strip_prefix(mark));
        if let Some(doc) = doc.filter(|_| !in_doc) {
            openings.push((index + 1, doc));
        }
        in_doc = !is_python && (line.starts_with("///") || line.starts_with("//!"));
    }
    openings
}

fn bad_openings(path: &str, text: &str) -> Vec<String> {
    let is_bad = |doc: &str| {
        let opens = |word: &&str| {
            let rest = doc.strip_prefix(*word);
            rest.is_some_and(|rest| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '-'))
        };
        OPENINGS.iter().any(opens)
    };
    let openings = doc_openings(path, text).into_iter();
    openings
        .filter(|(_, doc)| is_bad(doc))
        .map(|(number, doc)| format!("line {number}: a doc opens with {doc:?}"))
        .collect()
}

fn long_comments(path: &str, text: &str) -> Vec<String> {
    let mark = if is_rust(path) { "//" } else { "#" };
    let is_long = |line: &str| {
        line.trim_start().starts_with(mark)
            && line.chars().count() > COLUMNS_MAX
            && !line.contains("://")
    };
    text.lines()
        .enumerate()
        .filter(|(_, line)| is_long(line))
        .map(|(index, _)| {
            format!(
                "line {}: a comment of over {COLUMNS_MAX} columns",
                index + 1
            )
        })
        .collect()
}

/// Finds long lines of prose: not tables, code, also in comments, images, single words and lines
/// with a URL, which do not wrap.
fn long_prose(_: &str, text: &str) -> Vec<String> {
    let mut in_code = false;
    let mut is_long = |line: &str| {
        let is_fence = line.trim_start().starts_with("```");
        in_code = ((in_code ^ is_fence) || line.starts_with("<!--")) && !line.ends_with("-->");
        let words = line.trim_start().trim_start_matches("- ");
        let is_whole = line.starts_with('|') || line.starts_with("![") || !words.contains(' ');
        let is_exempt = in_code || is_fence || is_whole || line.contains("://");
        !is_exempt && line.chars().count() > COLUMNS_MAX
    };
    text.lines()
        .enumerate()
        .filter(|(_, line)| is_long(line))
        .map(|(index, _)| format!("line {}: over {COLUMNS_MAX} columns", index + 1))
        .collect()
}

fn pronouns(_: &str, text: &str) -> Vec<String> {
    let found = |line: &str| PRONOUNS.iter().find(|word| has_word(line, word)).copied();
    text.lines()
        .enumerate()
        // The user that Unix calls so.
        .filter(|(_, line)| !line.contains("\"nobody\""))
        .filter_map(|(index, line)| Some((index + 1, found(line)?)))
        .map(|(number, word)| format!("line {number}: {word}"))
        .collect()
}

fn long_cells(_: &str, text: &str) -> Vec<String> {
    let longest = |line: &str| {
        let cells = line.split(" | ").map(|cell| cell.trim().chars().count());
        cells.max().unwrap_or(0)
    };
    text.lines()
        .enumerate()
        .filter(|(_, line)| line.starts_with('|') && longest(line) > CELL_MAX)
        .map(|(index, line)| format!("line {}: a cell of {} characters", index + 1, longest(line)))
        .collect()
}

fn long_pages(path: &str, text: &str) -> Vec<String> {
    let mut is_generated = false;
    let is_written = |line: &&str| {
        is_generated =
            (is_generated || line.ends_with(": begin -->")) && !line.ends_with(": end -->");
        !is_generated
    };
    let lines = text.lines().filter(is_written).count();
    let limit = PAGES.iter().find(|(page, _)| *page == path);
    limit
        .filter(|(_, most)| lines > *most)
        .map(|(_, most)| format!("{lines} lines, at most {most} are allowed"))
        .into_iter()
        .collect()
}

/// Collects the files below a folder, as paths from the root; hidden folders and build outputs
/// apart.
fn walk(root: &Path, folder: &str, found: &mut Vec<String>) {
    for entry in std::fs::read_dir(root.join(folder)).into_iter().flatten() {
        let entry = entry.expect("listed");
        let name = entry.file_name().into_string().expect("UTF-8");
        let path = format!("{folder}{name}");
        let is_folder = entry.file_type().expect("listed").is_dir();
        if is_folder && !name.starts_with('.') && name != "target" {
            walk(root, &format!("{path}/"), found);
        } else if !is_folder {
            found.push(path);
        }
    }
}

/// Applies a rule to the files of the repository with one of these endings.
fn assert_none(endings: &[&str], rule: fn(&str, &str) -> Vec<String>) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let (mut complaints, mut paths) = (Vec::new(), Vec::new());
    walk(&root, "", &mut paths);
    paths.sort();
    let mut files = 0;
    for path in paths {
        let is_exempt = EXEMPT.iter().any(|exempt| path.starts_with(exempt));
        if is_exempt || !endings.iter().any(|ending| path.ends_with(ending)) {
            continue;
        }
        files += 1;
        let text = String::from_utf8(read(&root.join(&path))).expect("UTF-8");
        let found = rule(&path, &text).into_iter();
        complaints.extend(found.map(|complaint| format!("{path}: {complaint}")));
    }
    assert!(files > 1, "the repository is not where it was");
    assert!(complaints.is_empty(), "\n{}", complaints.join("\n"));
}

#[test]
fn docs_open_with_a_noun_or_a_verb() {
    assert_none(&[".rs", ".py", ".pyi"], bad_openings);
}

#[test]
fn comments_fit_the_width_of_code() {
    assert_none(&[".rs", ".py", ".pyi"], long_comments);
}

#[test]
fn actors_have_names() {
    assert_none(&[".rs", ".py", ".pyi", ".md"], pronouns);
}

#[test]
fn tables_and_pages_are_readable() {
    assert_none(&[".md"], long_cells);
    assert_none(&[".md"], long_pages);
    assert_none(&[".md"], long_prose);
}

mod rules {
    use super::*;

    #[test]
    fn openings_are_those_of_docs() {
        let bad = "/// What it is.\nfn a() {}\n/// Whether so.\n//! How\n";
        // The `//!` line goes on with the doc before it.
        assert_eq!(bad_openings("a.rs", bad).len(), 2);
        let good = "/// Offset of a tensor.\n/// What follows is the second line.\n// What a comment says.\n";
        assert_eq!(bad_openings("a.rs", good), [""; 0]);
        assert_eq!(
            bad_openings("a.py", "    \"\"\"The same, again.\"\"\"").len(),
            1
        );
        assert_eq!(bad_openings("a.py", "\"\"\"Hows.\"\"\""), [""; 0]);
    }

    #[test]
    fn widths_are_those_of_comments() {
        let long = "x".repeat(COLUMNS_MAX);
        assert_eq!(long_comments("a.rs", &format!("// {long}")).len(), 1);
        assert_eq!(long_comments("a.rs", &format!("let {long};")), [""; 0]);
        assert_eq!(
            long_comments("a.rs", &format!("// https://{long}")),
            [""; 0]
        );
    }

    #[test]
    fn prose_is_wrapped_and_tables_and_code_are_not() {
        let long = "x ".repeat(COLUMNS_MAX);
        let pages = ["", "* ", "| ", "![", "https://", "```console\n"].map(|before| {
            let text = format!("{before}{long}\n```\n{long}\n");
            long_prose("docs/a.md", &text).len()
        });
        assert_eq!(pages, [1, 1, 0, 0, 0, 1]);
        let comment = format!("<!-- not shown:\n{long}\n-->\n{long}\n");
        assert_eq!(long_prose("docs/a.md", &comment).len(), 1);
        let word = format!("  - {}", "x".repeat(COLUMNS_MAX));
        assert_eq!(long_prose("docs/a.md", &word), [""; 0]);
    }

    #[test]
    fn pronouns_are_whole_words() {
        assert_eq!(
            pronouns("a.md", "Nobody asks.\nsomebodys\n\"nobody\"").len(),
            1
        );
    }

    #[test]
    fn cells_and_pages_are_measured() {
        let cell = "x".repeat(CELL_MAX + 1);
        assert_eq!(
            long_cells("a.md", &format!("| a | {cell} |\n{cell}")).len(),
            1
        );
        assert_eq!(long_pages("README.md", &"\n".repeat(151)).len(), 1);
        assert_eq!(long_pages("docs/a.md", &"\n".repeat(151)), [""; 0]);
        let generated = format!("<!-- a: begin -->{}<!-- a: end -->", "\n".repeat(151));
        assert_eq!(long_pages("README.md", &generated), [""; 0]);
    }
}
