//! Room in the process's table of descriptors, made before a checkpoint of many files needs it.
//!
//! Linux doubles the table when it is full, from 64 descriptors. If threads share it, the one that
//! opens the file waits until no processor uses the old table: 8 to 16 ms each time, as long as
//! everything else that opening 64 cached shards takes, which cross 64, 128 and 256 (2026-11,
//! `benches/results/2core-intel-2026-11-27`). A process without other threads does not wait.

use std::io;

use super::per_process::PerProcess;
use super::threads::Builder;

/// Size of the table afterwards: what a process may have unless its limit is raised, and enough
/// for 200 cached shards. A forked child begins with a small table.
const DESCRIPTORS: i32 = 1024;

static RESERVED: PerProcess<bool> = PerProcess::new();

/// Makes room for many open files in this process, if it has not yet. Returns at once.
///
/// Opening a checkpoint calls this too. A process that calls it before it starts its threads saves
/// the first opening a wait of some 10 ms on Linux.
pub fn reserve_descriptors() {
    if !cfg!(target_os = "linux") || std::mem::replace(&mut *RESERVED.lock(), true) {
        return;
    }
    let threads = std::fs::read_dir("/proc/self/task");
    if threads.is_ok_and(|threads| threads.count() == 1) {
        return make_room();
    }
    // If the thread cannot be started, openings wait themselves.
    drop(
        Builder::new()
            .name("tload-table".to_owned())
            .spawn(make_room),
    );
}

/// Takes the last descriptor for a moment: the table does not shrink again.
fn make_room() {
    // Duplicate a new pipe, because closing a duplicate of a file would release the process's locks
    // on that file. The call fails if the process may not have so many descriptors.
    if let Ok((reader, _writer)) = io::pipe() {
        let _ = rustix::io::fcntl_dupfd_cloexec(reader, DESCRIPTORS - 1);
    }
}
