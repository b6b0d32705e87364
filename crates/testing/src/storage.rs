//! Storage as a model of time: computes what a schedule would reach on it, without threads, clock
//! or bytes.
//!
//! A read waits its latency, then passes its stream (a file, a request) at the stream's rate and
//! its device at the device's rate; each of them serves one read after another. Beyond the knee, a
//! device becomes slower as more is in flight. Everything is determined by a seed.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::convert::Infallible;
use std::time::Duration;

use super::fixtures::Rng;
use tload::Order;
use tload::internal::plan::{Arrangement, Extent, Layout, Plan, Wanted, build};
use tload::internal::schedule::{Depth, DepthReport, Groups, InFlight, Next, Schedule};

const MIB: u64 = 1 << 20;

/// Interval over which noise is constant: as seen on a virtual disk between windows of 20 ms.
const NOISE_TIME: Duration = Duration::from_millis(20);

/// Unit of reads that pass one after another at a common rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// All reads of a file.
    File,
    /// Each single read.
    Read,
    /// A request for this many bytes of a file, with one latency for all of them.
    Request(u64),
}

/// Model of storage. Rates are in bytes per second.
#[derive(Clone, Debug)]
pub struct Storage {
    /// Time until the first byte of a read.
    pub latency: Duration,
    /// Maximum addition to the latency, as a share of it, uniformly distributed; also the variation
    /// of the times that devices take for reads.
    pub jitter: f64,
    /// Rate of one stream; infinite for no limit.
    pub stream_rate: f64,
    /// Bytes that a stream sends at once, after which it pauses to keep its rate, as web servers
    /// do; 0 for a steady flow.
    pub burst_bytes: u64,
    /// Unit of a stream.
    pub stream: Stream,
    /// Rate of all devices together.
    pub rate: f64,
    /// Number of devices. File `i` is on device `i % devices`.
    pub devices: usize,
    /// If not 0, each stripe of this many bytes of a file is on a random device instead; 0 for
    /// files on one device.
    pub stripe_bytes: u64,
    /// Bytes in flight on one device beyond which it becomes slower.
    pub knee_bytes: u64,
    /// Exponent of the slowdown: the rate is multiplied by (knee / in flight) to this power.
    pub collapse: f64,
    /// Relative variation of rates up and down, uniformly distributed, from one 20 ms interval to
    /// the next.
    pub noise: f64,
    /// Changes of the storage: a time, and the rate and the knee from then on.
    pub changes: Vec<(Duration, f64, u64)>,
}

impl Storage {
    /// Returns storage that has only a latency and a rate.
    pub fn new(latency: Duration, rate: f64) -> Self {
        Self {
            latency,
            jitter: 0.2,
            stream_rate: f64::INFINITY,
            burst_bytes: 0,
            stream: Stream::Read,
            rate,
            devices: 1,
            stripe_bytes: 0,
            knee_bytes: u64::MAX,
            collapse: 0.0,
            noise: 0.0,
            changes: Vec::new(),
        }
    }
}

/// Load: its files, its reads and its receiver.
#[derive(Clone, Debug)]
pub struct Scene {
    /// Number of files.
    pub files: usize,
    /// Bytes of each file.
    pub file_bytes: u64,
    /// Sizes of tensors in bytes, repeated cyclically; each file starts at another one.
    pub tensor_bytes: Vec<u64>,
    /// Largest read, bytes.
    pub extent_bytes: u64,
    /// Order of the reads.
    pub order: Order,
    /// Receiver's rate in bytes per second, and the budget in bytes: tensors are charged as a whole
    /// when they begin, and freed as they are taken.
    pub receiver: Option<(f64, u64)>,
}

/// Result of a load.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// End times of reads, and their bytes.
    pub ended: Vec<(Duration, u64)>,
    /// Start time of the last read.
    pub last_began: Duration,
    /// Accepted limits, with their times.
    pub limits: Vec<(Duration, InFlight)>,
    /// Maximum that was in flight.
    pub most: InFlight,
    /// Report at the end.
    pub report: DepthReport,
}

impl Outcome {
    /// Returns the time when the last read ended.
    pub fn took(&self) -> Duration {
        self.ended.last().map_or(Duration::ZERO, |(at, _)| *at)
    }

    /// Returns the bytes per second over the whole load.
    pub fn rate(&self) -> f64 {
        self.rate_between(Duration::ZERO, self.took())
    }

    /// Returns the bytes per second between two times.
    pub fn rate_between(&self, from: Duration, to: Duration) -> f64 {
        let ended = self.ended.iter();
        let bytes: u64 = ended
            .filter(|(at, _)| *at > from && *at <= to)
            .map(|(_, bytes)| *bytes)
            .sum();
        float(bytes) / to.saturating_sub(from).as_secs_f64()
    }

    /// Returns the bytes per second from a time on until the last read begins; the schedule has no
    /// influence after that.
    pub fn steady_rate(&self, from: Duration) -> f64 {
        self.rate_between(from, self.last_began)
    }

    /// Returns the first time at which the mean rate over the preceding `over` was at least
    /// `wanted`.
    pub fn reached(&self, wanted: f64, over: Duration) -> Option<Duration> {
        let mut begin = 0;
        let mut bytes = 0;
        for &(at, ended) in &self.ended {
            bytes += ended;
            while at.saturating_sub(self.ended[begin].0) > over {
                bytes -= self.ended[begin].1;
                begin += 1;
            }
            if at >= over && float(bytes) / over.as_secs_f64() >= wanted {
                return Some(at);
            }
        }
        None
    }
}

/// Times at which resources are free again, in seconds.
#[derive(Clone, Debug, Default)]
struct Busy {
    devices: Vec<f64>,
    in_flight: Vec<u64>,
    /// Indexed by file, read or request: time of the first byte, and time when the stream is free.
    streams: HashMap<u64, (f64, f64)>,
}

/// One load on one model of storage.
struct Run<'a> {
    storage: &'a Storage,
    seed: u64,
    rng: Rng,
    busy: Busy,
}

impl Scene {
    /// Returns a load of tensors of some megabytes in `files` files, `total_bytes` in total.
    pub fn new(files: usize, total_bytes: u64) -> Self {
        Self {
            files,
            file_bytes: total_bytes / files.max(1) as u64,
            tensor_bytes: [112, 8, 56, 2, 28].map(|mib| mib * MIB).to_vec(),
            extent_bytes: 4 * MIB,
            order: Order::Ready,
            receiver: None,
        }
    }

    /// Returns the plan of the load.
    pub fn plan(&self) -> Plan {
        let mut wanted = Vec::new();
        for source in 0..self.files {
            let mut lengths = self.tensor_bytes.iter().cycle().skip(source % 17);
            let mut start = 0;
            while start < self.file_bytes {
                let length = lengths
                    .next()
                    .map_or(self.file_bytes, |bytes| (*bytes).max(1));
                let end = (start + length).min(self.file_bytes);
                wanted.push(Wanted {
                    source,
                    range: start..end,
                    strides: None,
                    alignment: 1,
                    destination: 0,
                });
                start = end;
            }
        }
        let layout = Layout {
            extent_bytes: self.extent_bytes,
            alignment: 4096,
            gap_bytes: 0,
        };
        build(&wanted, &vec![layout; self.files], &[Arrangement::InPlace])
    }

    /// Loads the plan of this scene from `storage`.
    pub fn run(&self, plan: &Plan, storage: &Storage, depth: Depth, seed: u64) -> Outcome {
        let mut run = Run::new(storage, seed);
        let mut schedule = Schedule::new(plan, self.order, Groups::one(depth));
        let mut memory = self
            .receiver
            .map(|(rate, budget)| Memory::new(plan, rate, budget));
        let mut on_their_way = BinaryHeap::new();
        let mut outcome = Outcome {
            ended: Vec::new(),
            last_began: Duration::ZERO,
            limits: vec![(Duration::ZERO, depth.start())],
            most: InFlight::default(),
            report: schedule.explain(0),
        };
        let mut now = Duration::ZERO;
        loop {
            let next = schedule
                .next(0, now, plan, |region| {
                    let memory = memory.as_mut();
                    Ok::<_, Infallible>(memory.is_none_or(|memory| memory.admit(plan, region, now)))
                })
                .expect("infallible");
            if let Next::Extent(extent) = next {
                let ends = run.read(&plan.extents[extent], now);
                on_their_way.push(Reverse((ends, extent)));
                outcome.last_began = now;
                outcome.most = InFlight {
                    jobs: outcome.most.jobs.max(schedule.in_flight().jobs),
                    bytes: outcome.most.bytes.max(schedule.in_flight().bytes),
                };
                continue;
            }
            let wakes = memory
                .as_mut()
                .and_then(|memory| memory.next_free(now))
                .filter(|_| next == Next::Starved);
            match (on_their_way.peek(), wakes) {
                (Some(Reverse((ends, _))), Some(wakes)) if wakes < *ends => now = wakes,
                (None, Some(wakes)) => now = wakes,
                (None, None) => break,
                (Some(&Reverse((ends, extent))), _) => {
                    on_their_way.pop();
                    now = ends;
                    let ended = &plan.extents[extent];
                    run.ended(ended);
                    schedule.ended(ended, now);
                    if let Some(memory) = &mut memory {
                        memory.arrived(plan, extent, now);
                    }
                    outcome.ended.push((now, ended.window as u64));
                    let limit = schedule.explain(0).limit;
                    if outcome
                        .limits
                        .last()
                        .is_some_and(|(_, last)| *last != limit)
                    {
                        outcome.limits.push((now, limit));
                    }
                }
            }
        }
        outcome.report = schedule.explain(0);
        outcome
    }
}

impl<'a> Run<'a> {
    fn new(storage: &'a Storage, seed: u64) -> Self {
        let busy = Busy {
            devices: vec![0.0; storage.devices],
            in_flight: vec![0; storage.devices],
            streams: HashMap::new(),
        };
        Self {
            storage,
            seed,
            rng: Rng::new(seed),
            busy,
        }
    }

    /// Returns the end time of a read that begins `now`.
    fn read(&mut self, extent: &Extent, now: Duration) -> Duration {
        let storage = self.storage;
        let bytes = float(extent.window as u64);
        let answers = now.as_secs_f64()
            + storage.latency.as_secs_f64() * (1.0 + storage.jitter * self.share());
        let file = extent.source as u64;
        let device = self.device(extent);
        let stream = match storage.stream {
            Stream::File => file,
            Stream::Read => u64::MAX,
            Stream::Request(bytes) => (file << 40) + extent.offset / bytes,
        };
        let of_stream = bytes / storage.stream_rate;
        let through_stream = if storage.stream == Stream::Read {
            answers + of_stream
        } else {
            let shares_latency = storage.stream != Stream::File;
            let (answered, free) = *self
                .busy
                .streams
                .entry(stream)
                .or_insert((answers, answers));
            let begins = if shares_latency { answered } else { answers };
            let ends = begins.max(free).max(now.as_secs_f64()) + of_stream;
            self.busy.streams.insert(stream, (answered, ends));
            (ends - self.ahead(extent)).max(now.as_secs_f64())
        };
        self.busy.in_flight[device] += extent.window as u64;
        let begins = self.busy.devices[device].max(answers);
        let rate = self.device_rate(device, begins);
        let varied = 1.0 + storage.jitter * (self.share() - 0.5);
        self.busy.devices[device] = begins + bytes / rate * varied;
        Duration::from_secs_f64(through_stream.max(self.busy.devices[device]))
    }

    /// Returns by how many seconds bursts let the last byte of a read arrive before its time in a
    /// steady flow.
    fn ahead(&self, extent: &Extent) -> f64 {
        let Storage { burst_bytes, .. } = *self.storage;
        let start = match self.storage.stream {
            Stream::Request(bytes) => extent.offset % bytes,
            Stream::File | Stream::Read => 0,
        };
        let end = start + extent.window as u64;
        let of_burst = end.checked_rem(burst_bytes).unwrap_or(0);
        let of_burst = if of_burst == 0 { burst_bytes } else { of_burst };
        float(of_burst) / self.storage.stream_rate
    }

    fn ended(&mut self, extent: &Extent) {
        let device = self.device(extent);
        self.busy.in_flight[device] -= extent.window as u64;
    }

    fn device(&self, extent: &Extent) -> usize {
        let file = extent.source as u64;
        let stripe = extent.offset.checked_div(self.storage.stripe_bytes);
        let place = stripe.map_or(file, |stripe| Rng::new((file << 40) ^ stripe).bits());
        usize::try_from(place % self.storage.devices as u64).expect("below a usize")
    }

    fn device_rate(&self, device: usize, at: f64) -> f64 {
        let storage = self.storage;
        let at = Duration::from_secs_f64(at);
        let changed = storage.changes.iter().rev().find(|(from, ..)| *from <= at);
        let (rate, knee_bytes) = changed.map_or((storage.rate, storage.knee_bytes), |change| {
            (change.1, change.2)
        });
        let beyond = float(self.busy.in_flight[device]) / float(knee_bytes);
        let collapsed = beyond.max(1.0).powf(-storage.collapse);
        let slot = u64::try_from(at.as_nanos() / NOISE_TIME.as_nanos()).unwrap_or(0);
        let mut noise = Rng::new(self.seed ^ (slot << 20) ^ ((device as u64) << 56));
        let varied = 1.0 + storage.noise * (2.0 * share(noise.bits()) - 1.0);
        rate / float(storage.devices as u64) * collapsed * varied
    }

    fn share(&mut self) -> f64 {
        share(self.rng.bits())
    }
}

/// Budget, and the receiver that frees it.
struct Memory {
    rate: f64,
    free: u64,
    /// Number of extents that have not arrived, by region.
    missing: Vec<usize>,
    /// Time when the receiver has taken the last region, and the times at which bytes will be
    /// freed.
    busy_until: f64,
    leaving: VecDeque<(Duration, u64)>,
}

impl Memory {
    fn new(plan: &Plan, rate: f64, budget: u64) -> Self {
        Self {
            rate,
            free: budget,
            missing: plan
                .regions
                .iter()
                .map(|region| region.extents.len())
                .collect(),
            busy_until: 0.0,
            leaving: VecDeque::new(),
        }
    }

    fn admit(&mut self, plan: &Plan, region: usize, now: Duration) -> bool {
        while let Some(&(at, bytes)) = self.leaving.front()
            && at <= now
        {
            self.free += bytes;
            self.leaving.pop_front();
        }
        let bytes = plan.regions[region].bytes as u64;
        let fits = bytes <= self.free;
        if fits {
            self.free -= bytes;
        }
        fits
    }

    fn arrived(&mut self, plan: &Plan, extent: usize, now: Duration) {
        let region = plan.extents[extent].region;
        self.missing[region] -= 1;
        if self.missing[region] == 0 {
            let bytes = plan.regions[region].bytes as u64;
            self.busy_until = self.busy_until.max(now.as_secs_f64()) + float(bytes) / self.rate;
            let at = Duration::from_secs_f64(self.busy_until);
            self.leaving.push_back((at, bytes));
        }
    }

    fn next_free(&mut self, now: Duration) -> Option<Duration> {
        self.leaving.front().map(|(at, _)| (*at).max(now))
    }
}

/// Returns a number that is uniformly distributed between 0 and 1.
fn share(bits: u64) -> f64 {
    float(bits >> 11) / float(1 << 53)
}

#[expect(
    clippy::cast_precision_loss,
    reason = "a model of time: an error of one byte in 2^52 is harmless"
)]
fn float(number: u64) -> f64 {
    number as f64
}
