//! `exec`: the command is as without it, and what it will load is read meanwhile.

use std::ffi::OsStr;
use std::fs;
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;
use tload_testbed::{Fault, Operation, Rule, pause_between_looks};

use crate::interrupt::{heed_signals, signal};
use crate::remote::{Lab, PATIENCE};
use crate::requirement::{of_machine, requirement};
use crate::{command, stderr, succeed};

const NOTHING: &str = "warning: tload exec: nothing is read ahead: ";

/// A checkpoint on disk.
struct Model {
    folder: TempDir,
}

impl Model {
    fn new() -> Self {
        let model = Self {
            folder: tempfile::tempdir().unwrap(),
        };
        let path = model.path();
        succeed(["synth", path.to_str().unwrap(), "--size", "8MiB"]);
        model
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("model")
    }

    /// Returns `tload exec`, which reads this model ahead of a command.
    fn exec<S: AsRef<OsStr>>(&self, words: impl IntoIterator<Item = S>) -> Command {
        exec(&self.path(), words)
    }
}

fn exec<S: AsRef<OsStr>>(source: &Path, words: impl IntoIterator<Item = S>) -> Command {
    let mut command = command(["exec", "--prefetch"]);
    command.arg(source).arg("--").args(words);
    command
}

/// Returns the processes that read ahead for a command whose line contains `mark`.
fn readers(mark: &str) -> Vec<String> {
    let line = |id: &String| {
        let line = fs::read(format!("/proc/{id}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).replace('\0', " ")
    };
    let processes = fs::read_dir("/proc").unwrap();
    let processes = processes.filter_map(|it| it.unwrap().file_name().into_string().ok());
    processes
        .filter(|id| line(id).contains(" __reader ") && line(id).contains(mark))
        .collect()
}

#[track_caller]
fn wait_until(mut is_so: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is_so() {
        assert!(started.elapsed() < PATIENCE, "waited in vain");
        pause_between_looks();
    }
}

#[test]
fn exit_status_arguments_and_descriptors_are_those_of_the_command() {
    let model = Model::new();
    let script = "read line; echo \"$line $0 $1 $$\"; exit 7";
    let mut child = model
        .exec(["sh", "-c", script, "--prefetch", "a b"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let id = child.id();
    writeln!(child.stdin.take().unwrap(), "typed").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(7), "{}", stderr(&output));
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(text, format!("typed --prefetch a b {id}\n"));
}

#[test]
fn signals_end_the_command_and_then_the_reader() {
    heed_signals();
    let lab = Lab::start();
    lab.checkpoint();
    lab.server
        .fault(Rule::always(Fault::StallBody(1000)).on(Operation::Get));
    for (name, number) in [("TERM", 15), ("INT", 2), ("KILL", 9), ("HUP", 1)] {
        let directory = lab.path(name);
        let mark = directory.to_str().unwrap();
        let mut child = lab
            .exec(mark, &["sleep", "600"])
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        wait_until(|| readers(mark).len() == 1);
        assert!(lab.server.wait_for_in_flight(1, PATIENCE));
        assert!(signal(&child, name));
        let status = child.wait().unwrap();
        assert_eq!(status.signal(), Some(number), "{name}");
        wait_until(|| readers(mark).is_empty());
    }
}

#[test]
fn reader_is_no_child_of_the_command_and_holds_none_of_its_descriptors() {
    let lab = Lab::start();
    lab.checkpoint();
    lab.server
        .fault(Rule::always(Fault::StallBody(1000)).on(Operation::Get));
    let directory = lab.path("cache");
    let mark = directory.to_str().unwrap();
    // The shell has the read end of another pipe as descriptor 9 when it becomes this command.
    let script = "exec 9</dev/null; exec \"$@\"";
    let inner = "cat /proc/$$/task/$$/children; echo; echo ready; read line";
    let plain = lab.exec(mark, &["sh", "-c", inner]);
    let mut child = Command::new("sh")
        .args(["-c", script, "sh"])
        .arg(plain.get_program())
        .args(plain.get_args())
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap())
        .env("TLOAD_CONFIG", "")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    wait_until(|| readers(mark).len() == 1 && lab.server.in_flight() > 0);
    let reader = readers(mark).remove(0);
    let session = |id: &str| {
        let stat = fs::read_to_string(format!("/proc/{id}/stat")).unwrap();
        let mut fields = stat.rsplit(") ").next().unwrap().split(' ');
        fields.nth(3).unwrap().to_owned()
    };
    assert_ne!(session(&reader), session(&child.id().to_string()));
    let opened = fs::read_link(format!("/proc/{reader}/fd/9"));
    assert_ne!(opened.ok(), Some("/dev/null".into()));
    // Its standard output ends with the command, not with the reader.
    drop(child.stdin.take());
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let first = text.lines().next().unwrap().trim();
    // `cat` is a child itself, and may be listed.
    assert!(!first.split(' ').any(|id| id == reader), "{text}");
    assert!(text.ends_with("ready\n"), "{text}");
}

/// Returns the priorities of the threads of a process.
fn priorities(id: &str) -> Vec<i32> {
    let tasks = fs::read_dir(format!("/proc/{id}/task")).unwrap();
    // A thread may end meanwhile.
    let stats = tasks.filter_map(|task| fs::read_to_string(task.unwrap().path().join("stat")).ok());
    let nice = |stat: String| stat.rsplit(") ").next()?.split(' ').nth(16)?.parse().ok();
    stats.filter_map(nice).collect()
}

#[test]
fn reader_has_a_lower_priority_than_the_command() {
    let lab = Lab::start();
    lab.checkpoint();
    lab.server
        .fault(Rule::always(Fault::StallBody(1000)).on(Operation::Get));
    // The tests may run at a lower priority themselves.
    let own = priorities(&std::process::id().to_string())[0];
    for more in [0, 5, 12, 19] {
        let of_command = (own + more).min(19);
        let of_reader = (of_command + 10).min(19);
        let directory = lab.path(&format!("cache-{more}"));
        let mark = directory.to_str().unwrap();
        let plain = lab.exec(mark, &["sleep", "600"]);
        let mut child = Command::new("nice")
            .args(["-n", &more.to_string()])
            .arg(plain.get_program())
            .args(plain.get_args())
            .env("TLOAD_CONFIG", "")
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        wait_until(|| readers(mark).len() == 1);
        let reader = readers(mark).remove(0);
        wait_until(|| priorities(&reader).contains(&of_reader));
        assert_eq!(priorities(&child.id().to_string()), [of_command]);
        child.kill().unwrap();
        child.wait().unwrap();
        wait_until(|| readers(mark).is_empty());
    }
}

#[test]
fn command_has_the_terminal_and_its_keys() {
    let found = Command::new("script").arg("--version").output();
    let found = found.map(drop).map_err(|error| error.to_string());
    if requirement("script", found).is_none() {
        return;
    }
    heed_signals();
    let model = Model::new();
    // A shell that waits for `sleep` may drop a signal that comes before `sleep` runs.
    let inner =
        "test -t 0 -a -t 1 -a -t 2 && ps -o tpgid= -o pgid= -p $$ && echo ready; exec sleep 600";
    let line = model.exec(["sh", "-c", inner]);
    let quoted = |word: &OsStr| format!("'{}'", word.to_str().unwrap());
    let words: Vec<_> = std::iter::once(line.get_program())
        .chain(line.get_args())
        .map(quoted)
        .collect();
    let mut child = Command::new("script")
        .args(["-qec", &format!("exec {}", words.join(" ")), "/dev/null"])
        .env("TLOAD_CONFIG", "")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdout = child.stdout.take().unwrap();
    let mut text = String::new();
    wait_until(|| {
        let mut bytes = [0; 4096];
        let count = std::io::Read::read(&mut stdout, &mut bytes).unwrap();
        text += &String::from_utf8_lossy(&bytes[..count]);
        text.contains("ready")
    });
    let groups = text
        .lines()
        .find(|line| line.split_whitespace().count() == 2);
    let groups: Vec<_> = groups.unwrap().split_whitespace().collect();
    assert_eq!(groups[0], groups[1], "it is in the foreground: {text}");
    // Ctrl-C.
    child.stdin.as_mut().unwrap().write_all(b"\x03").unwrap();
    let status = child.wait().unwrap();
    assert_eq!(status.code(), Some(128 + 2), "{text}");
}

#[test]
fn commands_that_cannot_start_have_the_status_of_env() {
    let model = Model::new();
    let absent = model.exec(["/nothing/here"]).output().unwrap();
    assert_eq!(absent.status.code(), Some(127), "{}", stderr(&absent));
    let text = stderr(&absent);
    assert!(text.contains("cannot run `/nothing/here`"), "{text}");
    let plain = model.path().join("model.safetensors");
    let plain = model.exec([plain]).output().unwrap();
    assert_eq!(plain.status.code(), Some(126), "{}", stderr(&plain));
}

/// Runs a command that ends once the reader has said something.
fn until_told(command: &mut Command, file: &Path) -> Output {
    let stderr = fs::File::create(file).unwrap();
    command.env("TOLD", file).stderr(stderr).output().unwrap()
}

const WAIT: &str = "until grep -q 'tload exec: .* ahead' \"$TOLD\"; do sleep 0.02; done; echo done";

#[test]
fn file_is_in_the_page_cache_before_the_command_loads_it() {
    let model = Model::new();
    let told = model.folder.path().join("told");
    let file = model.path().join("model.safetensors");
    tload::internal::probe::evict(&file).unwrap();
    let output = until_told(&mut model.exec(["sh", "-c", WAIT]), &told);
    assert_eq!(output.stdout, b"done\n");
    let text = fs::read_to_string(&told).unwrap();
    let path = model.path().display().to_string();
    let start = format!("note: tload exec: read 8.0 MiB of {path} ahead into the page cache in ");
    assert!(text.starts_with(&start), "{text}");
    assert_eq!(text.lines().count(), 1, "{text}");
    let there = tload::internal::probe::residency(&file).unwrap();
    // A kernel that reclaims pages ahead of need may have dropped some since.
    assert!(there.resident_bytes > there.total_bytes / 2, "{there:?}");
}

#[test]
fn failures_to_read_ahead_are_one_line_and_the_command_runs() {
    let folder = tempfile::tempdir().unwrap();
    let told = folder.path().join("told");
    let absent = folder.path().join("absent");
    for (source, why) in [
        (absent.to_str().unwrap(), "absent"),
        ("s3://bucket/model", "no directory for the cache is set"),
        ("gopher://bucket/model", "gopher"),
    ] {
        let output = until_told(&mut exec(Path::new(source), ["sh", "-c", WAIT]), &told);
        assert_eq!(output.stdout, b"done\n");
        let text = fs::read_to_string(&told).unwrap();
        assert!(text.starts_with(NOTHING) && text.contains(why), "{text}");
        assert_eq!(text.lines().count(), 1, "{text}");
    }
}

#[test]
fn nothing_is_read_where_memory_is_short() {
    let model = Model::new();
    let told = model.folder.path().join("told");
    let little = model.folder.path().join("meminfo");
    fs::write(&little, "MemTotal: 8388608 kB\nMemAvailable: 900000 kB\n").unwrap();
    let shown = format!("mount --bind '{}' /proc/meminfo", little.display());
    let tried = Command::new("unshare")
        .args(["-rm", "sh", "-c", &shown])
        .output();
    let found = tried.map_err(|error| error.to_string()).and_then(|tried| {
        let refused = || String::from_utf8_lossy(&tried.stderr).trim().to_owned();
        tried.status.success().then_some(()).ok_or_else(refused)
    });
    if of_machine("namespaces", found).is_none() {
        return;
    }
    let file = model.path().join("model.safetensors");
    tload::internal::probe::evict(&file).unwrap();
    let plain = model.exec(["sh", "-c", WAIT]);
    let mut inside = Command::new("unshare");
    inside
        .args(["-rm", "sh", "-c", &format!("{shown} && exec \"$@\""), "sh"])
        .arg(plain.get_program())
        .args(plain.get_args())
        .env("TLOAD_CONFIG", "");
    let output = until_told(&mut inside, &told);
    assert_eq!(output.stdout, b"done\n");
    let text = fs::read_to_string(&told).unwrap();
    assert!(
        text.starts_with(NOTHING) && text.contains("memory is short"),
        "{text}"
    );
    let there = tload::internal::probe::residency(&file).unwrap();
    assert_eq!(there.resident_bytes, 0);
}

impl Lab {
    /// Returns `tload exec`, which reads the model ahead into the cache in `directory`.
    fn exec(&self, directory: &str, words: &[&str]) -> Command {
        let source = ["exec", "--prefetch", "s3://bucket/model", "--cache-dir"];
        let plain = self.command(&[&source, &[directory][..]].concat());
        let mut command = command(plain.get_args());
        command.arg("--").args(words);
        command
    }
}

#[test]
fn load_finds_the_cache_filled() {
    let lab = Lab::start();
    lab.checkpoint();
    let directory = lab.path("cache");
    let directory = directory.to_str().unwrap();
    let told = lab.path("told");
    let script = format!("{WAIT}; echo \"$TLOAD_CACHE_DIR\"");
    let output = until_told(&mut lab.exec(directory, &["sh", "-c", &script]), &told);
    let text = fs::read_to_string(&told).unwrap();
    let words = format!("done\n{directory}\n");
    assert_eq!(String::from_utf8(output.stdout).unwrap(), words, "{text}");
    // The headers, and what lies beside them, were cached when it was opened.
    let start = "note: tload exec: read ";
    let words = " of s3://bucket/model ahead into the cache";
    assert!(text.starts_with(start) && text.contains(words), "{text}");
    assert_eq!(text.lines().count(), 1, "{text}");
    let offline = ["--cache-dir", directory, "--cache-check", "offline"];
    let load = [&["load", "s3://bucket/model"], &offline[..]].concat();
    assert_eq!(lab.json(&load)["report"]["remote_bytes"], 0);
}

#[test]
fn reader_stops_when_the_load_begins_which_goes_on_where_it_was() {
    let lab = Lab::start();
    lab.checkpoint();
    let drip = Fault::Drip {
        bytes: 256 << 10,
        pause: Duration::from_millis(100),
    };
    lab.server.fault(Rule::always(drip).on(Operation::Get));
    let directory = lab.path("cache");
    let directory = directory.to_str().unwrap();
    // The command under `exec` waits until something has been cached, and loads.
    let load = lab.command(&["load", "s3://bucket/model", "--json"]);
    let file = lab.path("loads");
    let quoted = |word: &OsStr| format!("'{}'", word.to_str().unwrap());
    let words: Vec<_> = std::iter::once(load.get_program())
        .chain(load.get_args())
        .map(quoted)
        .collect();
    fs::write(&file, words.join(" ")).unwrap();
    let some = "until test \"$(du -sk \"$TLOAD_CACHE_DIR\" | cut -f 1)\" -gt 2048; do sleep 0.02; done 2>/dev/null";
    let script = format!("{some}; . '{}'; {WAIT} >&2", file.display());
    let told = lab.path("told");
    let output = until_told(&mut lab.exec(directory, &["sh", "-c", &script]), &told);
    let text = fs::read_to_string(&told).unwrap();
    let loaded: Value = serde_json::from_slice(&output.stdout).expect(&text);
    assert!(text.contains(", until the load began"), "{text}");
    let cached = loaded["report"]["cached_bytes"].as_u64().unwrap();
    let remote = loaded["report"]["remote_bytes"].as_u64().unwrap();
    assert!(cached > 0 && remote > 0, "{loaded}");
    // Requests are for whole tiles.
    assert!(cached + remote < 9 << 20, "{loaded}");
    assert!(readers(directory).is_empty());
}
