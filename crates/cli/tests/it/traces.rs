//! `--trace` of `load` and `bench`: tracks whose events follow each other, and sums that are those
//! of the report, also in the eyes of Perfetto's trace processor.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::requirement::requirement;
use crate::{run, stderr, succeed};

/// Tolerance of times, microseconds: they have three decimals.
const CLOSE: f64 = 0.002;

/// Events with a duration, of one load.
#[derive(Default)]
pub(crate) struct Sums {
    count: BTreeMap<String, u64>,
    bytes: BTreeMap<String, u64>,
    micros: BTreeMap<String, f64>,
    tensors: u64,
}

/// Reads a trace, and checks that its events are in order and do not overlap on any track. Returns
/// the sums of each process by category.
#[track_caller]
pub(crate) fn sums(path: &Path) -> BTreeMap<u64, Sums> {
    let trace: Value = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    assert_eq!(trace["otherData"]["dropped_events"], 0);
    let mut ends: BTreeMap<(u64, u64), f64> = BTreeMap::new();
    let mut names = BTreeMap::new();
    let mut all: BTreeMap<u64, Sums> = BTreeMap::new();
    for event in trace["traceEvents"].as_array().unwrap() {
        let place = (
            event["pid"].as_u64().unwrap(),
            event["tid"].as_u64().unwrap(),
        );
        match event["ph"].as_str().unwrap() {
            "M" => {
                if event["name"] == "thread_name" {
                    names.insert(place, event["args"]["name"].clone());
                }
            }
            "C" => assert!(event["args"]["bytes"].is_u64(), "{event}"),
            "X" => {
                assert!(
                    names.contains_key(&place),
                    "{event} is on a track without a name"
                );
                let (begin, time) = (
                    event["ts"].as_f64().unwrap(),
                    event["dur"].as_f64().unwrap(),
                );
                let end = ends.entry(place).or_default();
                assert!(begin >= *end - CLOSE, "{event} begins before {end}");
                *end = begin + time;
                let sums = all.entry(place.0).or_default();
                let category = event["cat"].as_str().unwrap().to_owned();
                let bytes = event["args"]["bytes"].as_u64().unwrap_or(0);
                *sums.bytes.entry(category.clone()).or_default() += bytes;
                *sums.count.entry(category.clone()).or_default() += 1;
                let name = event["name"].as_str().unwrap();
                *sums.micros.entry(name.to_owned()).or_default() += time;
                sums.tensors += event["args"]["tensors"].as_u64().unwrap_or(0);
            }
            phase => assert_eq!(phase, "X", "{event}"),
        }
    }
    all
}

/// Checks that the sums of a trace are the counters of the report.
#[track_caller]
pub(crate) fn assert_sums(sums: &Sums, report: &Value) {
    let number = |value: &Value| value.as_u64().unwrap();
    assert_eq!(sums.count["read"], number(&report["extents"]));
    assert_eq!(sums.bytes["read"], number(&report["read_bytes"]));
    assert_eq!(sums.tensors, number(&report["tensors"]));
    assert_eq!(sums.bytes["tensor"], number(&report["tensor_bytes"]));
    let devices = report["devices"].as_array().unwrap();
    let copied: u64 = devices.iter().map(|it| number(&it["copied_bytes"])).sum();
    assert_eq!(sums.bytes.get("copy").copied().unwrap_or(0), copied);
    // A stage has the waits that are recorded, and what lies between them.
    for (name, stage) in [
        ("waits for storage", "storage_wait"),
        ("waits for copies", "copy_wait"),
    ] {
        let waited = sums.micros.get(name).copied().unwrap_or(0.0);
        let stage = report["stages"][stage].as_f64().unwrap() * 1e6;
        assert!(waited <= stage + 1.0, "{name}: {waited} of {stage}");
    }
    let phases = report["phases"].as_array().unwrap().len();
    assert_eq!(sums.count["phase"], phases as u64);
}

/// Mistakes that Perfetto finds in a trace.
const MISTAKES: &str = "select name from stats where value != 0 and severity != 'info'";

/// Events with a duration by process and category.
const EVENTS: &str = "\
    select process.pid as pid, category, count() as count, \
        ifnull(sum(extract_arg(slice.arg_set_id, 'args.bytes')), 0) as bytes \
    from slice join thread_track on thread_track.id = slice.track_id \
        join thread using (utid) join process using (upid) \
    group by pid, category";

/// Returns the rows of a query of Perfetto's own trace processor; `None` if it is not installed.
fn perfetto(trace: &str, sql: &str) -> Option<Value> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let processor = root.join("../../.tools/perfetto");
    let found = match Command::new("node").arg("--version").output() {
        Err(error) => Err(format!("node: {error}")),
        Ok(_) if processor.exists() => Ok(()),
        Ok(_) => Err("tools/servers perfetto installs it".to_owned()),
    };
    requirement("perfetto", found)?;
    let output = Command::new("node")
        .arg(root.join("tests/it/perfetto.mjs"))
        .args([processor.as_os_str(), trace.as_ref(), sql.as_ref()])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    Some(serde_json::from_slice(&output.stdout).unwrap())
}

/// Checks that Perfetto finds no mistake in a trace, and the same events.
#[track_caller]
fn assert_perfetto(trace: &str, all: &BTreeMap<u64, Sums>) {
    let Some(mistakes) = perfetto(trace, MISTAKES) else {
        return;
    };
    assert_eq!(mistakes, json!([]));
    let mut wanted = Vec::new();
    for (pid, sums) in all {
        for (category, count) in &sums.count {
            let bytes = sums.bytes[category];
            let row = json!({"pid": pid, "category": category, "count": count, "bytes": bytes});
            wanted.push(row);
        }
    }
    assert_eq!(perfetto(trace, EVENTS), Some(Value::Array(wanted)));
}

#[test]
fn perfetto_tells_mistakes() {
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("trace.json");
    let event = |ts: u64| json!({"ph": "X", "pid": 1, "tid": 1, "ts": ts, "dur": 5, "name": "a"});
    for (second, wanted) in [
        (event(6), json!([])),
        (
            event(3),
            json!([{"name": "slice_drop_overlapping_complete_event"}]),
        ),
        (
            json!({"ph": "X", "ts": {}}),
            json!([{"name": "json_tokenizer_failure"}]),
        ),
    ] {
        let text = json!({"traceEvents": [event(1), second]}).to_string();
        fs::write(&trace, text).unwrap();
        if let Some(found) = perfetto(trace.to_str().unwrap(), MISTAKES) {
            assert_eq!(found, wanted);
        }
    }
}

#[test]
fn trace_of_a_load_has_every_read_and_tensor() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (model, trace) = (path("<model>"), path("trace.json"));
    succeed([
        "synth", &model, "--size", "16MiB", "--preset", "moe", "--shards", "3",
    ]);
    for more in [
        &[][..],
        &["--engine", "pread", "--lanes", "3", "--extent", "64KiB"],
        &["--cache", "map"],
        &["--verify=auto", "--order", "file", "--cache", "buffered"],
    ] {
        let arguments = [&["load", &model, "--json", "--trace", &trace][..], more].concat();
        let output: Value = serde_json::from_str(&succeed(arguments)).unwrap();
        let all = sums(Path::new(&trace));
        assert_eq!(all.len(), 1);
        assert_sums(&all[&1], &output["report"]);
        assert_perfetto(&trace, &all);
    }
}

/// Loads that fail before and after they begin replace an older trace by their own.
#[test]
fn failed_loads_leave_a_trace() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    succeed([
        "synth",
        &path("model"),
        "--preset",
        "tiny",
        "--size",
        "1MiB",
    ]);
    let trace = path("trace.json");
    for wanted in [["--name", "no.such.tensor"], ["--memory-limit", "1"]] {
        fs::write(&trace, "older").unwrap();
        let output = run([&["load", &path("model"), "--trace", &trace][..], &wanted].concat());
        assert!(!output.status.success(), "{}", stderr(&output));
        assert!(sums(Path::new(&trace)).len() <= 1, "{wanted:?}");
    }
    fs::write(&trace, "older").unwrap();
    let output = run(["load", &path("missing"), "--trace", &trace]);
    assert!(!output.status.success(), "{}", stderr(&output));
    assert!(sums(Path::new(&trace)).len() <= 1);
}

#[test]
fn trace_of_a_benchmark_has_a_process_per_load() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (model, trace, json) = (path("model"), path("trace.json"), path("out.json"));
    succeed(["synth", &model, "--preset", "tiny"]);
    let bench = [
        "bench", &model, "--rounds", "2", "--no-fio", "--depth", "1,2",
    ];
    succeed(bench.iter().chain(&["--trace", &trace, "--json", &json]));
    let all = sums(Path::new(&trace));
    assert_eq!(all.len(), 4, "two rounds of two cells");
    assert_perfetto(&trace, &all);
    let results: Value = serde_json::from_str(&fs::read_to_string(json).unwrap()).unwrap();
    let report = &results["cells"][0]["samples"][0]["report"];
    for sums in all.values() {
        assert_eq!(
            sums.bytes["tensor"],
            report["tensor_bytes"].as_u64().unwrap()
        );
    }
}
