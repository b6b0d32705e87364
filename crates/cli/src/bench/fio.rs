//! `fio` as an independent ceiling: reads the same files without knowledge of tensors.
//!
//! Uses its best documented settings for reading whole files (<https://fio.readthedocs.io/>, engine
//! `io_uring`): registered files and buffers, direct I/O, all files of the checkpoint at once, and
//! reads of the same number and size as the load that it is compared with.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;
use tload::{Error, ErrorKind, Result};

use super::CacheState;
use crate::interrupt::Interrupt;
use crate::output::error::file as file_error;

/// Installed fio.
#[derive(Clone, Debug)]
pub(crate) struct Fio {
    pub(crate) version: String,
}

/// One run of fio.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    pub(crate) files: Vec<PathBuf>,
    pub(crate) extent_bytes: u64,
    pub(crate) depth: usize,
    pub(crate) cache_state: CacheState,
}

/// Result of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Outcome {
    pub(crate) bytes: u64,
    pub(crate) seconds: f64,
    pub(crate) cpu_seconds: f64,
}

impl Fio {
    /// Looks for an installed fio.
    pub(crate) fn find() -> Option<Self> {
        let output = Command::new("fio")
            .arg("--version")
            .stdin(Stdio::null())
            .output()
            .ok()?;
        let version = String::from_utf8(output.stdout).ok()?.trim().to_owned();
        (output.status.success() && !version.is_empty()).then_some(Self { version })
    }

    /// Runs `job`; ends it at a signal.
    #[expect(
        clippy::unused_self,
        reason = "a value of this type shows that fio is installed"
    )]
    pub(crate) fn run(&self, job: &Job, interrupt: &Interrupt) -> Result<Outcome> {
        let folder = tempfile::Builder::new()
            .prefix("tload-fio-")
            .tempdir()
            .map_err(|error| file_error("cannot write to", &std::env::temp_dir(), error))?;
        // From here on the guard removes the directory, also on a signal.
        let folder = interrupt.temporary(folder.keep());
        let output = folder.path().join("output.json");
        let errors = folder.path().join("errors.txt");
        let stderr =
            File::create(&errors).map_err(|error| file_error("cannot write", &errors, error))?;
        let mut child = Command::new("fio")
            .args(job.arguments())
            .arg(format!("--output={}", output.display()))
            // fio writes scratch files to its current directory.
            .current_dir(folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(stderr)
            .spawn()
            .map_err(|error| Error::from_io("cannot start fio", error))?;
        if interrupt.wait_for_end(&mut child)?.success() {
            outcome(&output)
        } else {
            Err(complaint(&errors, &output))
        }
    }
}

impl Job {
    fn arguments(&self) -> Vec<String> {
        let files: Vec<String> = self.files.iter().map(|file| escape(file)).collect();
        let direct = match self.cache_state {
            CacheState::Cold => "--direct=1",
            CacheState::Warm | CacheState::Remote => "--direct=0",
        };
        let mut arguments: Vec<String> = [
            "--name=ceiling",
            "--readonly",
            "--rw=read",
            "--ioengine=io_uring",
            "--fixedbufs=1",
            "--registerfiles=1",
            direct,
            // The page cache is already prepared.
            "--invalidate=0",
            // A thread instead of a process needs no shared memory.
            "--thread",
            "--output-format=json",
        ]
        .map(str::to_owned)
        .to_vec();
        arguments.push(format!("--bs={}", self.extent_bytes));
        arguments.push(format!("--iodepth={}", self.depth));
        arguments.push(format!("--filename={}", files.join(":")));
        arguments
    }

    /// Returns the command line for the record.
    pub(crate) fn command(&self) -> String {
        self.arguments()
            .iter()
            .fold("fio".to_owned(), |mut line, argument| {
                // Writing to a string cannot fail.
                let _ = write!(line, " {argument}");
                line
            })
    }
}

/// Escapes a path for fio, which separates names by colons.
fn escape(path: &Path) -> String {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    path.display()
        .to_string()
        .replace('\\', "\\\\")
        .replace(':', "\\:")
}

fn outcome(output: &Path) -> Result<Outcome> {
    let text = fs::read_to_string(output)
        .map_err(|error| file_error("cannot read fio's output", output, error))?;
    parse(&text).ok_or_else(|| Error::new(ErrorKind::Unsupported, "cannot read fio's output"))
}

/// Parses the result of fio's one job. fio may print notes before the JSON.
fn parse(text: &str) -> Option<Outcome> {
    let json: Value = serde_json::from_str(&text[text.find('{')?..]).ok()?;
    let job = json.get("jobs")?.get(0)?;
    let read = job.get("read")?;
    let bytes = read.get("io_bytes")?.as_u64()?;
    // `bw_bytes` is `io_bytes` over the runtime, before rounding to milliseconds if fio has that.
    let runtime = read.get("runtime")?.as_f64()? / 1e3;
    let number = |key| job.get(key).and_then(Value::as_f64);
    let share = (number("usr_cpu")? + number("sys_cpu")?) / 100.0;
    let running = number("job_runtime").map_or(runtime, |millis| millis / 1e3);
    (bytes > 0 && runtime > 0.0).then_some(Outcome {
        bytes,
        seconds: runtime,
        cpu_seconds: share * running,
    })
}

/// Returns an error with the first line that fio printed.
fn complaint(errors: &Path, output: &Path) -> Error {
    let first_line = |path: &Path| {
        let text = fs::read_to_string(path).unwrap_or_default();
        text.lines()
            .map(str::trim)
            .find(|line| !line.is_empty())
            .map(str::to_owned)
    };
    let reason = first_line(errors)
        .or_else(|| first_line(output))
        .unwrap_or_default();
    Error::new(ErrorKind::Unsupported, format!("fio failed: {reason}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = r#"note: something
{"fio version": "fio-3.33", "jobs": [{"jobname": "ceiling", "job_runtime": 2001, "usr_cpu": 1.0,
  "sys_cpu": 9.0, "read": {"io_bytes": 4294967296, "bw_bytes": 2147483648, "runtime": 2000}}]}"#;

    #[test]
    fn output_is_read() {
        let outcome = parse(OUTPUT).unwrap();
        assert_eq!(outcome.bytes, 4 << 30);
        assert!((outcome.seconds - 2.0).abs() < 1e-9);
        assert!((outcome.cpu_seconds - 0.2001).abs() < 1e-9);
        assert_eq!(parse("fio: no such file"), None);
        assert_eq!(parse("{}"), None);
    }

    #[test]
    fn names_are_escaped_and_the_state_of_the_cache_is_kept() {
        let job = Job {
            files: vec!["/a:b".into(), "/c".into()],
            extent_bytes: 1 << 20,
            depth: 8,
            cache_state: CacheState::Warm,
        };
        let command = job.command();
        assert!(
            command.ends_with(r"--bs=1048576 --iodepth=8 --filename=/a\:b:/c"),
            "{command}"
        );
        assert!(command.contains("--direct=0 --invalidate=0"), "{command}");
    }
}
