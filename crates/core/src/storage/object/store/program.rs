//! Runs programs that hand out credentials: the helpers of `docker login`, and those of Google's
//! external accounts.
//!
//! Texts of a program are never shown: they may be secrets.

use std::fmt;
use std::io::{self, ErrorKind, Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use rustix::io::retry_on_intr;
use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};
use tokio::sync::oneshot;

use crate::sync::lock::Mutex;
use crate::sync::threads::Builder;

/// Longest response of a program, bytes.
const ANSWER_MAX: u64 = 64 << 10;

/// Reason why a program gave no answer. Its text follows the program's name.
#[derive(Debug)]
pub(in crate::storage) enum NoAnswer {
    NotStarted(io::Error),
    NoThread(io::Error),
    TooLate(Duration),
    Failed(io::Error),
}

impl fmt::Display for NoAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotStarted(error) => write!(f, "cannot be started: {error}"),
            Self::NoThread(error) => write!(f, "cannot be waited for, without a thread: {error}"),
            Self::TooLate(wait_max) => write!(f, "took longer than {wait_max:?}"),
            Self::Failed(error) => write!(f, "failed: {error}"),
        }
    }
}

/// Running program. Dropping it kills the program: the answer has come, or is not wanted any more,
/// because it took too long or the load that waited for it was cancelled.
struct Running(Arc<Mutex<Child>>);

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.lock().kill();
    }
}

/// Runs a program with `input`, and kills it if it takes longer than `wait_max` or the future is
/// dropped. Returns whether it succeeded, and its output.
pub(in crate::storage) async fn answer(
    command: &mut Command,
    input: Vec<u8>,
    wait_max: Duration,
) -> Result<(bool, Vec<u8>), NoAnswer> {
    let child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(NoAnswer::NotStarted)?;
    let child = Running(Arc::new(Mutex::new(child)));
    let (sender, receiver) = oneshot::channel();
    let running = Arc::clone(&child.0);
    // Not one of the runtime's threads, which must not block.
    let thread = Builder::new().name("tload-login".to_owned());
    let started = thread.spawn(move || {
        // The receiver is gone after the timeout or a cancellation.
        let _ = sender.send(exchange(&running, &input));
    });
    started.map_err(NoAnswer::NoThread)?;
    match tokio::time::timeout(wait_max, receiver).await {
        Ok(Ok(answer)) => answer.map_err(NoAnswer::Failed),
        Ok(Err(_)) | Err(_) => Err(NoAnswer::TooLate(wait_max)),
    }
}

/// Sends the input; returns whether the program succeeded, and its output. Holds the lock only
/// briefly, so that the program can be killed meanwhile.
fn exchange(child: &Mutex<Child>, text: &[u8]) -> io::Result<(bool, Vec<u8>)> {
    let (input, output) = {
        let mut child = child.lock();
        (child.stdin.take(), child.stdout.take())
    };
    if let Some(mut input) = input {
        // A program may answer without reading.
        let written = input.write_all(text);
        let is_unread = |error: &io::Error| error.kind() == ErrorKind::BrokenPipe;
        if !written.as_ref().is_err_and(is_unread) {
            written?;
        }
    }
    let mut text = Vec::new();
    if let Some(output) = output {
        output.take(ANSWER_MAX).read_to_end(&mut text)?;
    }
    // Waits without the lock, and leaves the process to be reaped: its id stays its own.
    let pid = Pid::from_child(&child.lock());
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    retry_on_intr(|| waitid(WaitId::Pid(pid), options))?;
    Ok((child.lock().wait()?.success(), text))
}
