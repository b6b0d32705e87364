//! The depth controller on models of storage: as fast as the best fixed depth, from any start
//! value.

use std::time::Duration;

use tload::internal::schedule::{Depth, InFlight, LimitReason};
use tload_testing::storage::{Outcome, Scene, Storage, Stream};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const GB: f64 = 1e9;

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// A model of storage, a scene that loads from it, and limits on its depth.
struct Case {
    name: &'static str,
    storage: Storage,
    scene: Scene,
    start_bytes: u64,
    most_bytes: u64,
    stride: u64,
    /// Time from which on the rate must be steady.
    steady_from: Duration,
}

const FLOOR: u64 = 4 * MIB;

impl Case {
    fn adaptive(&self) -> Depth {
        let limit = |bytes: u64| InFlight {
            jobs: usize::try_from(bytes / (MIB / 2)).expect("small"),
            bytes,
        };
        Depth::adaptive(limit(self.start_bytes), FLOOR, limit(self.most_bytes))
            .with_stride(self.stride)
    }

    fn sweep(&self) -> impl Iterator<Item = Depth> {
        let (most, stride) = (self.most_bytes, self.stride);
        let bytes = (0..9).map(|step| (8 * MIB) << step);
        let mut all: Vec<u64> = bytes
            .flat_map(|bytes| [bytes, bytes / 2 * 3])
            .filter(|bytes| *bytes < most)
            .chain([most])
            .collect();
        all.sort_unstable();
        all.dedup();
        all.into_iter()
            .map(move |bytes| Depth::fixed(4096, bytes).with_stride(stride))
    }

    fn run(&self, depth: Depth, seed: u64) -> Outcome {
        self.scene
            .run(&self.scene.plan(), &self.storage, depth, seed)
    }

    /// Returns the maximum of a measure over all fixed depths, and that depth in bytes.
    fn oracle(&self, seed: u64, measure: impl Fn(&Outcome) -> f64) -> (f64, u64) {
        let plan = self.scene.plan();
        let each = self.sweep().map(|depth| {
            let outcome = self.scene.run(&plan, &self.storage, depth, seed);
            (measure(&outcome), depth.bytes())
        });
        each.max_by(|a, b| a.0.total_cmp(&b.0)).expect("some")
    }
}

/// Returns models of one disk, of eight disks with each file on one of them, and of eight disks
/// with each file striped over all.
fn disks() -> [Storage; 3] {
    let ssd = Storage::new(ms(1), 3.0 * GB);
    let ssd = Storage {
        stream_rate: 1.5 * GB,
        knee_bytes: 32 * MIB,
        collapse: 0.25,
        ..ssd
    };
    let eight = Storage {
        devices: 8,
        rate: 24.0 * GB,
        ..ssd.clone()
    };
    let striped = Storage {
        stripe_bytes: 4 * MIB,
        knee_bytes: u64::MAX,
        ..eight.clone()
    };
    [ssd, eight, striped]
}

fn cases(noise: f64) -> Vec<Case> {
    let with_noise = |storage: Storage| Storage { noise, ..storage };
    let case = |name, storage, scene, start_mib: u64, most_mib: u64| Case {
        name,
        storage: with_noise(storage),
        scene,
        start_bytes: start_mib * MIB,
        most_bytes: most_mib * MIB,
        stride: 0,
        steady_from: ms(500),
    };
    let [ssd, eight, striped] = disks();
    let network = Storage {
        stream: Stream::File,
        stream_rate: 100e6,
        ..Storage::new(ms(5), 10.0 * GB)
    };
    let s3 = Storage {
        stream: Stream::Request(16 * MIB),
        stream_rate: 90e6,
        ..Storage::new(ms(30), 5.0 * GB)
    };
    let cloud = Storage::new(ms(2), 1.0 * GB);
    let collapsing = Storage {
        knee_bytes: 12 * MIB,
        collapse: 1.0,
        ..Storage::new(ms(1), 2.0 * GB)
    };
    vec![
        case("one SSD", ssd, Scene::new(8, 12 * GIB), 16, 256),
        case("eight SSDs", eight, Scene::new(64, 64 * GIB), 16, 512),
        case(
            "eight SSDs, striped",
            striped,
            Scene::new(64, 64 * GIB),
            16,
            512,
        ),
        case(
            "network, 100 MB/s per file",
            network,
            Scene::new(64, 32 * GIB),
            16,
            512,
        ),
        Case {
            stride: 16 * MIB,
            steady_from: ms(1000),
            ..case(
                "S3, 90 MB/s per request",
                s3,
                Scene::new(16, 32 * GIB),
                160,
                2048,
            )
        },
        case(
            "cloud disk, 1 GB/s",
            cloud,
            Scene::new(8, 6 * GIB),
            128,
            256,
        ),
        case(
            "collapses above 12 MiB",
            collapsing,
            Scene::new(8, 8 * GIB),
            16,
            256,
        ),
    ]
}

/// Returns the result of an adaptive load as a share of the best fixed depth's, with equal seeds.
#[expect(
    clippy::print_stdout,
    reason = "shown when a test fails, or with --show-output"
)]
fn share_of_best(case: &Case, seed: u64, measure: impl Fn(&Outcome) -> f64) -> f64 {
    let (best, best_bytes) = case.oracle(seed, &measure);
    let outcome = case.run(case.adaptive(), seed);
    let share = measure(&outcome) / best;
    let reached = outcome.reached(0.95 * best, ms(40));
    let limits = outcome.limits.iter();
    let limits: Vec<_> = limits
        .map(|(at, limit)| format!("{} at {}", limit.bytes / MIB, at.as_millis()))
        .collect();
    println!(
        "{:28} noise {:4} seed {seed}: best {:5.2} GB/s with {:4} MiB; {share:.3} of it; after {:4?} ms; {}; MiB at ms: {}",
        case.name,
        case.storage.noise,
        best / GB,
        best_bytes / MIB,
        reached.map_or(u128::MAX, |at| at.as_millis()),
        outcome.report.limit_reason.text(),
        limits.join(", ")
    );
    assert!(outcome.most.bytes <= case.most_bytes);
    share
}

/// Asserts the steady rate: at least 95 % of the best on average over the seeds, 92 % with each.
#[expect(
    clippy::print_stdout,
    reason = "shown when a test fails, or with --show-output"
)]
fn assert_steady(cases: Vec<Case>) {
    for case in cases {
        let shares: Vec<_> = (0..10)
            .map(|seed| share_of_best(&case, seed, |out| out.steady_rate(case.steady_from)))
            .collect();
        let mean = shares.iter().sum::<f64>() / 10.0;
        let least = shares.iter().copied().fold(f64::INFINITY, f64::min);
        println!("{:28} mean {mean:.3} least {least:.3}", case.name);
        assert!(
            mean >= 0.95 && least >= 0.92,
            "{}: {mean}, {least}",
            case.name
        );
    }
}

/// Returns models of storage of the fastest servers, with the limits that files have by default:
/// eight NVMe disks with a shard on one of them and striped, a parallel file system on a link of
/// 400 Gb/s, and NFS over RDMA, where a read passes at the rate of one connection.
fn fast() -> Vec<Case> {
    let disks = Storage {
        stream_rate: 3.5 * GB,
        devices: 8,
        ..Storage::new(Duration::from_micros(150), 56.0 * GB)
    };
    let striped = Storage {
        stripe_bytes: 4 * MIB,
        ..disks.clone()
    };
    let parallel = Storage {
        stream_rate: 2.0 * GB,
        ..Storage::new(Duration::from_micros(500), 48.0 * GB)
    };
    let nfs = Storage {
        stream_rate: 1.0 * GB,
        ..Storage::new(Duration::from_micros(300), 40.0 * GB)
    };
    let models = [
        ("eight NVMe disks", disks, 128),
        ("eight NVMe disks, striped", striped, 128),
        ("400 Gb/s, parallel", parallel, 48),
        ("NFS over RDMA", nfs, 48),
    ];
    let each = models.into_iter().map(|(name, storage, start_mib)| Case {
        name,
        storage,
        scene: Scene::new(64, 128 * GIB),
        start_bytes: start_mib * MIB,
        most_bytes: 256 * MIB,
        stride: 0,
        steady_from: ms(500),
    });
    each.collect()
}

#[test]
fn default_depth_reaches_fast_storage() {
    for case in fast() {
        for seed in 0..4 {
            let share = share_of_best(&case, seed, |out| out.steady_rate(case.steady_from));
            let reached = case
                .run(case.adaptive(), seed)
                .steady_rate(case.steady_from);
            let of_storage = reached / case.storage.rate;
            assert!(
                share >= 0.92 && of_storage >= 0.9,
                "{}, seed {seed}: {share} of the best depth, {of_storage} of the storage",
                case.name
            );
        }
    }
}

#[test]
fn controller_matches_best_fixed_depth_on_every_model() {
    assert_steady(cases(0.0));
}

#[test]
fn controller_matches_best_fixed_depth_with_noise() {
    assert_steady(cases(0.12));
}

/// Returns the case of this name.
fn the(name: &str, noise: f64) -> Case {
    let mut cases = cases(noise).into_iter();
    cases.find(|case| case.name == name).expect("a case")
}

#[test]
fn search_for_depth_slows_short_loads_little() {
    for (mib, least) in [(64, 0.95), (300, 0.93), (1024, 0.93), (4096, 0.93)] {
        for seed in 0..10 {
            let mut case = the("one SSD", if seed == 0 { 0.0 } else { 0.12 });
            case.scene.file_bytes = mib * MIB / 8;
            let share = share_of_best(&case, seed, Outcome::rate);
            assert!(share >= least, "{mib} MiB, seed {seed}: {share}");
        }
    }
}

/// Returns a load of `total_bytes` from a store that gives `stream_rate` to each request and `rate`
/// to all, in bursts of `burst_bytes` for each request. Its budget has little room beyond the
/// maximum in flight, as by default.
fn throttled(stream_rate: f64, rate: f64, burst_bytes: u64, total_bytes: u64) -> Case {
    let mut case = the("S3, 90 MB/s per request", 0.0);
    case.name = "throttled requests";
    case.storage.stream = Stream::Request(32 * MIB);
    case.storage.stream_rate = stream_rate;
    case.storage.burst_bytes = burst_bytes;
    case.storage.rate = rate;
    case.stride = 32 * MIB;
    (case.start_bytes, case.most_bytes) = (320 * MIB, 1280 * MIB);
    case.scene = Scene::new(4, total_bytes);
    case.scene.receiver = Some((100.0 * GB, 1312 * MIB));
    case
}

/// A turn takes 1.7 s at first: 16 requests of 12.5 MB/s each, of 64 that the store would serve.
#[test]
fn search_for_depth_is_quick_on_throttled_connections() {
    for burst_bytes in [0, MIB / 2, 2 * MIB] {
        for (noise, seed) in [(0.0, 0), (0.12, 1), (0.12, 2)] {
            for total_bytes in [4 * GIB, 8 * GIB] {
                let mut case = throttled(12.5e6, 64.0 * 12.5e6, burst_bytes, total_bytes);
                case.storage.noise = noise;
                let share = share_of_best(&case, seed, Outcome::rate);
                assert!(share >= 0.9, "seed {seed}, burst {burst_bytes}: {share}");
            }
            let case = throttled(3e6, GB, burst_bytes, GIB);
            let share = share_of_best(&case, seed, Outcome::rate);
            assert!(share >= 0.8, "seed {seed}, burst {burst_bytes}: {share}");
        }
    }
}

/// The store serves fewer requests at full rate than the controller tries at once, or its link is
/// slow: the leap costs no time, whether it is undone or not.
#[test]
fn leap_of_slow_store_that_gains_little_costs_no_time() {
    for (stream_rate, connections) in [(12.5e6, 24.0), (90e6, 1.7)] {
        for (burst_bytes, seed) in [(0, 0), (MIB / 2, 1), (2 * MIB, 2)] {
            let case = throttled(stream_rate, stream_rate * connections, burst_bytes, 8 * GIB);
            let share = share_of_best(&case, seed, Outcome::rate);
            assert!(share >= 0.9, "seed {seed}: {share}");
        }
    }
}

/// The first bytes come late, from a link that 16 requests saturate: four times as many gain
/// nothing, and do not stay.
#[test]
fn leap_of_saturated_link_with_late_first_bytes_is_undone() {
    for (latency, rate) in [(400, 0.1), (500, 0.15), (500, 0.2), (900, 0.1)] {
        for seed in 0..3 {
            let mut case = throttled(1.0 * GB, rate * GB, 0, 8 * GIB);
            case.storage.latency = ms(latency);
            case.storage.noise = 0.12;
            let outcome = case.run(case.adaptive(), seed);
            println!(
                "{latency} {rate}: {:?} {:?}",
                outcome.report, outcome.limits
            );
            assert!(outcome.report.limit.bytes <= 2 * case.start_bytes);
            let share = share_of_best(&case, seed, Outcome::rate);
            assert!(share >= 0.9, "seed {seed}: {share}");
        }
    }
}

/// Returns the rate from some time after a change on, as a share of the best fixed depth's.
fn after_change(case: &Case, seed: u64, from: u64) -> f64 {
    share_of_best(case, seed, |outcome| outcome.steady_rate(ms(from)))
}

#[test]
fn controller_follows_changes_during_load() {
    let never = u64::MAX;
    for noise in [0.0, 0.12] {
        for seed in 0..5 {
            // Another user of the disk leaves: the depth that was enough is too small now.
            let mut doubles = the("one SSD", noise);
            doubles.name = "rate doubles";
            doubles.storage.latency = ms(4);
            doubles.storage.knee_bytes = never;
            doubles.storage.changes = vec![(ms(1500), 6.0 * GB, never)];
            let share = after_change(&doubles, seed, 2500);
            assert!(share >= 0.95, "doubles, seed {seed}: {share}");

            let mut halves = the("one SSD", noise);
            halves.name = "rate halves";
            halves.storage.changes = vec![(ms(1500), 1.5 * GB, 32 * MIB)];
            let share = after_change(&halves, seed, 2000);
            assert!(share >= 0.95, "halves, seed {seed}: {share}");

            let mut bends = the("one SSD", noise);
            bends.name = "a knee appears";
            bends.start_bytes = 64 * MIB;
            bends.storage.knee_bytes = never;
            bends.storage.collapse = 0.5;
            bends.storage.changes = vec![(ms(1500), 3.0 * GB, 16 * MIB)];
            let share = after_change(&bends, seed, 3000);
            assert!(share >= 0.95, "knee, seed {seed}: {share}");
        }
    }
}

#[test]
fn controller_recovers_from_start_far_too_low() {
    let mut case = the("S3, 90 MB/s per request", 0.0);
    case.start_bytes = 16 * MIB;
    case.steady_from = ms(2000);
    let share = share_of_best(&case, 0, |outcome| outcome.steady_rate(case.steady_from));
    assert!(share >= 0.95, "{share}");
}

#[test]
fn controller_recovers_from_start_far_too_high() {
    for (name, start_mib, most_mib) in [
        ("one SSD", 128, 256),
        ("one SSD", 256, 256),
        ("collapses above 12 MiB", 64, 64),
    ] {
        let mut case = the(name, 0.0);
        case.start_bytes = start_mib * MIB;
        case.most_bytes = most_mib * MIB;
        case.steady_from = ms(1500);
        let share = share_of_best(&case, 0, |outcome| outcome.steady_rate(case.steady_from));
        assert!(share >= 0.95, "{name}: {share}");
    }
}

/// Local disks begin deep, beyond the knee of this one: noise may hide the way down for seconds.
#[test]
fn deep_start_beyond_knee_loses_little_on_average() {
    let mut case = the("one SSD", 0.12);
    case.start_bytes = 128 * MIB;
    case.steady_from = ms(1000);
    let shares: Vec<_> = (0..10)
        .map(|seed| share_of_best(&case, seed, |out| out.steady_rate(case.steady_from)))
        .collect();
    let mean = shares.iter().sum::<f64>() / 10.0;
    assert!(mean >= 0.88, "{shares:?}");
}

#[test]
fn fixed_depth_never_changes() {
    let case = the("eight SSDs", 0.12);
    let outcome = case.run(Depth::fixed(7, 64 * MIB), 0);
    assert_eq!(outcome.report.limit_reason, LimitReason::Fixed);
    assert_eq!((outcome.report.changes, outcome.limits.len()), (0, 1));
    assert_eq!(outcome.most.jobs, 7);
    let outcome = case.run(Depth::fixed(1000, 10 * MIB), 0);
    assert_eq!((outcome.report.changes, outcome.limits.len()), (0, 1));
    assert!(outcome.most.bytes <= 10 * MIB);
}

/// The budget, or the receiver that returns memory to it, limits these loads: more bytes in flight
/// would use memory without any gain.
#[test]
fn slow_receiver_does_not_increase_depth() {
    for (rate, budget) in [(0.1 * GB, 64 * MIB), (0.05 * GB, 256 * MIB)] {
        let mut case = the("network, 100 MB/s per file", 0.0);
        case.scene.file_bytes = 64 * MIB;
        case.scene.tensor_bytes = vec![8 * MIB];
        case.scene.receiver = Some((rate, budget));
        let outcome = case.run(case.adaptive(), 0);
        let slow = outcome.rate() / rate;
        println!(
            "{rate} {budget}: {slow} {:?} {:?}",
            outcome.report, outcome.limits
        );
        assert!(
            (0.7..1.2).contains(&slow),
            "the receiver is the limit: {slow}"
        );
        let limit = outcome.report.limit.bytes;
        assert!(limit <= 4 * case.start_bytes, "{limit} bytes in flight");
    }
}

#[test]
fn controller_matches_best_fixed_depth_in_file_order() {
    let mut case = the("eight SSDs, striped", 0.0);
    case.scene.order = tload::Order::File;
    let share = share_of_best(&case, 0, |outcome| outcome.steady_rate(case.steady_from));
    assert!(share >= 0.95, "{share}");
}
