//! What a load may leave behind: descriptors, threads and memory. Nothing of them may be there when it is over.

use std::path::Path;
use std::time::{Duration, Instant};

/// The kernel takes rings apart after they are closed, and lanes that were left behind end when their reads do.
const PATIENCE: Duration = Duration::from_secs(60);

/// Of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Traces {
    descriptors: usize,
    /// Of loads: those of tests come and go.
    threads: usize,
    /// Bytes mapped for tensors, on the way or final.
    memory: usize,
}

impl Traces {
    pub(crate) fn now() -> Self {
        tload::release_staging();
        let descriptors = std::fs::read_dir("/proc/self/fd").expect("procfs").count();
        Self {
            descriptors,
            threads: threads(),
            memory: tload::buffer::mapped_bytes(),
        }
    }

    /// What is more than it was, once it has had time to go.
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
            std::thread::yield_now();
        }
    }
}

/// Threads of loads: ours, and those that the kernel runs for our rings.
fn threads() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").expect("procfs");
    let names = tasks.filter_map(|task| name(&task.ok()?.path()));
    names
        .filter(|name| name.starts_with("tload") || name.starts_with("iou-"))
        .count()
}

/// None of a thread that has just ended.
fn name(task: &Path) -> Option<String> {
    std::fs::read_to_string(task.join("comm")).ok()
}
