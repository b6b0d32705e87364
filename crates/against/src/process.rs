//! Process that answers in lines of JSON. It has a time limit, and is killed with everything that
//! it started.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};
use serde::de::DeserializeOwned;
use serde_json::Value;
use tload_base::error::{Error, ErrorKind, Result};
use tload_base::sync::threads::Builder;

/// Interval between checks whether the process must be stopped.
const LOOK: Duration = Duration::from_millis(20);

/// Time for the end of standard error after the end of the process, which may have left others.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Most bytes of all answers, and of the end of standard error that is kept.
const ANSWERS_MAX: u64 = 1 << 20;
const TAIL_MAX: usize = 16 << 10;

/// Most characters of a line that is shown.
const LINE_MAX: usize = 300;

/// Conditions under which a process is stopped.
pub struct Watch<'a> {
    /// Returns an error once the process must end.
    pub check: &'a dyn Fn() -> Result<()>,
    /// Longest time until an answer.
    pub limit: Duration,
}

impl std::fmt::Debug for Watch<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut shown = f.debug_struct("Watch");
        shown.field("limit", &self.limit).finish_non_exhaustive()
    }
}

/// Running process. It is killed when it is dropped.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    input: Option<ChildStdin>,
    answers: Receiver<String>,
    /// The end of standard error, once that is closed.
    tail: Receiver<Vec<u8>>,
    /// Set once the system has released the number of the process.
    is_reaped: bool,
}

impl Process {
    /// Starts `command` in a process group of its own, so that Ctrl-C reaches only this process,
    /// and sends it `first` as a line.
    pub(crate) fn start(mut command: Command, first: &Value) -> Result<Self> {
        let program = command.get_program().to_string_lossy().into_owned();
        let failed = |error| Error::from_io("cannot start", error).with_location(&program);
        let mut child = command
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(failed)?;
        let (give, answers) = channel();
        let (give_tail, tail) = channel();
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let mut process = Self {
            input: child.stdin.take(),
            child,
            answers,
            tail,
            is_reaped: false,
        };
        let spawn = |name: &str, task: Box<dyn FnOnce() + Send>| {
            let thread = Builder::new().name(name.to_owned());
            thread.spawn(task).map(drop).map_err(failed)
        };
        if let Some(stdout) = stdout {
            let read = move || drop(answers_of(stdout, &give));
            spawn("tload-answers", Box::new(read))?;
        }
        if let Some(stderr) = stderr {
            let read = move || drop(give_tail.send(end_of(stderr)));
            spawn("tload-errors", Box::new(read))?;
        }
        process.send(&first.to_string());
        Ok(process)
    }

    /// Sends a line. A process that has ended cannot read it, which the next answer shows.
    pub(crate) fn send(&mut self, line: &str) {
        if let Some(input) = &mut self.input {
            drop(writeln!(input, "{line}"));
        }
    }

    /// Waits for the next answer.
    pub(crate) fn answer<T: DeserializeOwned>(&mut self, watch: &Watch<'_>) -> Result<T> {
        let began = Instant::now();
        loop {
            match self.answers.recv_timeout(LOOK) {
                Ok(line) => {
                    return serde_json::from_str(&line)
                        .map_err(|_| failure(format!("answers {:?}", shown(&line))));
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    let ended = self.child.try_wait();
                    let ended = ended.map_err(|error| Error::from_io("cannot wait for it", error));
                    if let Some(status) = ended? {
                        self.is_reaped = true;
                        return Err(failure(self.last_words(status)));
                    }
                    #[expect(
                        clippy::disallowed_methods,
                        reason = "std waits for children without a timeout only"
                    )]
                    thread::sleep(LOOK);
                }
            }
            (watch.check)()?;
            if began.elapsed() >= watch.limit {
                let message = format!("did not answer within {} s", watch.limit.as_secs());
                return Err(Error::new(ErrorKind::TimedOut, message));
            }
        }
    }

    /// Returns the last line of standard error, and how the process ended unless by itself.
    fn last_words(&self, status: ExitStatus) -> String {
        let tail = self.tail.recv_timeout(LAST_WORDS).unwrap_or_default();
        let tail = String::from_utf8_lossy(&tail);
        let line = tail.lines().rfind(|line| !line.trim().is_empty());
        match (line, status.code()) {
            (Some(line), Some(_)) => shown(line.trim()),
            (Some(line), None) => format!("ended by {status}, after {:?}", shown(line.trim())),
            (None, _) => format!("ended by {status}"),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if !self.is_reaped {
            // Until it is waited for, its number is that of no other process.
            // It may have ended already.
            let _ = kill_process_group(Pid::from_child(&self.child), Signal::KILL);
            drop(self.child.wait());
        }
    }
}

/// Sends every line of a stream, until the receiver is gone.
fn answers_of(stream: impl Read, give: &Sender<String>) -> std::io::Result<()> {
    for line in BufReader::new(stream.take(ANSWERS_MAX)).lines() {
        if give.send(line?).is_err() {
            break;
        }
    }
    Ok(())
}

/// Returns the last bytes of a stream, once it ends.
fn end_of(mut stream: impl Read) -> Vec<u8> {
    let (mut tail, mut buffer) = (Vec::new(), [0; 4096]);
    while let Ok(count @ 1..) = stream.read(&mut buffer) {
        tail.extend_from_slice(&buffer[..count]);
        tail.drain(..tail.len().saturating_sub(TAIL_MAX));
    }
    tail
}

fn shown(line: &str) -> String {
    line.chars().take(LINE_MAX).collect()
}

fn failure(message: String) -> Error {
    Error::new(ErrorKind::Unsupported, message)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const LONG: Duration = Duration::from_secs(100);

    fn shell(script: &str) -> Process {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        Process::start(command, &json!({"task": "test"})).expect("a shell")
    }

    fn outcome(script: &str, limit: Duration) -> Result<Value> {
        let check = || Ok(());
        let watch = Watch {
            check: &check,
            limit,
        };
        shell(script).answer(&watch)
    }

    #[test]
    fn answer_is_a_line_of_json() {
        let echoed = outcome("read job && echo \"$job\"", LONG).expect("an answer");
        assert_eq!(echoed, json!({"task": "test"}));
        let error = outcome("echo '{'", LONG).expect_err("no JSON");
        assert_eq!(error.message(), "answers \"{\"");
    }

    #[test]
    fn failure_is_the_last_line_of_standard_error() {
        for (script, message) in [
            ("echo one >&2; echo ' two ' >&2; echo >&2; exit 3", "two"),
            ("exit 3", "ended by exit status: 3"),
            ("kill -9 $$", "ended by signal: 9 (SIGKILL)"),
            (
                "echo w >&2; kill -9 $$",
                "ended by signal: 9 (SIGKILL), after \"w\"",
            ),
            ("yes | head -c 100000 >&2; echo end >&2; exit 1", "end"),
        ] {
            let error = outcome(script, LONG).expect_err(script);
            assert_eq!(error.message(), message);
        }
    }

    #[test]
    fn hung_process_and_its_children_are_killed() {
        let error = outcome("sleep 3600 & sleep 3600", Duration::from_millis(1));
        assert_eq!(error.expect_err("no answer").kind(), ErrorKind::TimedOut);
        let check = || Err(Error::new(ErrorKind::Cancelled, "interrupted"));
        let watch = Watch {
            check: &check,
            limit: LONG,
        };
        // The child has the standard error of its parent, which closes when both have ended.
        let mut process = shell("sleep 3600 & sleep 3600");
        let error = process.answer::<Value>(&watch).expect_err("stopped");
        assert_eq!(error.kind(), ErrorKind::Cancelled);
        let (_, tail) = channel();
        let tail = std::mem::replace(&mut process.tail, tail);
        drop(process);
        assert_eq!(tail.recv_timeout(LONG), Ok(Vec::new()));
    }

    #[test]
    fn missing_program_is_an_error_with_its_name() {
        let error = Process::start(Command::new("/no/python"), &Value::Null).expect_err("missing");
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert_eq!(error.location(), Some("/no/python"));
    }
}
