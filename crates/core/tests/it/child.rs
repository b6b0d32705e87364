//! Child processes of a test: its own executable again, which obeys lines and answers them.

#![expect(
    clippy::panic,
    clippy::print_stdout,
    reason = "a child answers its test, and one that hangs fails it"
)]

use std::io::{BufRead, BufReader, Write};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

/// Words that a child is started with, one a line.
const MARK: &str = "TLOAD_TEST_CHILD";

/// Longer than any step of a child takes; only a failure waits so long.
pub(crate) const PATIENCE: Duration = Duration::from_secs(180);

/// Beginning of the lines that a child answers with.
const ANSWER: &str = "child: ";

/// Returns the words that this process was started with, if it is a child.
pub(crate) fn words() -> Option<Vec<String>> {
    let words = std::env::var_os(MARK)?.into_string().expect("UTF-8");
    Some(words.split('\n').map(str::to_owned).collect())
}

/// Returns the lines that this child is told.
pub(crate) fn lines() -> impl Iterator<Item = String> {
    std::io::stdin().lines().map(|line| line.expect("UTF-8"))
}

/// Answers the test that started this child.
pub(crate) fn answer(text: &str) {
    println!("\n{ANSWER}{text}");
}

/// A child process, killed at the end of the test.
pub(crate) struct Child {
    process: std::process::Child,
    input: Option<ChildStdin>,
    answers: Receiver<String>,
}

impl Child {
    /// Starts a process that runs the test `name` of this executable only.
    pub(crate) fn start(name: &str, words: &[&str]) -> Self {
        let this = std::env::current_exe().expect("a process knows its executable");
        let mut process = Command::new(this)
            .args(["--exact", name, "--nocapture", "--test-threads=1"])
            .env(MARK, words.join("\n"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("starts");
        let (sender, answers) = channel();
        let output = process.stdout.take().expect("piped");
        std::thread::spawn(move || pass_on(output, &sender));
        Self {
            input: process.stdin.take(),
            answers,
            process,
        }
    }

    pub(crate) fn tell(&mut self, line: &str) {
        let input = self.input.as_mut().expect("until the end");
        // A process that was killed reads nothing.
        let _ = writeln!(input, "{line}");
    }

    /// Returns the next answer, `"gone"` if the process has ended.
    pub(crate) fn answer(&self) -> String {
        match self.answers.recv_timeout(PATIENCE) {
            Ok(answer) => answer,
            Err(RecvTimeoutError::Disconnected) => "gone".to_owned(),
            Err(RecvTimeoutError::Timeout) => panic!("process {} hangs", self.process.id()),
        }
    }

    pub(crate) fn ask(&mut self, line: &str) -> String {
        self.tell(line);
        self.answer()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.process), signal).expect("not waited for yet");
    }

    pub(crate) fn kill(&mut self) {
        self.signal(Signal::KILL);
        self.process.wait().expect("a child");
    }

    /// Closes the child's input, and asserts that its test passes then.
    pub(crate) fn end(mut self) {
        self.input = None;
        let status = self.process.wait().expect("a child");
        assert!(status.success(), "{status}");
    }
}

fn pass_on(output: ChildStdout, sender: &Sender<String>) {
    let lines = BufReader::new(output).lines().map_while(Result::ok);
    for line in lines {
        if let Some(answer) = line.strip_prefix(ANSWER) {
            // The test may have ended.
            let _ = sender.send(answer.to_owned());
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
