//! Priority of threads that copy: below that of lanes, which keep GPUs busy.

/// Makes the system prefer all other threads with the default priority to the calling one. Every
/// process may do that.
#[cfg(target_os = "linux")]
pub(crate) fn lower() {
    /// Nice value: a thread with 0 gets three times the time of one with 5 on the same core.
    const NICE: i32 = 5;
    // On Linux this is the priority of the thread, not of the process.
    if let Err(error) = rustix::process::setpriority_process(None, NICE) {
        tracing::debug!(%error, "cannot lower the priority of a thread that copies");
    }
}

/// Does nothing: here only a whole process has a priority.
#[cfg(not(target_os = "linux"))]
pub(crate) fn lower() {}
