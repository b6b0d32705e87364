//! Command line that starts this program once more.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// First argument of a process that loads as one rank.
const RANK: &str = "__rank";

/// Returns whether this process was started as a rank.
pub(crate) fn is_rank(arguments: &[OsString]) -> bool {
    arguments.len() == 2 && arguments[1] == RANK
}

/// Returns the command that starts this program as a rank. `arguments` are those of the command,
/// of which the first is its name.
pub(super) fn rank(arguments: &[OsString]) -> Command {
    let mut command = again(arguments);
    command.arg(RANK);
    command
}

/// Returns the command that starts this program once more, without arguments.
pub(in crate::command) fn again(arguments: &[OsString]) -> Command {
    let line = fs::read("/proc/self/cmdline").unwrap_or_default();
    let words = words_before(&line, arguments.len().saturating_sub(1));
    // This file, even if another version has taken its place.
    let mut command = Command::new("/proc/self/exe");
    if let Some((name, script)) = words.split_first() {
        // Python finds its packages by the name that it was started with.
        command.arg0(name).args(script);
    }
    command
}

/// Returns the words of a command line before the last `count`: the program, and the script that an
/// interpreter runs.
fn words_before(line: &[u8], count: usize) -> Vec<&OsStr> {
    let line = line.strip_suffix(b"\0").unwrap_or(line);
    let words: Vec<_> = line
        .split(|byte| *byte == 0)
        .map(OsStr::from_bytes)
        .collect();
    let before = words.len().saturating_sub(count).max(1);
    words[..before].to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interpreter_and_script_are_kept() {
        let words = |line: &str, count| words_before(line.as_bytes(), count).join(OsStr::new(" "));
        assert_eq!(words("tload\0load\0model\0", 2), "tload");
        assert_eq!(words("python\0-m\0tload\0load\0\0", 2), "python -m tload");
        assert_eq!(
            words("/v/bin/python\0/v/bin/tload\0load\0m\0", 2),
            "/v/bin/python /v/bin/tload"
        );
        assert_eq!(words("tload\0", 7), "tload");
        assert_eq!(words("", 0), "");
    }
}
