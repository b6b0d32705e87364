//! Mount for tests, served by a process of its own that ends with it: the test binary again,
//! running one test.

use std::ffi::{OsStr, OsString};
use std::io::{BufRead, BufReader, Read as _, Write as _};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tempfile::TempDir;

use super::commands::{ANSWER, NOT_UNDERSTOOD};
use super::fault::Rule;
use super::options::{Options, Setup};
use super::queue::Served;
use super::server::{self, MOUNTED};

/// Environment variable that makes a process the server: the words of its command line, one per
/// line.
const MARK: &str = "TLOAD_TESTBED_SLOWFS";

/// Folder that is slow while this value lives, and fails on command.
#[derive(Debug)]
pub struct Mount {
    process: Child,
    pipes: Mutex<Pipes>,
    folder: TempDir,
}

#[derive(Debug)]
struct Pipes {
    /// Input of the process. Closing it stops the process, and so does the end of this process in
    /// any way.
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Pipes {
    /// Returns the result of `wanted` for the first further line that it accepts.
    fn line<T>(&mut self, wanted: impl Fn(&str) -> Option<T>) -> Option<T> {
        let lines = self.output.by_ref().lines();
        lines.map_while(Result::ok).find_map(|line| wanted(&line))
    }
}

/// Serves a mount, as the body of the test that is named to [`Mount::start`]. Does nothing when it
/// runs as a test.
///
/// # Panics
///
/// If mounting or unmounting fails.
pub fn serve_if_asked() {
    let Some(words) = std::env::var_os(MARK) else {
        return;
    };
    let words = words.as_bytes().split(|&byte| byte == b'\n');
    let setup = Setup::parse(words.map(|word| OsString::from_vec(word.to_vec())));
    let ended = setup.and_then(|setup| server::run(&setup));
    ended.expect("the process that started this one reads it");
}

impl Mount {
    /// Shows the folder `backing` at an empty folder of its own. `server` is the full name of a
    /// test of the running binary which calls [`serve_if_asked`].
    pub fn start(server: &str, backing: &Path, options: &Options) -> Result<Self, String> {
        let folder = TempDir::with_prefix("tload-slowfs-")
            .map_err(|error| format!("no temporary folder: {error}"))?;
        let setup = Setup {
            backing: backing.to_owned(),
            mount_point: folder.path().to_owned(),
            options: options.clone(),
            is_detached: false,
        };
        let words = setup.words().join(OsStr::new("\n"));
        let this =
            std::env::current_exe().map_err(|error| format!("no executable to start: {error}"))?;
        let mut process = Command::new(this)
            .args(["--exact", server, "--nocapture", "--test-threads=1"])
            .env(MARK, words)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // Ctrl-C must not end it before its readers.
            .process_group(0)
            .spawn()
            .map_err(|error| format!("cannot start this program again: {error}"))?;
        let input = process.stdin.take();
        let output = process.stdout.take().expect("a pipe was asked for");
        let mut mount = Self {
            process,
            pipes: Mutex::new(Pipes {
                input,
                output: BufReader::new(output),
            }),
            folder,
        };
        // The harness prints before it, on the same line too.
        match mount
            .pipes()
            .line(|line| line.ends_with(MOUNTED).then_some(()))
        {
            Some(()) => Ok(mount),
            None => Err(mount.complaint()),
        }
    }

    /// Returns the path of the slow folder.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Adds a rule behind the existing ones. The first that strikes a request is the only one that
    /// does.
    ///
    /// # Panics
    ///
    /// If the process of the file system has ended; so do all commands.
    pub fn fault(&self, rule: &Rule) {
        self.command(&format!("fault {rule}"));
    }

    /// Drops all rules, and releases everything that is held.
    pub fn clear_faults(&self) {
        self.command("clear");
    }

    /// Releases everything that is held, without faults.
    pub fn release(&self) {
        self.command("release");
    }

    /// Waits until so many requests are held, and returns whether they were in time.
    pub fn wait_for_held(&self, count: u64, timeout: Duration) -> bool {
        let answer = self.command(&format!("held {count} {}", timeout.as_millis()));
        answer.parse().is_ok_and(|held: u64| held >= count)
    }

    /// Returns counters of the requests served so far.
    pub fn served(&self) -> Served {
        Served::parse(&self.command("served")).expect("it says all of it")
    }

    /// Unmounts, and returns counters of the requests served.
    pub fn stop(mut self) -> Result<Served, String> {
        self.pipes().input = None;
        let served = self.pipes().line(Served::parse);
        served.ok_or_else(|| self.complaint())
    }

    fn pipes(&mut self) -> &mut Pipes {
        self.pipes.get_mut().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a command, and returns the response.
    fn command(&self, line: &str) -> String {
        let mut pipes = self.pipes.lock().unwrap_or_else(PoisonError::into_inner);
        let input = pipes.input.as_mut().expect("closed only at the end");
        writeln!(input, "{line}").expect("the process of the file system listens");
        let answer = pipes
            .line(|line| line.strip_prefix(ANSWER).map(str::to_owned))
            .expect("the process of the file system answers");
        assert!(!answer.starts_with(NOT_UNDERSTOOD), "{answer}");
        answer
    }

    /// Returns the error output of the process before it ended.
    fn complaint(&mut self) -> String {
        let mut text = String::new();
        if let Some(errors) = &mut self.process.stderr {
            // Output that cannot be read counts as missing.
            let _ = errors.read_to_string(&mut text);
        }
        format!("the process of the file system ended: {}", text.trim())
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        self.pipes().input = None;
        // Its further output would fill the pipe and keep it from ending.
        while self.pipes().line(|_| Some(())).is_some() {}
        let _ = self.process.wait();
        // It may have been killed. Then the mount still exists without a server.
        let _ = server::unmount(self.folder.path());
    }
}
