//! `ls`, `load`, `bench` and `cp` with an object store and a web server, which fail as a test
//! demands.

use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;
use tload_testbed::{Fault, FaultyServer, Operation, Rule};

use crate::cp::{names, tree};
use crate::{command, stderr, succeed};

const MIB: u64 = 1 << 20;
const SECRET: &str = "hush-hush";
/// Time longer than any response takes here.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) struct Lab {
    pub(crate) server: FaultyServer,
    folder: TempDir,
}

impl Lab {
    pub(crate) fn start() -> Self {
        Self {
            server: FaultyServer::start(),
            folder: tempfile::tempdir().unwrap(),
        }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes a checkpoint to disk and, with a hidden file, to `s3://bucket/model`.
    pub(crate) fn checkpoint(&self) -> PathBuf {
        let model = self.path("model");
        succeed([
            "synth",
            model.to_str().unwrap(),
            "--size",
            "8MiB",
            "--shards",
            "3",
        ]);
        fs::create_dir(model.join("deep")).unwrap();
        fs::write(model.join("deep/tokenizer.model"), "tokens").unwrap();
        fs::write(model.join("empty.txt"), "").unwrap();
        for (name, bytes) in tree(&model) {
            self.server.put(&format!("bucket/model/{name}"), bytes);
        }
        self.server.put("bucket/model/.gitattributes", "x");
        model
    }

    /// Returns a command with the options that reach the server, and nothing from the environment.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let endpoint = format!("endpoint={}", self.server.url());
        let mut all = arguments.to_vec();
        for option in [&endpoint, "anonymous=true", "environment=false"] {
            all.extend(["--store", option]);
        }
        command(all)
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    #[track_caller]
    pub(crate) fn json(&self, arguments: &[&str]) -> Value {
        let output = self.run(&[arguments, &["--json"]].concat());
        assert!(output.status.success(), "{}", stderr(&output));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// Returns the ranges of objects requested since `forget_requests`.
    fn ranges(&self) -> Vec<Range<u64>> {
        let gets = self.server.requests().into_iter();
        gets.filter(|request| request.operation == Operation::Get)
            .filter_map(|request| request.range)
            .collect()
    }
}

/// Arguments of `cp` of one object in requests of 1 MiB, one at a time.
fn cp<'a>(target: &'a Path, more: &[&'a str]) -> Vec<&'a str> {
    let head = ["cp", "s3://bucket/a.safetensors", target.to_str().unwrap()];
    let tail = ["--extent", "1MiB", "--depth", "1"];
    [&head[..], &tail, more].concat()
}

/// Returns eight MiB that differ from byte to byte and from `seed` to `seed`.
fn bytes(seed: u64) -> Vec<u8> {
    (0..8 * MIB)
        .map(|at| u8::try_from((at * 31 + at / 4096 + seed) % 251).unwrap())
        .collect()
}

#[track_caller]
fn status(output: &Output, wanted: i32) -> String {
    let text = stderr(output);
    assert_eq!(output.status.code(), Some(wanted), "{text}");
    text
}

#[test]
fn remote_checkpoint_equals_local_one() {
    let lab = Lab::start();
    let model = lab.checkpoint();
    let local = succeed(["ls", model.to_str().unwrap(), "--json"]);
    let local: Value = serde_json::from_str(&local).unwrap();
    let remote = lab.json(&["ls", "s3://bucket/model"]);
    assert_eq!(remote["tensors"], local["tensors"]);
    assert_eq!(remote["location"], "s3://bucket/model");

    let digest = |output: &Value| output["digest"].as_str().unwrap().to_owned();
    let local = succeed(["load", model.to_str().unwrap(), "--digest", "--json"]);
    let remote = lab.json(&["load", "s3://bucket/model", "--digest"]);
    assert_eq!(
        digest(&remote),
        digest(&serde_json::from_str(&local).unwrap())
    );
    assert!(remote["report"]["remote_bytes"].as_u64().unwrap() >= 8 * MIB * 9 / 10);

    let found = lab.json(&["doctor", "s3://bucket/model"]);
    let findings = found["findings"].as_array().unwrap();
    let of = |id: &str| findings.iter().find(|finding| finding["id"] == id);
    assert_eq!(
        of("store").unwrap()["value"],
        format!("s3: 3 shards at {} (bucket in the path)", lab.server.url())
    );
    assert!(of("page_cache").is_none());

    let above = lab.run(&["ls", "s3://bucket"]);
    let text = status(&above, 3);
    assert!(text.contains("model"), "{text}");
    let text = status(&lab.run(&["ls", "s3://bucket/other/x.safetensors"]), 3);
    assert_eq!(
        text.matches("\n  request: GET, status 404").count(),
        1,
        "{text}"
    );
}

#[test]
fn unreachable_or_failing_server_is_status_9() {
    let lab = Lab::start();
    lab.checkpoint();
    let output = command([
        "ls",
        "s3://bucket/x.safetensors",
        "--store",
        "endpoint=http://127.0.0.1:1",
        "--store",
        "anonymous=true",
    ]);
    status(&{ output }.output().unwrap(), 9);

    lab.server
        .fault(Rule::always(Fault::status(500, "InternalError")).from_byte(1));
    let arguments = ["load", "s3://bucket/model", "--retries", "2"];
    let text = status(&lab.run(&arguments), 9);
    assert!(
        text.contains("code InternalError") && text.contains("3 attempts"),
        "{text}"
    );
}

#[test]
fn bench_of_store_is_remote_and_counts_requests() {
    let lab = Lab::start();
    lab.checkpoint();
    let path = |name| lab.path(name).to_str().unwrap().to_owned();
    let [json, csv, markdown] = ["out.json", "out.csv", "out.md"].map(path);
    let output = lab.run(&[
        "bench",
        "s3://bucket/model",
        "--rounds",
        "1",
        "--depth",
        "2,4",
        "--extent",
        "1MiB,2MiB",
        "--json",
        &json,
        "--csv",
        &csv,
        "--markdown",
        &markdown,
    ]);
    let warnings = status(&output, 0);
    for unwanted in ["page cache", "fio", "file system"] {
        assert!(!warnings.contains(unwanted), "{warnings}");
    }
    let results: Value = serde_json::from_str(&fs::read_to_string(json).unwrap()).unwrap();
    let host = lab.server.url().replace("http://", "s3 at ");
    assert_eq!(results["host"]["store"], host);
    assert_eq!(results["host"]["file_system"], Value::Null);
    assert_eq!(results["fio"], Value::Null);
    let cells = results["cells"].as_array().unwrap();
    assert_eq!(cells.len(), 4);
    for cell in cells {
        assert_eq!(cell["cache_state"], "remote");
        let samples = cell["samples"].as_array().unwrap();
        assert_eq!(samples.len(), 2);
        for sample in samples {
            assert_eq!(sample["residency"]["found"], "remote");
            let report = &sample["report"];
            assert!(report["requests"].as_u64().unwrap() >= 4, "{report}");
            assert!(report["remote_bytes"].as_u64() >= sample["bytes"].as_u64());
            assert_eq!(report["retries"], 0);
        }
    }
    let header = "remote_bytes,requests,retries";
    assert!(
        fs::read_to_string(csv)
            .unwrap()
            .lines()
            .next()
            .unwrap()
            .contains(header)
    );
    let markdown = fs::read_to_string(markdown).unwrap();
    assert!(markdown.contains("| stream | remote |"), "{markdown}");
    assert!(markdown.contains(" requests, 0 retried, "), "{markdown}");
}

#[test]
fn prefix_is_copied_recursively_and_once() {
    let lab = Lab::start();
    let model = lab.checkpoint();
    let target = lab.path("copy");
    let arguments = ["cp", "s3://bucket/model", target.to_str().unwrap()];
    let report = lab.json(&arguments);
    assert_eq!(tree(&target), tree(&model));
    assert_eq!(report["copied_files"], tree(&model).len());

    lab.server.forget_requests();
    let report = lab.json(&arguments);
    assert_eq!(report["skipped_files"], tree(&model).len());
    assert_eq!(lab.ranges(), []);

    let digest = |location: &Path| {
        succeed(["load", location.to_str().unwrap(), "--digest"])
            .lines()
            .find(|line| line.starts_with("digest"))
            .unwrap()
            .to_owned()
    };
    assert_eq!(digest(&target), digest(&model));
}

#[test]
fn keys_outside_target_directory_are_rejected() {
    let lab = Lab::start();
    for key in ["../out.json", "a/../../out.json", "/out.json"] {
        lab.server.put(&format!("bucket/evil/{key}"), "x");
    }
    let target = lab.path("deep/copy");
    let output = lab.run(&["cp", "s3://bucket/evil", target.to_str().unwrap()]);
    assert!(!output.status.success(), "{}", stderr(&output));
    let below: Vec<String> = names(lab.folder.path());
    assert_eq!(below, Vec::<String>::new());
}

/// Makes a copy that fails at `MIB * 4` or a little later.
fn interrupted(lab: &Lab, target: &Path) -> String {
    lab.server.put("bucket/a.safetensors", bytes(1));
    lab.server
        .fault(Rule::once(Fault::CutBody(1000)).from_byte(4 * MIB));
    let output = lab.run(&cp(target, &["--store", "retries=0"]));
    let text = status(&output, 9);
    assert!(
        text.contains("are kept: run") && text.contains("request: GET"),
        "{text}"
    );
    assert_eq!(
        names(target),
        [
            ".a.safetensors.tload-partial",
            ".a.safetensors.tload-partial.json"
        ]
    );
    lab.server.forget_requests();
    text
}

#[test]
fn resumed_copy_skips_received_ranges() {
    let lab = Lab::start();
    let target = lab.path("copy");
    interrupted(&lab, &target);
    let report = lab.json(&cp(&target, &[]));
    assert!(
        report["resumed_bytes"].as_u64().unwrap() >= 4 * MIB,
        "{report}"
    );
    assert!(fs::read(target.join("a.safetensors")).unwrap() == bytes(1));
    assert_eq!(names(&target), ["a.safetensors"]);
    let ranges = lab.ranges();
    // One request checks whether the object has changed.
    assert_eq!(ranges[0].start, 0);
    assert!(ranges[0].end <= 64 << 10, "{ranges:?}");
    assert_eq!(ranges.len(), 1 + 4, "{ranges:?}");
    assert!((4 * MIB..5 * MIB).contains(&ranges[1].start), "{ranges:?}");
    assert!(
        ranges[1..]
            .windows(2)
            .all(|pair| pair[0].end == pair[1].start),
        "{ranges:?}"
    );
}

#[test]
fn replaced_object_restarts_copy() {
    let lab = Lab::start();
    let target = lab.path("copy");
    interrupted(&lab, &target);
    lab.server.put("bucket/a.safetensors", bytes(2));
    let report = lab.json(&cp(&target, &[]));
    assert_eq!(report["resumed_bytes"], 0);
    assert_eq!(report["copied_bytes"], 8 * MIB);
    assert!(fs::read(target.join("a.safetensors")).unwrap() == bytes(2));
}

#[test]
fn object_replaced_during_copy_is_never_mixed() {
    let lab = Lab::start();
    let target = lab.path("copy");
    lab.server.put("bucket/a.safetensors", bytes(1));
    lab.server
        .fault(Rule::once(Fault::ChangeBefore(bytes(2))).from_byte(4 * MIB));
    let text = status(&lab.run(&cp(&target, &[])), 1);
    assert!(text.contains("changed while it was read"), "{text}");
    assert!(!target.join("a.safetensors").exists());
    lab.json(&cp(&target, &[]));
    assert!(fs::read(target.join("a.safetensors")).unwrap() == bytes(2));
}

#[test]
fn interrupted_copy_keeps_partial_files_and_reports_them() {
    let lab = Lab::start();
    let target = lab.path("copy");
    lab.server.put("bucket/a.safetensors", bytes(1));
    lab.server
        .fault(Rule::once(Fault::StallBody(1000)).from_byte(4 * MIB));
    let mut command = lab.command(&cp(&target, &[]));
    let child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // The open, four ranges, and the one that stalls.
    assert!(
        lab.server
            .wait_until(PATIENCE, |counts| counts.requests >= 6
                && counts.in_flight == 1)
    );
    let killed = Command::new("kill")
        .args(["-TERM", &child.id().to_string()])
        .status();
    assert!(killed.unwrap().success());
    let text = status(&child.wait_with_output().unwrap(), 143);
    assert!(
        text.contains("are kept: run") && text.contains("cancelled"),
        "{text}"
    );
    lab.server.clear_faults();
    let report = lab.json(&cp(&target, &[]));
    assert!(
        report["resumed_bytes"].as_u64().unwrap() >= 4 * MIB,
        "{report}"
    );
    assert!(fs::read(target.join("a.safetensors")).unwrap() == bytes(1));
}

/// Waits for the child, which would end by itself only minutes later.
#[track_caller]
pub(crate) fn ends_soon(mut child: Child) -> Output {
    let deadline = Instant::now() + PATIENCE;
    while child.try_wait().unwrap().is_none() {
        let late = Instant::now() > deadline;
        if late {
            child.kill().unwrap();
        }
        assert!(!late, "it did not end");
        tload_testbed::pause_between_looks();
    }
    child.wait_with_output().unwrap()
}

#[test]
fn late_copy_tells_that_it_can_be_resumed() {
    let lab = Lab::start();
    lab.server.put("bucket/a.safetensors", bytes(1));
    lab.server
        .fault(Rule::always(Fault::StallBody(1000)).from_byte(4 * MIB));
    // One of them lets the copy get as far as that on a busy machine, too.
    let late = ["500ms", "4s", "32s"].iter().any(|timeout| {
        let output = lab.run(&cp(&lab.path("copy"), &["--timeout", timeout, "--json"]));
        let text = status(&output, 8);
        assert!(!text.contains("note: "), "{text}");
        let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
        let hint = answer["error"]["hint"].as_str().unwrap();
        hint.starts_with("copy again to resume, as 4.0 MiB are kept in ")
    });
    assert!(late);
}

#[test]
fn interrupt_ends_lists_and_opens() {
    for (is_bucket, stalled) in [
        (true, Operation::List),
        (true, Operation::Get),
        (false, Operation::Get),
    ] {
        // A server for each: a late request of the command before would count as in flight, and
        // the next one would be killed before it handles signals.
        let lab = Lab::start();
        lab.checkpoint();
        let web = format!("{}/bucket/model", lab.server.url());
        let location = if is_bucket { "s3://bucket/model" } else { &web };
        lab.server
            .fault(Rule::always(Fault::StallHeaders).on(stalled));
        let target = lab.path("copy");
        // More workers than files: some wait for files that others open.
        let arguments = [
            "cp",
            location,
            target.to_str().unwrap(),
            "--store",
            "read_timeout=600",
        ];
        let child = lab
            .command(&arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        assert!(lab.server.wait_for_in_flight(1, PATIENCE));
        let killed = Command::new("kill")
            .args(["-TERM", &child.id().to_string()])
            .status();
        assert!(killed.unwrap().success());
        let text = status(&ends_soon(child), 143);
        assert!(text.contains("cancelled"), "{text}");
        lab.server.clear_faults();
        assert!(lab.server.wait_for_idle(PATIENCE));
    }
}

#[test]
fn full_disk_is_reported_as_such() {
    let lab = Lab::start();
    let target = lab.path("copy");
    lab.server.put("bucket/a.safetensors", bytes(1));
    // One request hangs while another reaches the end of the disk: here the maximum length of a
    // file, 4 MiB.
    lab.server
        .fault(Rule::once(Fault::StallBody(1000)).from_byte(MIB));
    let copy = lab.command(&[
        "cp",
        "s3://bucket/a.safetensors",
        target.to_str().unwrap(),
        "--extent",
        "1MiB",
    ]);
    let output = Command::new("sh")
        .args(["-c", "trap '' XFSZ; ulimit -f 8192; exec \"$@\"", "sh"])
        .arg(copy.get_program())
        .args(copy.get_args())
        .output()
        .unwrap();
    let text = status(&output, 6);
    assert!(text.contains("the disk is full"), "{text}");
}

#[test]
fn hidden_directories_are_skipped_and_deep_nesting_is_rejected() {
    let lab = Lab::start();
    lab.server.put("bucket/m/a.json", "a");
    lab.server.put("bucket/m/.cache/b.json", "b");
    let target = lab.path("copy");
    let arguments = ["cp", "s3://bucket/m", target.to_str().unwrap()];
    let lists = || {
        let requests = lab.server.requests().into_iter();
        requests
            .filter(|request| request.operation == Operation::List)
            .count()
    };
    lab.json(&arguments);
    assert_eq!((names(&target), lists()), (vec!["a.json".to_owned()], 1));
    lab.server.forget_requests();
    lab.json(&[&arguments[..], &["--hidden"]].concat());
    assert_eq!(names(&target), [".cache/b.json", "a.json"]);
    assert_eq!(lists(), 2);

    let deep = format!("bucket/m/{}", ["d"; 65].join("/"));
    lab.server.put(&deep, "deep");
    let text = status(&lab.run(&arguments), 2);
    assert!(text.contains("more than 64 deep"), "{text}");
}

#[test]
fn copy_despite_faults_is_identical() {
    let lab = Lab::start();
    let target = lab.path("copy");
    lab.server.put("bucket/a.safetensors", bytes(3));
    for (fault, from) in [
        (Fault::CutBody(5000), MIB),
        (Fault::ResetBody(100_000), 2 * MIB),
        (Fault::status(500, "InternalError"), 3 * MIB),
        (Fault::ShortBody(7), 5 * MIB),
    ] {
        lab.server.fault(Rule::once(fault).from_byte(from));
    }
    let report = lab.json(&cp(&target, &[]));
    assert_eq!(report["retries"], 4);
    assert!(fs::read(target.join("a.safetensors")).unwrap() == bytes(3));
}

#[test]
fn web_directory_is_copied_by_its_index() {
    let lab = Lab::start();
    let model = lab.checkpoint();
    let target = lab.path("copy");
    let url = format!("{}/bucket/model", lab.server.url());
    let copy = |location: &str, target: &Path| {
        succeed(["cp", location, target.to_str().unwrap(), "--depth", "4"]);
    };
    copy(&url, &target);
    let mut wanted = tree(&model);
    wanted.remove("deep/tokenizer.model");
    wanted.remove("empty.txt");
    assert_eq!(tree(&target), wanted);
    // The files that tload itself looks for beside the weights.
    for name in ["tload-manifest.json", "model.sig"] {
        lab.server.put(&format!("bucket/model/{name}"), "{}");
        let _ = wanted.insert(name.to_owned(), b"{}".to_vec());
    }
    copy(&url, &target);
    assert_eq!(tree(&target), wanted);
    let single = lab.path("single");
    copy(&format!("{url}/deep/tokenizer.model"), &single);
    assert_eq!(fs::read(single.join("tokenizer.model")).unwrap(), b"tokens");
}

#[test]
fn companion_files_are_skipped_only_if_missing() {
    let lab = Lab::start();
    lab.server.put(
        "bucket/m/model.safetensors",
        tree(&lab.checkpoint()).into_values().next().unwrap(),
    );
    lab.server.put("bucket/m/tokenizer.json", "{}");
    let denied = |path: &str| {
        Rule::always(Fault::status(403, "AccessDenied"))
            .on(Operation::Get)
            .path(path)
    };
    let target = lab.path("copy");
    let url = format!("{}/bucket/m", lab.server.url());
    let run = |more: &[&str]| {
        let arguments = ["cp", &url, target.to_str().unwrap()];
        lab.run(&[&arguments[..], more].concat())
    };
    lab.server.fault(denied("model.safetensors.index.json"));
    lab.server.fault(denied("tokenizer.json"));
    let text = status(&run(&[]), 5);
    assert!(
        text.contains("leave tokenizer.json out with an exclude"),
        "{text}"
    );
    status(&run(&["--exclude", "tokenizer.json"]), 0);
    assert_eq!(names(&target), ["model.safetensors"]);
    lab.server.clear_faults();
    status(&run(&[]), 0);
    assert_eq!(names(&target), ["model.safetensors", "tokenizer.json"]);
}

#[test]
fn interrupted_copy_files_hold_no_secret() {
    let lab = Lab::start();
    let target = lab.path("copy");
    lab.server.put("bucket/a.safetensors", bytes(1));
    lab.server
        .fault(Rule::once(Fault::CutBody(1000)).from_byte(4 * MIB));
    let address = lab
        .server
        .url()
        .replace("http://", &format!("http://me:{SECRET}@"));
    let url = format!("{address}/bucket/a.safetensors?sig={SECRET}");
    let header = format!("header.x-key={SECRET}");
    let mut arguments = cp(&target, &["--store", "retries=0", "--store", &header]);
    arguments[1] = &url;
    status(&lab.run(&arguments), 9);
    let files = tree(&target);
    assert!(
        files
            .keys()
            .any(|name| name.ends_with(".tload-partial.json"))
    );
    for (name, bytes) in files {
        let found = String::from_utf8_lossy(&bytes).find(SECRET);
        assert_eq!(found, None, "{name} has a secret");
    }
}

#[test]
fn outputs_hold_no_secret() {
    let lab = Lab::start();
    lab.checkpoint();
    lab.server
        .fault(Rule::always(Fault::status(403, "AccessDenied")));
    let (target, json) = (lab.path("copy"), lab.path("out.json"));
    let (target, json) = (target.to_str().unwrap(), json.to_str().unwrap());
    let endpoint = format!("endpoint={}", lab.server.url());
    let web = format!("{}/bucket/x.safetensors?sig={SECRET}", lab.server.url());
    let web = web.replace("http://", &format!("http://me:{SECRET}@"));
    for location in ["s3://bucket/model", &web] {
        for head in [
            &["ls", location][..],
            &["load", location],
            &["bench", location, "--json", json],
            &["doctor", location],
            &["cp", location, target],
        ] {
            let mut arguments = head.to_vec();
            for option in [
                &endpoint,
                "access_key_id=hush-hush-id",
                "secret_access_key=hush-hush",
                "session_token=hush-hush",
                "header.x-key=hush-hush",
            ] {
                arguments.extend(["--store", option]);
            }
            let output = command(&arguments).output().unwrap();
            let text = stderr(&output);
            assert_eq!(output.status.code(), Some(5), "{text}");
            let shown = String::from_utf8_lossy(&output.stdout).into_owned() + &text;
            assert!(!shown.contains(SECRET), "{shown}");
        }
    }
    assert!(!fs::read_to_string(json).unwrap().contains(SECRET));
}

#[test]
fn real_server_verifies_signatures() {
    let Some(server) = tload_testbed::require(tload_testbed::Versitygw::start()) else {
        return;
    };
    let lab = Lab::start();
    let (model, target) = (lab.checkpoint(), lab.path("copy"));
    for (name, bytes) in tree(&model) {
        server.put("weights", &format!("m/{name}"), &bytes).unwrap();
    }
    let options = [
        format!("endpoint={}", server.endpoint()),
        format!("region={}", server.region()),
        format!("access_key_id={}", server.access_key()),
        format!("secret_access_key={}", server.secret_key()),
        "environment=false".to_owned(),
    ];
    let run = |arguments: &[&str]| {
        let mut command = command(arguments);
        for option in &options {
            command.args(["--store", option]);
        }
        let output = command.output().unwrap();
        let text = status(&output, 0) + &String::from_utf8_lossy(&output.stdout);
        assert!(!text.contains(server.secret_key()), "{text}");
    };
    let json = lab.path("out.json");
    run(&["ls", "s3://weights/m"]);
    run(&["load", "s3://weights/m"]);
    run(&["doctor", "s3://weights/m"]);
    run(&[
        "bench",
        "s3://weights/m",
        "--rounds",
        "1",
        "--json",
        json.to_str().unwrap(),
    ]);
    assert!(
        !fs::read_to_string(json)
            .unwrap()
            .contains(server.secret_key())
    );
    run(&[
        "cp",
        "s3://weights/m",
        target.to_str().unwrap(),
        "--extent",
        "1MiB",
    ]);
    assert_eq!(tree(&target), tree(&model));
}
