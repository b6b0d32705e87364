//! Process of a server: started on free ports in a temporary folder, polled until it responds,
//! killed when dropped.
//!
//! Independent of the particular server. The folder holds the server's files and its log, and is
//! removed with the process.

use std::ffi::OsStr;
use std::fs::OpenOptions;
use std::io;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::LazyLock;
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::address::{free_ports, local};
use super::http::Request;
use super::tool::in_path;

/// Timeout for a server's first response. The slowest (moto, a Python program) takes 2 s on an idle
/// machine.
const START_MAX: Duration = Duration::from_secs(60);

/// Interval of polling a server that starts.
const PAUSE: Duration = Duration::from_millis(10);

/// Maximum number of starts of a server if other processes take its port.
const ATTEMPTS_MAX: usize = 5;

/// Length of the log's end that an error shows, bytes.
const TAIL_BYTES: usize = 2000;

/// Condition under which a server counts as started. Checked at the first of its ports.
#[derive(Debug, Clone, Copy)]
pub(super) enum Ready {
    /// It responds to a GET for this path, with any status.
    Answers(&'static str),
    /// It responds to a GET for this path with success, as no other server does. For servers that
    /// start slowly, whose port another process may take meanwhile.
    Succeeds(&'static str),
    /// It accepts connections: no more can be checked for TLS without a client for it.
    Listens,
}

/// Running server.
#[derive(Debug)]
pub(super) struct Process {
    child: Child,
    folder: TempDir,
}

impl Process {
    /// Starts the command that `command` returns for a folder and free ports, and waits until it is
    /// `ready`.
    pub(super) fn start<const PORTS: usize>(
        ready: Ready,
        command: impl Fn(&Path, [u16; PORTS]) -> Result<Command, String>,
    ) -> Result<(Self, [u16; PORTS]), String> {
        let mut attempt = 1;
        loop {
            let folder = TempDir::with_prefix("tload-testbed-")
                .map_err(|error| format!("no temporary folder: {error}"))?;
            let ports = free_ports()?;
            let command = command(folder.path(), ports)?;
            match Self::launch(folder, command)?.wait_until(ready, ports[0]) {
                Ok(process) => return Ok((process, ports)),
                Err(reason) if attempt < ATTEMPTS_MAX && is_about_ports(&reason) => attempt += 1,
                Err(reason) => return Err(reason),
            }
        }
    }

    /// Returns the folder for the server's files.
    pub(super) fn folder(&self) -> &Path {
        self.folder.path()
    }

    fn launch(folder: TempDir, mut command: Command) -> Result<Self, String> {
        let name = format!("{command:?}");
        let log = || {
            OpenOptions::new()
                .create(true)
                .append(true)
                .open(log_path(folder.path()))
        };
        let logs = log().and_then(|output| Ok((output, log()?)));
        let (output, errors) = logs.map_err(|error| format!("no log file: {error}"))?;
        command.stdin(Stdio::null()).stdout(output).stderr(errors);
        let child = spawn(command).map_err(|error| format!("cannot start {name}: {error}"))?;
        Ok(Self { child, folder })
    }

    /// Returns itself once it responds; otherwise the reason, with the end of the log.
    #[expect(
        clippy::disallowed_methods,
        reason = "a starting server does not signal that it is ready; the wait has an end"
    )]
    fn wait_until(mut self, ready: Ready, port: u16) -> Result<Self, String> {
        let deadline = Instant::now() + START_MAX;
        let reason = loop {
            let is_ready = ready.holds(port);
            // Checked after the server: if it had ended, another process would have responded on
            // its port.
            match self.child.try_wait() {
                Ok(None) if is_ready => return Ok(self),
                Ok(None) if Instant::now() < deadline => std::thread::sleep(PAUSE),
                Ok(None) => break format!("did not answer within {START_MAX:?}"),
                Ok(Some(status)) => break format!("ended with {status}"),
                Err(error) => break format!("cannot be watched: {error}"),
            }
        };
        let log = log_tail(self.folder.path());
        Err(format!("a server {reason}; its log ends with:\n{log}"))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended by itself. Then there is nothing to do.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Ready {
    fn holds(self, port: u16) -> bool {
        let address = local(port);
        match self {
            Self::Answers(path) => Request::new("GET", path).send(&address).is_ok(),
            Self::Succeeds(path) => Request::new("GET", path).succeed(&address).is_ok(),
            Self::Listens => TcpStream::connect(address).is_ok(),
        }
    }
}

/// Returns a command for `program` with only the path from this environment: no credentials, no
/// proxies, no settings.
pub(super) fn command(program: &Path, folder: &Path) -> Command {
    let mut command = match in_path("setpriv") {
        // It is killed when this process ends in any way: static variables are never dropped.
        Some(setpriv) if cfg!(target_os = "linux") => {
            let mut command = Command::new(setpriv);
            command.args(["--pdeathsig", "KILL", "--"]).arg(program);
            command
        }
        Some(_) | None => Command::new(program),
    };
    let path = std::env::var_os("PATH");
    command
        .env_clear()
        .env(
            "PATH",
            path.as_deref().unwrap_or(OsStr::new("/usr/bin:/bin")),
        )
        .env("HOME", folder)
        .env("TMPDIR", folder)
        .current_dir(folder);
    command
}

type Order = (Command, Sender<io::Result<Child>>);

/// Thread that starts all processes: the kernel takes the end of the *thread* that started a
/// process for the end of its parent (prctl(2), `PR_SET_PDEATHSIG`), and a test's thread ends with
/// the test.
static LAUNCHER: LazyLock<Sender<Order>> = LazyLock::new(|| {
    let (sender, orders) = channel::<Order>();
    std::thread::spawn(move || {
        for (mut command, reply) in orders {
            // The caller waits for it.
            let _ = reply.send(command.spawn());
        }
    });
    sender
});

fn spawn(command: Command) -> io::Result<Child> {
    let (sender, reply) = channel();
    LAUNCHER
        .send((command, sender))
        .expect("the thread runs as long as its sender lives");
    reply.recv().expect("the thread answers every order")
}

fn log_path(folder: &Path) -> PathBuf {
    folder.join("server.log")
}

fn log_tail(folder: &Path) -> String {
    #[expect(
        clippy::disallowed_methods,
        reason = "not one of the files that are loaded"
    )]
    let log = std::fs::read(log_path(folder)).unwrap_or_default();
    let tail = &log[log.len().saturating_sub(TAIL_BYTES)..];
    String::from_utf8_lossy(tail).trim().to_owned()
}

/// Returns whether a failed server reports that its port is taken: in the words of Go, C and
/// Python, or of Node.
fn is_about_ports(reason: &str) -> bool {
    reason.to_lowercase().contains("in use") || reason.contains("EADDRINUSE")
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// Runs a shell with these scripts, one per attempt, and returns the result.
    fn started(scripts: &[&str]) -> (Result<(), String>, usize) {
        let attempts = Cell::new(0);
        let result = Process::start(Ready::Listens, |folder, [_port]| {
            let script = scripts[attempts.replace(attempts.get() + 1)];
            let mut shell = command(Path::new("/bin/sh"), folder);
            shell.args(["-c", script]);
            Ok(shell)
        });
        (result.map(|_| ()), attempts.get())
    }

    #[test]
    fn failed_start_reports_log() {
        let (result, attempts) = started(&["echo out; echo no luck >&2; exit 3"]);
        let reason = result.expect_err("it failed");
        assert!(reason.contains("exit status: 3"), "{reason}");
        assert!(reason.ends_with("out\nno luck"), "{reason}");
        assert_eq!(attempts, 1);
    }

    #[test]
    fn taken_port_is_retried_up_to_limit() {
        let taken = "echo 'bind: address already in use'; exit 1";
        let (result, attempts) = started(&[taken, taken, "echo no luck; exit 1"]);
        let reason = result.expect_err("it failed");
        assert!(reason.ends_with("no luck"), "{reason}");
        assert_eq!(attempts, 3);
        let (result, attempts) = started(&[taken; ATTEMPTS_MAX]);
        result.expect_err("it failed");
        assert_eq!(attempts, ATTEMPTS_MAX);
    }

    #[test]
    fn child_inherits_no_environment_but_path() {
        let (result, _) = started(&["env; exit 1"]);
        let log = result.expect_err("it failed");
        let variables = log.lines().skip(1).map(|line| line.split('=').next());
        let known = ["PATH", "HOME", "TMPDIR", "PWD", "SHLVL", "_", "OLDPWD"];
        for variable in variables.flatten() {
            assert!(known.contains(&variable), "{variable} is passed on");
        }
    }
}
