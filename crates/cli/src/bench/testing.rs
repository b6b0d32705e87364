//! Benchmark without a disk, for tests of everything around the runs.

use tload::{Device, LoadOptions, Result};

use super::page_cache::{Found, Residency};
use super::results::{CheckpointRecord, Results, RunRecord, Sample, SyntheticRecord};
use super::{CacheState, Cell, Configuration, Contender, Measurement, Mode, Plan, Runner};
use tload_doctor::host::System;
use tload_doctor::host::record::HostRecord;

/// Returns a plan of `cells` cold cells that differ in depth.
pub(crate) fn plan(cells: usize, rounds: u32) -> Plan {
    let cell = |index: usize| Cell {
        mode: Mode::Stream,
        cache_state: CacheState::Cold,
        configuration: Configuration {
            device: Device::Cpu,
            options: options(index),
        },
    };
    let contenders = vec![Contender::Tload, Contender::Ceiling, Contender::Fio];
    Plan {
        cells: (0..cells).map(cell).collect(),
        contenders,
        rounds,
    }
}

fn options(index: usize) -> LoadOptions {
    let mut options = LoadOptions::default();
    options.depth = Some(4 << index);
    options.extent_bytes = Some(1 << 20);
    options
}

/// Returns empty results of `plan`, from a machine without `/proc` and `/sys`.
pub(crate) fn results(plan: &Plan) -> Results {
    let folder = tempfile::tempdir().unwrap();
    let system = System::at(folder.path());
    Results::new(
        RunRecord {
            started_unix_seconds: 1_800_000_000,
            ..RunRecord::new(vec!["tload".to_owned(), "bench".to_owned()])
        },
        Some("fio-3.33".to_owned()),
        HostRecord {
            kernel: Some("6.18.0".to_owned()),
            architecture: "x86_64",
            file_system: Some("ext4".to_owned()),
            disk: Some("nvme0n1".to_owned()),
            ..HostRecord::collect(&system, None, None, None)
        },
        CheckpointRecord {
            location: "models/llama".to_owned(),
            tensors: 3,
            tensor_bytes: 4 << 30,
            shards: 4,
            file_bytes: (4 << 30) + 4096,
            synthetic: Some(SyntheticRecord {
                preset: "llama",
                seed: 0,
            }),
        },
        plan,
    )
}

/// Returns a cold sample with this speed.
pub(crate) fn sample(round: u32, contender: Contender, bytes_per_second: f64) -> Sample {
    let measurement = measurement(bytes_per_second);
    Sample {
        round,
        position: 0,
        contender,
        measurement,
    }
}

fn measurement(bytes_per_second: f64) -> Measurement {
    Measurement {
        residency: Residency {
            found: Found::Cold,
            resident_bytes: 0,
            total_bytes: 4 << 30,
            method: Some("cachestat"),
        },
        bytes: 4 << 30,
        seconds: 4_294_967_296.0 / bytes_per_second,
        bytes_per_second,
        cpu_seconds: Some(0.02),
        cpu_seconds_per_gib: Some(0.005),
        peak_rss_bytes: Some(100 << 20),
        first_tensor_seconds: Some(0.012),
        opening_seconds: None,
        engine: "uring".to_owned(),
        report: None,
    }
}

/// Runs nothing: the load reads 1.9 GB/s, its ceiling 2.0, fio 1.8, each a little faster from run
/// to run.
#[derive(Debug, Default)]
pub(crate) struct MockRunner {
    runs: u32,
}

impl Runner for MockRunner {
    fn run(&mut self, _: &Cell, contender: Contender) -> Result<Option<Measurement>> {
        self.runs += 1;
        let gigabytes = match contender {
            Contender::Tload => 1.9,
            Contender::Ceiling => 2.0,
            Contender::Fio => 1.8,
            Contender::Peer(_) => 1.0,
        };
        Ok(Some(measurement(
            gigabytes * 1e9 + f64::from(self.runs) * 1e6,
        )))
    }
}
