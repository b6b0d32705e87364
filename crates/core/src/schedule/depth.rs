//! How many reads, and how many bytes of them, may be in flight.
//!
//! Fixed for a load today. This is where a controller that watches throughput will sit: [`Depth::admits`] is the only question
//! that the schedule asks.

/// Reads in flight.
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

/// Limits on what is in flight, in jobs and in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Depth {
    jobs: usize,
    bytes: u64,
    stride: u64,
}

impl Depth {
    /// At most `jobs` reads of together at most `bytes` bytes.
    pub fn fixed(jobs: usize, bytes: u64) -> Self {
        Self {
            jobs: jobs.max(1),
            bytes,
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
    pub(super) fn at_most(self, jobs: usize) -> Self {
        Self {
            jobs: self.jobs.min(jobs).max(1),
            ..self
        }
    }

    pub(super) fn stride(&self) -> u64 {
        self.stride
    }

    /// Most jobs.
    pub fn jobs(&self) -> usize {
        self.jobs
    }

    /// Most bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// How many reads of `window` bytes may be in flight together.
    pub fn reads_of(&self, window: usize) -> usize {
        let fitting = self.bytes / window.max(1) as u64;
        self.jobs
            .min(usize::try_from(fitting).unwrap_or(usize::MAX))
            .max(1)
    }

    /// Whether another read of `window` bytes may start. One always may: a limit smaller than an extent must not stop a load.
    pub fn admits(&self, in_flight: InFlight, window: usize) -> bool {
        in_flight.jobs == 0
            || (in_flight.jobs < self.jobs && in_flight.bytes + window as u64 <= self.bytes)
    }
}
