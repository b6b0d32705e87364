//! Limits on the reads of a group of sources, and on the bytes of them, that may be in flight.
//!
//! A limit is fixed if the caller set it. Otherwise [`Controller`](super::controller::Controller)
//! moves it between a minimum and a maximum. The controller measures one thing, the rate at which
//! bytes arrive while the limit is what restricts the load, and asks one question: does another
//! limit give a higher rate? By Little's law (L = λW) bytes in flight are rate times latency, so
//! when more bytes in flight do not increase the rate, every read only waits longer. The controller
//! looks for the smallest limit beyond the bend of that curve (Kleinrock 1979: rate over latency,
//! the "power", is greatest there), but goes below the start value only for a clear gain: that much
//! memory costs nothing, and noise must not make a queue shallow.
//!
//! * **Search**, like TCP's slow start: double while a step increases throughput by 10 % or more;
//!   ×4 where the last step increased it nearly in proportion. After a jump that gained less, its
//!   middle is measured. A load of objects that has read less than half of what is in flight after
//!   half a second leaps to ×4 at once: stores that throttle each connection are that slow, and
//!   bursts, which hide a gain of ×2, do not hide one of ×4. Without a gain of ×2 the search begins
//!   again below. The rate that it is compared with begins with the store's first bytes, however
//!   late these are.
//! * **Hold and probe**, like BBR (Cardwell et al. 2016): between two samples at the limit, take
//!   one at ½ more or ⅓ less. Each probe is compared with its two neighbours in time, so drift
//!   cancels; evidence is averaged, and a single comparison must show twice as much as many must.
//!   Move up for a gain of 2.5 %, and back if the gain does not last; move down for a loss below 1
//!   %, below the start value for a gain of 6 % (of 10 % in the search). Probes that change nothing
//!   become rare.
//! * **Search again** when two samples in a row deviate by a quarter from the usual rate:
//!   throttling has set in, or a competing load has ended.
//!
//! A sample spans whole turns (a turn is as many bytes as are in flight), so that bursts do not
//! distort it, and a minimum of reads and of time. It begins when all reads of the old limit have
//! ended. It is void if the limit did not restrict the load for four fifths of it: a load that is
//! short of memory or of work shows nothing about storage. There is no probe when too little is
//! left to read to repay its cost.
//!
//! Worked example: reads of 4 MiB, 0.8 GB/s each, 3 GB/s in total, starting at 8 MiB: 2 reads give
//! 1.6 GB/s; 4 give 3.0 (×1.9, nearly all of ×2, so ×4 is next); 16 give 3.0: no gain. The middle,
//! 8, gives 3.0 too: back to 4 reads, 16 MiB.

/// Reads in flight, or a limit on them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InFlight {
    /// Number of jobs.
    pub jobs: usize,
    /// Bytes of the jobs' windows.
    pub bytes: u64,
}

impl InFlight {
    pub(super) fn begin(&mut self, window: usize) {
        self.jobs += 1;
        self.bytes += window as u64;
    }

    pub(super) fn end(&mut self, window: usize) {
        self.jobs -= 1;
        self.bytes -= window as u64;
    }

    /// Returns the average number of bytes per read.
    pub(super) fn read_bytes(self) -> u64 {
        (self.bytes / self.jobs.max(1) as u64).max(1)
    }
}

impl std::ops::Add for InFlight {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            jobs: self.jobs + other.jobs,
            bytes: self.bytes + other.bytes,
        }
    }
}

/// Limits on jobs and bytes in flight: the start value and the range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Depth {
    start: InFlight,
    floor_bytes: u64,
    most: InFlight,
    stride: u64,
}

impl Depth {
    /// Returns a constant limit of `jobs` reads and `bytes` bytes in total.
    pub fn fixed(jobs: usize, bytes: u64) -> Self {
        let limit = InFlight {
            jobs: jobs.max(1),
            bytes,
        };
        Self {
            start: limit,
            floor_bytes: bytes,
            most: limit,
            stride: 0,
        }
    }

    /// Returns a limit that begins at `start` and follows the throughput, between `floor_bytes`
    /// bytes and `most`. The number of jobs is proportional to the bytes.
    pub fn adaptive(start: InFlight, floor_bytes: u64, most: InFlight) -> Self {
        let start = InFlight {
            jobs: start.jobs.clamp(1, most.jobs.max(1)),
            bytes: start.bytes.clamp(1, most.bytes.max(1)),
        };
        Self {
            start,
            floor_bytes: floor_bytes.clamp(1, start.bytes),
            most: InFlight {
                jobs: most.jobs.max(1),
                bytes: most.bytes.max(1),
            },
            stride: 0,
        }
    }

    /// Sets how many bytes are read from a source before the next source has its turn, for engines
    /// that fetch adjacent extents with one request.
    #[must_use]
    pub fn with_stride(self, stride: u64) -> Self {
        Self { stride, ..self }
    }

    /// Lowers the limits to `jobs` jobs.
    pub(super) fn at_most(mut self, jobs: usize) -> Self {
        for limit in [&mut self.start, &mut self.most] {
            limit.jobs = limit.jobs.min(jobs).max(1);
        }
        self
    }

    pub(super) fn stride(&self) -> u64 {
        self.stride
    }

    /// Returns whether the limit never changes.
    pub fn is_fixed(&self) -> bool {
        self.floor_bytes == self.most.bytes && self.start.jobs == self.most.jobs
    }

    /// Returns the start value.
    pub fn start(&self) -> InFlight {
        self.start
    }

    /// Returns the maximum number of jobs in flight.
    pub fn jobs(&self) -> usize {
        self.most.jobs
    }

    /// Returns the maximum number of bytes in flight.
    pub fn bytes(&self) -> u64 {
        self.most.bytes
    }

    /// Returns the maximum number of reads of `window` bytes in flight.
    pub fn reads_of(&self, window: usize) -> usize {
        let fitting = self.most.bytes / window.max(1) as u64;
        self.most
            .jobs
            .min(usize::try_from(fitting).unwrap_or(usize::MAX))
            .max(1)
    }

    /// Returns the limit of `bytes` bytes, clamped to the range; jobs are in proportion to the
    /// start value's.
    pub(super) fn limit_of(&self, bytes: u64) -> InFlight {
        if self.is_fixed() {
            return self.start;
        }
        let bytes = bytes.clamp(self.floor_bytes, self.most.bytes);
        let jobs = self.start.jobs as u128 * u128::from(bytes) / u128::from(self.start.bytes);
        let jobs = usize::try_from(jobs).unwrap_or(usize::MAX);
        InFlight {
            // The minimum is two reads: with one at a time, storage is idle until the next one is
            // started.
            jobs: jobs.max(2).min(self.most.jobs),
            bytes,
        }
    }

    /// Returns whether another read of `window` bytes may start under `limit`. A first one always
    /// may: a limit smaller than an extent must not stop a load. An adaptive limit is rounded to
    /// the nearest whole read; the maximum is never exceeded.
    pub(super) fn admits(&self, limit: InFlight, in_flight: InFlight, window: usize) -> bool {
        let window = window as u64;
        in_flight.jobs == 0
            || (in_flight.jobs < limit.jobs
                && in_flight.bytes + window / 2 <= limit.bytes
                && in_flight.bytes + window <= self.most.bytes)
    }
}
