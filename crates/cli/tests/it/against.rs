//! `bench --against`: other loaders beside the load, those that fail, hang or are not installed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use tload_testbed::pause_between_looks;

use crate::interrupt::signal;
use crate::requirement::{of_machine, requirement};
use crate::{command, run, stderr, succeed};

/// Loaders that do not load: one fails, one takes its time, and one returns too little.
const MODULES: [(&str, &str); 4] = [
    ("torch.py", ""),
    (
        "instanttensor.py",
        "def safe_open(names, framework, device):\n    raise RuntimeError('first\\n  a GPU | is \\033[1m needed')\n",
    ),
    (
        "runai_model_streamer.py",
        "import os, threading\n\
         class SafetensorsStreamer:\n    \
             def stream_files(self, names, owned=False): pass\n\
         with open(os.environ['PID_FILE'] + '.new', 'w') as file: file.write(str(os.getpid()))\n\
         os.rename(os.environ['PID_FILE'] + '.new', os.environ['PID_FILE'])\n\
         threading.Event().wait()\n",
    ),
    (
        "fastsafetensors.py",
        "import contextlib\n\
         class SingleGroup: pass\n\
         class SafeTensorsFileLoader:\n    \
             def __init__(self, group, device, nogds): pass\n    \
             def add_filenames(self, names): pass\n    \
             def copy_files_to_device(self): return self\n    \
             def get_keys(self): return []\n    \
             def close(self): print('a line that is no answer')\n",
    ),
];
const PACKAGES: [&str; 3] = ["instanttensor", "runai-model-streamer", "fastsafetensors"];

/// Writes loaders that a Python finds in the returned directory.
fn fake_loaders() -> tempfile::TempDir {
    fakes(&MODULES, &PACKAGES)
}

fn fakes(modules: &[(&str, &str)], packages: &[&str]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in modules {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    for package in packages {
        let info = format!("{}-9.8.dist-info", package.replace('-', "_"));
        let info = folder.path().join(info);
        fs::create_dir(&info).unwrap();
        let metadata = format!("Metadata-Version: 2.1\nName: {package}\nVersion: 9.8\n");
        fs::write(info.join("METADATA"), metadata).unwrap();
    }
    folder
}

/// Returns Python without packages of the machine.
fn bare_python() -> Option<&'static str> {
    let version = Command::new("python3").arg("--version").output();
    let found = version.is_ok_and(|it| it.status.success());
    requirement(
        "python3",
        found.then_some("python3").ok_or("no python3".to_owned()),
    )
}

/// Returns the Python of the tests, if it has safetensors and torch.
fn python_with_safetensors() -> Option<PathBuf> {
    let python = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.venv/bin/python");
    let imports = Command::new(&python)
        .args(["-c", "import safetensors, torch"])
        .output();
    let found = imports.is_ok_and(|it| it.status.success());
    let missing = || "no safetensors and torch in .venv: run make wheel".to_owned();
    of_machine("safetensors", found.then_some(python).ok_or_else(missing))
}

fn bench<'a>(folder: &'a str, python: &'a str, against: &'a str, more: &[&'a str]) -> Command {
    let arguments = [
        "bench",
        "--preset",
        "tiny",
        "--size",
        "4MiB",
        "--no-fio",
        "--dir",
        folder,
        "--python",
        python,
        "--against",
        against,
    ];
    command(arguments.iter().chain(more))
}

fn read_json(path: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

#[test]
fn safetensors_runs_beside_the_load() {
    let Some(python) = python_with_safetensors() else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let (json, html) = (
        folder.path().join("out.json"),
        folder.path().join("out.html"),
    );
    let more = [
        "--rounds",
        "1",
        "--mode",
        "stream,keep,reload",
        "--cache-state",
        "warm",
        "--json",
        json.to_str().unwrap(),
        "--html",
        html.to_str().unwrap(),
    ];
    let scratch = folder.path().to_str().unwrap();
    let output = bench(
        scratch,
        python.to_str().unwrap(),
        "safetensors,safetensors",
        &more,
    )
    .output()
    .unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("\nagainst safetensors "), "{text}");
    let results = read_json(&json);
    let loaders = results["against"]["loaders"].as_array().unwrap();
    assert_eq!(loaders.len(), 1, "named twice, it runs once");
    let version = loaders[0]["version"].as_str().unwrap();
    let cells = results["cells"].as_array().unwrap();
    assert_eq!(cells.len(), 3);
    for cell in cells {
        assert_eq!(cell["failures"].as_array().unwrap().len(), 0, "{cell}");
        let samples = cell["samples"].as_array().unwrap();
        let theirs = || samples.iter().filter(|it| it["contender"] == "safetensors");
        assert_eq!(theirs().count(), 1);
        for sample in theirs() {
            assert_eq!(sample["bytes"], results["checkpoint"]["tensor_bytes"]);
            assert_eq!(sample["residency"]["found"], "warm");
            assert_eq!(sample["engine"], format!("safetensors {version}"));
            assert!(sample["first_tensor_seconds"].as_f64() <= sample["seconds"].as_f64());
        }
        let summary = &cell["summaries"][2];
        assert_eq!(summary["contender"], "safetensors");
        for ratio in ["tload_ratio", "ceiling_ratio"] {
            assert!(
                summary[ratio]["median"].as_f64().unwrap() > 0.0,
                "{summary}"
            );
        }
        let sentence = format!("{}: tload is ", cell["mode"].as_str().unwrap());
        assert!(text.contains(&sentence), "{text}");
    }
    assert!(
        fs::read_to_string(html)
            .unwrap()
            .contains("times as fast as safetensors")
    );
}

#[test]
fn loader_that_fails_is_a_row_with_its_last_line() {
    let Some(python) = bare_python() else {
        return;
    };
    let (folder, loaders) = (tempfile::tempdir().unwrap(), fake_loaders());
    let (json, html) = (
        folder.path().join("out.json"),
        folder.path().join("out.html"),
    );
    let more = [
        "--rounds",
        "2",
        "--json",
        json.to_str().unwrap(),
        "--html",
        html.to_str().unwrap(),
    ];
    let against = "tensorizer,instanttensor,fastsafetensors";
    let output = bench(folder.path().to_str().unwrap(), python, against, &more)
        .env("PYTHONPATH", loaders.path())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = "instanttensor       failed: a GPU | is \\u{1b}[1m needed\n";
    assert!(text.contains(line), "{text}");
    let results = read_json(&json);
    assert_eq!(results["complete"], true);
    let failures = results["cells"][0]["failures"].as_array().unwrap();
    let told: Vec<_> = failures
        .iter()
        .map(|it| {
            (
                it["contender"].as_str().unwrap(),
                it["round"].as_u64().unwrap(),
            )
        })
        .collect();
    // Neither runs again in the second round.
    assert_eq!(told, [("instanttensor", 1), ("fastsafetensors", 1)]);
    let bytes = &results["checkpoint"]["tensor_bytes"];
    let too_little = format!("loads 0 bytes of tensors, the checkpoint has {bytes}");
    assert_eq!(failures[1]["reason"], too_little);
    let page = fs::read_to_string(html).unwrap();
    assert!(page.contains(&too_little), "{page}");
    // Not installed: a warning, in the exports too.
    let missing =
        "tensorizer needs tensorizer, which this Python lacks: python3 -m pip install tensorizer";
    assert!(stderr(&output).contains(missing), "{}", stderr(&output));
    assert!(page.contains(missing), "{page}");
    let loaders = results["against"]["loaders"].as_array().unwrap();
    assert_eq!(loaders[0]["version"], Value::Null);
    assert_eq!(loaders[1]["version"], "9.8");
}

#[test]
fn loader_with_its_own_format_reads_a_copy_beside_the_files() {
    let Some(python) = bare_python() else {
        return;
    };
    let modules = [
        ("torch.py", ""),
        ("safetensors/__init__.py", ""),
        (
            "safetensors/torch.py",
            "def load_file(file): return {file: 1}\n",
        ),
        (
            "tensorizer.py",
            "import os\n\
             class TensorSerializer:\n    \
                 def __init__(self, path): self.file = open(path, 'w')\n    \
                 def write_state_dict(self, tensors): print(*tensors, file=self.file)\n    \
                 def close(self): self.file.close()\n\
             def TensorDeserializer(path, device):\n    \
                 of = open(path).read().strip()\n    \
                 same = os.stat(path).st_dev == os.stat(of).st_dev\n    \
                 raise RuntimeError(f'{os.path.basename(path)} of {os.path.basename(of)}, {same}')\n",
        ),
    ];
    let (folder, loaders) = (
        tempfile::tempdir().unwrap(),
        fakes(&modules, &["tensorizer"]),
    );
    let (model, json) = (folder.path().join("model"), folder.path().join("out.json"));
    let (model, json) = (model.to_str().unwrap(), json.to_str().unwrap());
    succeed(["synth", model, "--preset", "tiny", "--size", "1MiB"]);
    let before = fs::read_dir(model).unwrap().count();
    let output = command(["bench", model, "--rounds", "1", "--no-fio", "--json", json])
        .args(["--against", "tensorizer", "--python", python])
        .env("PYTHONPATH", loaders.path())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let failures = &read_json(Path::new(json))["cells"][0]["failures"];
    let reason = "RuntimeError: model.tensorizer of model.safetensors, True";
    assert_eq!(failures[0]["reason"], reason);
    assert_eq!(fs::read_dir(model).unwrap().count(), before);
}

/// Starts a benchmark, and sends it a signal while a loader runs, whose number is returned too.
fn signalled(python: &str, name: &str, scratch: &Path) -> (Output, PathBuf) {
    let loaders = fake_loaders();
    let pid_file = loaders.path().join("pid");
    let child = bench(scratch.to_str().unwrap(), python, "runai", &[])
        .env("PYTHONPATH", loaders.path())
        .env("PID_FILE", &pid_file)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    while !pid_file.exists() {
        pause_between_looks();
    }
    let process = Path::new("/proc").join(fs::read_to_string(&pid_file).unwrap());
    assert!(signal(&child, name), "it had ended");
    (child.wait_with_output().unwrap(), process)
}

#[test]
fn interrupted_bench_ends_the_loader_that_runs() {
    let Some(python) = bare_python() else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let (output, process) = signalled(python, "TERM", folder.path());
    assert_eq!(output.status.code(), Some(143), "{}", stderr(&output));
    // The command waits for it: no process has its number.
    assert!(!process.exists());
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn loader_ends_with_a_bench_that_is_killed() {
    let Some(python) = bare_python() else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let (output, process) = signalled(python, "KILL", folder.path());
    assert_eq!(output.status.code(), None);
    // It may stay a zombie then.
    let runs = || fs::read_to_string(process.join("stat")).is_ok_and(|it| !it.contains(") Z "));
    while runs() {
        pause_between_looks();
    }
}

#[test]
fn wrong_loaders_are_errors_before_the_first_run() {
    for (arguments, message) in [
        (
            ["--against", "safetensor"],
            "invalid value 'safetensor' for '--against <LOADER,…>'",
        ),
        (
            ["--against", "safetensor"],
            "a similar value exists: 'safetensors'",
        ),
        (["--python", "python3"], "--against <LOADER,…>"),
        (
            ["--against=runai", "--python=/no/python"],
            "/no/python: cannot start",
        ),
        (["--against=runai", "--python=/no/python"], "with --python"),
        (["--against=runai", "--python=/bin/cat"], "/bin/cat"),
        (["--against=runai", "--startup"], "--startup"),
        (
            ["--against=runai", "--device=cuda:0"],
            "--against compares loads into CPU memory only",
        ),
    ] {
        let output = run(["bench", "--preset", "tiny"].iter().chain(&arguments));
        assert!(!output.status.success());
        assert!(stderr(&output).contains(message), "{}", stderr(&output));
    }
}
