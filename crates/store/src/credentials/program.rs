//! Runs programs that hand out credentials: the helpers of `docker login`, and those of Google's
//! external accounts.
//!
//! Texts of a program are never shown: they may be secrets.

use std::fmt;
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use rustix::io::retry_on_intr;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use tokio::sync::oneshot;

use crate::sync::lock::Mutex;
use crate::sync::threads::Builder;

/// Longest response of a program, bytes.
const ANSWER_MAX: u64 = 64 << 10;

/// Reason why a program gave no answer. Its text follows the program's name.
#[derive(Debug)]
pub(crate) enum NoAnswer {
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

/// Program in its own process group.
struct Group {
    leader: Child,
    /// True once the leader was reaped: its id may be that of another process by now.
    is_reaped: bool,
}

/// Running program. Dropping it kills the program and its children, which may hold its output open,
/// unless it has ended: it took too long, or the load that waited for it was cancelled.
struct Running(Arc<Mutex<Group>>);

impl Drop for Running {
    fn drop(&mut self) {
        let group = self.0.lock();
        if !group.is_reaped {
            // Killing fails if all processes of the group have already ended.
            let _ = kill_process_group(Pid::from_child(&group.leader), Signal::KILL);
        }
    }
}

/// Runs a program with `input`, and kills it and its children if it takes longer than `wait_max` or
/// the future is dropped. Returns whether it succeeded, and its output.
pub(crate) async fn answer(
    command: &mut Command,
    input: Vec<u8>,
    wait_max: Duration,
) -> Result<(bool, Vec<u8>), NoAnswer> {
    let child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .process_group(0)
        .spawn()
        .map_err(NoAnswer::NotStarted)?;
    let child = Running(Arc::new(Mutex::new(Group {
        leader: child,
        is_reaped: false,
    })));
    let (sender, receiver) = oneshot::channel();
    let running = Arc::clone(&child.0);
    // A thread is needed because those of the runtime must not block.
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
fn exchange(group: &Mutex<Group>, text: &[u8]) -> io::Result<(bool, Vec<u8>)> {
    let (input, output) = {
        let leader = &mut group.lock().leader;
        (leader.stdin.take(), leader.stdout.take())
    };
    if let Some(mut input) = input {
        // Writing fails if the program answers without reading its input.
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
    // Wait without the lock and without reaping the process, so that its id is not reused.
    let pid = Pid::from_child(&group.lock().leader);
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    retry_on_intr(|| waitid(WaitId::Pid(pid), options))?;
    let mut group = group.lock();
    let status = group.leader.wait()?;
    group.is_reaped = true;
    Ok((status.success(), text))
}

#[cfg(test)]
mod tests {
    use rustix::fs::{CWD, FileType, Mode, OFlags};

    use super::*;

    #[test]
    fn children_of_program_are_killed_with_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let alive = folder.path().join("alive");
        rustix::fs::mknodat(CWD, &alive, FileType::Fifo, Mode::RWXU, 0).expect("a pipe");
        let flags = OFlags::RDONLY | OFlags::NONBLOCK;
        let pipe = rustix::fs::open(&alive, flags, Mode::empty()).expect("the pipe");
        rustix::fs::fcntl_setfl(&pipe, OFlags::empty()).expect("a flag");
        // The child holds both pipes open. Its parent is gone by then.
        let script = format!("exec 3>'{}'; sleep 600 & exit 0", alive.display());
        let mut command = Command::new("sh");
        command.args(["-c", &script]);
        let mut builder = tokio::runtime::Builder::new_current_thread();
        let runtime = builder.enable_time().build().expect("a runtime");
        let answer = runtime.block_on(answer(&mut command, Vec::new(), Duration::from_secs(1)));
        assert!(matches!(answer, Err(NoAnswer::TooLate(_))), "{answer:?}");
        let (sender, ended) = std::sync::mpsc::channel();
        let mut pipe = std::fs::File::from(pipe);
        std::thread::spawn(move || sender.send(pipe.read_to_end(&mut Vec::new())));
        let ended = ended.recv_timeout(Duration::from_secs(100));
        assert!(ended.is_ok_and(|end| end.is_ok()), "it still runs");
    }
}
