//! Recipes of CONTRIBUTING.md and checks of AGENTS.md: every path that they list exists, and each
//! file has the names that its line mentions.

use std::path::Path;

use crate::files::read;

/// Pages, and the section of each that is checked.
const PAGES: [(&str, &str); 2] = [
    ("CONTRIBUTING.md", "## Recipes"),
    ("AGENTS.md", "## Checks"),
];

/// Stands in paths for the name of a new file.
const NEW: &str = "NAME";

/// Returns the list items and paragraphs below a heading, each as one line.
fn steps(page: &str, heading: &str) -> Vec<String> {
    let lines = page.lines().skip_while(|line| *line != heading).skip(1);
    let mut steps = vec![String::new()];
    for line in lines.take_while(|line| !line.starts_with("## ")) {
        let begins = line.is_empty() || line.starts_with("- ") || line.starts_with("* ");
        if begins {
            steps.push(String::new());
        }
        let step = steps.last_mut().expect("not empty");
        *step += " ";
        *step += line.trim();
    }
    steps.retain(|step| !step.trim().is_empty());
    steps
}

fn code_spans(step: &str) -> Vec<&str> {
    step.split('`').skip(1).step_by(2).collect()
}

fn is_path(span: &str) -> bool {
    let has_ending = span.rsplit_once('.').is_some_and(|(_, it)| it == "md");
    !span.contains(' ') && (span.contains('/') || has_ending)
}

fn is_name(span: &str) -> bool {
    let is_letter = |c: char| c.is_ascii_alphanumeric() || c == '_';
    !span.is_empty() && span.chars().all(is_letter)
}

fn has_word(text: &str, word: &str) -> bool {
    text.split(|c: char| !c.is_alphanumeric() && c != '_')
        .any(|found| found == word)
}

/// Finds what is wrong with a section of a page. `text_of` returns the text of a file, an empty one
/// for a folder, and nothing if the path does not exist.
fn complaints(page: &str, heading: &str, text_of: impl Fn(&str) -> Option<String>) -> Vec<String> {
    let mut complaints = Vec::new();
    let steps = steps(page, heading);
    if steps.is_empty() {
        complaints.push(format!("has no {heading:?}"));
    }
    for step in &steps {
        let spans = code_spans(step);
        let (new, paths): (Vec<&str>, Vec<&str>) = spans
            .iter()
            .filter(|span| is_path(span))
            .partition(|path| path.contains(NEW));
        for path in &new {
            let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
            if text_of(folder).is_none() {
                complaints.push(format!("{folder} does not exist"));
            }
        }
        let mut texts = String::new();
        for path in paths {
            match text_of(path) {
                Some(text) => texts += &text,
                None => complaints.push(format!("{path} does not exist")),
            }
        }
        // Names in a step about a new file are those to implement.
        let opens_with_path = step.trim_start().starts_with("- `");
        if opens_with_path && new.is_empty() {
            let names = spans.iter().filter(|span| is_name(span));
            let missing = names.filter(|name| !has_word(&texts, name));
            complaints.extend(missing.map(|name| format!("{name} is not in:{step}")));
        }
    }
    complaints
}

#[test]
fn recipes_name_existing_files_and_names() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let text_of = |path: &str| {
        let path = root.join(path);
        let text = |path: &Path| String::from_utf8(read(path)).expect("UTF-8");
        (path.is_dir().then(String::new)).or_else(|| path.exists().then(|| text(&path)))
    };
    for (page, heading) in PAGES {
        let text = text_of(page).expect("is in the repository");
        let complaints = complaints(&text, heading, text_of);
        assert!(complaints.is_empty(), "{page}:\n{}", complaints.join("\n"));
    }
}

#[test]
fn missing_paths_and_names_are_detected() {
    let text_of = |path: &str| match path {
        "src" => Some(String::new()),
        "src/a.rs" => Some("enum Kind {}".to_owned()),
        _ => None,
    };
    let found = |steps: &str| {
        let page = format!("# A\n- `src/x.rs`\n## C\n\n{steps}\n## B\n- `src/y.rs`\n");
        complaints(&page, "## C", text_of)
    };
    let good = "Do so:\n\n- `src/a.rs`: a\n  `Kind`, and `cargo test`.\n- `src/NAME.rs`: `Other`";
    assert_eq!(found(good), [""; 0]);
    for (step, complaint) in [
        ("- `src/b.rs`: b", "src/b.rs does not exist"),
        ("See `src/b.rs`.", "src/b.rs does not exist"),
        ("- `lib/NAME.rs`: b", "lib does not exist"),
        ("- `src/a.rs`: `Kin`", "Kin is not in: - `src/a.rs`: `Kin`"),
        ("- `a.md`: b", "a.md does not exist"),
    ] {
        assert_eq!(found(&format!("{good}\n\n{step}")), [complaint]);
    }
    assert_eq!(found("").len(), 1);
}
