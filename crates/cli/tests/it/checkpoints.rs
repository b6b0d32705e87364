//! `synth`, `ls` and `load` agree with each other and with the `safetensors` crate.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::Path;

use safetensors::SafeTensors;
use sha2::{Digest, Sha256};

use crate::{json, run, stderr, succeed};

fn synth(directory: &Path, more: &[&str]) {
    let mut arguments = vec!["synth", directory.to_str().unwrap()];
    arguments.extend(more);
    succeed(arguments);
}

fn digest(location: &Path, more: &[&str]) -> String {
    let mut arguments = vec!["load", location.to_str().unwrap(), "--digest", "--json"];
    arguments.extend(more);
    json(arguments)["digest"].as_str().unwrap().to_owned()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").unwrap();
        text
    })
}

/// Returns name and bytes of all files of a directory.
fn files(directory: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap());
    entries
        .map(|entry| {
            (
                entry.file_name().into_string().unwrap(),
                fs::read(entry.path()).unwrap(),
            )
        })
        .collect()
}

/// Computes the digest as the help defines it, with the `safetensors` crate.
fn expected_digest(directory: &Path) -> String {
    let mut lines = BTreeMap::new();
    for (name, bytes) in files(directory) {
        if !name.ends_with(".safetensors") {
            continue;
        }
        for (name, tensor) in SafeTensors::deserialize(&bytes).unwrap().iter() {
            let shape: Vec<String> = tensor.shape().iter().map(ToString::to_string).collect();
            let inner = hex(&Sha256::digest(tensor.data()));
            let line = format!("{name}\0{}\0{}\0{inner}\n", tensor.dtype(), shape.join(","));
            assert!(
                lines.insert(name.to_owned(), line).is_none(),
                "{name} is there twice"
            );
        }
    }
    let text: String = lines.into_values().collect();
    hex(&Sha256::digest(text))
}

#[test]
fn digests_are_those_of_the_safetensors_crate() {
    let folder = tempfile::tempdir().unwrap();
    for (preset, shards) in [("llama", "3"), ("moe", "2"), ("tiny", "1")] {
        let directory = folder.path().join(preset);
        synth(
            &directory,
            &["--preset", preset, "--size", "8MiB", "--shards", shards],
        );
        let expected = expected_digest(&directory);
        for engine in ["auto", "pread"] {
            assert_eq!(
                digest(&directory, &["--engine", engine]),
                expected,
                "{preset} {engine}"
            );
        }
        for cache in ["buffered", "drop", "map"] {
            assert_eq!(
                digest(&directory, &["--cache", cache]),
                expected,
                "{preset} {cache}"
            );
        }
        let small = [
            "--order", "file", "--extent", "64KiB", "--depth", "3", "--keep",
        ];
        assert_eq!(
            digest(&directory, &small),
            expected,
            "{preset} in small reads"
        );
    }
}

#[test]
fn loads_convert_to_a_dtype() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("model");
    synth(&model, &["--preset", "llama", "--size", "8MiB"]);
    let location = model.to_str().unwrap();
    let converted = |dtype| {
        let loaded = json(["load", location, "--dtype", dtype, "--digest", "--json"]);
        let report = &loaded["report"];
        let numbers = [
            "tensors",
            "tensor_bytes",
            "converted_tensors",
            "converted_bytes",
        ];
        let numbers = numbers.map(|name| report[name].as_u64().unwrap());
        (loaded["digest"].as_str().unwrap().to_owned(), numbers)
    };
    let (digest_before, [_, _, 0, 0]) = converted("bf16") else {
        panic!("all tensors are BF16");
    };
    assert_eq!(digest_before, expected_digest(&model));
    let (digest_after, [tensors, bytes, found, found_bytes]) = converted("f32");
    assert_eq!((found, found_bytes), (tensors, 2 * bytes));
    assert_ne!(digest_after, digest_before);
    assert_eq!(
        digest(&model, &["--dtype", "f32", "--cache", "map"]),
        digest_after
    );

    let output = run(["load", location, "--dtype", "int8"]);
    let message = "invalid value 'int8' for '--dtype <DTYPE>': it can be bf16, f16, f32, f64";
    assert!(stderr(&output).contains(message), "{}", stderr(&output));
}

#[test]
fn same_seed_gives_same_bytes_with_any_sharding() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let size = ["--size", "4MiB", "--preset", "moe"];
    for (name, more) in [
        ("a", &["--seed", "7"][..]),
        ("b", &["--seed", "7"]),
        ("split", &["--seed", "7", "--shards", "5"]),
        ("other", &["--seed", "8"]),
    ] {
        synth(&path(name), &[&size[..], more].concat());
    }
    assert_eq!(files(&path("a")), files(&path("b")));
    assert_eq!(digest(&path("a"), &[]), digest(&path("split"), &[]));
    assert_ne!(digest(&path("a"), &[]), digest(&path("other"), &[]));
}

#[test]
fn files_are_named_and_indexed_as_hubs_do() {
    let folder = tempfile::tempdir().unwrap();
    let directory = folder.path().join("model");
    synth(&directory, &["--size", "4MiB", "--shards", "3"]);
    let written = files(&directory);
    let names: Vec<&str> = written.keys().map(String::as_str).collect();
    assert_eq!(
        names,
        [
            "config.json",
            "model-00001-of-00003.safetensors",
            "model-00002-of-00003.safetensors",
            "model-00003-of-00003.safetensors",
            "model.safetensors.index.json",
        ]
    );
    let index: serde_json::Value =
        serde_json::from_slice(&written["model.safetensors.index.json"]).unwrap();
    let listing = json(["ls", directory.to_str().unwrap(), "--json"]);
    assert_eq!(index["metadata"]["total_size"], listing["total"]["bytes"]);
    let map = index["weight_map"].as_object().unwrap();
    assert_eq!(map.len(), listing["tensors"].as_array().unwrap().len());
    for tensor in listing["tensors"].as_array().unwrap() {
        let shard = usize::try_from(tensor["shard"].as_u64().unwrap()).unwrap();
        let location = listing["shards"][shard]["location"].as_str().unwrap();
        let file = map[tensor["name"].as_str().unwrap()].as_str().unwrap();
        assert!(location.ends_with(file), "{location} {file}");
    }
    let config: serde_json::Value = serde_json::from_slice(&written["config.json"]).unwrap();
    assert_eq!(config["model_type"], "llama");
}

#[test]
fn synth_force_replaces_only_the_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let directory = folder.path();
    fs::write(directory.join("notes.txt"), "mine").unwrap();
    synth(directory, &["--size", "1MiB", "--shards", "3", "--force"]);
    let output = run(["synth", directory.to_str().unwrap(), "--size", "1MiB"]);
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    assert!(stderr(&output).contains("--force"));
    synth(directory, &["--size", "1MiB", "--force"]);
    let names: Vec<String> = files(directory).into_keys().collect();
    assert_eq!(names, ["config.json", "model.safetensors", "notes.txt"]);
}

#[test]
fn ls_shows_tensors_dtypes_shards_and_totals() {
    let folder = tempfile::tempdir().unwrap();
    let directory = folder.path().join("model");
    synth(&directory, &["--preset", "tiny", "--size", "1MiB"]);
    let location = directory.to_str().unwrap();
    let text = succeed(["ls", location]);
    for wanted in [
        "dtypes.f64.scalar",
        "[0, 7]",
        "F8_E4M3",
        "1 shard",
        "model.safetensors",
    ] {
        assert!(text.contains(wanted), "{wanted} is not in\n{text}");
    }
    let listing = json(["ls", location, "--json"]);
    let bytes: u64 = listing["tensors"]
        .as_array()
        .unwrap()
        .iter()
        .map(|tensor| tensor["bytes"].as_u64().unwrap())
        .sum();
    assert_eq!(listing["total"]["bytes"].as_u64(), Some(bytes));
    assert_eq!(listing["metadata"]["format"], "pt");
}

#[test]
fn selections_select() {
    let folder = tempfile::tempdir().unwrap();
    let directory = folder.path().join("model");
    synth(&directory, &["--preset", "tiny", "--size", "1MiB"]);
    let location = directory.to_str().unwrap();
    let names = |arguments: &[&str]| -> Vec<String> {
        let listing = json([&["ls", location, "--json"], arguments].concat());
        let tensors = listing["tensors"].as_array().unwrap();
        tensors
            .iter()
            .map(|tensor| tensor["name"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(names(&["--name", "dtypes.i8.scalar"]), ["dtypes.i8.scalar"]);
    assert_eq!(names(&["--glob", "dtypes.*.scalar"]).len(), 19);
    assert_eq!(names(&["--regex", "^dtypes\\.(i8|u8)\\.scalar$"]).len(), 2);
    assert_eq!(
        names(&["--name", "lm_head.weight", "--glob", "dtypes.bool.*"]).len(),
        5
    );
    let loaded = json(["load", location, "--glob", "dtypes.*.scalar", "--json"]);
    assert_eq!(loaded["report"]["tensors"], 19);
}

#[test]
fn load_prints_the_report() {
    let folder = tempfile::tempdir().unwrap();
    let directory = folder.path().join("model");
    synth(&directory, &["--size", "2MiB"]);
    let text = succeed(["load", directory.to_str().unwrap(), "--digest"]);
    // A busy machine loads at less than 1 GB/s.
    for wanted in ["B/s", "complete", "engine", "digest: "] {
        assert!(text.contains(wanted), "{wanted} is not in\n{text}");
    }
}

#[test]
fn variables_are_options() {
    let folder = tempfile::tempdir().unwrap();
    let directory = folder.path().join("model");
    synth(&directory, &["--size", "2MiB"]);
    let output = crate::command(["load", directory.to_str().unwrap(), "--json"])
        .env("TLOAD_ENGINE", "pread")
        .env("TLOAD_MEMORY_LIMIT", "64MiB")
        .output()
        .unwrap();
    let loaded: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(loaded["report"]["engine"]["name"], "pread");
    assert_eq!(loaded["report"]["memory_limit"], 64 << 20);
}

#[test]
fn files_of_other_models_are_left_out_and_noted() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("model");
    let location = model.to_str().unwrap();
    succeed(["synth", location, "--size", "1MiB"]);
    let alone = json(["ls", location, "--json"])["total"].clone();
    fs::copy(
        model.join("model.safetensors"),
        model.join("adapter_model.safetensors"),
    )
    .unwrap();
    let output = run(["ls", location, "--json"]);
    let listing: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(listing["total"], alone);
    for command in ["ls", "load"] {
        let output = run([command, location, "--json"]);
        let text = stderr(&output);
        assert!(output.status.success(), "{text}");
        assert!(
            text.contains("left out: adapter_model.safetensors"),
            "{command}: {text}"
        );
    }
    let report = json(["doctor", location, "--json"]);
    let findings = report["findings"].as_array().unwrap();
    let found = findings.iter().find(|found| found["id"] == "checkpoint");
    assert_eq!(found.unwrap()["level"], "note");
    // A copy is of the whole directory.
    let copy = folder.path().join("copy");
    succeed(["cp", location, copy.to_str().unwrap()]);
    assert!(copy.join("adapter_model.safetensors").exists());
}
