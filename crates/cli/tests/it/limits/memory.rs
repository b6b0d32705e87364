//! Little memory in a control group, and little address space.

use std::fs;
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use rustix::process::Resource;
use tempfile::TempDir;

use super::under::Under;
use super::{Model, assert_refused, digest_of, open_folder, shown};
use crate::requirement::of_machine;

const MIB: u64 = 1 << 20;
const LIMIT: u64 = 256 * MIB;

/// Control group with a memory limit, below the group of this process.
struct Group {
    folder: PathBuf,
}

impl Group {
    /// Creates the group; if it cannot, prints that the test is skipped and returns `None`.
    fn with_limit(name: &str, bytes: u64) -> Option<Self> {
        let found = Self::make(name, bytes);
        of_machine("cgroup", found)
    }

    fn make(name: &str, bytes: u64) -> Result<Self, String> {
        let groups = fs::read_to_string("/proc/self/cgroup").map_err(|error| error.to_string())?;
        let of_line = |line: &str| {
            let mut fields = line.splitn(3, ':').skip(1);
            let (controllers, group) =
                (fields.next()?, fields.next()?.trim_matches('/').to_owned());
            let is_memory = controllers.split(',').any(|it| it == "memory");
            let (root, limit) = match controllers {
                "" => ("/sys/fs/cgroup", "memory.max"),
                _ if is_memory => ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
                _ => return None,
            };
            Some((Path::new(root).join(group), limit))
        };
        let mut reasons = Vec::new();
        for (above, limit) in groups.lines().filter_map(of_line) {
            let folder = above.join(format!("tload-{}-{name}", std::process::id()));
            if let Err(error) = fs::create_dir(&folder) {
                reasons.push(format!("{}: {error}", folder.display()));
                continue;
            }
            let group = Self { folder };
            // Not `create`: without the controller the file does not exist.
            let written = fs::OpenOptions::new()
                .write(true)
                .open(group.folder.join(limit))
                .and_then(|mut file| file.write_all(bytes.to_string().as_bytes()));
            match written {
                Ok(()) => return Ok(group),
                Err(error) => reasons.push(format!("{}/{limit}: {error}", group.folder.display())),
            }
        }
        Err(reasons.join("; "))
    }

    /// Runs `tload` in the group.
    fn run(&self, arguments: &[&str]) -> Output {
        let script = "echo $$ > \"$1/cgroup.procs\" && shift && exec \"$@\"";
        let mut command = Command::new("sh");
        command.args(["-c", script, "sh"]).arg(&self.folder);
        command.arg(env!("CARGO_BIN_EXE_tload")).args(arguments);
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("TLOAD_") {
                command.env_remove(name);
            }
        }
        command.output().unwrap()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // The command was waited for, so the group is empty.
        drop(fs::remove_dir(&self.folder));
    }
}

/// Writes a checkpoint of so many tensors of this size as a hole: zeros that take no disk space.
fn sparse(tensors: u64, bytes: u64) -> TempDir {
    let folder = open_folder();
    let model = folder.path().join("model");
    fs::create_dir(&model).unwrap();
    let entries: Vec<_> = (0..tensors)
        .map(|index| {
            let (begin, end) = (index * bytes, (index + 1) * bytes);
            format!(
                r#""t{index}":{{"dtype":"U8","shape":[{bytes}],"data_offsets":[{begin},{end}]}}"#
            )
        })
        .collect();
    let header = format!("{{{}}}", entries.join(","));
    let mut file = fs::File::create(model.join("model.safetensors")).unwrap();
    file.write_all(&(header.len() as u64).to_le_bytes())
        .unwrap();
    file.write_all(header.as_bytes()).unwrap();
    file.set_len(8 + header.len() as u64 + tensors * bytes)
        .unwrap();
    folder
}

#[track_caller]
fn assert_not_killed(what: &str, output: &Output) {
    assert_eq!(output.status.signal(), None, "{what}: {}", shown(output));
}

/// The digest is slow, so a load fills its budget, which would be twice the memory of the group if
/// the load ignored the limit.
#[test]
fn load_without_limit_fits_in_cgroup_of_256_mib() {
    let model = Model::of(sparse(40, 20 * MIB));
    let Some(group) = Group::with_limit("load", LIMIT) else {
        return;
    };
    for engine in ["auto", "pread"] {
        for cache in ["auto", "buffered"] {
            let load = [
                "load",
                &model.text(),
                "--digest",
                "--json",
                "--engine",
                engine,
                "--cache",
                cache,
            ];
            let output = group.run(&load);
            let what = format!("{engine}, {cache}");
            assert_not_killed(&what, &output);
            model.assert_loaded(&what, &output);
            let loaded: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
            let limit = loaded["report"]["memory_limit"].as_u64().unwrap();
            assert!((20 * MIB..=LIMIT / 2).contains(&limit), "{what}: {limit}");
        }
    }
    let bench = [
        "bench",
        &model.text(),
        "--rounds",
        "1",
        "--no-fio",
        "--mode",
        "stream",
    ];
    let output = group.run(&bench);
    assert_not_killed("bench", &output);
    assert!(output.status.success(), "{}", shown(&output));
}

#[test]
fn tensor_larger_than_cgroup_limit_is_rejected_before_oom_kill() {
    let folder = sparse(1, 300 * MIB);
    let model = folder.path().join("model");
    let Some(group) = Group::with_limit("refused", LIMIT) else {
        return;
    };
    let output = group.run(&["load", model.to_str().unwrap()]);
    assert_not_killed("load", &output);
    let said = [
        "tensor \"t0\"",
        "are needed at once; the cgroup has",
        "of 256.0 MiB left (/sys/fs/cgroup/",
        "give the container more memory",
    ];
    assert_refused("load", &output, 6, &said);
}

#[test]
fn doctor_reports_cgroup_limit_and_memory_left() {
    let folder = sparse(1, 300 * MIB);
    let model = folder.path().join("model");
    let Some(group) = Group::with_limit("doctor", LIMIT) else {
        return;
    };
    let output = group.run(&["doctor", model.to_str().unwrap(), "--json"]);
    assert!(output.status.success(), "{}", shown(&output));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["change_first"]["id"], "cgroup_memory", "{report}");
    let command = report["change_first"]["command"].as_str().unwrap();
    assert!(
        command.starts_with("docker run --memory 2g, or echo "),
        "{command}"
    );
}

/// A full address space causes neither a panic nor a signal.
#[test]
fn little_address_space_is_an_error_of_memory() {
    let folder = sparse(30, 20 * MIB);
    let model = folder.path().join("model");
    let text = model.to_str().unwrap();
    let mut refused = 0;
    for mebibytes in (120..300).step_by(20).chain([300, 400, 600, 900]) {
        let under = Under::new().limit(Resource::As, mebibytes * MIB);
        let output = under
            .command(["load", text, "--keep", "--digest"])
            .output()
            .unwrap();
        let what = format!("{mebibytes} MiB");
        assert_not_killed(&what, &output);
        if output.status.success() {
            assert!(
                digest_of(&String::from_utf8_lossy(&output.stdout)).is_some(),
                "{what}"
            );
        } else {
            assert_refused(&what, &output, 6, &["hint: "]);
            refused += 1;
        }
    }
    assert!(refused >= 2, "{refused} refused");
}

/// As above, with the threads for requests, each of which takes addresses for its stack and heap.
#[test]
fn little_address_space_is_an_error_of_memory_for_objects() {
    let lab = crate::remote::Lab::start();
    lab.checkpoint();
    let endpoint = format!("endpoint={}", lab.server.url());
    let mut load = vec!["load", "s3://bucket/model", "--digest"];
    for option in [&endpoint, "anonymous=true", "environment=false"] {
        load.extend(["--store", option]);
    }
    let (mut loaded, mut refused) = (0, 0);
    for mebibytes in (200..1000).step_by(25).chain([4000]) {
        let under = Under::new().limit(Resource::As, mebibytes * MIB);
        let output = under.command(&load).output().unwrap();
        let what = format!("{mebibytes} MiB");
        assert_not_killed(&what, &output);
        if output.status.success() {
            loaded += 1;
        } else {
            assert_refused(&what, &output, 6, &["hint: ", "ulimit -v"]);
            refused += 1;
        }
    }
    assert!(
        loaded >= 1 && refused >= 1,
        "{loaded} loaded, {refused} refused"
    );
}
