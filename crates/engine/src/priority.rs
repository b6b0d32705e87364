//! Priority of threads that copy: below that of lanes, which keep GPUs busy.

/// Steps of the nice value: of two threads on one core, the other one gets three times the time.
#[cfg(target_os = "linux")]
const STEPS: i32 = 5;

/// Largest nice value.
#[cfg(target_os = "linux")]
const NICE_MAX: i32 = 19;

/// Makes the system prefer all other threads with the default priority to the calling one. Every
/// process may do that.
#[cfg(target_os = "linux")]
pub(crate) fn lower() {
    use rustix::process::{getpriority_process, setpriority_process};

    // On Linux this is the priority of the thread, not of the process.
    let lowered = getpriority_process(None)
        .and_then(|nice| setpriority_process(None, (nice + STEPS).min(NICE_MAX)));
    if let Err(error) = lowered {
        tracing::debug!(%error, "cannot lower the priority of a thread that copies");
    }
}

/// Does nothing: here only a whole process has a priority.
#[cfg(not(target_os = "linux"))]
pub(crate) fn lower() {}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use rustix::process::getpriority_process;

    use super::*;

    #[test]
    fn only_the_calling_thread_gets_a_lower_priority() {
        let before = getpriority_process(None).expect("always readable");
        let lowered = std::thread::spawn(|| {
            lower();
            getpriority_process(None)
        });
        let lowered = lowered.join().expect("no panic").expect("always readable");
        assert_eq!(lowered, (before + STEPS).min(NICE_MAX));
        assert_eq!(getpriority_process(None), Ok(before));
    }
}
