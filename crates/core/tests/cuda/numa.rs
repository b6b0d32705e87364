//! Loads to GPUs on several NUMA nodes: lanes, staging memory and copiers keep to the node of their
//! GPU.

use std::collections::BTreeSet;
use std::fs;
use std::sync::OnceLock;
use std::time::Instant;

use tempfile::TempDir;
use tload::internal::Trial;
use tload::internal::engine::available;
use tload::internal::numa::{PRETENDED_SYSFS, allowed};
use tload::{Device, DeviceMap, ErrorKind, LoadOptions, Loader, Order, Report, Verify};
use tload_testing::fixtures::Rng;

use crate::fixtures::{Files, MIB, failure, hinted, load, options};
use crate::stub::{Cuda, PATIENCE, cuda};

/// PCI addresses of the stub's devices.
const ADDRESSES: [&str; 2] = ["0000:01:00.0", "0000:02:00.0"];

/// Writes the files of the stub's devices: the list of the CPUs near each, or nothing.
fn topology(_cuda: &Cuda, cpus: [Option<&str>; 2]) {
    static ROOT: OnceLock<TempDir> = OnceLock::new();
    let root = ROOT.get_or_init(|| tempfile::tempdir().expect("a temporary folder"));
    PRETENDED_SYSFS.get_or_init(|| root.path().to_owned());
    for (address, cpus) in ADDRESSES.iter().zip(cpus) {
        let device = root.path().join("bus/pci/devices").join(address);
        let _ = fs::remove_dir_all(&device);
        if let Some(cpus) = cpus {
            fs::create_dir_all(&device).expect("a folder");
            fs::write(device.join("local_cpulist"), cpus).expect("a file");
        }
    }
}

/// Requires two CPUs that this process may use.
fn two_cpus() -> Option<[String; 2]> {
    let allowed = allowed().expect("Linux tells");
    let mut cpus = allowed.iter().map(|cpu| cpu.to_string());
    let found = cpus.next().zip(cpus.next());
    let found = found.ok_or_else(|| format!("the process may only use CPU {allowed}"));
    let (first, second) = tload_testbed::require_named("cpus", found)?;
    Some([first, second])
}

fn with_numa(set: impl FnOnce(&mut LoadOptions)) -> LoadOptions {
    options(|it| {
        it.trial = "numa".parse::<Trial>().expect("valid");
        set(it);
    })
}

/// Loads every other tensor to each of two devices.
fn on_both(files: &Files, options: LoadOptions) -> Loader {
    let rules = [("*[02468]", Device::Cuda(0)), ("*[13579]", Device::Cuda(1))];
    let rules = DeviceMap::new(rules).expect("globs");
    files.loader().device_map(rules).options(options)
}

/// Returns the names of the threads of this process that begin so, each with its CPUs.
fn threads(prefix: &str) -> BTreeSet<(String, String)> {
    let tasks = fs::read_dir("/proc/self/task").expect("Linux lists threads");
    let found = tasks.filter_map(|task| {
        let status = fs::read_to_string(task.ok()?.path().join("status")).ok()?;
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            line.map(|value| value.trim().to_owned())
        };
        let name = field("Name:").filter(|name| name.starts_with(prefix))?;
        Some((name, field("Cpus_allowed_list:")?))
    });
    found.collect()
}

/// Asserts that these are the threads of this process that begin so, each with its CPUs, once they
/// have set their names and those of earlier loads have ended.
fn assert_threads(prefix: &str, expected: &[(String, String)]) {
    let expected = expected.iter().cloned().collect();
    let started = Instant::now();
    while threads(prefix) != expected && started.elapsed() < PATIENCE {
        tload_testbed::pause_between_looks();
    }
    assert_eq!(threads(prefix), expected);
}

/// Returns the sources of the groups of lanes, as the report names them.
fn groups(report: &Report) -> Vec<&str> {
    let groups = report.depths.iter();
    groups
        .map(|it| it.sources.split_once(" for ").map_or("", |it| it.1))
        .collect()
}

#[test]
fn lanes_and_copiers_of_each_gpu_are_on_its_cpus() {
    let cuda = cuda();
    let Some([first, second]) = two_cpus() else {
        return;
    };
    topology(&cuda, [Some(&first), Some(&second)]);
    let files = Files::even(1, 40, MIB);
    // No copy ends, so that no lane does.
    cuda.stub.set("stalled", "0,1");
    let mut stream = on_both(&files, with_numa(|_| {})).stream().expect("starts");
    let lane = |index: usize, cpu: &str| (format!("tload-lane-{index}"), cpu.to_owned());
    let lanes = [lane(0, &first), lane(1, &second)];
    assert_threads("tload-lane-", &lanes);
    let copiers = |cpu: &String| ("tload-pread-0".to_owned(), cpu.clone());
    assert_threads("tload-pread-", &[&first, &second].map(copiers));
    cuda.stub.set("stalled", "");
    let tensors: Vec<_> = stream.by_ref().map(|it| it.expect("loads")).collect();
    files.assert_all(&tensors);
    let report = stream.report();
    assert_eq!(groups(&report), ["cuda:0", "cuda:1"], "{report}");
    assert!(
        report.notes.iter().all(|note| !note.contains("not bound")),
        "{report}"
    );

    // One GPU: all lanes are near it, as before.
    cuda.stub.set("stalled", "1");
    let loader = files.loader().device(Device::Cuda(1));
    let mut stream = loader.options(with_numa(|_| {})).stream().expect("starts");
    assert_threads("tload-lane-", &[lane(0, &second)]);
    cuda.stub.set("stalled", "");
    let tensors: Vec<_> = stream.by_ref().map(|it| it.expect("loads")).collect();
    files.assert_all(&tensors);
    assert_eq!(groups(&stream.report()), [""]);
}

/// Both nodes are known, one is not, none is, both GPUs are on one, and the process may not use the
/// CPUs of one.
#[test]
fn bytes_are_right_and_limits_hold_on_every_topology() {
    let cuda = cuda();
    let Some([first, second]) = two_cpus() else {
        return;
    };
    let both = format!("{first},{second}");
    let (first, second) = (Some(&*first), Some(&*second));
    for (cpus, parts, unbound) in [
        ([first, second], 2, &[][..]),
        ([first, None], 2, &["cuda:1"]),
        ([None, None], 1, &["the GPU"]),
        ([first, first], 1, &[]),
        ([Some(&*both), Some(&*both)], 1, &[]),
        ([first, Some("1000")], 2, &["cuda:1"]),
    ] {
        topology(&cuda, cpus);
        let mut rng = Rng::new(7);
        for limit in [None, Some(8), Some(3)] {
            let mut files = Files::new();
            files.mixed("a", &mut rng, 40, MIB);
            files.mixed("b", &mut rng, 40, 200_000);
            let options = with_numa(|it| {
                it.order = rng.pick(&[Order::Ready, Order::File]);
                it.memory_limit = limit.map(|limit| limit * MIB as u64);
                it.device_memory_limit = rng.pick(&[None, Some(9 * MIB as u64)]);
                it.extent_bytes = rng.pick(&[None, Some(300_000)]);
                it.lanes = rng.pick(&[None, Some(2)]);
                it.engine = rng.pick(&available());
            });
            let memory_limit = options.memory_limit.unwrap_or(u64::MAX);
            let (tensors, report) = load(&on_both(&files, options)).expect("loads");
            files.assert_all(&tensors);
            assert_eq!(report.depths.len(), parts, "{cpus:?}: {report}");
            let staging = report.staging.as_ref().expect("GPUs have some");
            assert!(report.memory_peak <= memory_limit, "{cpus:?}: {report}");
            assert!(
                staging.bytes <= memory_limit && staging.slots > 0,
                "{report}"
            );
            let copied: u64 = report.devices.iter().map(|it| it.copied_bytes).sum();
            assert_eq!(copied, files.total(), "{report}");
            let notes = report
                .notes
                .iter()
                .filter(|note| note.contains("not bound"));
            let notes: Vec<_> = notes.collect();
            assert_eq!(notes.len(), unbound.len(), "{cpus:?}: {report}");
            for (note, gpu) in notes.iter().zip(unbound) {
                assert!(note.contains(&format!("near {gpu}: ")), "{note}");
            }
        }
    }
}

/// A limit that holds one slot is enough: all lanes share it.
#[test]
fn smallest_limit_holds_one_slot_for_both_nodes() {
    let cuda = cuda();
    let Some([first, second]) = two_cpus() else {
        return;
    };
    topology(&cuda, [Some(&first), Some(&second)]);
    let files = Files::even(5, 12, 300_000);
    let within = |limit| {
        let options = with_numa(|it| {
            it.memory_limit = Some(limit);
            it.extent_bytes = Some(200_000);
        });
        load(&on_both(&files, options))
    };
    let error = within(4096).expect_err("holds no slot");
    let limit = hinted(&error);
    let (tensors, report) = within(limit).expect("what the hint calls enough");
    files.assert_all(&tensors);
    let staging = report.staging.as_ref().expect("GPUs have some");
    assert!(
        staging.slots == 1 && report.memory_peak <= limit,
        "{report}"
    );
    assert_eq!(report.depths.len(), 2);
    let (tensors, report) = within(5 * limit).expect("holds two slots for each node");
    files.assert_all(&tensors);
    let staging = report.staging.as_ref().expect("GPUs have some");
    assert!(
        staging.slots == 4 && report.memory_peak <= 5 * limit,
        "{report}"
    );
}

/// Bytes are verified in the order of their files: lanes are not divided.
#[test]
fn verified_load_is_not_divided() {
    let cuda = cuda();
    let Some([first, second]) = two_cpus() else {
        return;
    };
    topology(&cuda, [Some(&first), Some(&second)]);
    let files = Files::even(9, 20, MIB);
    let options = with_numa(|it| it.verify = Verify::Auto);
    let (tensors, report) = load(&on_both(&files, options)).expect("loads");
    files.assert_all(&tensors);
    assert_eq!(report.depths.len(), 1, "{report}");
    assert!(
        report.notes.iter().any(|it| it.contains("not bound")),
        "{report}"
    );
}

/// Host tensors, and several groups of sources, beside GPUs of two nodes.
#[test]
fn host_tensors_are_loaded_beside_gpus_of_two_nodes() {
    let cuda = cuda();
    let Some([first, second]) = two_cpus() else {
        return;
    };
    topology(&cuda, [Some(&first), Some(&second)]);
    for order in [Order::Ready, Order::File] {
        let files = Files::even(11, 30, 500_000);
        let rules = [("*[036]", Device::Cuda(0)), ("*[147]", Device::Cuda(1))];
        let rules = DeviceMap::new(rules).expect("globs");
        let options = with_numa(|it| {
            it.order = order;
            it.memory_limit = Some(6 * MIB as u64);
        });
        let (tensors, report) =
            load(&files.loader().device_map(rules).options(options)).expect("loads");
        files.assert_all(&tensors);
        assert_eq!(report.depths.len(), 2, "{report}");
        assert!(report.memory_peak <= 6 * MIB as u64, "{report}");
    }
}

/// The load is dropped, or a copy to either GPU fails.
#[test]
fn divided_load_that_ends_early_leaves_nothing() {
    let cuda = cuda();
    let Some([first, second]) = two_cpus() else {
        return;
    };
    topology(&cuda, [Some(&first), Some(&second)]);
    let files = Files::even(13, 40, 400_000);
    let options = with_numa(|it| it.memory_limit = Some(4 * MIB as u64));
    for received in [0, 1, 20] {
        let loader = on_both(&files, options.clone());
        let mut stream = loader.stream().expect("starts");
        let tensors: tload::Result<Vec<_>> = stream.by_ref().take(received).collect();
        assert_eq!(tensors.expect("loads").len(), received);
        drop(stream);
        cuda.assert_nothing_left();
    }
    for failing in [1, 2, 9] {
        cuda.stub.set("fail", &format!("copy:719:{failing}:1"));
        let error = failure(on_both(&files, options.clone()).stream());
        assert_eq!(error.kind(), ErrorKind::Device, "{error}");
        cuda.recover();
    }
}
