//! A mount for tests, in a process of its own that ends with it: the test binary once more, of which it runs one test.

use std::ffi::{OsStr, OsString};
use std::io::{BufRead, BufReader, Read as _};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use tempfile::TempDir;

use super::options::{Options, Setup};
use super::queue::Served;
use super::server::{self, MOUNTED};

/// Tells a process that it is the one which serves, and how: the words of its command line, one per line.
const MARK: &str = "TLOAD_LAB_SLOWFS";

/// A folder that is slow while this lives.
#[derive(Debug)]
pub struct Mount {
    process: Child,
    /// Closing it stops the process, and so does our own end, however it comes.
    stop: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    folder: TempDir,
}

/// The body of the test that [`Mount::start`] is told of. Does nothing when it runs as a test.
///
/// # Panics
///
/// Nothing can be mounted here, or not be unmounted.
pub fn serve_if_asked() {
    let Some(words) = std::env::var_os(MARK) else {
        return;
    };
    let words = words.as_bytes().split(|&byte| byte == b'\n');
    let setup = Setup::parse(words.map(|word| OsString::from_vec(word.to_vec())));
    let ended = setup.and_then(|setup| server::run(&setup));
    ended.expect("whoever started this process reads it");
}

impl Mount {
    /// Shows the folder `backing` at an empty folder of its own. `server` is the full name of a test of the running binary which
    /// calls [`serve_if_asked`].
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
            // Ctrl-C must not reach it before its readers have ended.
            .process_group(0)
            .spawn()
            .map_err(|error| format!("cannot start this program again: {error}"))?;
        let stop = process.stdin.take();
        let output = process.stdout.take().expect("a pipe was asked for");
        let mut mount = Self {
            process,
            stop,
            output: BufReader::new(output),
            folder,
        };
        // The harness prints before it, on the same line too.
        match mount.line(|line| line.ends_with(MOUNTED).then_some(())) {
            Some(()) => Ok(mount),
            None => Err(mount.complaint()),
        }
    }

    /// Where the folder is slow.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Unmounts, and says what was served.
    pub fn stop(mut self) -> Result<Served, String> {
        self.stop = None;
        self.line(Served::parse).ok_or_else(|| self.complaint())
    }

    /// The first line that `wanted` makes something of, from here on.
    fn line<T>(&mut self, wanted: impl Fn(&str) -> Option<T>) -> Option<T> {
        let lines = self.output.by_ref().lines();
        lines.map_while(Result::ok).find_map(|line| wanted(&line))
    }

    /// What the process said before it ended.
    fn complaint(&mut self) -> String {
        let mut text = String::new();
        if let Some(errors) = &mut self.process.stderr {
            // What cannot be read was not said.
            let _ = errors.read_to_string(&mut text);
        }
        format!("the process of the file system ended: {}", text.trim())
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        self.stop = None;
        // What it still prints would fill the pipe and keep it from ending.
        while self.line(|_| Some(())).is_some() {}
        let _ = self.process.wait();
        // It may have been killed. Then the mount is still there, and nobody serves it.
        let _ = server::unmount(self.folder.path());
    }
}
