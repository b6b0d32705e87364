//! `--ranks`: several processes that load together, their table, and their ends.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::{command, json, run, stderr, succeed};

/// Folder with a checkpoint and a directory for temporary files.
struct Place {
    _folder: tempfile::TempDir,
    model: PathBuf,
    temporary: PathBuf,
}

impl Place {
    fn new(preset: &str, size: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (model, temporary) = (folder.path().join("model"), folder.path().join("tmp"));
        fs::create_dir(&temporary).unwrap();
        let text = |path: &Path| path.to_str().unwrap().to_owned();
        succeed(["synth", &text(&model), "--preset", preset, "--size", size]);
        Self {
            _folder: folder,
            model,
            temporary,
        }
    }

    fn model(&self) -> &str {
        self.model.to_str().unwrap()
    }

    /// Returns a load that creates its temporary files here.
    fn load(&self, arguments: &[&str]) -> Command {
        let mut load = command(["load", self.model()].iter().chain(arguments));
        load.env("TMPDIR", &self.temporary)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        load
    }

    #[track_caller]
    fn assert_nothing_left(&self) {
        let left: Vec<_> = fs::read_dir(&self.temporary).unwrap().collect();
        assert!(left.is_empty(), "{left:?}");
    }
}

fn number(value: &Value) -> u64 {
    let number = value.as_u64();
    assert!(number.is_some(), "{value} is no count");
    number.unwrap()
}

fn sum(found: &Value, field: &str) -> u64 {
    let ranks = found["ranks"].as_array().unwrap().iter();
    ranks.map(|rank| number(&rank[field])).sum()
}

#[test]
fn ranks_that_share_read_once() {
    let place = Place::new("moe", "24MiB");
    for (ranks, shard) in [(2, "none"), (4, "none"), (4, "tp"), (2, "ep"), (1, "none")] {
        let (size, what) = (ranks.to_string(), format!("{ranks} ranks, {shard}"));
        let found = json([
            "load",
            place.model(),
            "--ranks",
            &size,
            "--shard",
            shard,
            "--keep",
            "--json",
        ]);
        let node = &found["node"];
        let unique = number(&node["unique_bytes"]);
        assert_eq!(found["ranks"].as_array().unwrap().len(), ranks, "{what}");
        assert_eq!(
            sum(&found, "read_bytes"),
            number(&node["read_bytes"]),
            "{what}"
        );
        assert!(number(&node["read_bytes"]) >= unique, "{what}: {node}");
        let amplification = node["amplification"].as_f64().unwrap();
        assert!(amplification <= 1.02, "{what}: {amplification}");
        let tensors = sum(&found, "tensor_bytes");
        match shard {
            "none" => assert_eq!(tensors, ranks as u64 * unique, "{what}"),
            // Experts and slices have one rank, the rest has all.
            _ => assert!((unique..ranks as u64 * unique).contains(&tensors), "{what}"),
        }
        assert!(
            number(&node["pss_bytes"]) > unique,
            "{what}: tensors are kept"
        );
        let share = if ranks == 1 { "none" } else { "node" };
        assert_eq!(node["share"], share, "{what}");
        assert_eq!(found["ranks"][0]["report"]["outcome"], "complete");
    }
}

#[test]
fn ranks_that_do_not_share_read_everything() {
    let place = Place::new("tiny", "8MiB");
    let found = json([
        "load",
        place.model(),
        "--ranks",
        "3",
        "--share",
        "none",
        "--json",
    ]);
    let node = &found["node"];
    assert!(
        number(&node["read_bytes"]) >= 3 * number(&node["unique_bytes"]),
        "{node}"
    );
    assert_eq!(
        (&node["share"], number(&node["received_bytes"])),
        (&"none".into(), 0)
    );
}

#[test]
fn table_has_row_for_each_rank_and_the_node() {
    let place = Place::new("tiny", "8MiB");
    let output = place.load(&["--ranks", "2"]).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let text = String::from_utf8(output.stdout).unwrap();
    let first: Vec<_> = text
        .lines()
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    assert_eq!(first, ["rank", "0", "1", "node", "2"], "{text}");
    assert!(text.contains("(amplification 1."), "{text}");
    place.assert_nothing_left();
}

#[test]
fn error_of_all_ranks_is_printed_once() {
    let place = Place::new("tiny", "4MiB");
    fs::remove_dir_all(&place.model).unwrap();
    let output = place.load(&["--ranks", "4"]).output().unwrap();
    let errors = stderr(&output);
    assert_eq!(output.status.code(), Some(3), "{errors}");
    assert_eq!(errors.matches("cannot open").count(), 1, "{errors}");
    assert_eq!(errors.matches("error: ").count(), 1, "{errors}");
    assert!(errors.contains(": rank "), "{errors}");
    place.assert_nothing_left();
}

#[test]
fn requests_that_make_no_sense_are_refused() {
    let place = Place::new("tiny", "4MiB");
    for arguments in [
        &["load", "--ranks", "0"][..],
        &["load", "--ranks", "129"],
        &["load", "--ranks", "2", "--digest"],
        &["load", "--shard", "tp"],
        &["load", "--ranks", "2", "second"],
        &["bench", "--ranks", "2", "--mode", "reload"],
        &["bench", "--ranks", "2", "--mode", "stream,keep"],
        &["bench", "--ranks", "2", "--depth", "2,4"],
        &["bench", "--ranks", "2", "--csv", "out.csv"],
    ] {
        let output = run([&arguments[..1], &[place.model()], &arguments[1..]].concat());
        assert_eq!(
            output.status.code(),
            Some(2),
            "{arguments:?}: {}",
            stderr(&output)
        );
    }
    // No tensor of this model has experts.
    let output = run(["load", place.model(), "--ranks", "2", "--shard", "ep"]);
    assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
}

#[test]
fn bench_compares_sharing_with_none() {
    let place = Place::new("tiny", "8MiB");
    let export = place.temporary.join("out.json");
    let text = succeed([
        "bench",
        place.model(),
        "--ranks",
        "2",
        "--rounds",
        "2",
        "--cache-state",
        "warm",
        "--mode",
        "keep",
        "--json",
        export.to_str().unwrap(),
    ]);
    assert!(text.contains("speed-up") && text.contains(" × ("), "{text}");
    let found: Value = serde_json::from_str(&fs::read_to_string(export).unwrap()).unwrap();
    assert_eq!(
        (&found["complete"], &found["ranks"]),
        (&true.into(), &2.into())
    );
    let samples = found["samples"].as_array().unwrap();
    let order: Vec<_> = samples
        .iter()
        .map(|sample| sample["share"].as_str().unwrap())
        .collect();
    assert_eq!(order, ["node", "none", "none", "node"]);
    for sample in samples {
        assert_eq!(sample["ranks"].as_array().unwrap().len(), 2);
        let amplification = sample["node"]["amplification"].as_f64().unwrap();
        let is_shared = sample["share"] == "node";
        assert_eq!(is_shared, amplification <= 1.02, "{amplification}");
    }
    let summaries = found["summaries"].as_array().unwrap();
    assert_eq!(summaries.len(), 2, "{text}");
    assert!(summaries[0]["speed_up"]["median"].as_f64().unwrap() > 0.0);
}

/// Loads that a signal ends. No load can get past a server that does not answer.
mod ends {
    use std::ffi::OsString;
    use std::fs;
    use std::net::TcpListener;
    use std::os::unix::process::ExitStatusExt;
    use std::process::{Child, Command, Output, Stdio};

    use crate::interrupt::signal;
    use crate::{command, stderr};

    /// Returns the processes that `child` has started, once they are `count` and at work.
    fn ranks(child: &Child, count: usize) -> Vec<u32> {
        loop {
            let found: Vec<u32> = processes()
                .into_iter()
                .filter(|process| parent(*process) == Some(child.id()) && is_rank(*process))
                .collect();
            if found.len() == count {
                return found;
            }
            tload_testbed::pause_between_looks();
        }
    }

    fn processes() -> Vec<u32> {
        let entries = fs::read_dir("/proc").unwrap();
        let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        names.filter_map(|name| name.parse().ok()).collect()
    }

    fn parent(process: u32) -> Option<u32> {
        let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
        let parent = status.lines().find_map(|line| line.strip_prefix("PPid:"))?;
        parent.trim().parse().ok()
    }

    fn is_rank(process: u32) -> bool {
        let line = fs::read_to_string(format!("/proc/{process}/cmdline")).unwrap_or_default();
        line.contains("__rank")
    }

    /// Load that never ends, since its server does not answer, and a directory for temporary files.
    struct Endless {
        _server: TcpListener,
        child: Child,
        ranks: Vec<u32>,
        temporary: tempfile::TempDir,
    }

    impl Endless {
        fn start(count: usize) -> Self {
            let server = TcpListener::bind("127.0.0.1:0").unwrap();
            let url = format!("http://{}/model.safetensors", server.local_addr().unwrap());
            let temporary = tempfile::tempdir().unwrap();
            let child = command(["load", &url, "--ranks", &count.to_string()])
                .env("TMPDIR", temporary.path())
                .env("NO_PROXY", "127.0.0.1")
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap();
            let ranks = ranks(&child, count);
            Self {
                _server: server,
                child,
                ranks,
                temporary,
            }
        }

        /// Waits for the end of the command and its ranks. Returns its output and the names of what
        /// is left of its temporary files.
        fn end(self) -> (Output, Vec<OsString>) {
            let output = self.child.wait_with_output().unwrap();
            for rank in self.ranks {
                while is_rank(rank) {
                    tload_testbed::pause_between_looks();
                }
            }
            let left = fs::read_dir(self.temporary.path()).unwrap();
            (
                output,
                left.map(|entry| entry.unwrap().file_name()).collect(),
            )
        }
    }

    #[test]
    fn killed_rank_is_named_and_ends_the_others() {
        let load = Endless::start(4);
        let killed = load.ranks[2];
        let killing = Command::new("kill")
            .args(["-KILL", &killed.to_string()])
            .status();
        assert!(killing.unwrap().success());
        let (output, left) = load.end();
        let errors = stderr(&output);
        assert_eq!(output.status.code(), Some(1), "{errors}");
        let wanted = format!("process {killed} was killed by signal 9 (SIGKILL)");
        assert!(errors.contains(&wanted), "{errors}");
        assert!(errors.contains("error: rank "), "{errors}");
        assert_eq!(left, Vec::<OsString>::new());
    }

    #[test]
    fn interrupted_load_ends_its_ranks() {
        let load = Endless::start(2);
        assert!(signal(&load.child, "TERM"));
        let (output, left) = load.end();
        assert_eq!(output.status.code(), Some(143), "{}", stderr(&output));
        assert_eq!(left, Vec::<OsString>::new());
    }

    #[test]
    fn ranks_end_with_killed_command() {
        let load = Endless::start(3);
        assert!(signal(&load.child, "KILL"));
        let (output, _) = load.end();
        assert_eq!(output.status.signal(), Some(9));
    }
}
