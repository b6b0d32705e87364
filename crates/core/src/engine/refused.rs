//! Explains why the kernel refused a ring. Shared by the engines that need one.

use std::io;

use super::choose::Refusal;

/// Returns the kernel's error and a hint.
pub(super) fn refusal(error: &io::Error) -> Refusal {
    let hint = match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => {
            "containers often block it through seccomp (allow io_uring_setup, io_uring_enter and io_uring_register), and \
             sysctl kernel.io_uring_disabled must be 0"
        }
        Some(libc::ENOSYS | libc::EOPNOTSUPP) => {
            "the kernel is older than 5.6 or a sandbox such as gVisor hides it"
        }
        Some(libc::ENOMEM) => "raise the locked-memory limit (ulimit -l)",
        Some(libc::EMFILE | libc::ENFILE) => "raise the limit of open files (ulimit -n)",
        _ => "see tload doctor",
    };
    Refusal {
        reason: error.to_string(),
        hint: hint.to_owned(),
        errno: error.raw_os_error(),
    }
}
