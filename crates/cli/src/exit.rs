//! Exit statuses: one for each way in which a script can react to a failure. `--help` prints
//! [`HELP`].

use tload::{Error, ErrorKind};

pub(crate) const SUCCESS: u8 = 0;
const FAILED: u8 = 1;
pub(crate) const USAGE: u8 = 2;
const NOT_FOUND: u8 = 3;
const INVALID_FORMAT: u8 = 4;
const PERMISSION_DENIED: u8 = 5;
const OUT_OF_MEMORY: u8 = 6;
const UNSUPPORTED: u8 = 7;
pub(crate) const TIMED_OUT: u8 = 8;
const REMOTE: u8 = 9;
const DEVICE: u8 = 10;
const CORRUPT: u8 = 11;
/// 128 + SIGINT, as shells report an interrupted program.
const INTERRUPTED: u8 = 130;

/// Table at the end of `tload --help`.
pub(crate) const HELP: &str = "\
Exit status:
  0    success
  1    the load failed: a disk error, a file that changed, or anything not listed here
  2    invalid command line or request
  3    a file, directory, shard or tensor was not found
  4    a file is not a valid checkpoint
  5    permission denied
  6    out of memory, GPU memory or disk space, or over a memory limit
  7    not supported by this kernel, file system, build or CUDA driver
  8    timeout: a deadline passed, or an object store did not answer in time
  9    an object store is unreachable or keeps failing
  10   the GPU or its driver failed
  11   bytes do not match their digest (verify, --verify)
  130  interrupted by Ctrl-C; 129 by SIGHUP, 143 by SIGTERM: 128 plus the signal's number

With --json, a failure is printed as JSON too, beside any partial result: {error: {kind, message,
location, tensor, range, hint, errno, operation, status, code, request_id, attempts, credentials,
expected, found, by, ranks, exit_status}}; `error` is present only on failure. Errors in the command
line itself are printed as text.

Sizes take units: 4096, 512KiB, 4MiB, 1.5GiB (powers of 1024), 4GB (powers of 1000).
GB/s are 10^9 bytes per second.";

/// Returns the exit status of a command that `signal` stopped, as shells report it.
pub(crate) fn of_signal(signal: i32) -> u8 {
    u8::try_from(signal).map_or(INTERRUPTED, |signal| 128_u8.saturating_add(signal))
}

/// Returns the exit status for `error`.
pub(crate) fn status(error: &Error) -> u8 {
    match error.kind() {
        ErrorKind::InvalidRequest => USAGE,
        ErrorKind::NotFound | ErrorKind::NoSuchTensor => NOT_FOUND,
        ErrorKind::InvalidFormat => INVALID_FORMAT,
        ErrorKind::PermissionDenied => PERMISSION_DENIED,
        ErrorKind::OutOfMemory => OUT_OF_MEMORY,
        ErrorKind::Unsupported => UNSUPPORTED,
        ErrorKind::TimedOut => TIMED_OUT,
        ErrorKind::Remote => REMOTE,
        ErrorKind::Device => DEVICE,
        ErrorKind::Corrupt => CORRUPT,
        ErrorKind::Cancelled => INTERRUPTED,
        // `ErrorKind` may grow; the test below fails if a new kind has no arm here.
        ErrorKind::Io | ErrorKind::Changed | ErrorKind::Peer | _ => FAILED,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares the table in the guide with that of the help.
    #[test]
    fn guide_lists_every_exit_status() {
        let guide = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/with/command.md");
        let guide = std::fs::read_to_string(guide).unwrap();
        let status = |text: &str| text.trim().parse::<u8>().ok();
        let of_guide: Vec<_> = guide
            .lines()
            .filter_map(|line| status(line.strip_prefix('|')?.split('|').next()?))
            .collect();
        let of_help: Vec<_> = HELP
            .lines()
            .filter_map(|line| status(line.split_whitespace().next()?))
            .collect();
        assert_eq!(of_guide, of_help);
        assert!(of_help.contains(&CORRUPT));
    }

    #[test]
    fn every_error_kind_has_documented_status() {
        let plain = [ErrorKind::Io, ErrorKind::Changed, ErrorKind::Peer];
        for kind in ErrorKind::ALL {
            let status = status(&Error::new(kind, "x"));
            assert!(
                HELP.contains(&format!("\n  {status:<4} ")),
                "{} → {status}",
                kind.name()
            );
            assert!(
                status != FAILED || plain.contains(&kind),
                "{} has no status",
                kind.name()
            );
        }
    }
}
