//! Table of crates in ARCHITECTURE.md, from the `Cargo.toml` of each.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use tload_testbed::assert_recorded_between;

use crate::tidy::{root, text};

/// Facts about one crate of the workspace.
struct Package {
    /// Folder below `crates/`.
    folder: String,
    name: String,
    /// First sentence of its description.
    purpose: String,
    /// Packages of the workspace that it is built from; not those of its tests.
    uses: Vec<String>,
    is_published: bool,
    has_lints: bool,
}

/// Returns the value of a key of the section `[package]`.
fn value<'t>(manifest: &'t str, key: &str) -> Option<&'t str> {
    let lines = manifest.lines().skip(1);
    let mut package = lines.take_while(|line| !line.starts_with('['));
    let line = package.find_map(|line| line.strip_prefix(key)?.strip_prefix(" = "))?;
    Some(line.trim_matches('"'))
}

/// Returns the packages of this workspace that a manifest depends on outside of tests.
fn dependencies(manifest: &str) -> Vec<String> {
    let mut is_counted = false;
    let mut found = Vec::new();
    for line in manifest.lines() {
        if line.starts_with('[') {
            is_counted = line.ends_with("dependencies]")
                && !line.contains("dev-dependencies")
                && !line.contains("build-dependencies");
        }
        let name = line.split([' ', '.', '=']).next().unwrap_or_default();
        if is_counted && (name == "tload" || name.starts_with("tload-")) {
            found.push(name.to_owned());
        }
    }
    found
}

fn package(folder: &str, manifest: &str) -> Package {
    let description = value(manifest, "description").expect("each crate has a description");
    let sentence = description.split(". ").next().unwrap_or_default();
    Package {
        folder: folder.to_owned(),
        name: value(manifest, "name").expect("a name").to_owned(),
        purpose: sentence.trim_end_matches('.').to_owned(),
        uses: dependencies(manifest),
        is_published: value(manifest, "publish").is_none(),
        has_lints: manifest.contains("[lints]\nworkspace = true"),
    }
}

fn packages() -> Vec<Package> {
    let folders = std::fs::read_dir(root().join("crates")).expect("the workspace has crates");
    let folders = folders.map(|entry| entry.expect("listed").path());
    let mut packages: Vec<_> = folders
        .filter(|folder| folder.join("Cargo.toml").exists())
        .map(|path| {
            let folder = path.file_name().and_then(|name| name.to_str());
            package(folder.expect("UTF-8"), &text(&path.join("Cargo.toml")))
        })
        .collect();
    packages.sort_by(|a, b| a.folder.cmp(&b.folder));
    packages
}

/// Returns the number of crates in the longest chain below a package.
fn height(packages: &[Package], name: &str) -> usize {
    let own = packages.iter().find(|package| package.name == name);
    let below = own.into_iter().flat_map(|package| &package.uses);
    let heights = below.map(|used| 1 + height(packages, used));
    heights.max().unwrap_or(0)
}

/// Returns the table: crates of programs from the top to the bottom, then those for tests.
fn table(packages: &[Package]) -> String {
    let folder_of: BTreeMap<_, _> = packages
        .iter()
        .map(|package| (package.name.as_str(), package.folder.as_str()))
        .collect();
    let is_built_from = |name: &str| {
        let mut users = packages.iter().filter(|package| package.is_published);
        users.any(|package| package.uses.iter().any(|used| used == name))
    };
    let mut rows: Vec<_> = packages.iter().collect();
    rows.sort_by_key(|package| {
        let is_for_tests = !package.is_published && !package.folder.starts_with("py");
        let height = height(packages, &package.name);
        (is_for_tests, std::cmp::Reverse(height), &package.folder)
    });
    let mut table = "\n| crate | purpose | built from |\n|---|---|---|\n".to_owned();
    for package in rows {
        assert!(
            package.is_published || !is_built_from(&package.name),
            "{} is not published, and a published crate is built from it",
            package.name
        );
        let folder = &package.folder;
        let mut uses: Vec<_> = package
            .uses
            .iter()
            .map(|name| format!("`{}`", folder_of[name.as_str()]))
            .collect();
        uses.sort();
        uses.dedup();
        writeln!(
            table,
            "| [`{folder}`](crates/{folder}/src/lib.rs) | {} | {} |",
            package.purpose,
            uses.join(" ")
        )
        .expect("writing to a string succeeds");
    }
    table + "\n"
}

#[test]
fn table_matches_manifests() {
    assert_recorded_between(
        &root().join("ARCHITECTURE.md"),
        "<!-- crates: begin -->\n",
        "<!-- crates: end -->",
        &table(&packages()),
    );
}

/// A crate without this line of its manifest has none of the lints.
#[test]
fn every_crate_has_the_lints_of_the_workspace() {
    let mut without = packages();
    without.retain(|package| !package.has_lints);
    let without: Vec<_> = without.iter().map(|package| &package.folder).collect();
    assert!(without.is_empty(), "no lints for {without:?}");
}

/// Crates that are published because `tload` is built from them say so first.
#[test]
fn inner_crates_say_what_programs_depend_on() {
    let packages = packages();
    assert!(packages.len() > 5);
    for package in packages.iter().filter(|package| package.is_published) {
        let is_outer = ["core", "cli"].contains(&package.folder.as_str());
        let lib = format!("crates/{}/src/lib.rs", package.folder);
        let map: String = text(&root().join(&lib))
            .lines()
            .take_while(|line| line.starts_with("//!"))
            .map(|line| line.trim_start_matches("//!"))
            .collect();
        assert!(
            is_outer || map.contains("depend on the crate `tload`"),
            "the docs of {lib} do not say that programs depend on the crate `tload`"
        );
    }
}

#[test]
fn manifests_are_read_as_cargo_reads_them() {
    let manifest = "[package]\nname = \"tload-a\"\ndescription = \"A crate. More.\"\n\
                    publish = false\n[dependencies]\ntload-b = { workspace = true }\n\
                    tload.workspace = true\nserde = \"1\"\n[dev-dependencies]\ntload-c = \"1\"\n\
                    [target.'cfg(unix)'.dependencies]\ntload-d = \"1\"\n\
                    [lints]\nworkspace = true\n";
    let found = package("a", manifest);
    assert_eq!(
        (found.name.as_str(), found.purpose.as_str()),
        ("tload-a", "A crate")
    );
    assert_eq!(found.uses, ["tload-b", "tload", "tload-d"]);
    assert!(!found.is_published && found.has_lints);
}
