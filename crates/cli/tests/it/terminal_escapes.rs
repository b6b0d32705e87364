//! Hostile checkpoints in every command: names cannot send control sequences to a terminal, and
//! cannot hide or reverse text.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::run;

/// Escapes, a new line, a bell, DEL, C1, bidirectional overrides, invisible characters, and
/// characters that end a field of a table.
const ODD: &str =
    "a\u{1b}[2J\u{1b}]0;title\u{7}\n\r\u{7f}\u{9b}31m\u{202e}b\u{200b}\u{2066}|`\"\\<b>é";

fn header(value: &Value, tensor_bytes: usize) -> Vec<u8> {
    let text = value.to_string();
    let mut file = (text.len() as u64).to_le_bytes().to_vec();
    file.extend_from_slice(text.as_bytes());
    file.resize(file.len() + tensor_bytes, 7);
    file
}

fn tensor(begin: usize, end: usize) -> Value {
    json!({"dtype": "U8", "shape": [end - begin], "data_offsets": [begin, end]})
}

/// Returns a directory with an odd name in which everything has an odd name.
fn model(folder: &TempDir) -> PathBuf {
    let model = folder.path().join(format!("m{ODD}").replace('/', ""));
    fs::create_dir(&model).unwrap();
    let shard = format!("{ODD}.safetensors").replace(['\\', '/'], "");
    let value = json!({ODD: tensor(0, 4), "__metadata__": {ODD: ODD}});
    fs::write(model.join(&shard), header(&value, 4)).unwrap();
    let index = json!({"weight_map": {ODD: shard}});
    fs::write(
        model.join("model.safetensors.index.json"),
        index.to_string(),
    )
    .unwrap();
    model
}

/// Returns files that cannot be loaded, so that errors quote their contents.
fn broken(folder: &TempDir) -> Vec<PathBuf> {
    let mut paths = Vec::new();
    let mut add = |name: &str, bytes: Vec<u8>| {
        let path = folder
            .path()
            .join(format!("{name}{ODD}").replace(['/', '\\'], ""));
        fs::create_dir(&path).unwrap();
        let path = path.join(if name == "index" {
            "model.safetensors.index.json"
        } else {
            "model.safetensors"
        });
        fs::write(&path, bytes).unwrap();
        paths.push(path);
    };
    add("short", b"{".to_vec());
    add("entry", header(&json!({ODD: ODD}), 0));
    add("dtype", header(&json!({ODD: {"dtype": ODD}}), 0));
    add(
        "field",
        header(
            &json!({ODD: {"dtype": "U8", "shape": ODD, "data_offsets": [0, 4]}}),
            4,
        ),
    );
    add("metadata", header(&json!({"__metadata__": {ODD: 1}}), 0));
    add("cut", header(&json!({ODD: tensor(0, 4)}), 3));
    add(
        "overlap",
        header(
            &json!({ODD: tensor(0, 4), format!("{ODD}2"): tensor(2, 6)}),
            6,
        ),
    );
    add(
        "index",
        json!({"weight_map": {ODD: format!("{ODD}.safetensors").replace('\\', "")}})
            .to_string()
            .into_bytes(),
    );
    let parent = paths[0].parent().unwrap().to_owned();
    paths.push(parent.join("not-there\u{1b}[31m"));
    paths.push(parent.join(OsStr::from_bytes(b"not-utf-8\xff\x1b\x9b.safetensors")));
    // Leads out of its directory.
    let links = folder.path().join("links\u{1b}");
    fs::create_dir(&links).unwrap();
    std::os::unix::fs::symlink(&paths[0], links.join("x\u{202e}.safetensors")).unwrap();
    paths.push(links);
    paths
}

#[track_caller]
fn assert_seen(what: &str, bytes: &[u8]) {
    let text = std::str::from_utf8(bytes);
    assert!(text.is_ok(), "{what}: not UTF-8");
    let text = text.unwrap();
    let obeyed = text.chars().find(|&c| is_obeyed(c));
    assert_eq!(obeyed, None, "{what}: {text:?}");
}

/// Repeated here, because a test that used tload's own list would not find its errors.
fn is_obeyed(character: char) -> bool {
    let code = u32::from(character);
    let is_control = code < 0x20 && character != '\n' || (0x7F..0xA0).contains(&code);
    let turns = (0x202A..=0x202E).contains(&code) || (0x2066..=0x2069).contains(&code);
    let is_unseen = (0x200B..=0x200F).contains(&code) || code == 0xFEFF;
    is_control || turns || is_unseen
}

fn check(arguments: &[&OsStr], succeeds: bool) -> Vec<u8> {
    let output = run(arguments);
    let what = format!("{arguments:?}");
    assert_seen(&format!("{what}, standard output"), &output.stdout);
    assert_seen(&format!("{what}, standard error"), &output.stderr);
    // `doctor` tells a failure in a finding.
    let text = [&*output.stdout, &*output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    assert_eq!(output.status.success(), succeeds, "{what}: {text}");
    let failures = ["error: ", "\nerror: ", "\nfail  "];
    assert!(
        succeeds || failures.iter().any(|failure| text.contains(failure)),
        "{what}: {text}"
    );
    output.stdout
}

#[test]
fn hostile_names_are_escaped_in_every_command() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let model = model(&folder);
    let os = OsStr::new;
    let exports: Vec<(&str, OsString)> = ["json", "csv", "markdown", "plot"]
        .map(|kind| {
            let extension = if kind == "plot" { "svg" } else { kind };
            let name = format!("out\u{1b}.{extension}");
            (kind, folder.path().join(name).into_os_string())
        })
        .to_vec();
    let flags: Vec<String> = exports
        .iter()
        .map(|(kind, _)| format!("--{kind}"))
        .collect();
    let mut bench = vec![os("bench"), model.as_os_str()];
    bench.extend(["--rounds", "1", "--no-fio", "--cache-state", "warm"].map(os));
    for (flag, (_, path)) in flags.iter().zip(&exports) {
        bench.extend([os(flag), path]);
    }
    let (copy, second) = (
        folder.path().join(ODD.replace('/', "")),
        folder.path().join("b\u{1b}"),
    );
    let listed = check(&[os("ls"), model.as_os_str(), os("--json")], true);
    check(&[os("ls"), model.as_os_str()], true);
    check(&[os("load"), model.as_os_str()], true);
    check(
        &[os("load"), model.as_os_str(), os("--json"), os("--digest")],
        true,
    );
    check(&[os("doctor"), model.as_os_str()], true);
    check(&[os("doctor"), model.as_os_str(), os("--json")], true);
    check(&[os("cp"), model.as_os_str(), copy.as_os_str()], true);
    check(
        &[
            os("cp"),
            model.as_os_str(),
            second.as_os_str(),
            os("--json"),
        ],
        true,
    );
    check(&bench, true);
    for (kind, path) in &exports {
        let written = fs::read(path).unwrap();
        assert!(!written.is_empty());
        assert_seen(kind, &written);
    }
    // Programs get the names unchanged.
    let listed: Value = serde_json::from_slice(&listed).unwrap();
    assert_eq!(listed["tensors"][0]["name"], ODD);
    assert_eq!(listed["metadata"][ODD], ODD);
    // Selections without a match.
    for flag in ["--name", "--glob", "--regex"] {
        let odd = if flag == "--regex" {
            "x\u{1b}\u{202e}"
        } else {
            "x\u{1b}\u{202e}[a]"
        };
        check(&[os("load"), model.as_os_str(), os(flag), os(odd)], false);
    }
}

#[test]
fn hostile_file_contents_are_escaped_in_errors() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    for path in broken(&folder) {
        for command in ["ls", "load", "bench", "doctor"] {
            check(&[OsStr::new(command), path.as_os_str()], false);
        }
    }
    let cp = |source: &Path, target: &Path| {
        check(
            &[OsStr::new("cp"), source.as_os_str(), target.as_os_str()],
            false,
        );
    };
    let file = folder.path().join("file\u{1b}\u{9b}");
    fs::write(&file, "x").unwrap();
    cp(&folder.path().join("none\u{1b}"), &folder.path().join("t"));
    cp(&file, &file.join("below\u{202e}"));
    check(&[OsStr::new("synth"), file.as_os_str()], false);
    check(
        &[OsStr::new("ls"), OsStr::new("s3:/\u{1b}[31m/\u{202e}")],
        false,
    );
    check(&[OsStr::new("ls"), OsStr::new("\u{1b}\u{202e}://x")], false);
}
