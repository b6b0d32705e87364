//! Counts of resources that a load could leak: descriptors, threads and memory.

use std::path::Path;
use std::time::{Duration, Instant};

/// Timeout for resources to be freed: the kernel tears rings down asynchronously, and orphaned
/// lanes end when their reads do.
const PATIENCE: Duration = Duration::from_secs(60);

/// Resources of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Traces {
    descriptors: usize,
    /// Threads of loads; threads of tests come and go.
    threads: usize,
    /// Bytes mapped for tensors, staging or final.
    memory: usize,
}

impl Traces {
    pub(crate) fn now() -> Self {
        tload::release_staging();
        tload_testing::end_idle_threads();
        let descriptors = std::fs::read_dir("/proc/self/fd").expect("procfs").count();
        Self {
            descriptors,
            threads: threads(),
            memory: tload::internal::memory::mapped_bytes(),
        }
    }

    /// Returns the counts if any stays above `self` until the timeout.
    pub(crate) fn left_since(self) -> Option<String> {
        let started = Instant::now();
        loop {
            let now = Self::now();
            let is_gone = now.descriptors <= self.descriptors
                && now.threads <= self.threads
                && now.memory <= self.memory;
            if is_gone {
                return None;
            }
            if started.elapsed() > PATIENCE {
                return Some(format!("before: {self:?}, after: {now:?}"));
            }
            tload_testbed::pause_between_looks();
        }
    }
}

/// Counts threads of loads: those of tload, and those that the kernel runs for its rings.
fn threads() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").expect("procfs");
    let names = tasks.filter_map(|task| name(&task.ok()?.path()));
    names
        .filter(|name| name.starts_with("tload") || name.starts_with("iou-"))
        .count()
}

/// Returns the thread's name; `None` if it has just ended.
fn name(task: &Path) -> Option<String> {
    std::fs::read_to_string(task.join("comm")).ok()
}
