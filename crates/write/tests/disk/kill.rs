//! A writer that is killed at every one of its steps leaves the old checkpoint or the new one.

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;

use tempfile::tempdir;
use tload_base::options::{Location, StoreOptions};
use tload_write::{WriteOptions, kill_at, remove_incomplete, steps};

use crate::expected::{Tensors, tensors};
use crate::files::{names, read, read_file, stream, write};

/// Variable that makes this test program a writer: a path, a form, and the step of its death.
const VARIABLE: &str = "TLOAD_TEST_WRITER";

/// Forms of what is written.
const FORMS: [&str; 5] = ["one", "shards", "stream", "file", "large"];

fn new() -> Tensors {
    tensors(6, 40_000, 9)
}

fn large() -> Tensors {
    tensors(4, 20 << 20, 8)
}

fn write_as(path: &Path, form: &str) {
    let options = WriteOptions::new().replace(true);
    let few = options.clone().max_shard_bytes(60_000);
    let written = match form {
        "one" | "file" => write(path, &new(), options.manifest(form == "one")),
        "shards" => write(path, &new(), few.manifest(true)),
        "stream" => stream(path, &new(), few),
        _ => write(path, &large(), options),
    };
    written.expect("is written");
}

/// Not a test: the program that is killed.
#[test]
fn writer() {
    let Ok(order) = std::env::var(VARIABLE) else {
        return;
    };
    let mut words = order.split('\n');
    let mut word = || words.next().expect("three words");
    let (path, form, step) = (word(), word(), word());
    kill_at(step.parse().expect("a number"));
    write_as(Path::new(path), form);
    println!("steps: {}", steps());
}

/// Starts a writer, and returns how many steps it made if it was not killed.
fn run(path: &Path, form: &str, step: u64) -> Option<u64> {
    let this = std::env::current_exe().expect("is known");
    let order = format!("{}\n{form}\n{step}", path.display());
    let output = Command::new(this)
        .args(["--exact", "kill::writer", "--nocapture"])
        .env(VARIABLE, order)
        .output()
        .expect("is started");
    let text = String::from_utf8_lossy(&output.stdout);
    if output.status.signal() == Some(9) {
        return None;
    }
    assert!(output.status.success(), "{output:?}");
    let steps = text.lines().find_map(|line| line.split("steps: ").nth(1));
    Some(steps.expect("is printed").parse().expect("a number"))
}

/// Kills writers of this form at each step, where there is nothing and where there is a checkpoint.
/// Returns the number of kills.
fn kill_everywhere(form: &str, stride: usize) -> u64 {
    let old = tensors(5, 30_000, 7);
    let new = if form == "large" { large() } else { new() };
    let is_file = form == "file";
    let mut kills = 0;
    for is_replaced in [false, true] {
        let mut outcomes = [0, 0];
        for step in (1..).step_by(stride) {
            let folder = tempdir().expect("a folder");
            let name = if is_file {
                "model.safetensors"
            } else {
                "model"
            };
            let path = folder.path().join(name);
            if is_replaced {
                write(&path, &old, WriteOptions::new().max_shard_bytes(50_000))
                    .expect("is written");
                if !is_file {
                    std::fs::write(path.join("config.json"), "{}").expect("is written");
                }
            }
            let ended = run(&path, form, step);
            let look = |path: &Path| if is_file { read_file(path) } else { read(path) };
            if path.exists() {
                let found = look(&path);
                let is_new = found == new;
                assert!(
                    is_new || is_replaced && found == old,
                    "{form} at step {step}"
                );
                assert!(is_file || !is_replaced || path.join("config.json").exists());
                outcomes[usize::from(is_new)] += 1;
            } else {
                assert!(!is_replaced, "{form} at step {step}");
                outcomes[0] += 1;
            }
            let before = path.exists().then(|| look(&path));
            remove_incomplete(&Location::from_path(&path), &StoreOptions::new())
                .expect("removes the rest");
            let left: &[&str] = if path.exists() { &[name] } else { &[] };
            assert_eq!(names(folder.path()), left);
            assert_eq!(before, path.exists().then(|| look(&path)));
            if let Some(steps) = ended {
                assert!(
                    step > steps || stride > 1,
                    "the step of its death was passed"
                );
                assert!(path.exists() && look(&path) == new);
                break;
            }
            kills += 1;
        }
        assert!(
            outcomes.iter().all(|&count| count > 0),
            "{form}: {outcomes:?}"
        );
    }
    kills
}

#[test]
fn killed_writer_leaves_old_checkpoint_or_new_one() {
    let kills: Vec<_> = FORMS.iter().map(|form| kill_everywhere(form, 1)).collect();
    assert!(kills.iter().sum::<u64>() > 150, "{kills:?}");
    println!("killed {kills:?} writers of {FORMS:?}");
}
