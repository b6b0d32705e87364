//! Python that has other loaders, and loads with them.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use tload_base::error::{Error, ErrorKind, Result, printable};

use crate::Peer;
use crate::process::{Process, Watch};

const SCRIPT: &str = include_str!("peers.py");
/// Program that runs the script, which is its first line of input: lists of processes stay legible.
const START: &str = "import json, sys; exec(json.loads(sys.stdin.readline()))";

const HINT: &str = "name the Python that has the loaders with --python";

/// Time for what takes as long for every checkpoint: starting Python, importing torch.
const START_TIME: Duration = Duration::from_secs(600);
/// Bytes per second that even a loader in trouble reads.
const SLOWEST: u64 = 10_000_000;

/// Python, and the versions of the loaders that users asked for.
#[derive(Clone, Debug, Serialize)]
pub struct Python {
    /// Path or name of the program.
    program: PathBuf,
    version: String,
    /// torch, which all loaders need, is installed.
    has_torch: bool,
    loaders: Vec<Installed>,
}

#[derive(Clone, Debug, Serialize)]
struct Installed {
    name: &'static Peer,
    package: &'static str,
    /// `None` if it is not installed.
    version: Option<String>,
}

/// Load by another loader.
#[derive(Clone, Copy, Debug)]
pub struct PeerLoad<'a> {
    /// Path of the checkpoint.
    pub location: &'a str,
    /// Its files, or the file in the loader's own format.
    pub files: &'a [PathBuf],
    /// True to keep every tensor to the end, false to drop each on arrival.
    pub keeps: bool,
    /// True to measure the second load of the process.
    pub again: bool,
    /// Bytes of the tensors.
    pub bytes: u64,
}

/// Result of a load.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
pub struct Outcome {
    /// Time from the call of the loader, after imports, to the last tensor.
    pub seconds: f64,
    /// User and system time during the load.
    pub cpu_seconds: f64,
    /// Bytes of the tensors.
    pub bytes: u64,
    /// Time until the first tensor.
    pub first_tensor_seconds: Option<f64>,
    /// Highest resident set of the process, Python and torch included.
    pub peak_rss_bytes: Option<u64>,
}

/// Answer of a task that has no other result.
#[derive(Deserialize)]
struct Done {}

/// Answer to the question for versions.
#[derive(Deserialize)]
struct Found {
    python: String,
    has_torch: bool,
    versions: Map<String, Value>,
}

impl Python {
    /// Starts `program` and asks it for the versions of `peers`, of which some may be equal.
    pub fn find(program: &OsStr, peers: &[&'static Peer], watch: &Watch<'_>) -> Result<Self> {
        let mut unique: Vec<&'static Peer> = Vec::new();
        for peer in peers {
            if !unique.contains(peer) {
                unique.push(peer);
            }
        }
        let packages: Vec<_> = unique.iter().map(|peer| peer.package).collect();
        let job = json!({"task": "find", "packages": packages});
        let found: Result<Found> =
            start(program.as_ref(), &job).and_then(|mut it| it.answer(watch));
        let found = found.map_err(|error| match (error.kind(), error.location()) {
            (ErrorKind::Cancelled, _) => error,
            (_, None) => error.with_location(program.display()).with_hint(HINT),
            (_, Some(_)) => error.with_hint(HINT),
        })?;
        let installed = |peer: &&'static Peer| Installed {
            name: peer,
            package: peer.package,
            version: (found.versions.get(peer.package))
                .and_then(Value::as_str)
                .map(printable),
        };
        Ok(Self {
            program: program.into(),
            version: printable(&found.python),
            has_torch: found.has_torch,
            loaders: unique.iter().map(installed).collect(),
        })
    }

    /// Returns the loaders that are installed, with torch.
    pub fn installed(&self) -> impl Iterator<Item = &'static Peer> {
        let runs = |it: &&Installed| self.has_torch && it.version.is_some();
        self.loaders.iter().filter(runs).map(|it| it.name)
    }

    /// Returns the loaders that cannot run, each with the packages that are not installed.
    pub fn missing(&self) -> impl Iterator<Item = (&'static Peer, Vec<&'static str>)> {
        let missing = |it: &Installed| {
            let own = it.version.is_none().then_some(it.package);
            let torch = (!self.has_torch).then_some("torch");
            (it.name, own.into_iter().chain(torch).collect::<Vec<_>>())
        };
        let missing = self.loaders.iter().map(missing);
        missing.filter(|(_, packages)| !packages.is_empty())
    }

    /// Returns the name of the program.
    #[must_use]
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// Returns name and version of a loader.
    #[must_use]
    pub fn describe(&self, peer: &Peer) -> String {
        let mut loaders = self.loaders.iter();
        let found = loaders.find(|it| it.name == peer);
        let version = found.and_then(|it| it.version.as_deref());
        format!("{} {}", peer.name, version.unwrap_or("(not installed)"))
    }

    /// Writes the checkpoint of `files` to `target`, in the format of tensorizer.
    pub fn convert(&self, files: &[PathBuf], target: &Path, watch: &Watch<'_>) -> Result<()> {
        let (files, target) = (texts(files)?, text(target)?);
        let job = json!({"task": "convert", "files": files, "target": target});
        start(&self.program, &job)?.answer::<Done>(watch).map(drop)
    }

    /// Loads once with `peer` in a new process. Calls `prepare` when that has imported everything,
    /// and returns its result too. Loaders that return other bytes than those of the tensors fail.
    pub fn load<T>(
        &self,
        peer: &Peer,
        job: &PeerLoad<'_>,
        watch: &Watch<'_>,
        prepare: impl FnOnce() -> Result<T>,
    ) -> Result<(T, Outcome)> {
        let line = json!({
            "task": "measure",
            "loader": peer.name,
            "location": job.location,
            "files": texts(job.files)?,
            "keep": job.keeps,
            "again": job.again,
        });
        let mut process = start(&self.program, &line)?;
        process.answer::<Done>(watch)?;
        let prepared = prepare()?;
        process.send("go");
        let outcome: Outcome = process.answer(watch)?;
        if outcome.bytes != job.bytes {
            let (found, wanted) = (outcome.bytes, job.bytes);
            let message = format!("loads {found} bytes of tensors, the checkpoint has {wanted}");
            return Err(Error::new(ErrorKind::Corrupt, message));
        }
        Ok((prepared, outcome))
    }
}

impl fmt::Display for Python {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let loaders: Vec<_> = self.installed().map(|peer| self.describe(peer)).collect();
        let loaders = if loaders.is_empty() {
            "no other loader".to_owned()
        } else {
            loaders.join(", ")
        };
        let program = printable(&self.program.to_string_lossy());
        write!(f, "{loaders} ({program}, Python {})", self.version)
    }
}

/// Returns the Python to look in unless users name one: the one that this process runs in, as the
/// command of the Python package does, or the first on `PATH`.
#[must_use]
pub fn default_program() -> OsString {
    program_of(std::env::args_os().next())
}

fn program_of(first_argument: Option<OsString>) -> OsString {
    let is_python = |program: &OsString| {
        let name = Path::new(program).file_name().unwrap_or_default();
        name.as_encoded_bytes().starts_with(b"python")
    };
    let own = first_argument.filter(is_python);
    own.unwrap_or_else(|| "python3".into())
}

/// Returns the longest time that a loader may take for so many bytes.
#[must_use]
pub fn time_limit(bytes: u64) -> Duration {
    START_TIME + Duration::from_secs(bytes / SLOWEST)
}

fn start(program: &Path, job: &Value) -> Result<Process> {
    let mut command = Command::new(program);
    // Modules in the current directory are not loaders.
    command.args(["-c", START]).env("PYTHONSAFEPATH", "1");
    let mut process = Process::start(command, &json!(SCRIPT))?;
    process.send(&job.to_string());
    Ok(process)
}

fn texts(paths: &[PathBuf]) -> Result<Vec<&str>> {
    paths.iter().map(|path| text(path)).collect()
}

fn text(path: &Path) -> Result<&str> {
    path.to_str().ok_or_else(|| {
        Error::new(ErrorKind::Unsupported, "a path that is not UTF-8").with_location(path.display())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PEERS;

    #[test]
    fn every_loader_is_one_of_the_script() {
        for peer in &PEERS {
            let entry = format!("    \"{}\": {},\n", peer.name, peer.name.replace('-', "_"));
            assert!(SCRIPT.contains(&entry), "{}", peer.name);
        }
    }

    #[test]
    fn default_is_the_python_of_this_process() {
        for (first, program) in [
            (Some("/venv/bin/python3.11"), "/venv/bin/python3.11"),
            (Some("/usr/bin/tload"), "python3"),
            (Some("/opt/python/bin/tensorload"), "python3"),
            (None, "python3"),
        ] {
            assert_eq!(program_of(first.map(OsString::from)), program);
        }
    }

    #[test]
    fn time_limit_grows_with_the_checkpoint() {
        assert_eq!(time_limit(0), START_TIME);
        assert_eq!(
            time_limit(1 << 40),
            START_TIME + Duration::from_secs(109_951)
        );
    }

    #[test]
    fn python_names_what_it_has() {
        let loader = |index: usize, version: Option<&str>| Installed {
            name: &PEERS[index],
            package: PEERS[index].package,
            version: version.map(str::to_owned),
        };
        let mut python = Python {
            program: "python3".into(),
            version: "3.11.7".to_owned(),
            has_torch: true,
            loaders: vec![
                loader(0, Some("0.8.0")),
                loader(1, None),
                loader(3, Some("2")),
            ],
        };
        let shown = "safetensors 0.8.0, tensorizer 2 (python3, Python 3.11.7)";
        assert_eq!(python.to_string(), shown);
        let missing = |python: &Python| {
            let missing = python.missing();
            let missing = missing.map(|(peer, packages)| (peer.name, packages.join(" ")));
            missing.collect::<Vec<_>>()
        };
        let runai = "runai-model-streamer";
        assert_eq!(missing(&python), [("runai", runai.to_owned())]);
        let without_torch = Python {
            has_torch: false,
            ..python.clone()
        };
        assert_eq!(without_torch.installed().count(), 0);
        let all = missing(&without_torch);
        assert_eq!(all[0], ("safetensors", "torch".to_owned()));
        assert_eq!(all[1], ("runai", format!("{runai} torch")));
        python.loaders.retain(|it| it.version.is_none());
        assert_eq!(
            python.to_string(),
            "no other loader (python3, Python 3.11.7)"
        );
        let json = serde_json::to_value(&python).expect("plain values");
        let loaders =
            json!([{"name": "runai", "package": "runai-model-streamer", "version": null}]);
        assert_eq!(json["loaders"], loaders);
    }
}
