//! Errors as text: once, on standard error, with their causes and a hint.

use std::io::{self, Write};

use tload::Error;
use tload::internal::printable;
use tload_config::{flag, with_origin};
/// Returns the error for a failed operation on a file that the command writes.
pub(crate) use tload_synth::file_error as file;

use super::{style, verbosity};

/// `EPIPE`: the reader of standard output is gone.
const BROKEN_PIPE: i32 = 32;

/// Prints `error` with its chain of causes.
pub(crate) fn print(error: &Error) {
    warn(&format!("error: {}", chain(error)));
}

/// Returns [`Error::chain`] with options named by their flags, and what the configuration file sets
/// them to.
pub(crate) fn chain(error: &Error) -> String {
    error.chain_with(|option, value| match value {
        Some(_) => flag(option, value),
        None => with_origin(option, flag(option, None)),
    })
}

/// Prints a warning or a report on standard error.
pub(crate) fn warn(text: &str) {
    let mut stderr = anstream::stderr();
    for line in text.lines() {
        let line = style::label(&printable(line)) + "\n";
        // If standard error is closed, the failure cannot be reported anywhere.
        drop(stderr.write_all(line.as_bytes()));
    }
}

/// Prints a note of one line on standard error, unless the user wants none. Its text may contain
/// names from outside, so that a line break is escaped.
pub(crate) fn note(text: &str) {
    if verbosity::shows_notes() {
        warn(&format!("note: {}", printable(text)));
    }
}

/// Returns the error for a failed write to standard output.
pub(crate) fn standard_output(error: io::Error) -> Error {
    Error::from_write("cannot write", error).with_location("standard output")
}

/// Returns whether `error` only means that the reader of standard output is gone.
pub(crate) fn is_closed_pipe(error: &Error) -> bool {
    error.location() == Some("standard output") && error.errno() == Some(BROKEN_PIPE)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use tload::ErrorKind;

    use super::*;

    #[test]
    fn messages_and_hints_name_flags_and_places_stay() {
        let error = Error::new(ErrorKind::InvalidRequest, "‹extent_bytes› is 1")
            .with_location("my engine=pread model")
            .with_source("cache=auto failed")
            .with_hint("use ‹cache=auto›, or raise ‹timeout›");
        assert_eq!(
            chain(&error),
            "my engine=pread model: --extent is 1\n  caused by: cache=auto failed\n  hint: use --cache auto, or raise --timeout"
        );
        assert_eq!(chain(&Error::new(ErrorKind::Io, "failed")), "failed");
    }

    #[test]
    fn only_closed_stdout_counts_as_closed_pipe() {
        let broken = || io::Error::from_raw_os_error(BROKEN_PIPE);
        assert!(is_closed_pipe(&standard_output(broken())));
        assert!(!is_closed_pipe(&file(
            "cannot write",
            Path::new("a.json"),
            broken()
        )));
        assert!(!is_closed_pipe(&standard_output(
            io::Error::from_raw_os_error(28)
        )));
    }
}
