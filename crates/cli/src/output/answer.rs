//! Answer of a command under `--json`: one complete object on standard output, even if the command
//! fails or must exit at once.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError, TryLockError};

use serde::Serialize;
use tload::{Error, Result};

use super::error::standard_output;
use super::failure::{Failure, Outcome};
use super::json;

/// Writes at most one answer: the first one. Later ones are dropped.
#[derive(Debug, Default)]
pub(crate) struct Answer {
    /// True if the user wants JSON on standard output.
    is_wanted: bool,
    /// Locked while an answer is being written.
    is_given: Mutex<bool>,
    /// True if the text on standard output tells the failure.
    has_failure: AtomicBool,
}

impl Answer {
    pub(crate) fn new(is_wanted: bool) -> Self {
        Self {
            is_wanted,
            is_given: Mutex::new(false),
            has_failure: AtomicBool::new(false),
        }
    }

    /// Records that the text on standard output tells the command's failure, so that it is not
    /// printed again.
    pub(crate) fn holds_failure(&self) {
        self.has_failure.store(true, Ordering::Relaxed);
    }

    /// Returns whether the text on standard output tells the command's failure.
    pub(crate) fn has_failure(&self) -> bool {
        self.has_failure.load(Ordering::Relaxed)
    }

    /// Writes `value` as the answer.
    pub(crate) fn give(&self, out: &mut dyn Write, value: &impl Serialize) -> Result<()> {
        let mut is_given = self.is_given.lock().unwrap_or_else(PoisonError::into_inner);
        if std::mem::replace(&mut *is_given, true) {
            return Ok(());
        }
        json::write(out, value)
            .and_then(|()| out.flush())
            .map_err(standard_output)
    }

    /// Answers with `error`, if JSON is wanted and nothing else was the answer.
    pub(crate) fn fail(&self, out: &mut dyn Write, error: &Error, exit_status: u8) {
        if self.is_wanted {
            // If this fails, standard error and the exit status still report the error.
            let outcome = Outcome::failed(Failure::new(error, exit_status));
            drop(self.give(out, &outcome));
        }
    }

    /// Like [`fail`](Self::fail), for a command that hangs and may hold the lock of standard
    /// output. Does nothing if an answer is being written: see [`finish`](Self::finish).
    pub(crate) fn fail_at_once(&self, error: &Error, exit_status: u8) {
        let is_free = !matches!(self.is_given.try_lock(), Err(TryLockError::WouldBlock));
        if let (true, Ok(out)) = (is_free, io::stdout().as_fd().try_clone_to_owned()) {
            self.fail(&mut File::from(out), error, exit_status);
        }
    }

    /// Waits until an answer that is being written is complete.
    pub(crate) fn finish(&self) {
        drop(self.is_given.lock());
    }
}

#[cfg(test)]
mod tests {
    use tload::ErrorKind;

    use super::*;

    #[test]
    fn only_the_first_answer_is_written() {
        let error = Error::new(ErrorKind::Cancelled, "interrupted");
        let answer = Answer::new(true);
        let mut out = Vec::new();
        answer.give(&mut out, &[1]).unwrap();
        let first = out.clone();
        answer.give(&mut out, &[2]).unwrap();
        answer.fail(&mut out, &error, 130);
        assert_eq!(out, first);

        let mut out = Vec::new();
        Answer::new(true).fail(&mut out, &error, 130);
        let written: serde_json::Value = serde_json::from_slice(&out).unwrap();
        assert_eq!(written["error"]["exit_status"], 130);
        Answer::new(false).fail(&mut Vec::new(), &error, 130);
    }

    #[test]
    fn text_mode_has_no_answer() {
        let mut out = Vec::new();
        let error = Error::new(ErrorKind::Io, "failed");
        Answer::new(false).fail(&mut out, &error, 1);
        assert!(out.is_empty());
    }
}
