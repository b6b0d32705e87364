//! Pages that are generated from the sources: the table of crates in ARCHITECTURE.md, that of
//! options in `docs/tuning.md`, the manifest in `docs/deploy.md`, `docs/glossary.md`,
//! `docs/unsafe.md`.
//! `TLOAD_BLESS=1 cargo test -p tload --test it pages` writes them. Also checks that each folder
//! has a map and each link of ARCHITECTURE.md a target.

mod crates;
mod glossary;
mod manifest;
mod options;
mod unsafe_code;

use std::collections::BTreeSet;
use std::path::Path;

use crate::tidy::{root, sources, text};

/// Address of a file of the repository, for pages of the docs site.
const REPOSITORY: &str = "https://github.com/tload/tload/blob/main";

/// Returns whether a folder of sources has a file whose `//!` is its map. Each program in `bin/` is
/// one by itself. (`tidy` checks that every file opens with `//!`.)
fn has_map(folder: &Path, path: &str) -> bool {
    let inside = ["mod.rs", "lib.rs", "main.rs"].map(|name| folder.join(name));
    let beside = folder.with_extension("rs");
    path.ends_with("/src/bin") || inside.iter().chain([&beside]).any(|file| file.exists())
}

#[test]
fn every_folder_has_a_map() {
    let files = sources();
    let folders: BTreeSet<_> = files
        .iter()
        .filter_map(|source| source.path.rsplit_once('/'))
        .map(|(folder, _)| folder)
        .collect();
    assert!(folders.len() > 30, "{folders:?}");
    let without: Vec<_> = folders
        .into_iter()
        .filter(|folder| !has_map(&root().join(folder), folder))
        .collect();
    assert!(without.is_empty(), "no `//!` for {without:?}");
}

#[test]
fn links_of_architecture_lead_to_files() {
    let page = text(&root().join("ARCHITECTURE.md"));
    let targets = page.split("](").skip(1).filter_map(|rest| {
        let target = rest.split([')', '#']).next()?;
        (!target.contains("://")).then_some(target)
    });
    let missing: Vec<_> = targets
        .filter(|target| !root().join(target).exists())
        .collect();
    assert!(missing.is_empty(), "ARCHITECTURE.md links to {missing:?}");
}
