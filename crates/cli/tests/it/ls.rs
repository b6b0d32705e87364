//! `ls`: order, summary, and several locations.

use crate::{command, json, run, stderr, succeed};

/// Returns the locations of two checkpoints, one of which has two shards.
fn models(folder: &tempfile::TempDir) -> [String; 2] {
    ["one", "two"].map(|shards| {
        let model = folder.path().join(shards).to_str().unwrap().to_owned();
        let count = if shards == "one" { "1" } else { "2" };
        succeed([
            "synth", &model, "--preset", "moe", "--size", "1MiB", "--shards", count,
        ]);
        model
    })
}

#[test]
fn order_applies_to_text_and_json() {
    let folder = tempfile::tempdir().unwrap();
    let [_, model] = models(&folder);
    let sizes = |flags: &[&str]| -> Vec<u64> {
        let listing = json([&["ls", &model, "--json"], flags].concat());
        let tensors = listing["tensors"].as_array().unwrap().iter();
        tensors.map(|it| it["bytes"].as_u64().unwrap()).collect()
    };
    let by_size = sizes(&["--sort", "size"]);
    assert!(by_size.is_sorted_by(|a, b| a >= b) && by_size[0] > by_size[by_size.len() - 1]);
    let smallest_first = sizes(&["--sort=size", "--reverse"]);
    assert!(smallest_first.is_sorted());
    assert_eq!(sizes(&[]), sizes(&["--sort", "offset"]));

    let text = succeed(["ls", &model, "--sort", "name"]);
    let names: Vec<_> = text
        .lines()
        .skip(1)
        .map_while(|line| line.split_whitespace().next())
        .collect();
    assert!(names.len() > 20 && names.is_sorted(), "{names:?}");
}

#[test]
fn summary_has_totals_and_ten_largest_tensors() {
    let folder = tempfile::tempdir().unwrap();
    let [_, model] = models(&folder);
    let listing = json(["ls", &model, "--summary", "--json"]);
    let whole = json(["ls", &model, "--json"]);
    assert_eq!(listing["largest"].as_array().unwrap().len(), 10);
    assert!(listing.get("tensors").is_none());
    assert_eq!(listing["total"], whole["total"]);
    assert_eq!(listing["dtypes"], whole["dtypes"]);
    let text = succeed(["ls", &model, "--summary"]);
    assert!(text.starts_with("largest tensors:\n"), "{text}");
    assert!(text.lines().count() < 30, "{text}");
}

#[test]
fn several_locations_have_a_table_each_and_an_array() {
    let folder = tempfile::tempdir().unwrap();
    let [one, two] = models(&folder);
    let text = succeed(["ls", &one, &two]);
    for model in [&one, &two] {
        assert!(text.contains(&format!("{model}:\ntensor ")), "{text}");
    }
    assert_eq!(text.matches("\ntotal: ").count(), 2);
    let listings = json(["ls", &one, &two, "--json"]);
    assert_eq!(listings[0], json(["ls", &one, "--json"]));
    assert_eq!(listings[1], json(["ls", &two, "--json"]));

    // A location that cannot be opened ends the command, behind the tables before it.
    let failed = run(["ls", &one, "/nonexistent", &two]);
    assert_eq!(failed.status.code(), Some(3));
    assert!(String::from_utf8_lossy(&failed.stdout).contains("total: "));
    assert!(stderr(&failed).starts_with("error: /nonexistent"));
    let failed = command(["ls", &one, "/nonexistent", "--json"])
        .output()
        .unwrap();
    let answer: serde_json::Value = serde_json::from_slice(&failed.stdout).unwrap();
    assert_eq!(answer["error"]["exit_status"], 3);
}
