//! GPUs, simulated by a stub driver over host memory: loads, benchmarks, findings and errors.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;
use tempfile::TempDir;

use crate::{command, stderr, succeed};

/// Machine with the stub CUDA driver, and a checkpoint.
struct Machine {
    library: TempDir,
    folder: TempDir,
}

impl Machine {
    /// Returns a machine with GPUs: two, unless a test sets another number.
    fn new() -> Self {
        Self::with_library(tload_cuda_stub::folder())
    }

    /// Returns a machine without a driver, regardless of what is installed.
    fn without_driver() -> Self {
        let library = tempfile::tempdir().unwrap();
        for name in ["libcuda.so", "libcuda.so.1"] {
            std::fs::write(library.path().join(name), "no library").unwrap();
        }
        Self::with_library(library)
    }

    fn with_library(library: TempDir) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let model = folder.path().join("model");
        succeed(["synth", model.to_str().unwrap(), "--size", "16MiB"]);
        Self { library, folder }
    }

    fn model(&self) -> String {
        self.path("model")
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).to_str().unwrap().to_owned()
    }

    /// Returns the command. `settings` are those of the stub, in lower case.
    fn command(&self, arguments: &[&str], settings: &[(&str, &str)]) -> Command {
        let mut command = command(arguments);
        command.env("LD_LIBRARY_PATH", self.library.path());
        for (key, value) in settings {
            command.env(format!("TLOAD_CUDA_STUB_{}", key.to_uppercase()), value);
        }
        command
    }

    fn load(&self, more: &[&str], settings: &[(&str, &str)]) -> Output {
        let model = self.model();
        let arguments = [&["load", &model], more].concat();
        self.command(&arguments, settings).output().unwrap()
    }

    fn loaded(&self, more: &[&str]) -> Value {
        output_json(&self.load(&[&["--json"], more].concat(), &[]))["report"].clone()
    }

    #[track_caller]
    fn fails(&self, more: &[&str], settings: &[(&str, &str)], status: i32, wanted: &[&str]) {
        let output = self.load(more, settings);
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(status), "{text}");
        for wanted in wanted {
            assert!(text.contains(wanted), "{wanted:?} is not in:\n{text}");
        }
    }

    /// Returns the findings about GPUs by their ids.
    fn doctor(&self, settings: &[(&str, &str)]) -> impl Fn(&str) -> Option<Value> + use<> {
        let output = self.command(&["doctor", "--json"], settings).output();
        let diagnosis = output_json(&output.unwrap());
        let findings = diagnosis["findings"].as_array().unwrap().clone();
        move |id| findings.iter().find(|finding| finding["id"] == id).cloned()
    }
}

#[track_caller]
fn output_json(output: &Output) -> Value {
    assert!(output.status.success(), "{}", stderr(output));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap()
}

#[test]
fn trace_has_the_copies_to_gpus() {
    let machine = Machine::new();
    let trace = machine.path("trace.json");
    let map = [
        "--device",
        "cuda:0",
        "--device-map",
        "model.layers.0=cuda:1",
    ];
    let report = machine.loaded(&[&map[..], &["--trace", &trace]].concat());
    assert_eq!(report["devices"].as_array().unwrap().len(), 2);
    let all = crate::traces::sums(Path::new(&trace));
    crate::traces::assert_sums(&all[&1], &report);
}

#[test]
fn tensors_are_loaded_to_requested_gpu() {
    let machine = Machine::new();
    let on_the_host = machine.loaded(&[]);
    assert_eq!(on_the_host["devices"], serde_json::json!([]));
    for (device, name) in [
        ("cuda", "cuda:0"),
        ("cuda:0", "cuda:0"),
        ("cuda:1", "cuda:1"),
    ] {
        for keep in [&[][..], &["--keep"]] {
            let report = machine.loaded(&[&["--device", device], keep].concat());
            assert_eq!(report["outcome"], "complete");
            assert_eq!(report["tensor_bytes"], on_the_host["tensor_bytes"]);
            assert_eq!(report["devices"].as_array().unwrap().len(), 1);
            let gpu = &report["devices"][0];
            assert_eq!(gpu["device"], name);
            assert_eq!(gpu["copied_bytes"], report["tensor_bytes"]);
            assert_eq!(
                report["staging"]["pinned_bytes"],
                report["staging"]["bytes"]
            );
        }
    }
    let shown = machine.load(&["--device", "cuda:1"], &[]);
    let shown = String::from_utf8(shown.stdout).unwrap();
    assert!(shown.contains("\nstaging  "), "{shown}");
    assert!(shown.contains("\ncuda:1   "), "{shown}");
}

#[test]
fn device_map_takes_precedence_over_device() {
    let machine = Machine::new();
    let report = machine.loaded(&[
        "--device-map",
        "model.layers=cuda:1",
        "--device-map",
        "model.*=cpu",
        "--device",
        "cuda:0",
    ]);
    let bytes = |name: &str| -> u64 {
        let devices = report["devices"].as_array().unwrap();
        let device = devices.iter().find(|device| device["device"] == name);
        device.unwrap()["copied_bytes"].as_u64().unwrap()
    };
    let listing = crate::json(["ls", &machine.model(), "--json"]);
    let of = |wanted: &dyn Fn(&str) -> bool| -> u64 {
        let tensors = listing["tensors"].as_array().unwrap().iter();
        let tensors = tensors.filter(|tensor| wanted(text(&tensor["name"])));
        tensors
            .map(|tensor| tensor["bytes"].as_u64().unwrap())
            .sum()
    };
    assert_eq!(
        bytes("cuda:1"),
        of(&|name| name.starts_with("model.layers."))
    );
    assert_eq!(bytes("cuda:0"), of(&|name| !name.starts_with("model.")));
    assert!(bytes("cuda:0") > 0 && bytes("cuda:1") > 0);

    let nowhere = ["--device-map", "no.such.*=cuda:0"];
    machine.fails(&nowhere, &[], 3, &["no.such.*"]);
    machine.fails(
        &["--device-map", "cuda:0"],
        &[],
        2,
        &["is not NAME=DEVICE or GLOB=DEVICE"],
    );
    machine.fails(&["--device-map", "*=tpu"], &[], 2, &["cpu, cuda, cuda:N"]);
}

#[test]
fn gpu_memory_limit_holds_and_is_named() {
    let machine = Machine::new();
    let limited = ["--device", "cuda:0", "--device-memory-limit", "8MiB"];
    let report = machine.loaded(&limited);
    assert_eq!(report["devices"][0]["memory_limit"], 8 << 20);
    assert!(report["devices"][0]["memory_peak"].as_u64().unwrap() <= 8 << 20);

    let model = machine.model();
    let mut by_variable = machine.command(&["load", &model, "--device", "cuda", "--json"], &[]);
    let output = by_variable
        .env("TLOAD_DEVICE_MEMORY_LIMIT", "9MiB")
        .output();
    let report = output_json(&output.unwrap())["report"].clone();
    assert_eq!(report["devices"][0]["memory_limit"], 9 << 20);

    let small = ["--device", "cuda:0", "--device-memory-limit", "4KiB"];
    machine.fails(&small, &[], 6, &["cuda:0", "set --device-memory-limit to"]);
    let full = [("memory", "67108864"), ("busy", "67100000")];
    machine.fails(&["--device", "cuda:0"], &full, 6, &["cuda:0", "free"]);
}

#[test]
fn missing_gpu_is_invalid_request() {
    let machine = Machine::new();
    let wanted = ["there is no cuda:2", "2 GPUs", "hint: CUDA_VISIBLE_DEVICES"];
    machine.fails(&["--device", "cuda:2"], &[], 2, &wanted);
}

#[test]
fn unusable_driver_is_status_7_with_hint() {
    let machine = Machine::without_driver();
    let wanted = ["no CUDA driver was found", "use --device cpu"];
    machine.fails(&["--device", "cuda"], &[], 7, &wanted);

    let machine = Machine::new();
    let stub = [("stub_library", "1")];
    machine.fails(
        &["--device", "cuda"],
        &stub,
        7,
        &["toolkit's stub", "hint: "],
    );
    let none = [("devices", "0")];
    machine.fails(&["--device", "cuda"], &none, 7, &["finds no GPU", "hint: "]);
    let old = [("version", "10020")];
    machine.fails(&["--device", "cuda"], &old, 7, &["CUDA 10.2", "hint: "]);
}

#[test]
fn failing_gpu_is_status_10_with_partial_report() {
    let machine = Machine::new();
    let second = [("fail", "copy:719:2")];
    let wanted = ["error: ", "(719)", "hint: ", "(device)"];
    machine.fails(&["--device", "cuda:0"], &second, 10, &wanted);
    let output = machine.load(&["--device", "cuda:0", "--json"], &second);
    assert_eq!(output.status.code(), Some(10));
    let loaded: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(loaded["report"]["outcome"], "device");
}

#[test]
fn digests_are_of_bytes_in_cpu_memory() {
    let machine = Machine::new();
    let wanted = ["--digest", "cuda:1", "hint: leave out --digest"];
    machine.fails(&["--digest", "--device", "cuda:1"], &[], 2, &wanted);
    let some = ["--digest", "--device-map", "lm_head.*=cuda:1"];
    machine.fails(&some, &[], 2, &wanted);
    // No tensor goes to that GPU.
    let none = ["--digest", "--device", "cuda:1", "--device-map", "*=cpu"];
    let digest = machine.load(&none, &[]);
    assert!(digest.status.success(), "{}", stderr(&digest));
}

#[test]
fn doctor_shows_every_gpu_and_pins_memory() {
    let find = Machine::new().doctor(&[]);
    let driver = find("cuda").unwrap();
    assert_eq!(driver["level"], "ok");
    assert_eq!(driver["value"], "CUDA 12.8, 2 GPUs");
    let devices = find("cuda_devices").unwrap();
    assert_eq!(devices["level"], "ok");
    for wanted in ["cuda:0 ", "; cuda:1 ", "1.0 GiB of 1.0 GiB free"] {
        assert!(text(&devices["value"]).contains(wanted), "{devices}");
    }
    let pinning = find("pinning").unwrap();
    assert_eq!(pinning["level"], "ok");
    let all = "64.0 MiB of 64.0 MiB";
    assert_eq!(pinning["value"], format!("cuda:0 {all}; cuda:1 {all}"));
}

#[test]
fn doctor_reports_missing_driver() {
    let find = Machine::without_driver().doctor(&[]);
    let driver = find("cuda").unwrap();
    assert_eq!(driver["level"], "note");
    assert!(text(&driver["value"]).starts_with("no CUDA driver"));
    assert!(text(&driver["advice"]).contains("--device cpu"));
    assert_eq!((find("cuda_devices"), find("pinning")), (None, None));

    let machine = Machine::new();
    let find = machine.doctor(&[("register_max", "0")]);
    let pinning = find("pinning").unwrap();
    assert_eq!(pinning["level"], "warn");
    assert!(text(&pinning["value"]).starts_with("cuda:0 0 B of 64.0 MiB (cuda:0: cannot pin"));
    assert!(pinning["advice"].is_string());

    let find = machine.doctor(&[("fail", "cuDevicePrimaryCtxRetain:2")]);
    let devices = find("cuda_devices").unwrap();
    assert_eq!(devices["level"], "warn");
    assert!(text(&devices["value"]).starts_with("cannot use GPU cuda:0: CUDA_ERROR_OUT_OF_MEMORY"));
    assert_eq!(find("pinning"), None);
}

#[test]
fn bench_reports_device_and_copy_time() {
    let machine = Machine::new();
    let (model, json, csv) = (
        machine.model(),
        machine.path("o.json"),
        machine.path("o.csv"),
    );
    let mut arguments = vec!["bench", &model, "--device", "cuda:1", "--rounds", "2"];
    arguments.extend(["--no-fio", "--mode", "stream,reload,keep"]);
    arguments.extend(["--json", &json, "--csv", &csv]);
    let output = machine.command(&arguments, &[]).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let shown = String::from_utf8(output.stdout).unwrap();
    assert!(shown.contains("; cuda:1, copies "), "{shown}");
    assert!(shown.contains(" MiB pinned "), "{shown}");
    assert!(!shown.contains("fresh memory"), "{shown}");

    let results: Value = serde_json::from_str(&read(&json)).unwrap();
    assert!(text(&results["host"]["gpu"]).starts_with("cuda:1, "));
    for cell in results["cells"].as_array().unwrap() {
        assert_eq!(cell["configuration"]["device"], "cuda:1");
        let samples = cell["samples"].as_array().unwrap();
        assert_eq!(samples.len(), 4);
        for sample in samples {
            let report = &sample["report"];
            if sample["contender"] == "ceiling" {
                assert_eq!(report["devices"], serde_json::json!([]));
                continue;
            }
            assert_eq!(report["devices"][0]["copied_bytes"], sample["bytes"]);
            let has_staging_of_before = cell["mode"] == "reload";
            assert_eq!(report["staging"]["reused"], has_staging_of_before);
        }
    }
    let csv = read(&csv);
    let titles: Vec<&str> = csv.lines().next().unwrap().split(',').collect();
    let at = |name: &str| titles.iter().position(|title| *title == name).unwrap();
    let load = csv.lines().find(|line| line.contains(",tload,")).unwrap();
    let fields: Vec<&str> = load.split(',').collect();
    assert_eq!(fields[at("device")], "cuda:1");
    assert!(fields[at("copy_seconds")].parse::<f64>().is_ok());
    assert_eq!(fields[at("pinned_bytes")], fields[at("staging_bytes")]);
}

#[test]
fn bench_warns_of_unpinned_memory_and_rejects_models_too_large() {
    let machine = Machine::new();
    let model = machine.model();
    let bench = |more: &[&str], settings: &[(&str, &str)]| {
        let basic = ["bench", &model, "--rounds", "1", "--no-fio", "--device"];
        let arguments = [&basic[..], more].concat();
        machine.command(&arguments, settings).output().unwrap()
    };
    let output = bench(&["cuda:0"], &[("register_max", "0")]);
    assert!(output.status.success(), "{}", stderr(&output));
    let warnings = stderr(&output);
    assert!(warnings.contains("could not be pinned"), "{warnings}");

    let small = [("memory", "8388608")];
    let output = bench(&["cuda:0", "--mode", "keep"], &small);
    assert_eq!(output.status.code(), Some(6), "{}", stderr(&output));
    assert!(stderr(&output).contains("of memory of cuda:0"));

    for (device, status) in [("cuda:5", 2), ("mps", 7), ("toaster", 2)] {
        let output = bench(&[device], &[]);
        assert_eq!(output.status.code(), Some(status), "{}", stderr(&output));
    }
}

fn read(path: &str) -> String {
    std::fs::read_to_string(Path::new(path)).unwrap()
}

#[test]
fn doctor_tells_the_kind_of_memory() {
    let machine = Machine::new();
    let found = |kind| machine.doctor(&[("kind", kind), ("devices", "1")])("cuda_memory").unwrap();
    let own = found("discrete");
    assert_eq!(own["value"], "cuda:0 has its own");
    assert_eq!((text(&own["level"]), &own["advice"]), ("ok", &Value::Null));
    let coherent = found("coherent");
    assert_eq!(
        coherent["value"],
        "cuda:0 has its own, coherent with the host's"
    );
    assert_eq!(text(&coherent["level"]), "ok");
    let shared = found("integrated");
    assert_eq!(
        shared["value"],
        "cuda:0 shares the host's, and reads ordinary memory"
    );
    assert_eq!(text(&shared["level"]), "note");
    assert!(text(&shared["advice"]).contains("--cache drop"), "{shared}");
}

/// Page cache is not in use: the driver's number would be 24 MiB.
#[test]
fn memory_shared_with_the_host_is_free_if_the_kernel_can_make_it_so() {
    let machine = Machine::new();
    let cached = ((1_u64 << 30) - (24 << 20)).to_string();
    let free = |kind| {
        let settings = [
            ("kind", kind),
            ("devices", "1"),
            ("cached", cached.as_str()),
        ];
        let found = machine.doctor(&settings)("cuda_devices").unwrap();
        text(&found["value"]).to_owned()
    };
    assert!(
        free("discrete").contains("24.0 MiB of 1.0 GiB free"),
        "{}",
        free("discrete")
    );
    assert!(
        free("integrated").contains("1.0 GiB of 1.0 GiB free"),
        "{}",
        free("integrated")
    );
}

#[test]
fn shared_memory_that_is_too_small_is_refused() {
    let machine = Machine::new();
    let settings = [("kind", "integrated"), ("memory", "65536")];
    let wanted = [
        "cuda:0 shares the host's memory",
        "hint: end other programs",
    ];
    machine.fails(&["--device", "cuda"], &settings, 6, &wanted);
}
