//! `diff` and `apply`: patches between local and remote checkpoints, their faults, and what a
//! failure leaves behind.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;
use tload_testbed::{Fault, Operation, Rule};

use crate::cp::{names, tree};
use crate::interrupt::signal;
use crate::remote::{Lab, PATIENCE, ends_soon};
use crate::requirement::of_machine;
use crate::{command, json as answer, run, stderr, succeed};

/// Two versions of a sharded model, which differ in every hundredth element of each tensor, and
/// the patch between them.
struct Versions {
    folder: TempDir,
    made: Value,
}

impl Versions {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let base = path("base");
        succeed([
            "synth",
            base.to_str().unwrap(),
            "--size",
            "24MiB",
            "--shards",
            "4",
        ]);
        fs::create_dir(path("new")).unwrap();
        for (name, mut bytes) in tree(&base) {
            if name.ends_with(".safetensors") {
                let header = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap());
                let tensors = usize::try_from(header).unwrap();
                for byte in bytes[tensors..].iter_mut().step_by(200) {
                    *byte ^= 1;
                }
            }
            fs::write(path("new").join(name), bytes).unwrap();
        }
        let [base, new, made] = ["base", "new", "patch.safetensors"].map(path);
        let mut diff = vec!["diff".into(), base, new, made];
        diff.push("--json".into());
        let made = answer(&diff);
        Self { folder, made }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    /// Returns the arguments of `apply`.
    fn apply(&self) -> [String; 4] {
        let [base, patch, out] = ["base", "patch.safetensors", "out"].map(|name| self.text(name));
        ["apply".to_owned(), base, patch, out]
    }

    /// Asserts that a failed `apply` ended with this status and left nothing.
    #[track_caller]
    fn left_nothing(&self, output: &Output, status: i32, wanted: &str) {
        let text = stderr(output);
        assert_eq!(output.status.code(), Some(status), "{text}");
        assert!(text.contains(wanted), "{wanted:?} is not in:\n{text}");
        let names = names(self.folder.path()).join("\n");
        assert!(
            !names.contains("out/") && !names.contains("tload-tmp"),
            "{names}"
        );
    }
}

/// Returns the weights and the index of a folder.
fn weights(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let files = tree(folder).into_iter();
    files
        .filter(|(name, _)| name.contains("safetensors"))
        .collect()
}

#[test]
fn patch_leads_from_base_to_new() {
    let versions = Versions::new();
    let made = &versions.made;
    assert_eq!((&made["whole"], &made["removed"]), (&json!(0), &json!(0)));
    let (patch, all) = (
        made["patch_bytes"].as_u64().unwrap(),
        made["total_bytes"].as_u64(),
    );
    // One in a hundred elements of two bytes, with its position of four.
    assert!((patch * 30..=patch * 35).contains(&all.unwrap()), "{made}");
    let applied = answer([&versions.apply()[..], &["--json".to_owned()]].concat());
    assert_eq!(&applied, made);
    assert!(weights(&versions.path("out")) == weights(&versions.path("new")));
    // A patch back, and its summary for people; a second patch to the same file.
    let back = [
        "diff",
        &versions.text("out"),
        &versions.text("base"),
        &versions.text("back"),
    ];
    let text = succeed(back);
    assert!(text.contains(" of them, 0 replaced, 0 removed; "), "{text}");
    let again = run(back);
    assert_eq!(again.status.code(), Some(2), "{}", stderr(&again));
    let quiet = [
        "apply",
        &versions.text("out"),
        &versions.text("back"),
        &versions.text("third"),
    ];
    assert_eq!(succeed([&quiet[..], &["--quiet"]].concat()), "");
    assert!(weights(&versions.path("third")) == weights(&versions.path("base")));
}

#[test]
fn wrong_bases_patches_and_targets_leave_nothing() {
    let versions = Versions::new();
    let [apply, base, patch, out] = versions.apply();
    let applied = |base: &str, patch: &str| run([&apply[..], base, patch, &out]);
    versions.left_nothing(
        &applied(&versions.text("new"), &patch),
        11,
        "after the patch already",
    );
    versions.left_nothing(&applied(&base, &base), 4, "is no patch");
    versions.left_nothing(&applied(&base, &versions.text("none")), 3, "none");
    let bytes = fs::read(&patch).unwrap();
    let damaged = versions.text("damaged.safetensors");
    fs::write(&damaged, &bytes[..bytes.len() - 1]).unwrap();
    versions.left_nothing(&applied(&base, &damaged), 4, "damaged.safetensors");
    // A byte of the values, which follow the indices and precede the headers.
    let at = bytes.len() - usize::try_from(versions.made["elements"].as_u64().unwrap()).unwrap();
    let mut flipped = bytes.clone();
    flipped[at] ^= 1;
    fs::write(&damaged, &flipped).unwrap();
    let output = applied(&base, &damaged);
    versions.left_nothing(&output, 11, "its values are damaged");
    let version = bytes
        .windows(13)
        .position(|it| it == b"\"version\":\"1\"")
        .unwrap();
    let mut later = bytes;
    later[version + 11] = b'2';
    fs::write(&damaged, &later).unwrap();
    versions.left_nothing(&applied(&base, &damaged), 7, "version \"2\", wanted \"1\"");
    let url = run([&apply[..], &base, &patch, "s3://bucket/out"]);
    versions.left_nothing(&url, 7, "only local files");
    fs::create_dir(&out).unwrap();
    let exists = applied(&base, &patch);
    assert_eq!(exists.status.code(), Some(2), "{}", stderr(&exists));
    assert!(stderr(&exists).contains("exists already"));
    assert!(fs::read_dir(&out).unwrap().next().is_none());
}

#[test]
fn limit_of_files_leaves_nothing() {
    let versions = Versions::new();
    let script = "trap '' XFSZ; ulimit -f $1; shift; exec \"$@\"";
    let limited = |arguments: &[String], half_kibibytes: &str| {
        let command = command(arguments);
        let mut shell = Command::new("sh");
        shell
            .args(["-c", script, "sh", half_kibibytes])
            .arg(command.get_program());
        shell
            .args(command.get_args())
            .env("TLOAD_CONFIG", "")
            .output()
            .unwrap()
    };
    versions.left_nothing(&limited(&versions.apply(), "4096"), 1, "ulimit -f");
    let [base, new, out] = ["base", "new", "out"].map(|name| versions.text(name));
    let diff = ["diff".to_owned(), base, new, out];
    versions.left_nothing(&limited(&diff, "512"), 1, "ulimit -f");
}

#[cfg(target_os = "linux")]
#[test]
fn full_disk_leaves_nothing() {
    use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

    let versions = Versions::new();
    let disk = versions.path("disk");
    fs::create_dir(&disk).unwrap();
    let mounted = mount("tmpfs", &disk, "tmpfs", MountFlags::empty(), c"size=8M");
    let mounted = mounted.map_err(|errno| format!("cannot mount a tmpfs: {errno}"));
    if of_machine("mount", mounted).is_none() {
        return;
    }
    let [base, patch, out] = ["base", "patch.safetensors", "disk/out"].map(|it| versions.text(it));
    let output = run(["apply", &base, &patch, &out]);
    let left = names(&disk);
    unmount(&disk, UnmountFlags::DETACH).unwrap();
    versions.left_nothing(&output, 6, "free some space");
    assert!(left.is_empty(), "{left:?}");
}

/// Puts both versions and the patch into the store.
fn stored(lab: &Lab, versions: &Versions) {
    for (name, bytes) in tree(versions.folder.path()) {
        lab.server.put(&format!("bucket/{name}"), bytes);
    }
}

#[test]
fn checkpoints_and_patches_of_stores() {
    let lab = Lab::start();
    let versions = Versions::new();
    stored(&lab, &versions);
    let [patch, out] = ["again.safetensors", "out"].map(|name| versions.text(name));
    let made = lab.json(&["diff", "s3://bucket/base", "s3://bucket/new", &patch]);
    assert_eq!(made, versions.made);
    assert!(fs::read(&patch).unwrap() == fs::read(versions.path("patch.safetensors")).unwrap());
    let applied = lab.json(&[
        "apply",
        "s3://bucket/base",
        "s3://bucket/patch.safetensors",
        &out,
    ]);
    assert_eq!(applied, versions.made);
    assert!(weights(&versions.path("out")) == weights(&versions.path("new")));
}

#[test]
fn interrupted_and_late_calls_leave_nothing() {
    let lab = Lab::start();
    let versions = Versions::new();
    stored(&lab, &versions);
    let out = versions.text("out");
    let shard = names(&versions.path("base"))
        .into_iter()
        .find(|it| it.contains("00003"))
        .unwrap();
    let apply = [
        "apply",
        "s3://bucket/base",
        "s3://bucket/patch.safetensors",
        &out,
    ];
    let diff = ["diff", "s3://bucket/base", "s3://bucket/new", &out];
    for (arguments, stuck, is_late) in [
        (apply, format!("base/{shard}"), false),
        (apply, "patch.safetensors".to_owned(), false),
        (apply, format!("base/{shard}"), true),
        (diff, format!("new/{shard}"), false),
    ] {
        // Headers are read from byte 0.
        let never = Rule::always(Fault::StallBody(1000)).on(Operation::Get);
        lab.server.fault(never.path(&stuck).from_byte(1));
        let before = lab.server.counts().faulted;
        let mut all = [&arguments[..], &["--store", "read_timeout=3600"]].concat();
        if is_late {
            all.extend(["--timeout", "2s"]);
        }
        let child = lab
            .command(&all)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        let child = child.unwrap();
        if is_late {
            versions.left_nothing(&ends_soon(child), 8, "took longer than its timeout of 2s");
        } else {
            let has_come = lab
                .server
                .wait_until(PATIENCE, |counts| counts.faulted > before);
            assert!(has_come, "{:?}", lab.server.counts());
            assert!(signal(&child, "TERM"), "it had ended");
            versions.left_nothing(&ends_soon(child), 143, "");
        }
        lab.server.clear_faults();
        assert!(lab.server.wait_for_idle(PATIENCE));
    }
}
