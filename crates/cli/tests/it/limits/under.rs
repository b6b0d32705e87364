//! Restrictions for a command.

#![expect(
    unsafe_code,
    reason = "what a new process does before it becomes the command has no safe wrapper"
)]

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::process::{Resource, Rlimit, setrlimit};

use crate::requirement::{of_machine, requirement};

/// First of the unused user ids: a limit of threads counts all processes of a user.
const FIRST_USER: u32 = 61_000;

/// Limits, a user and missing file systems; by default, none of them.
#[derive(Debug, Default)]
pub(super) struct Under {
    limits: Vec<(Resource, u64, u64)>,
    user: Option<u32>,
    ring_errno: Option<i32>,
    namespaces: Vec<&'static str>,
    setup: String,
}

impl Under {
    pub(super) fn new() -> Self {
        Self::default()
    }

    /// Sets the soft and the hard limit of a resource.
    pub(super) fn limit(self, resource: Resource, limit: u64) -> Self {
        self.limits(resource, limit, limit)
    }

    /// Sets the soft limit, and the hard limit up to which the process may raise it.
    pub(super) fn limits(mut self, resource: Resource, now: u64, most: u64) -> Self {
        self.limits.push((resource, now, most));
        self
    }

    /// Sets a user without privileges; without root, prints that the test is skipped.
    pub(super) fn user(mut self) -> Option<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let is_root = rustix::process::geteuid().is_root();
        let found = is_root
            .then_some(())
            .ok_or_else(|| "only root can become another user".to_owned());
        requirement("root", found)?;
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        self.user = Some(FIRST_USER + (std::process::id() * 16 + number) % 3000);
        Some(self)
    }

    /// Makes `io_uring_setup` fail with `errno`, as under a container's filter.
    pub(super) fn without_rings(mut self, errno: i32) -> Self {
        self.ring_errno = Some(errno);
        self
    }

    /// Changes mounts with `script`, for the command only; without namespaces, prints that the test
    /// is skipped.
    pub(super) fn mounts(self, script: &str) -> Option<Self> {
        self.within("--mount", script)
    }

    /// Removes the network, except for a loopback interface that is down.
    pub(super) fn no_network(self) -> Option<Self> {
        self.within("--net", "")
    }

    fn within(mut self, namespace: &'static str, script: &str) -> Option<Self> {
        let tried = Command::new("unshare").args([namespace, "true"]).output();
        let found = match tried {
            Ok(output) if output.status.success() => Ok(()),
            Ok(output) => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
            Err(error) => Err(format!("unshare: {error}")),
        };
        of_machine("namespaces", found)?;
        self.namespaces.push(namespace);
        self.setup.push_str(script);
        self.setup.push('\n');
        Some(self)
    }

    /// Returns a command for `tload` with these arguments.
    pub(super) fn command<S: AsRef<OsStr>>(
        &self,
        arguments: impl IntoIterator<Item = S>,
    ) -> Command {
        let program = env!("CARGO_BIN_EXE_tload");
        // By its descriptor: another user may not enter the directories above it.
        let opened = File::open(program).unwrap();
        let by_descriptor = format!("/proc/self/fd/{}", opened.as_raw_fd());
        let mut command = if self.namespaces.is_empty() {
            Command::new(by_descriptor)
        } else {
            let mut command = Command::new("unshare");
            let script = format!("set -e\n{}exec \"$@\"", self.setup);
            command.args(&self.namespaces);
            if self.namespaces.contains(&"--mount") {
                command.args(["--propagation", "private"]);
            }
            command.args(["sh", "-c", &script, "sh", program]);
            command
        };
        command.args(arguments).stdin(Stdio::null());
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("TLOAD_") {
                command.env_remove(name);
            }
        }
        if let Some(user) = self.user {
            command.uid(user).gid(user);
        }
        let limits = self.limits.clone();
        let filter = self.ring_errno.map(filter);
        let prepare = move || {
            // Keeps the descriptor open until the process has executed the command.
            let _opened = &opened;
            for (resource, now, most) in &limits {
                let limit = Rlimit {
                    current: Some(*now),
                    maximum: Some(*most),
                };
                setrlimit(*resource, limit)?;
            }
            filter.as_ref().map_or(Ok(()), refuse)
        };
        // SAFETY: after the fork this only makes system calls, and allocates nothing.
        unsafe { command.pre_exec(prepare) };
        command
    }
}

/// Returns instructions that make `io_uring_setup` (425 on every architecture) fail with `errno`
/// and allow all other calls.
fn filter(errno: i32) -> [libc::sock_filter; 4] {
    let errno = u32::try_from(errno).unwrap();
    let instruction = |code, jump_true, jump_false, k| libc::sock_filter {
        code,
        jt: jump_true,
        jf: jump_false,
        k,
    };
    [
        instruction(0x20, 0, 0, 0),
        instruction(0x15, 0, 1, 425),
        instruction(0x06, 0, 0, libc::SECCOMP_RET_ERRNO | errno),
        instruction(0x06, 0, 0, libc::SECCOMP_RET_ALLOW),
    ]
}

fn refuse(filter: &[libc::sock_filter; 4]) -> io::Result<()> {
    let program = libc::sock_fprog {
        len: 4,
        filter: filter.as_ptr().cast_mut(),
    };
    // SAFETY: takes numbers only.
    let plain = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    // SAFETY: `program` points to four instructions that outlive the call, which only reads them.
    let filtered = unsafe {
        libc::prctl(
            libc::PR_SET_SECCOMP,
            libc::SECCOMP_MODE_FILTER,
            &raw const program,
        )
    };
    if (plain, filtered) == (0, 0) {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}
