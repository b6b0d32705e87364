//! `bench`: measurements, labels, exports and clean-up.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::requirement::requirement;
use crate::{run, stderr, succeed};

fn read_json(path: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

#[test]
fn bench_leaves_exports_and_removes_synthetic_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (json, csv, markdown, scratch) = (
        path("out.json"),
        path("out.csv"),
        path("out.md"),
        path("scratch"),
    );
    fs::create_dir(&scratch).unwrap();
    let text = succeed([
        "bench",
        "--preset",
        "tiny",
        "--size",
        "4MiB",
        "--rounds",
        "2",
        "--no-fio",
        "--dir",
        &scratch,
        "--mode",
        "stream,keep",
        "--depth",
        "2,4",
        "--json",
        &json,
        "--csv",
        &csv,
        "--markdown",
        &markdown,
    ]);
    assert!(text.contains("ceiling: raw reads, fresh memory"), "{text}");
    assert_eq!(
        fs::read_dir(&scratch).unwrap().count(),
        0,
        "the checkpoint is still there"
    );

    let results = read_json(Path::new(&json));
    assert_eq!(results["complete"], true);
    assert_eq!(results["checkpoint"]["synthetic"]["preset"], "tiny");
    assert_eq!(results["command"][1], "bench");
    let cells = results["cells"].as_array().unwrap();
    assert_eq!(cells.len(), 4);
    for cell in cells {
        let samples = cell["samples"].as_array().unwrap();
        assert_eq!(samples.len(), 4);
        for sample in samples {
            assert_eq!(sample["bytes"], results["checkpoint"]["tensor_bytes"]);
            assert!(sample["cpu_seconds_per_gib"].is_number());
            assert!(sample["report"]["engine"]["name"].is_string());
            let is_load = sample["contender"] == "tload";
            assert_eq!(sample["first_tensor_seconds"].is_number(), is_load);
        }
        assert!(
            cell["summaries"][1]["tload_ratio"]["median"]
                .as_f64()
                .unwrap()
                > 0.0
        );
    }
    let csv = fs::read_to_string(csv).unwrap();
    assert_eq!(csv.lines().count(), 1 + 4 * 4);
    let markdown = fs::read_to_string(markdown).unwrap();
    assert_eq!(
        markdown
            .lines()
            .filter(|line| line.starts_with("| "))
            .count(),
        2 + 4 * 2
    );
}

#[test]
fn sweep_reports_ratio_of_defaults_to_best() {
    let folder = tempfile::tempdir().unwrap();
    let (json, plot) = (
        folder.path().join("out.json"),
        folder.path().join("out.svg"),
    );
    let text = succeed([
        "bench",
        "--preset",
        "tiny",
        "--rounds",
        "1",
        "--no-fio",
        "--sweep",
        "--json",
        json.to_str().unwrap(),
        "--plot",
        plot.to_str().unwrap(),
    ]);
    let verdict = text.lines().last().unwrap();
    assert!(verdict.starts_with("defaults reach "), "{text}");
    assert!(
        verdict.contains(" of the best of the sweep (depth "),
        "{text}"
    );
    let results = read_json(&json);
    let cells = results["cells"].as_array().unwrap();
    assert_eq!(cells.len(), 22);
    assert_eq!(cells[0]["configuration"]["depth"], Value::Null);
    let plot = fs::read_to_string(plot).unwrap();
    assert_eq!(plot.matches("class=\"point\"").count(), 22, "{plot}");
    assert!(plot.contains("synthetic tiny: "), "{plot}");
    assert!(!plot.contains("not complete"), "{plot}");
}

#[test]
fn plot_path_other_than_svg_is_rejected_before_first_run() {
    let folder = tempfile::tempdir().unwrap();
    let (json, plot) = (
        folder.path().join("out.json"),
        folder.path().join("out.png"),
    );
    let output = run([
        "bench",
        "--size",
        "4GiB",
        "--json",
        json.to_str().unwrap(),
        "--plot",
        plot.to_str().unwrap(),
    ]);
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    assert!(
        stderr(&output).contains("--plot draws SVG"),
        "{}",
        stderr(&output)
    );
    assert!(
        stderr(&output).contains("hint: use a name with .svg"),
        "{}",
        stderr(&output)
    );
    assert_eq!(read_json(&json)["error"]["kind"], "invalid_request");
}

#[test]
fn existing_checkpoint_is_measured_cold_and_warm_and_kept() {
    let folder = tempfile::tempdir().unwrap();
    let (model, json) = (folder.path().join("model"), folder.path().join("out.json"));
    let (model, json) = (model.to_str().unwrap(), json.to_str().unwrap());
    succeed(["synth", model, "--size", "4MiB", "--shards", "2"]);
    succeed([
        "bench",
        model,
        "--rounds",
        "2",
        "--no-fio",
        "--cache-state",
        "both",
        "--json",
        json,
    ]);
    assert!(Path::new(model).join("config.json").exists());
    let results = read_json(Path::new(json));
    assert_eq!(results["checkpoint"]["synthetic"], Value::Null);
    for (cell, state) in results["cells"]
        .as_array()
        .unwrap()
        .iter()
        .zip(["cold", "warm"])
    {
        assert_eq!(cell["cache_state"], state);
        let verified = cell["cache_state_verified"] == true;
        for sample in cell["samples"].as_array().unwrap() {
            // The state found is reported, and only that state counts as verified.
            let found = sample["residency"]["found"].as_str().unwrap();
            assert!(["cold", "warm", "mixed", "unverified"].contains(&found));
            assert!(verified || found != state);
        }
    }
}

#[test]
fn files_in_memory_are_not_called_cold() {
    let memory = Path::new("/dev/shm");
    let found = tempfile::tempdir_in(memory)
        .map_err(|error| format!("{} cannot be written to: {error}", memory.display()));
    let Some(scratch) = requirement("shm", found) else {
        return;
    };
    let output = run([
        "bench",
        "--preset",
        "tiny",
        "--rounds",
        "1",
        "--no-fio",
        "--dir",
        scratch.path().to_str().unwrap(),
    ]);
    assert!(output.status.success(), "{}", stderr(&output));
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("not cold"), "{text}");
    let warnings = stderr(&output);
    assert!(warnings.contains("keeps files in memory"), "{warnings}");
    assert!(
        warnings.contains("page cache not cold at the start of a run"),
        "{warnings}"
    );
}

#[test]
fn fio_runs_if_installed() {
    let version = Command::new("fio").arg("--version").output();
    let found = match version {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(format!("fio --version: {}", output.status)),
        Err(error) => Err(format!("fio is not installed: {error}")),
    };
    if requirement("fio", found).is_none() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("out.json");
    let output = run([
        "bench",
        "--size",
        "16MiB",
        "--rounds",
        "1",
        "--shards",
        "2",
        "--json",
        json.to_str().unwrap(),
    ]);
    assert!(output.status.success(), "{}", stderr(&output));
    let results = read_json(&json);
    let samples = results["cells"][0]["samples"].as_array().unwrap();
    let contenders: Vec<_> = samples.iter().map(|sample| &sample["contender"]).collect();
    // An installed fio that cannot run is left out.
    let errors = stderr(&output);
    let ran = errors
        .lines()
        .find(|line| line.contains("fio failed"))
        .map_or(Ok(()), |line| Err(line.to_owned()));
    if requirement("fio", ran).is_some() {
        assert_eq!(contenders, ["tload", "ceiling", "fio"]);
    }
}

#[test]
fn bad_export_path_fails_before_first_run() {
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("no/such/folder.json");
    let output = run(["bench", "--size", "4GiB", "--json", json.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
    assert!(stderr(&output).contains("cannot write the export"));
    assert!(stderr(&output).contains("hint: create the directory first"));
}

#[test]
fn startup_shows_phases_of_new_processes() {
    let folder = tempfile::tempdir().unwrap();
    let (model, json) = (folder.path().join("model"), folder.path().join("out.json"));
    let (model, json) = (model.to_str().unwrap(), json.to_str().unwrap());
    succeed(["synth", model, "--preset", "tiny", "--size", "4MiB"]);
    let start = ["bench", model, "--startup", "--rounds", "2", "--json", json];
    let text = succeed(start.iter().chain(&["--cache-state", "warm"]).copied());
    for phase in ["process", "headers", "plan", "first tensor", "all tensors"] {
        assert!(text.contains(phase), "{phase}: {text}");
    }
    let results = read_json(Path::new(json));
    assert_eq!(results["complete"], true);
    assert_eq!(results["samples"].as_array().unwrap().len(), 2);
    let phases = results["samples"][1]["phases"].as_array().unwrap();
    let ends = phases.iter().map(|phase| {
        let number = |key: &str| phase[key].as_f64().unwrap();
        number("start_seconds") + number("seconds")
    });
    let last = ends.fold(0.0, f64::max);
    let all = phases.iter().find(|it| it["phase"] == "all tensors");
    let all = all.expect("the last phase");
    let end = all["start_seconds"].as_f64().unwrap() + all["seconds"].as_f64().unwrap();
    assert!((end - last).abs() < 1e-9, "{phases:?}");
    assert_eq!(phases[0]["start_seconds"], 0.0);

    // Starts that fail end the benchmark; one configuration is measured, in one mode.
    for more in [["--depth", "2,4"], ["--mode", "keep"]] {
        let output = run(["bench", model, "--startup"].iter().chain(&more));
        assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    }
}

#[test]
fn failure_before_the_first_sample_is_in_the_json() {
    let folder = tempfile::tempdir().unwrap();
    let (gone, json) = (folder.path().join("gone"), folder.path().join("out.json"));
    let (gone, json) = (gone.to_str().unwrap(), json.to_str().unwrap());
    for how in [&["--startup"][..], &["--ranks", "2"], &[]] {
        let output = run(["bench", gone, "--json", json].iter().chain(how));
        assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
        assert_eq!(read_json(Path::new(json))["error"]["exit_status"], 3);
        fs::remove_file(json).unwrap();
    }
}
