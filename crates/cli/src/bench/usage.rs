//! Resource usage of this process during a run: CPU time and peak memory.

use std::fs;

use rustix::time::{ClockId, clock_gettime};

use tload_doctor::host::System;

/// Meter of the usage between [`Meter::start`] and [`Meter::stop`].
#[derive(Debug)]
pub(crate) struct Meter {
    cpu_seconds: f64,
    /// True if the kernel has reset its high-water mark.
    fresh_peak: bool,
}

/// Usage during a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Usage {
    /// User and system time of all threads, the kernel's own helpers for this process included.
    pub(crate) cpu_seconds: f64,
    /// Highest resident set; `None` where it cannot be reset per run.
    pub(crate) peak_rss_bytes: Option<u64>,
}

impl Meter {
    pub(crate) fn start() -> Self {
        // "5" resets VmHWM to the present resident set: proc(5), since Linux 4.0.
        let fresh_peak = fs::write("/proc/self/clear_refs", "5").is_ok();
        Self {
            cpu_seconds: cpu_seconds(),
            fresh_peak,
        }
    }

    pub(crate) fn stop(&self) -> Usage {
        let cpu_seconds = cpu_seconds() - self.cpu_seconds;
        let peak = || System::real().field_bytes("proc/self/status", "VmHWM").ok();
        Usage {
            cpu_seconds,
            peak_rss_bytes: self.fresh_peak.then(peak).flatten(),
        }
    }
}

/// Returns the CPU time of this process so far.
#[expect(
    clippy::cast_precision_loss,
    reason = "seconds and nanoseconds of a process"
)]
fn cpu_seconds() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_and_memory_show() {
        let meter = Meter::start();
        let memory = std::hint::black_box(vec![1u8; 64 << 20]);
        drop(memory);
        let usage = meter.stop();
        assert!(usage.cpu_seconds > 0.0);
        if let Some(peak) = usage.peak_rss_bytes {
            assert!(peak >= 64 << 20, "{peak}");
        }
    }
}
