//! `hf://` without a network, and the cache of `huggingface_hub`.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tload_testbed::{BlackHole, Hub};

use crate::cp::tree;
use crate::{command, stderr, succeed};

const MODEL: &str = "org/Model-1.5";
const URL: &str = "hf://org/Model-1.5";
/// Longest time that the first connection may take, with what a loaded machine adds to it.
const SOON: Duration = Duration::from_secs(6);
/// Time that it may take unless the caller says otherwise.
const BY_DEFAULT: Duration = Duration::from_secs(2);

/// A hub with a model, and directories for the caches.
struct Lab {
    hub: Hub,
    commit: String,
    files: Vec<(String, Vec<u8>)>,
    folder: TempDir,
}

impl Lab {
    fn start() -> Self {
        let (hub, folder) = (Hub::start(), tempfile::tempdir().unwrap());
        let model = folder.path().join("model");
        let model_path = model.to_str().unwrap();
        succeed(["synth", model_path, "--size", "4MiB", "--shards", "2"]);
        fs::create_dir(model.join("deep")).unwrap();
        for (name, bytes) in [
            ("config.json", "{}"),
            ("deep/tokenizer.model", "tokens"),
            ("consolidated.safetensors", "weights in another form"),
            ("pytorch_model.bin", "weights in another format"),
        ] {
            fs::write(model.join(name), bytes).unwrap();
        }
        let files: Vec<_> = tree(&model).into_iter().collect();
        let listed: Vec<_> = files
            .iter()
            .map(|(name, bytes)| (&**name, &**bytes))
            .collect();
        let commit = hub.commit(MODEL, "main", &listed);
        Self {
            hub,
            commit,
            files,
            folder,
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    /// Returns a command that reaches the hub, and nothing of this machine's user.
    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = command(arguments);
        command
            .env("HF_ENDPOINT", self.hub.url())
            .env("HF_HOME", self.path("home"))
            .env_remove("HF_HUB_CACHE")
            .env_remove("HF_HUB_OFFLINE")
            .env_remove("TRANSFORMERS_OFFLINE")
            .env_remove("HF_TOKEN");
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    fn offline(&self, arguments: &[&str]) -> Output {
        let mut command = self.command(arguments);
        command.env("HF_HUB_OFFLINE", "1").output().unwrap()
    }

    /// Returns the directory of the model in the cache of `huggingface_hub`.
    fn cached(&self) -> PathBuf {
        self.path("home/hub/models--org--Model-1.5")
    }

    fn bytes(&self, name: &str) -> &[u8] {
        let file = self.files.iter().find(|(other, _)| other == name);
        &file.expect(name).1
    }
}

#[track_caller]
fn good(output: &Output) {
    assert!(output.status.success(), "{}", stderr(output));
}

/// Returns the path that a link leads to, and requires that it is relative.
fn target(link: &Path) -> PathBuf {
    let target = fs::read_link(link).unwrap();
    assert!(target.is_relative(), "{}", target.display());
    link.parent().unwrap().join(target).canonicalize().unwrap()
}

/// Panics unless one of several runs takes less than `limit`: a busy machine may delay any single
/// one, or all of them.
#[track_caller]
fn assert_prompt(limit: Duration, mut run: impl FnMut()) {
    let taken: Vec<_> = (0..20)
        .map(|_| {
            let started = Instant::now();
            run();
            started.elapsed()
        })
        .take_while(|taken| *taken >= limit)
        .collect();
    assert!(taken.len() < 20 || is_busy(), "{taken:?}");
}

/// Returns whether processes compete for the cores, so that no time says anything.
fn is_busy() -> bool {
    let load = fs::read_to_string("/proc/loadavg").unwrap();
    let running: f64 = load.split(' ').next().unwrap().parse().unwrap();
    let cores = std::thread::available_parallelism().unwrap().get();
    running > f64::from(u32::try_from(cores).unwrap())
}

#[test]
fn unreachable_hub_is_reported_soon() {
    let lab = Lab::start();
    let hole = BlackHole::start().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let refusing = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    for (endpoint, says) in [
        (hole.url(), "cannot be reached"),
        (refusing, "refuses connections"),
        ("https://hub.invalid".to_owned(), "hub.invalid"),
    ] {
        for arguments in [vec!["ls", URL], vec!["ls", "hf://buckets/org/b/m"]] {
            assert_prompt(SOON, || {
                let output = lab
                    .command(&arguments)
                    .env("HF_ENDPOINT", &endpoint)
                    .output();
                let output = output.unwrap();
                let text = stderr(&output);
                assert!(!output.status.success(), "{text}");
                assert!(
                    text.contains(says) && text.contains("HF_HUB_OFFLINE"),
                    "{text}"
                );
            });
        }
    }
    // As long as the caller says: a busy machine only takes longer.
    let options = ["--store", "connect_timeout=0.2", "--store", "retries=0"];
    let arguments = [&["ls", URL][..], &options].concat();
    assert_prompt(BY_DEFAULT, || {
        let output = lab
            .command(&arguments)
            .env("HF_ENDPOINT", hole.url())
            .output();
        assert!(stderr(&output.unwrap()).contains("timed out"));
    });
}

#[test]
fn offline_load_reads_either_cache_or_names_both() {
    let lab = Lab::start();
    let own = lab.text("own");
    let output = lab.offline(&["load", URL]);
    assert_eq!(
        output.status.code(),
        lab.offline(&["ls", "nowhere"]).status.code()
    );
    let text = stderr(&output);
    for word in [
        "huggingface_hub cache",
        "home/hub",
        "cache_dir",
        "HF_HUB_OFFLINE",
        "hf download",
    ] {
        assert!(text.contains(word), "{word}: {text}");
    }
    let cached = ["load", URL, "--cache-dir", &own];
    let text = stderr(&lab.offline(&cached));
    for word in ["home/hub", &*own, "HF_HUB_OFFLINE", "hf download"] {
        assert!(text.contains(word), "{word}: {text}");
    }
    assert!(lab.hub.requests().is_empty());
    good(&lab.run(&cached));
    let before = lab.hub.requests().len();
    good(&lab.offline(&cached));
    let copy = lab.text("copy");
    let selected = ["--include", "*.safetensors*", "--exclude", "consolidated*"];
    good(&lab.offline(&[&["cp", URL, &copy, "--cache-dir", &own][..], &selected].concat()));
    assert_eq!(lab.hub.requests().len(), before);
    assert_eq!(
        fs::read(lab.path("copy/model.safetensors.index.json")).unwrap(),
        lab.bytes("model.safetensors.index.json")
    );
    // Other revisions are not there.
    let other = format!("{URL}@other");
    let output = lab.offline(&["load", &other, "--cache-dir", &own]);
    assert!(stderr(&output).contains("HF_HUB_OFFLINE"));
}

#[test]
fn load_fills_the_hubs_cache_when_asked() {
    let lab = Lab::start();
    good(&lab.run(&["load", URL]));
    assert!(!lab.path("home").exists(), "not asked");
    good(&lab.run(&["load", URL, "--hf-cache"]));
    let folder = lab.cached();
    assert_eq!(
        fs::read_to_string(folder.join("refs/main")).unwrap(),
        lab.commit
    );
    let snapshot = folder.join("snapshots").join(&lab.commit);
    for (name, bytes) in &lab.files {
        let path = snapshot.join(name);
        if name == "consolidated.safetensors" || path.extension() == Some("bin".as_ref()) {
            assert!(!path.exists(), "{name}");
            continue;
        }
        let blob = target(&path);
        assert_eq!(
            blob.parent().unwrap(),
            folder.join("blobs").canonicalize().unwrap()
        );
        assert!(fs::read(&blob).unwrap() == *bytes, "{name}");
    }
    let left = |name: &str| folder.join(name).exists();
    assert!(!left(".tload"), "what was being copied");
    let requests = lab.hub.requests().len();
    good(&lab.offline(&["load", URL]));
    good(&lab.run(&["load", URL, "--hf-cache"]));
    assert_eq!(lab.hub.requests().len(), requests);
}

#[test]
fn copy_and_single_files_fill_the_hubs_cache() {
    let lab = Lab::start();
    let shard = lab.files.iter().map(|(name, _)| name);
    let shard = shard
        .clone()
        .find(|name| name.starts_with("model-"))
        .unwrap();
    good(&lab.run(&["load", &format!("{URL}/{shard}"), "--hf-cache"]));
    let snapshot = lab.cached().join("snapshots").join(&lab.commit);
    assert_eq!(
        tree(&snapshot).into_keys().collect::<Vec<_>>(),
        [shard.as_str()]
    );
    let copy = lab.text("copy");
    good(&lab.run(&["cp", URL, &copy, "--hf-cache=true", "--exclude", "*.bin"]));
    let names = lab.files.iter().map(|(name, _)| name.as_str());
    let wanted = names.filter(|name| *name != "pytorch_model.bin");
    assert_eq!(
        tree(&snapshot).into_keys().collect::<Vec<_>>(),
        wanted.collect::<Vec<_>>()
    );
    assert!(tree(Path::new(&copy)) == tree(&snapshot));
    let large = lab.hub.files().requests();
    let twice = large.iter().filter(|it| {
        it.path.ends_with(shard) && it.range.as_ref().is_some_and(|range| range.start == 0)
    });
    assert_eq!(twice.count(), 1, "the shard came once");
}

/// Patterns select files below a source, not a source that is a file.
#[test]
fn single_file_is_copied_from_hub_and_cache_whatever_its_name() {
    let lab = Lab::start();
    let file = format!("{URL}/config.json");
    for from in ["hub", "cache"] {
        let target = lab.text(from);
        good(&lab.run(&["cp", &file, &target, "--exclude", "*.json"]));
        let copied: Vec<_> = tree(Path::new(&target)).into_keys().collect();
        assert_eq!(copied, ["config.json"], "{from}");
        good(&lab.run(&["load", URL, "--hf-cache"]));
    }
}

/// A copy of one file adds it to the cache, and leaves alone the reference to a complete model if
/// it brings nothing.
#[test]
fn copy_of_one_file_fills_the_hubs_cache() {
    let lab = Lab::start();
    // Opening downloads the whole model.
    good(&lab.run(&["ls", URL, "--hf-cache"]));
    let reference = lab.cached().join("refs/main");
    let commit = lab.hub.commit(MODEL, "main", &[("deep/other.bin", b"new")]);
    let copy = lab.text("copy");
    let absent = format!("{URL}/absent.bin");
    assert!(
        !lab.run(&["cp", &absent, &copy, "--hf-cache"])
            .status
            .success()
    );
    assert!(!lab.run(&["load", &absent, "--hf-cache"]).status.success());
    assert_eq!(fs::read_to_string(&reference).unwrap(), lab.commit);
    good(&lab.offline(&["load", URL]));
    let file = format!("{URL}/deep/other.bin");
    good(&lab.run(&["cp", &file, &copy, "--hf-cache"]));
    assert_eq!(fs::read(lab.path("copy/other.bin")).unwrap(), b"new");
    let snapshot = lab.cached().join("snapshots").join(&commit);
    assert_eq!(fs::read(snapshot.join("deep/other.bin")).unwrap(), b"new");
    assert_eq!(fs::read_to_string(&reference).unwrap(), commit);
}

/// An interrupted copy leaves no blob, and the next one goes on.
#[test]
fn failed_fill_leaves_no_partial_blob() {
    use tload_testbed::{Fault, Rule};
    let lab = Lab::start();
    let dead = Rule::always(Fault::CutBody(1000))
        .path("model-00002")
        .from_byte(1);
    lab.hub.files().fault(dead);
    let load = ["load", URL, "--hf-cache", "--store", "retries=0"];
    let output = lab.run(&load);
    assert!(!output.status.success(), "the load fails too");
    let folder = lab.cached();
    assert!(!folder.join("refs").exists());
    for (_, bytes) in tree(&folder.join("blobs")) {
        assert!(
            lab.files.iter().any(|(_, whole)| *whole == bytes),
            "a partial blob"
        );
    }
    lab.hub.files().clear_faults();
    good(&lab.run(&load));
    good(&lab.offline(&["load", URL]));
}

/// Other downloads into the same cache keep what an interrupted one has received.
#[test]
fn finished_fill_keeps_interrupted_ones() {
    use tload_testbed::{Fault, Rule};
    let lab = Lab::start();
    let shard = "model-00001-of-00002.safetensors";
    let dead = Rule::always(Fault::CutBody(1000)).path("model-00001");
    lab.hub.files().fault(dead.from_byte(1));
    let load = ["load", URL, "--hf-cache", "--store", "retries=0"];
    assert!(!lab.run(&load).status.success());
    let folder = lab.cached();
    let staged = folder.join(".tload").join(&lab.commit);
    let left = tree(&staged);
    assert!(
        left.keys().any(|name| name.contains(shard)),
        "{:?}",
        left.keys()
    );
    let (file, copy) = (format!("{URL}/consolidated.safetensors"), lab.text("copy"));
    good(&lab.run(&["cp", &file, &copy, "--hf-cache"]));
    // It also brings the contents of the file that was interrupted.
    let single = lab.bytes(shard);
    // Files of equal contents have one blob.
    let files = [
        ("model.safetensors", single),
        ("a/b/c.json", b"{ }"),
        ("d.json", b"{ }"),
    ];
    lab.hub.commit(MODEL, "other", &files);
    good(&lab.run(&["load", &format!("{URL}@other"), "--hf-cache"]));
    assert!(tree(&staged) == left);
    assert_eq!(fs::read_dir(folder.join(".tload")).unwrap().count(), 1);
    lab.hub.files().clear_faults();
    good(&lab.run(&load));
    assert!(!folder.join(".tload").exists());
}
