//! How many reads, and how many bytes of them, may be in flight: the limits of a group of sources.
//!
//! Fixed when somebody has said what they want. Else [`Controller`](super::controller::Controller) moves the limit between a floor
//! and a ceiling. It measures one thing, the rate at which bytes arrive while the limit is what holds the load back, and asks one
//! question: does another limit bring more? By Little's law (L = λW) bytes in flight are rate times latency, so when more in
//! flight brings no more per second, every read only waits longer. The limit wanted is the smallest one behind the bend of
//! that curve (Kleinrock 1979: rate over latency, the "power", is greatest there).
//!
//! * **Search**, as TCP's slow start: double while a step brings 10 % or more; ×4 where the last step brought nearly as much as it
//!   added. A jump that brought less is followed by a look at its middle.
//! * **Hold and probe**, as BBR (Cardwell et al. 2016): between two samples at the limit one at ½ more or ⅓ less. Each is compared
//!   with its two neighbours in time, so drift cancels; evidence is averaged, and one comparison must show twice what many must.
//!   Up for 2.5 %, and back if that does not last; down when it costs less than 1 %. Probes that change nothing become rare.
//! * **Search again** when two samples in a row are a quarter off what was usual: a throttle set in, or a neighbour has left.
//!
//! A sample takes whole turns (as many bytes as are in flight), so bursts do not bend it, enough reads and enough time; it begins
//! when all reads of the old limit have ended. It is void if the limit did not hold the load back for four fifths of it: short of
//! memory, or short of work, it says nothing about storage. With too little left to read to earn a probe's cost, there is none.
//!
//! Worked example: reads of 4 MiB, 0.8 GB/s each, 3 GB/s in all, from 8 MiB: 2 reads bring 1.6 GB/s; 4 bring 3.0 (×1.9, nearly
//! all of ×2, so ×4 is next); 16 bring 3.0: nothing. The middle, 8, brings 3.0 too: back to 4 reads, 16 MiB.

/// Reads in flight, or a limit on them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InFlight {
    /// Jobs.
    pub jobs: usize,
    /// Bytes of their windows.
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

    /// Bytes of one read, on average.
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

/// Limits on what is in flight, in jobs and in bytes: what to start with, and how far it may change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Depth {
    start: InFlight,
    floor_bytes: u64,
    most: InFlight,
    stride: u64,
}

impl Depth {
    /// At most `jobs` reads of together at most `bytes` bytes, from the first to the last.
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

    /// From `start` on as deep as brings more, but never below `floor_bytes` bytes nor above `most`. Jobs follow the bytes.
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

    /// The same, but so many bytes are read of a source before it is the next one's turn: for engines that bring neighbours by
    /// one request.
    #[must_use]
    pub fn with_stride(self, stride: u64) -> Self {
        Self { stride, ..self }
    }

    /// The same with at most `jobs` jobs.
    pub(super) fn at_most(mut self, jobs: usize) -> Self {
        for limit in [&mut self.start, &mut self.most] {
            limit.jobs = limit.jobs.min(jobs).max(1);
        }
        self
    }

    pub(super) fn stride(&self) -> u64 {
        self.stride
    }

    /// Whether it never changes.
    pub fn is_fixed(&self) -> bool {
        self.floor_bytes == self.most.bytes && self.start.jobs == self.most.jobs
    }

    /// The limit to begin with.
    pub fn start(&self) -> InFlight {
        self.start
    }

    /// Most jobs that may ever be in flight.
    pub fn jobs(&self) -> usize {
        self.most.jobs
    }

    /// Most bytes that may ever be in flight.
    pub fn bytes(&self) -> u64 {
        self.most.bytes
    }

    /// How many reads of `window` bytes may ever be in flight together.
    pub fn reads_of(&self, window: usize) -> usize {
        let fitting = self.most.bytes / window.max(1) as u64;
        self.most
            .jobs
            .min(usize::try_from(fitting).unwrap_or(usize::MAX))
            .max(1)
    }

    /// The limit of `bytes` bytes, within the bounds; jobs in proportion to the start's.
    pub(super) fn limit_of(&self, bytes: u64) -> InFlight {
        if self.is_fixed() {
            return self.start;
        }
        let bytes = bytes.clamp(self.floor_bytes, self.most.bytes);
        let jobs = self.start.jobs as u128 * u128::from(bytes) / u128::from(self.start.bytes);
        let jobs = usize::try_from(jobs).unwrap_or(usize::MAX);
        InFlight {
            // Two at least: one read at a time waits for its successor to be started.
            jobs: jobs.max(2).min(self.most.jobs),
            bytes,
        }
    }

    /// Whether another read of `window` bytes may start under `limit`. One always may: a limit smaller than an extent must not
    /// stop a load. A limit that moves counts whole reads to the nearest; the most is never exceeded.
    pub(super) fn admits(&self, limit: InFlight, in_flight: InFlight, window: usize) -> bool {
        let window = window as u64;
        in_flight.jobs == 0
            || (in_flight.jobs < limit.jobs
                && in_flight.bytes + window / 2 <= limit.bytes
                && in_flight.bytes + window <= self.most.bytes)
    }
}
