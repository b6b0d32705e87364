//! Command line that starts this program once more.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// First argument of a process that reads ahead, before those of the command.
const READER: &str = "__reader";

/// Returns whether this process was started as a reader, and removes what says so from its
/// `arguments`, of which the first is the program's name.
pub fn is_reader(arguments: &mut Vec<OsString>) -> bool {
    let is_reader = arguments.get(1).is_some_and(|it| it == READER);
    if is_reader {
        arguments.remove(1);
    }
    is_reader
}

/// Returns the command that starts this program as a reader.
pub(crate) fn reader(arguments: &[OsString]) -> Command {
    let mut command = again(arguments);
    command.arg(READER).args(arguments.iter().skip(1));
    command
}

/// Returns the command that starts this program once more, without arguments. `arguments` are those
/// that it was started with, of which the first is its name.
#[cfg(target_os = "linux")]
pub fn again(arguments: &[OsString]) -> Command {
    #[expect(clippy::disallowed_methods, reason = "a few bytes of the kernel's")]
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

/// Returns the command that starts this program once more, without arguments.
#[cfg(not(target_os = "linux"))]
pub fn again(_arguments: &[OsString]) -> Command {
    Command::new(std::env::current_exe().unwrap_or_default())
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
    fn mark_of_readers_is_removed() {
        let words = |line: &str| line.split(' ').map(OsString::from).collect::<Vec<_>>();
        let mut started = words("tload __reader exec --prefetch m -- vllm");
        assert!(is_reader(&mut started));
        assert_eq!(started, words("tload exec --prefetch m -- vllm"));
        assert!(!is_reader(&mut started) && !is_reader(&mut words("tload")));
    }

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
