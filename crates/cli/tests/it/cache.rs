//! `cache`: warms, lists, prunes and removes.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::remote::Lab;
use crate::stderr;

const MODEL: &str = "s3://bucket/model";

/// A server with a checkpoint, and a directory for a cache.
struct Cached {
    lab: Lab,
    directory: String,
}

impl Cached {
    fn start() -> Self {
        let lab = Lab::start();
        lab.checkpoint();
        let directory = lab.path("cache").to_str().unwrap().to_owned();
        Self { lab, directory }
    }

    /// Runs a subcommand of `cache` that takes no options of stores.
    fn cache(&self, arguments: &[&str]) -> Value {
        let output = self.output(&[arguments, &["--json"]].concat());
        assert!(output.status.success(), "{}", stderr(&output));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    fn output(&self, arguments: &[&str]) -> std::process::Output {
        crate::run([&["cache"], arguments, &["--cache-dir", &self.directory]].concat())
    }

    fn text(&self, arguments: &[&str]) -> String {
        let output = self.output(arguments);
        assert!(output.status.success(), "{}", stderr(&output));
        String::from_utf8(output.stdout).unwrap()
    }

    fn warm(&self, more: &[&str]) -> Value {
        let head = ["cache", "warm", MODEL, "--cache-dir", &self.directory];
        self.lab.json(&[&head, more].concat())
    }
}

fn number(value: &Value, field: &str) -> u64 {
    value[field].as_u64().expect(field)
}

#[test]
fn warmed_checkpoint_is_listed_and_loads_offline() {
    let cached = Cached::start();
    let first = cached.warm(&[]);
    assert_eq!(
        number(&first, "cached_bytes"),
        0,
        "nothing was there: {first}"
    );
    assert!(number(&first, "fetched_bytes") >= number(&first, "tensor_bytes"));
    assert_eq!(first["location"], MODEL);
    let second = cached.warm(&["--cache-check", "offline"]);
    assert_eq!(number(&second, "fetched_bytes"), 0, "{second}");
    assert!(number(&second, "cached_bytes") >= number(&second, "tensor_bytes"));

    // Three shards and their index.
    let listed = cached.cache(&["ls"]);
    let listed = listed.as_array().unwrap();
    assert_eq!(listed.len(), 4, "{listed:?}");
    for entry in listed {
        let location = entry["location"].as_str().unwrap();
        assert!(location.starts_with("s3://bucket/model/model"), "{entry}");
        assert_eq!(
            number(entry, "cached_bytes"),
            number(entry, "object_bytes"),
            "{entry}"
        );
        let name = Path::new(location).file_name().unwrap();
        let original = fs::read(cached.lab.path("model").join(name)).unwrap();
        assert!(
            fs::read(entry["path"].as_str().unwrap()).unwrap() == original,
            "{entry}"
        );
    }
    let text = cached.text(&["ls", "s3://bucket/model/model.safetensors.index.json"]);
    assert_eq!(text.lines().count(), 2, "{text}");
    assert!(text.contains("100 %"), "{text}");

    let totals = cached.cache(&["stat", MODEL]);
    assert_eq!(
        (
            number(&totals, "objects"),
            number(&totals, "complete_objects")
        ),
        (4, 4)
    );
    assert!(number(&totals, "free_bytes") > 0 && number(&totals, "last_used") > 0);
    let none = cached.cache(&["stat", "s3://bucket/mod"]);
    assert_eq!(
        (number(&none, "objects"), &none["last_used"]),
        (0, &Value::Null)
    );
    let text = cached.text(&["stat"]);
    assert!(
        text.starts_with("4 objects, 4 of them complete: "),
        "{text}"
    );
}

#[test]
fn removed_objects_and_what_is_known_of_them_are_gone() {
    let cached = Cached::start();
    cached.warm(&[]);
    let removed = |arguments: &[&str]| {
        let removal = cached.cache(arguments);
        assert_eq!(removal["in_use"].as_array().unwrap().len(), 0);
        removal["removed"].as_array().unwrap().len()
    };
    assert_eq!(removed(&["rm", MODEL, "--dry-run"]), 4);
    assert_eq!(
        removed(&["rm", "s3://bucket/model/model-00001-of-00003.safetensors"]),
        1
    );
    assert_eq!(cached.cache(&["ls"]).as_array().unwrap().len(), 3);
    // Its state is not known, so those of the others are asked for too. Only its bytes are sent.
    cached.lab.server.forget_requests();
    cached.warm(&["--cache-check", "never"]);
    let mut asked = cached.lab.server.requests();
    asked.retain(|it| it.path.contains("-of-00003") && it.status != Some(304));
    assert!(
        !asked.is_empty() && asked.iter().all(|it| it.path.contains("00001")),
        "{asked:?}"
    );

    assert_eq!(removed(&["prune", "--max-size", "1TiB"]), 0);
    assert_eq!(removed(&["prune", "--unused-for", "1h"]), 0);
    assert_eq!(removed(&["prune", "--unused-for", "1ms", "--dry-run"]), 4);
    assert!(removed(&["prune", "--max-size", "6MiB"]) > 0);
    assert!(number(&cached.cache(&["stat"]), "disk_bytes") <= 6 << 20);
    // Only answers are left of some: they are removed, and then there is nothing.
    cached.cache(&["prune", "--max-size", "0"]);
    for arguments in [&["rm", MODEL, "--dry-run"][..], &["rm", MODEL]] {
        let text = cached.text(arguments);
        assert!(text.contains("0 objects, 0 B on disk, and "), "{text}");
    }
    assert_eq!(cached.output(&["rm", MODEL]).status.code(), Some(3));
    cached.warm(&[]);
    let text = cached.text(&["rm", "--all"]);
    assert!(text.starts_with("removed "), "{text}");
    assert_eq!(cached.cache(&["ls"]), Value::Array(Vec::new()));
    let known = fs::read_dir(Path::new(&cached.directory).join("v1/answers")).unwrap();
    assert_eq!(known.count(), 0);
}

#[test]
fn commands_without_a_directory_say_how_to_set_one() {
    for arguments in [
        &["ls"][..],
        &["stat"],
        &["rm", "--all"],
        &["prune", "--max-size", "1TiB"],
        &["warm", MODEL],
    ] {
        let output = crate::run([&["cache"], arguments].concat());
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{text}");
        assert!(
            text.contains("no directory for the cache is set\n"),
            "{text}"
        );
        assert!(text.contains("TLOAD_CACHE_DIR"), "{text}");
    }
}

#[test]
fn mistakes_are_clear_errors() {
    let cached = Cached::start();
    let wrong = |arguments: &[&str], status: i32, wanted: &str| {
        let output = cached.output(arguments);
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(status), "{text}");
        assert!(text.contains(wanted), "{wanted:?} is not in:\n{text}");
    };
    // A load would create it.
    wrong(&["ls"], 0, "does not exist yet");
    wrong(
        &["prune", "--max-size", "1TiB"],
        3,
        "is not the directory of a cache",
    );
    cached.warm(&[]);
    wrong(&["ls", "model"], 2, "is a local path");
    wrong(&["rm", "model"], 2, "is a local path");
    for arguments in [
        &["rm", "s3://bucket/mode"][..],
        &["rm", "s3://bucket/mode", "--dry-run"],
    ] {
        wrong(
            arguments,
            3,
            "s3://bucket/mode: no object in the cache is at or below it",
        );
    }
    wrong(&["rm"], 2, "LOCATION");
    wrong(&["rm", MODEL, "--all"], 2, "--all");
    wrong(&["prune"], 2, "--max-size");
    wrong(&["warm", "model"], 2, "is a local path");
    let output = cached.lab.run(&["cache", "warm", MODEL]);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        stderr(&output).contains("--cache-dir"),
        "{}",
        stderr(&output)
    );
    // A file is where the directory should be.
    let file = cached.lab.path("file");
    fs::write(&file, "").unwrap();
    let output = cached.lab.run(&[
        "cache",
        "warm",
        MODEL,
        "--cache-dir",
        file.to_str().unwrap(),
    ]);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let errors = stderr(&output);
    let place = format!("is not completely cached in {}: ", file.display());
    assert!(errors.contains(&place), "{errors}");
    // As on a full disk.
    let output = cached.lab.run(&[
        "cache",
        "warm",
        MODEL,
        "--cache-dir",
        cached.lab.path("other").to_str().unwrap(),
        "--cache-limit",
        "1KiB",
    ]);
    let errors = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{errors}");
    for text in [
        "/other: its limit of 1.0 KiB is reached",
        "hint: the next run",
    ] {
        assert!(errors.contains(text), "no {text:?} in {errors}");
    }
}
