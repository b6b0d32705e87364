//! Each option that a command offers is used by it: a table says how that is seen.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Output;

use serde_json::Value;

use crate::remote::Lab;
use crate::{command, json, stderr, succeed};

/// Sign that a command uses an option.
#[derive(Clone, Copy)]
enum How {
    /// With this value, the command fails and says this.
    Fails(&'static str, &'static str),
    /// With these words, the command says this, which it does not say without.
    Says(&'static [&'static str], &'static str),
    /// The command writes this file or folder.
    Writes,
    /// The answer is JSON.
    Json,
    /// A checkpoint whose files are links that lead out of its folder is opened.
    Opens,
    /// An option of loads, of which benchmarks and pages record this key and value.
    Load(&'static str, &'static str),
    /// This test of this file shows it.
    Test(&'static str, &'static str),
}
use How::{Fails, Json, Load, Opens, Says, Test, Writes};

/// Options of every command: `display.rs` tests them.
const EVERYWHERE: [&str; 5] = ["help", "quiet", "verbose", "no-progress", "color"];

/// Words of a plain invocation of each command in a folder with the checkpoint `model`.
const COMMANDS: [(&str, &str); 18] = [
    ("ls", "ls model"),
    ("load", "load model"),
    ("synth", "synth made --size 1MiB"),
    ("bench", "bench model --rounds 1 --no-fio"),
    ("cp", "cp model copy"),
    ("verify", "verify model"),
    ("cache ls", "cache ls"),
    ("cache stat", "cache stat"),
    ("cache rm", "cache rm --all"),
    ("cache prune", "cache prune --unused-for 1h"),
    ("cache warm", "cache warm http://127.0.0.1:1/a.safetensors"),
    ("serve", "serve http://127.0.0.1:1 --listen nowhere"),
    ("exec", "exec --prefetch model -- true"),
    ("doctor", "doctor model"),
    ("rm", "rm model --incomplete"),
    ("convert", "convert model.tensors converted"),
    ("completions", "completions bash"),
    ("man", "man pages"),
];

/// An option, the commands that offer it, and how its use is seen there.
type Row = (&'static str, &'static [&'static str], How);

const OPENING: &[&str] = &["ls", "load", "bench", "verify", "doctor"];
const STORES: &[&str] = &[
    "ls",
    "load",
    "bench",
    "verify",
    "cp",
    "serve",
    "doctor",
    "cache warm",
];
const CACHES: &[&str] = &["cache ls", "cache stat", "cache rm", "cache prune"];
const LOADS: &[&str] = &["load", "bench", "cache warm"];
const WARM: &[&str] = &["cache warm"];

#[rustfmt::skip]
const ROWS: &[Row] = &[
    // Stores.
    ("store", STORES, Fails("nothing=1", "store option \"nothing\" is unknown")),
    ("store", &["rm", "convert", "synth"], Fails("nothing=1", "store option \"nothing\" is unknown")),
    ("target-store", &["cp"], Test("written.rs", "store_is_written_read_and_copied")),
    ("cache-dir", &["convert"], Test("convert.rs", "objects_are_converted_from_the_cache")),
    ("cache-limit", &["convert"], Fails("much", "cache_limit")),
    ("cache-check", &["convert"], Fails("seldom", "cache_check")),
    ("hf-cache", &["convert"], Fails("=seldom", "hf_cache")),
    ("store", &["exec"], Test("exec.rs", "load_finds_the_cache_filled")),
    ("cache-dir", &["ls", "load", "bench", "exec"], Test("exec.rs", "load_finds_the_cache_filled")),
    ("cache-dir", &["serve"], Test("serve/loads.rs", "objects_are_passed_on_and_served_from_the_cache")),
    ("cache-dir", &["cp", "verify"], Test("offered.rs", "copies_and_verifications_fill_the_cache")),
    ("cache-dir", &["cache stat", "cache rm", "cache prune"], Fails("/dev/null/a", "/dev/null/a")),
    ("cache-dir", &["cache ls"], Test("cache.rs", "warmed_checkpoint_is_listed_and_loads_offline")),
    ("cache-dir", WARM, Test("cache.rs", "warmed_checkpoint_is_listed_and_loads_offline")),
    ("cache-dir", &["doctor"], Says(&["somewhere"], "somewhere")),
    ("cache-limit", STORES, Fails("much", "cache_limit")),
    ("cache-check", STORES, Fails("seldom", "cache_check")),
    ("hf-cache", &["ls", "load", "bench", "verify"], Test("hub.rs", "load_fills_the_hubs_cache_when_asked")),
    ("hf-cache", &["cp"], Test("hub.rs", "copy_and_single_files_fill_the_hubs_cache")),
    ("hf-cache", &["doctor"], Fails("=seldom", "hf_cache")),
    // All of them are passed on in the same way.
    ("cache-limit", &["exec"], Test("exec.rs", "load_finds_the_cache_filled")),
    ("cache-check", &["exec"], Test("exec.rs", "load_finds_the_cache_filled")),
    ("hf-cache", &["exec"], Test("exec.rs", "load_finds_the_cache_filled")),
    ("follow-symlinks", OPENING, Opens),
    ("follow-symlinks", &["exec", "cache warm"], Test("verify.rs", "rejected_link_hint_names_flag")),
    ("key-file", OPENING, Fails("nothing", "a key was given, but the checkpoint is not sealed")),
    ("key-command", OPENING, Fails("nothing", "a key was given, but the checkpoint is not sealed")),
    ("key-file", WARM, Test("offered.rs", "warming_takes_a_key")),
    ("key-command", WARM, Test("offered.rs", "warming_takes_a_key")),
    ("key-file", &["exec"], Test("exec.rs", "load_finds_the_cache_filled")),
    ("key-command", &["exec"], Test("exec.rs", "load_finds_the_cache_filled")),
    // Tensors.
    ("name", &["ls", "load"], Fails("nothing", "no such tensor")),
    ("glob", &["ls", "load"], Fails("nothing*", "matches none")),
    ("regex", &["ls", "load"], Fails("nothing", "matches none")),
    ("name", WARM, Test("offered.rs", "warming_takes_a_selection")),
    ("glob", WARM, Test("offered.rs", "warming_takes_a_selection")),
    ("regex", WARM, Test("offered.rs", "warming_takes_a_selection")),
    // Endings, answers and files.
    ("timeout", &["ls", "cp", "verify"], Test("hung_mounts.rs", "deadline_ends_commands_waiting_for_mount")),
    ("timeout", &["load", "cache warm"], Load("timeout", "7.0")),
    ("timeout", &["doctor"], Test("hung_mounts.rs", "doctor_reports_hung_mount_and_machine_findings")),
    ("json", &["ls", "load", "cp", "verify", "doctor"], Json),
    ("json", CACHES, Json),
    ("json", WARM, Test("cache.rs", "warmed_checkpoint_is_listed_and_loads_offline")),
    ("json", &["bench"], Writes),
    ("html", &["load", "bench", "doctor"], Writes),
    ("trace", &["load", "bench"], Writes),
    ("csv", &["bench"], Writes),
    ("markdown", &["bench"], Writes),
    ("plot", &["bench"], Test("bench.rs", "bench_leaves_exports_and_removes_synthetic_checkpoint")),
    // Loads.
    ("engine", LOADS, Load("engine", "pread")),
    ("depth", LOADS, Load("depth", "7")),
    ("extent", LOADS, Load("extent_bytes", "65536")),
    ("align", &["load", "bench"], Load("align", "64")),
    ("dtype", &["load", "bench"], Load("dtype", "f32")),
    ("lanes", LOADS, Load("lanes", "3")),
    ("in-flight", LOADS, Load("in_flight_bytes", "65536")),
    ("memory-limit", LOADS, Load("memory_limit", "99000000")),
    ("device-memory-limit", &["load", "bench"], Load("device_memory_limit", "65536")),
    ("region-bytes", &["load", "bench"], Load("region_bytes", "65536")),
    ("cache", LOADS, Load("cache", "drop")),
    ("verify", LOADS, Load("verify", "auto")),
    ("retries", LOADS, Load("retries", "7")),
    ("order", &["load", "bench"], Load("order", "file")),
    ("hedge", LOADS, Load("hedge", "false")),
    ("share", &["load", "bench"], Load("share", "none")),
    ("join-timeout", &["load"], Load("join_timeout", "7.0")),
    ("on-peer-loss", &["load", "bench"], Load("on_peer_loss", "read")),
    ("device", &["load", "bench"], Fails("tpu", "tpu")),
    ("device-map", &["load"], Fails("a", "is not NAME=DEVICE")),
    ("ranks", &["load"], Says(&["2"], "2 ranks: ")),
    ("ranks", &["bench"], Test("ranks.rs", "bench_compares_sharing_with_none")),
    ("shard", &["load", "bench"], Test("ranks.rs", "ranks_that_share_read_once")),
    ("keep", &["load"], Test("ranks.rs", "ranks_that_share_read_once")),
    ("digest", &["load"], Says(&[], "digest: ")),
    // `bench`.
    ("rounds", &["bench"], Says(&["2"], "2 rounds")),
    ("mode", &["bench"], Says(&["keep"], "keep  ")),
    ("cache-state", &["bench"], Says(&["warm"], "warm")),
    ("startup", &["bench"], Says(&[], "waterfall")),
    ("against", &["bench"], Test("against.rs", "safetensors_runs_beside_the_load")),
    ("python", &["bench"], Test("against.rs", "safetensors_runs_beside_the_load")),
    ("no-fio", &["bench"], Test("bench.rs", "fio_runs_if_installed")),
    ("sweep", &["bench"], Test("bench.rs", "sweep_reports_ratio_of_defaults_to_best")),
    ("dir", &["bench"], Test("bench.rs", "bench_leaves_exports_and_removes_synthetic_checkpoint")),
    // Synthetic checkpoints.
    ("size", &["synth", "bench"], Test("bench.rs", "bench_leaves_exports_and_removes_synthetic_checkpoint")),
    ("preset", &["synth", "bench"], Test("bench.rs", "bench_leaves_exports_and_removes_synthetic_checkpoint")),
    ("shards", &["synth", "bench"], Test("checkpoints.rs", "same_seed_gives_same_bytes_with_any_sharding")),
    ("seed", &["synth", "bench"], Test("checkpoints.rs", "same_seed_gives_same_bytes_with_any_sharding")),
    ("force", &["synth"], Test("checkpoints.rs", "synth_force_replaces_only_the_checkpoint")),
    // `ls`, `cp`, `verify`, `cache`.
    ("sort", &["ls"], Test("ls.rs", "order_applies_to_text_and_json")),
    ("reverse", &["ls"], Test("ls.rs", "order_applies_to_text_and_json")),
    ("summary", &["ls"], Says(&[], "largest tensors:")),
    ("include", &["cp"], Says(&["config.json"], "1 file copied")),
    ("exclude", &["cp"], Says(&["*.safetensors"], "1 file copied")),
    ("hidden", &["cp"], Test("cp.rs", "patterns_and_single_files")),
    ("force", &["cp"], Test("cp.rs", "changed_or_unrecorded_target_is_copied_again")),
    ("skip-unusable", &["cp"], Test("cp.rs", "names_that_are_too_long_are_left_out_and_fail_the_copy")),
    ("dry-run", &["cp"], Says(&[], "would")),
    ("depth", &["cp"], Test("remote.rs", "interrupted_copy_keeps_partial_files_and_reports_them")),
    ("extent", &["cp"], Test("hung_mounts.rs", "copy_of_files_interrupted_anywhere_leaves_no_partial_file")),
    ("manifest", &["verify"], Fails("nothing.json", "nothing.json")),
    ("write", &["verify"], Says(&["manifest"], "wrote manifest")),
    ("force", &["verify"], Test("verify.rs", "existing_manifest_is_kept_unless_forced")),
    ("all", &["cache rm"], Test("cache.rs", "removed_objects_and_what_is_known_of_them_are_gone")),
    ("dry-run", &["cache rm", "cache prune"], Says(&[], "would remove")),
    ("max-size", &["cache prune"], Test("cache.rs", "removed_objects_and_what_is_known_of_them_are_gone")),
    ("unused-for", &["cache prune"], Test("cache.rs", "removed_objects_and_what_is_known_of_them_are_gone")),
    // `rm`, `convert`.
    ("incomplete", &["rm"], Test("written.rs", "leftovers_are_removed_by_request_only")),
    ("key-file", &["convert"], Test("convert.rs", "converts_and_says_why_it_does_not")),
    ("passphrase-file", &["convert"], Test("convert.rs", "converts_and_says_why_it_does_not")),
    ("force", &["convert"], Test("convert.rs", "result_is_replaced_only_by_force")),
    ("json", &["convert"], Test("convert.rs", "result_is_replaced_only_by_force")),
    ("timeout", &["convert"], Test("convert.rs", "timeout_ends_a_conversion")),
    // `serve`, `exec`.
    ("cache", &["serve"], Test("serve/loads.rs", "cache_alone_refuses_ranges_that_it_does_not_have")),
    ("listen", &["serve"], Test("serve.rs", "errors_say_what_to_do")),
    ("token-file", &["serve"], Fails("nothing", "nothing: cannot read the token")),
    ("tls-cert", &["serve"], Test("serve/loads.rs", "checkpoint_is_loaded_over_tls")),
    ("tls-key", &["serve"], Test("serve/loads.rs", "checkpoint_is_loaded_over_tls")),
    ("max-connections", &["serve"], Test("serve.rs", "clients_above_the_limit_wait")),
    ("client-timeout", &["serve"], Test("serve.rs", "slow_clients_are_cut_off")),
    ("prefetch", &["exec"], Test("exec.rs", "file_is_in_the_page_cache_before_the_command_loads_it")),
];

/// Returns the options that the help of a command offers.
fn offered(name: &str) -> BTreeSet<String> {
    let help = succeed(name.split(' ').chain(["--help"]));
    let long = |line: &str| {
        let line = line.trim_start();
        let rest = line.strip_prefix('-')?;
        let flag = match rest.strip_prefix('-') {
            Some(flag) => flag,
            None => rest.split_once(", --")?.1,
        };
        let end = flag.find(|it: char| !it.is_ascii_lowercase() && it != '-');
        Some(flag[..end.unwrap_or(flag.len())].to_owned())
    };
    // Lines of help texts are indented further.
    let lines = help.lines().filter(|line| !line.starts_with("          "));
    lines.filter_map(long).collect()
}

#[test]
fn every_offered_option_has_a_row() {
    for (name, _) in COMMANDS {
        let mut wanted: Vec<String> = EVERYWHERE.map(str::to_owned).into();
        let rows = ROWS
            .iter()
            .filter(|(_, commands, _)| commands.contains(&name));
        wanted.extend(rows.map(|(option, ..)| (*option).to_owned()));
        let (count, wanted) = (wanted.len(), BTreeSet::from_iter(wanted));
        assert_eq!(count, wanted.len(), "{name} has two rows for an option");
        assert_eq!(offered(name), wanted, "{name}");
    }
}

/// A folder with a checkpoint, and one whose files are links.
fn place() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    succeed([
        "synth",
        at("model").to_str().unwrap(),
        "--preset",
        "tiny",
        "--size",
        "1MiB",
    ]);
    fs::create_dir(at("linked")).unwrap();
    for file in fs::read_dir(at("model")).unwrap() {
        let file = file.unwrap();
        symlink(file.path(), at("linked").join(file.file_name())).unwrap();
    }
    fs::create_dir_all(at("cache/v1")).unwrap();
    folder
}

fn run_in(folder: &Path, words: &[&str]) -> Output {
    let mut command = command(words);
    command.env("TLOAD_CACHE_DIR", folder.join("cache"));
    command.current_dir(folder).output().unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &stderr(output)
}

#[test]
fn every_offered_option_is_used() {
    for (name, words) in COMMANDS {
        for (option, _, how) in ROWS.iter().filter(|row| row.1.contains(&name)) {
            assert_used(name, words, &format!("--{option}"), *how);
        }
    }
}

fn assert_used(name: &str, words: &str, flag: &str, how: How) {
    let folder = place();
    let plain: Vec<_> = words.split(' ').collect();
    let run = |more: &[&str]| run_in(folder.path(), &[&plain, more].concat());
    let what = format!("{name} {flag}");
    match how {
        Fails(value, text) => {
            let joined = format!("{flag}{value}");
            let output = if value.starts_with('=') {
                run(&[&joined])
            } else {
                run(&[flag, value])
            };
            let said = said(&output);
            assert!(!output.status.success(), "{what}: {said}");
            assert!(said.contains(text), "{what}: {said}");
        }
        Says(values, text) => {
            let without = said(&run(&[]));
            assert!(!without.contains(text), "{what}: {without}");
            // Without what the plain invocation has left.
            let folder = place();
            let plain = plain
                .iter()
                .filter(|it| flag != "--rounds" || !["--rounds", "1"].contains(it));
            let plain: Vec<_> = plain.copied().collect();
            let said = said(&run_in(
                folder.path(),
                &[&plain, &[flag][..], values].concat(),
            ));
            assert!(said.contains(text), "{what}: {said}");
        }
        Writes => {
            let output = run(&[flag, "written"]);
            assert!(output.status.success(), "{what}: {}", said(&output));
            let written = fs::metadata(folder.path().join("written")).unwrap();
            assert!(written.len() > 100, "{what}");
        }
        Json => {
            let output = run(&[flag]);
            let answer: Result<Value, _> = serde_json::from_slice(&output.stdout);
            assert!(answer.is_ok(), "{what}: {}", said(&output));
        }
        Opens => {
            let linked = words.replace("model", "linked");
            let plain: Vec<_> = linked.split(' ').collect();
            let refused = run_in(folder.path(), &plain);
            assert!(!refused.status.success(), "{what}: {}", said(&refused));
            let output = run_in(folder.path(), &[&plain, &[flag][..]].concat());
            assert!(
                output.status.success() || name == "verify",
                "{what}: {}",
                said(&output)
            );
        }
        // The options of warming have the type of those of `load`.
        Load(key, value) if name != "cache warm" => assert_recorded(name, flag, key, value),
        Load(..) => {}
        Test(file, test) => {
            let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it");
            let source = fs::read_to_string(root.join(file)).unwrap();
            let is_there = source.contains(&format!("fn {test}()"));
            assert!(is_there, "{what}: {file}, {test}");
        }
    }
}

/// Checks that the option is in the record of a benchmark, or in the page of a load.
fn assert_recorded(name: &str, flag: &str, key: &str, value: &str) {
    let folder = place();
    let given = match flag {
        "--verify" => format!("{flag}={value}"),
        _ => format!("{flag} {}", value.trim_end_matches(".0")),
    };
    let words = if name == "bench" {
        "bench model --rounds 1 --no-fio --cache-state warm --json out"
    } else {
        "load model --html out"
    };
    let words: Vec<_> = words.split(' ').chain(given.split(' ')).collect();
    let output = run_in(folder.path(), &words);
    assert!(output.status.success(), "{words:?}: {}", said(&output));
    let out = fs::read_to_string(folder.path().join("out")).unwrap();
    if name == "bench" {
        let out: Value = serde_json::from_str(&out).unwrap();
        let found = &out["cells"][0]["configuration"][key];
        let found = found
            .as_str()
            .map_or_else(|| found.to_string(), str::to_owned);
        assert_eq!(found.to_lowercase(), value, "{words:?}");
        return;
    }
    let texts = out
        .split('<')
        .filter_map(|it| it.split_once('>'))
        .map(|it| it.1.trim());
    let texts: Vec<_> = texts.filter(|it| !it.is_empty()).collect();
    let texts: Vec<_> = texts
        .into_iter()
        .skip_while(|it| *it != "Options")
        .collect();
    let at = texts.iter().position(|it| *it == key);
    let found = texts[at.expect("the page has the key") + 1].to_lowercase();
    assert!(found.contains(value), "{words:?}: {found}");
}

#[test]
fn commands_refuse_options_without_a_use() {
    let folder = place();
    for (words, option) in [
        ("cache warm http://127.0.0.1:1/a", "--align=64"),
        ("cache warm http://127.0.0.1:1/a", "--dtype=f32"),
        (
            "cache warm http://127.0.0.1:1/a",
            "--device-memory-limit=1GiB",
        ),
        ("cache warm http://127.0.0.1:1/a", "--region-bytes=1MiB"),
        ("cache warm http://127.0.0.1:1/a", "--order=file"),
        ("cache warm http://127.0.0.1:1/a", "--share=none"),
        ("cache warm http://127.0.0.1:1/a", "--join-timeout=1"),
        ("cache warm http://127.0.0.1:1/a", "--on-peer-loss=read"),
        ("cache warm http://127.0.0.1:1/a", "--hf-cache"),
        ("serve hf://org/model", "--hf-cache"),
        ("bench --json-lines", ""),
        ("load model", "--shard=tp"),
        ("verify model", "--force"),
        ("bench model --dir .", ""),
        ("bench model --startup --ranks 2", ""),
    ] {
        let words: Vec<_> = words.split(' ').chain([option]).collect();
        let words: Vec<_> = words.into_iter().filter(|it| !it.is_empty()).collect();
        let output = run_in(folder.path(), &words);
        assert_eq!(
            output.status.code(),
            Some(2),
            "{words:?}: {}",
            said(&output)
        );
    }
    // Variables are for all commands.
    let mut warm = command(["cache", "warm", "model"]);
    let warm = warm.current_dir(folder.path());
    let output = warm
        .env("TLOAD_DTYPE", "f32")
        .env("TLOAD_HF_CACHE", "true")
        .output();
    let text = said(&output.unwrap());
    assert!(text.contains("is a local path"), "{text}");
}

#[test]
fn warming_takes_a_selection() {
    let lab = Lab::start();
    lab.checkpoint();
    let cache = lab.path("cache");
    let warm = |more: &[&str]| {
        let words = ["cache", "warm", "s3://bucket/model", "--cache-dir"];
        let words = [&words[..], &[cache.to_str().unwrap(), "--json"], more].concat();
        let output = lab.run(&words);
        let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
        (output.status.code(), answer)
    };
    for option in ["--name", "--glob", "--regex"] {
        let (status, answer) = warm(&[option, "nothing"]);
        assert_eq!(status, Some(3), "{answer}");
        let (status, answer) = warm(&[option, "lm_head.weight"]);
        assert_eq!(status, Some(0), "{answer}");
        assert!(answer["tensor_bytes"].as_u64() > Some(0), "{answer}");
    }
    assert_ne!(
        warm(&["--name", "lm_head.weight"]).1["tensor_bytes"],
        warm(&[]).1["tensor_bytes"]
    );
}

#[test]
fn warming_takes_a_key() {
    let lab = Lab::start();
    lab.checkpoint();
    let cache = lab.path("cache");
    for option in ["--key-file", "--key-command"] {
        let cache = cache.to_str().unwrap();
        let words = ["cache", "warm", "s3://bucket/model", "--cache-dir", cache];
        let output = lab.run(&[&words[..], &[option, "nothing"]].concat());
        assert_eq!(output.status.code(), Some(2));
        let text = stderr(&output);
        assert!(text.contains("but the checkpoint is not sealed"), "{text}");
    }
}

#[test]
fn copies_and_verifications_fill_the_cache() {
    let lab = Lab::start();
    lab.checkpoint();
    let copy = lab.path("copy");
    // A verification reads what it finds digests of, here headers and an index.
    for (name, words, bytes) in [
        (
            "of-cp",
            vec!["cp", "s3://bucket/model", copy.to_str().unwrap()],
            8_000_000,
        ),
        ("of-verify", vec!["verify", "s3://bucket/model"], 0),
    ] {
        let cache = lab.path(name);
        let cache = ["--cache-dir", cache.to_str().unwrap()];
        drop(lab.run(&[&words[..], &cache].concat()));
        let totals = json([&["cache", "stat", "--json"][..], &cache].concat());
        assert!(
            totals["cached_bytes"].as_u64() > Some(bytes),
            "{name}: {totals}"
        );
    }
}
