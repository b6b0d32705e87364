//! Due times and faults of reads. Pure: time is passed in as a duration since some start.

use std::collections::HashMap;
use std::time::Duration;

use rustix::io::Errno;

use super::fault::Fault;
use super::options::Options;

/// Line that sends one byte after another, or any number at once if there is no limit.
#[derive(Clone, Copy, Debug, Default)]
struct Line {
    free_at: Duration,
}

impl Line {
    /// Returns the time at which the last of `bytes` that arrive at `now` have passed.
    fn pass(&mut self, now: Duration, bytes: u64, mb_s: u64) -> Duration {
        if mb_s == 0 {
            return now;
        }
        // 10^6 bytes/s are one byte per microsecond: 1 MiB at 100 MB/s takes 10,485,760 ns.
        let time = Duration::from_nanos(bytes * 1000 / mb_s);
        self.free_at = self.free_at.max(now) + time;
        self.free_at
    }
}

/// Speeds and faults of one mount.
#[derive(Debug)]
pub(super) struct Pace {
    options: Options,
    total: Line,
    files: HashMap<u64, Line>,
    counted: u64,
    struck: u64,
}

impl Pace {
    pub(super) fn new(options: Options) -> Self {
        Self {
            options,
            total: Line::default(),
            files: HashMap::new(),
            counted: 0,
            struck: 0,
        }
    }

    /// Returns the time at which a read that arrives at `now` is due: its bytes pass the line of
    /// its file and the line of all files, behind earlier ones; the latency is added and takes no
    /// bandwidth.
    ///
    /// Worked example (5 ms, 100 MB/s per file): a reader with one read of 1 MiB at a time gets one
    /// each 15.5 ms, 68 MB/s; one with many in flight gets 100 MB/s.
    pub(super) fn due(&mut self, now: Duration, file: u64, bytes: u64) -> Duration {
        let own = self.files.entry(file).or_default();
        let passed = own.pass(now, bytes, self.options.file_mb_s);
        let all = self.total.pass(now, bytes, self.options.total_mb_s);
        passed.max(all) + self.options.latency
    }

    /// Returns the fault of the next read, which requests `len` bytes at `offset`.
    pub(super) fn fault(&mut self, offset: u64, len: usize) -> Option<Fault> {
        let is_over = self.options.fault_max > 0 && self.struck >= self.options.fault_max;
        if offset < self.options.fault_from || is_over {
            return None;
        }
        self.counted += 1;
        let strikes = |every: u64| every > 0 && self.counted.is_multiple_of(every);
        let fault = if strikes(self.options.eio_every) {
            Fault::Errno(Errno::IO.raw_os_error())
        } else if strikes(self.options.hang_every) {
            Fault::Hold
        } else if strikes(self.options.short_every) {
            // Half, as an odd number of bytes. One byte stays one.
            Fault::Short((len / 2) | 1)
        } else {
            return None;
        };
        self.struck += 1;
        Some(fault)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    fn pace(set: impl FnOnce(&mut Options)) -> Pace {
        let mut options = Options::default();
        set(&mut options);
        Pace::new(options)
    }

    #[test]
    fn unlimited_read_is_due_after_latency() {
        let mut pace = pace(|it| it.latency = ms(5));
        assert_eq!(pace.due(ms(1), 1, MIB), ms(6));
        assert_eq!(pace.due(ms(1), 1, 100 * MIB), ms(6));
    }

    #[test]
    fn file_limit_delays_reads_of_same_file_only() {
        let mut pace = pace(|it| (it.latency, it.file_mb_s) = (ms(5), 100));
        let one = Duration::from_nanos(10_485_760);
        assert_eq!(pace.due(ms(0), 1, MIB), one + ms(5));
        assert_eq!(pace.due(ms(0), 1, MIB), 2 * one + ms(5));
        assert_eq!(pace.due(ms(0), 2, MIB), one + ms(5));
        // The line was idle: unused bandwidth is lost.
        assert_eq!(pace.due(ms(1000), 1, MIB), ms(1000) + one + ms(5));
    }

    #[test]
    fn total_limit_is_shared_by_all_files() {
        let mut pace = pace(|it| (it.file_mb_s, it.total_mb_s) = (100, 200));
        let half = Duration::from_nanos(5_242_880);
        assert_eq!(pace.due(ms(0), 1, MIB), 2 * half);
        assert_eq!(pace.due(ms(0), 2, MIB), 2 * half);
        assert_eq!(pace.due(ms(0), 3, MIB), 3 * half);
        assert_eq!(pace.due(ms(0), 4, MIB), 4 * half);
    }

    #[test]
    fn faults_strike_every_nth_read_from_offset() {
        let mut pace = pace(|it| {
            (it.eio_every, it.short_every, it.hang_every) = (3, 2, 5);
            it.fault_from = 4096;
        });
        let fates: Vec<_> = [0, 4096, 9000, 4095, 5000, 6000, 7000, 8000]
            .map(|offset| pace.fault(offset, 1000))
            .into();
        let (short, eio) = (Some(Fault::Short(501)), Some(Fault::Errno(5)));
        let wanted = [None, None, short, None, eio, short, Some(Fault::Hold), eio];
        assert_eq!(fates, wanted);
    }

    #[test]
    fn faults_stop_at_fault_max() {
        let mut pace = pace(|it| (it.short_every, it.fault_max) = (2, 2));
        let struck = (0..100).filter(|_| pace.fault(0, 10).is_some()).count();
        assert_eq!(struck, 2);
    }
}
