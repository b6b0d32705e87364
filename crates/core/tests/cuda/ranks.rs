//! Loads of several ranks to GPUs: right bytes, read once; only slabs are pinned; and nothing is
//! left on any device, however a rank ends.
//!
//! Ranks are threads where all of them live, which also shows all that they pin, and processes
//! where one dies.

use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;

use rustix::process::Signal;
use tload::internal::Trial;
use tload::internal::cuda::Context;
use tload::internal::memory::SharedMemory;
use tload::internal::registered::{RegionListener, RegisteredRegions, RegisteredUsage};
use tload::ranks::finish_serving;
use tload::{
    Device, DeviceMap, Error, ErrorKind, Group, Indices, LoadOptions, Loader, LocalGroup, Order,
    Report, Result, Slice, Tensor, TensorStream,
};
use tload_testing::conformance::engine_suite_within_sources;
use tload_testing::ranks_as_threads;

use crate::allocators::Ordered;
use crate::child::{self, Child, PATIENCE};
use crate::fixtures::{Files, MIB, load, options};
use crate::stub::{Cuda, bytes, cuda};

/// Little memory: regions come and go, and slots are used many times.
fn little(it: &mut LoadOptions) {
    it.memory_limit = Some(32 * MIB as u64);
    it.device_memory_limit = Some(8 * MIB as u64);
}

/// Loads on every rank at once, rank 1 and 3 to another GPU; `set` makes the loader of each.
fn load_all(
    size: usize,
    files: &Files,
    set: impl Fn(usize, Loader) -> Loader + Sync,
) -> Vec<(Vec<Tensor>, Report)> {
    load_by(Loader::stream, size, files, set)
}

/// As [`load_all`]; `stream` starts the load of each.
fn load_by(
    stream: impl Fn(&Loader) -> Result<TensorStream> + Sync,
    size: usize,
    files: &Files,
    set: impl Fn(usize, Loader) -> Loader + Sync,
) -> Vec<(Vec<Tensor>, Report)> {
    let (set, stream) = (&set, &stream);
    std::thread::scope(|scope| {
        let start = |(rank, group): (usize, Arc<dyn Group>)| {
            scope.spawn(move || {
                let loader = files.loader().options(options(little));
                let loader = loader.device(Device::Cuda(rank % 2));
                let mut stream = stream(&set(rank, loader).group(group))?;
                let tensors = stream.by_ref().collect::<Result<Vec<_>>>()?;
                // The leader may be done before it has read everything for the others.
                assert!(finish_serving(PATIENCE));
                Ok::<_, Error>((tensors, stream.report()))
            })
        };
        let ranks: Vec<_> = ranks_as_threads(size)
            .into_iter()
            .enumerate()
            .map(start)
            .collect();
        let loaded = ranks.into_iter().map(|rank| rank.join().expect("no panic"));
        loaded.map(|loaded| loaded.expect("loads")).collect()
    })
}

/// Asserts that storage was read once: at most 2 percent more than the distinct bytes.
fn assert_read_once(loaded: &[(Vec<Tensor>, Report)]) {
    let groups = loaded.iter().map(|(_, report)| report.group.as_ref());
    let groups: Vec<_> = groups.map(|group| group.expect("a group")).collect();
    let (read, unique): (u64, u64) = (
        groups.iter().map(|group| group.read_bytes).sum(),
        groups[0].unique_bytes,
    );
    assert!(
        unique <= read && read * 100 <= unique * 102,
        "{read} bytes for {unique}"
    );
}

/// Asserts that each rank has pinned its slab, which fits into its share of the memory, and nothing
/// else: no region that ranks share.
fn assert_only_slabs_were_pinned(cuda: &Cuda, loaded: &[(Vec<Tensor>, Report)]) {
    for (_, report) in loaded {
        let staging = report.staging.as_ref().expect("copies through slots");
        assert_eq!(staging.pinned_bytes, staging.bytes);
        assert!(staging.bytes <= (32 * MIB / 2 / loaded.len()) as u64);
        assert!(!staging.reused);
    }
    let pinned = cuda.stub.count("cuMemHostRegister_v2");
    assert_eq!(usize::try_from(pinned), Ok(loaded.len()));
    assert_eq!(cuda.stub.count("pageable_copies"), 0, "all from slots");
}

#[test]
fn ranks_that_want_everything_read_it_once() {
    for size in [2, 4] {
        let cuda = cuda();
        cuda.stub.set("copy_delay_us", "100");
        let files = Files::even(1, 48, MIB);
        let loaded = load_all(size, &files, |_, loader| loader);
        for (rank, (tensors, report)) in loaded.iter().enumerate() {
            files.assert_all(tensors);
            assert!(tensors.iter().all(|it| it.ordinal() == Some(rank % 2)));
            assert!(report.received_bytes >= files.total(), "{report}");
            assert_eq!(report.devices[0].copied_bytes, files.total());
        }
        assert_read_once(&loaded);
        assert_only_slabs_were_pinned(&cuda, &loaded);
    }
}

/// Returns the tensors of a rank as a load to the host without a group has them.
fn on_host(files: &Files, slices: impl IntoIterator<Item = (String, Slice)>) -> Vec<Tensor> {
    let (mut tensors, _) = load(&files.loader().slices(slices)).expect("loads");
    tensors.sort_by(|a, b| a.name().cmp(b.name()));
    tensors
}

fn both(slice: &Slice) -> [(String, Slice); 2] {
    ["m0", "m1"].map(|name| (name.to_owned(), slice.clone()))
}

/// Returns a rank's columns of a matrix.
fn of_columns(rows: usize, columns: usize, rank: usize, size: usize) -> Slice {
    let share = columns / size;
    let part = Indices::from(rank * share..(rank + 1) * share);
    Slice::new([Indices::from(0..rows), part])
}

#[test]
fn slices_of_rows_and_of_columns_are_right() {
    let (rows, columns) = (4096, 512);
    let of_rows = |rank: usize, size: usize| {
        let share = rows / size;
        Slice::new([Indices::from(rank * share..(rank + 1) * share)])
    };
    let files = Files::matrices(2, rows, columns);
    for size in [2, 4] {
        for is_by_row in [true, false] {
            let cuda = cuda();
            let slice = |rank| {
                if is_by_row {
                    of_rows(rank, size)
                } else {
                    of_columns(rows, columns, rank, size)
                }
            };
            let loaded = load_all(size, &files, |rank, it| it.slices(both(&slice(rank))));
            for (rank, (tensors, report)) in loaded.iter().enumerate() {
                let wanted = on_host(&files, both(&slice(rank)));
                assert_eq!(tensors.len(), wanted.len());
                for tensor in tensors {
                    let wanted = wanted.iter().find(|it| it.name() == tensor.name());
                    let wanted = wanted.expect("loaded too");
                    assert_eq!(tensor.shape(), wanted.shape());
                    assert!(bytes(tensor) == wanted.bytes(), "{}", tensor.name());
                }
                // Rows are each rank's own; narrow columns are received.
                assert_eq!(report.received_bytes == 0, is_by_row, "{report}");
            }
            assert_read_once(&loaded);
            assert_only_slabs_were_pinned(&cuda, &loaded);
        }
    }
}

/// A region of the node holds several matrices, and each rank has a region for each of its slices:
/// the caller's allocator must provide their memory in the order in which the node's are read.
#[test]
fn tight_budgets_of_the_caller_never_deadlock() {
    let (rows, columns, count) = (256, 512, 40);
    for order in [Order::Ready, Order::File] {
        let cuda = cuda();
        let files = Files::matrices(count, rows, columns);
        let slices = |rank| {
            let slice = of_columns(rows, columns, rank, 2);
            (0..count).map(move |index| (format!("m{index}"), slice.clone()))
        };
        let stream = |loader: &Loader| loader.stream_with(Box::new(Ordered::new(&Arc::default())));
        let loaded = load_by(stream, 2, &files, |rank, loader| {
            let options = options(|it| {
                little(it);
                it.order = order;
                it.device_memory_limit = Some((2 * rows * columns) as u64);
                it.timeout = Some(PATIENCE);
            });
            loader.options(options).slices(slices(rank))
        });
        for (rank, (tensors, report)) in loaded.iter().enumerate() {
            let wanted = on_host(&files, slices(rank));
            assert_eq!(tensors.len(), count);
            for tensor in tensors {
                let wanted = wanted.iter().find(|it| it.name() == tensor.name());
                let wanted = wanted.expect("loaded too");
                assert!(bytes(tensor) == wanted.bytes(), "{}", tensor.name());
            }
            let device = &report.devices[0];
            assert!(device.memory_peak <= device.memory_limit);
            assert!(report.received_bytes > 0, "{report}");
        }
        cuda.assert_in_order();
    }
}

/// Options of a rank with these variants, and so much memory for the node, MiB.
fn within(limit: usize, trial: Trial) -> LoadOptions {
    options(|it| {
        it.memory_limit = Some((limit * MIB) as u64);
        it.trial = trial;
    })
}

/// Options of a rank that registers its leader's memory and keeps the registrations.
fn registering() -> LoadOptions {
    within(512, "register".parse().expect("valid"))
}

fn are_noted(report: &Report, text: &str) -> bool {
    report.notes.iter().any(|note| note.contains(text))
}

#[test]
fn gpus_read_registered_memory_of_the_leader_without_staging() {
    let files = Files::even(1, 192, MIB);
    // All of it fits; regions take the place of earlier ones, whose registrations are kept; and
    // there is no room to keep any.
    for limit in [512, 256, 64] {
        let options = within(limit, registering().trial);
        let cuda = cuda();
        cuda.stub.set("copy_delay_us", "100");
        assert_direct(
            &cuda,
            &files,
            &load_all(2, &files, |_, it| it.options(options.clone())),
        );
    }
}

/// Asserts that all bytes are right, and that GPUs read them from the leader's memory.
fn assert_direct(cuda: &Cuda, files: &Files, loaded: &[(Vec<Tensor>, Report)]) {
    for (tensors, report) in loaded {
        files.assert_all(tensors);
        assert!(report.received_bytes >= files.total(), "{report}");
        let features = &report.engine.features;
        assert!(features.contains(&"registered_memory".to_owned()));
        assert!(!are_noted(report, "does not read"), "{report}");
    }
    assert_read_once(loaded);
    let copies: u64 = loaded.iter().map(|(_, it)| it.devices[0].copies).sum();
    assert_eq!(cuda.stub.count("pageable_copies"), 0);
    let direct = cuda.stub.count("read_only_copies");
    assert_eq!(u64::try_from(direct), Ok(copies), "none from slots");
}

#[test]
fn slices_of_columns_are_right_with_registered_memory() {
    let (rows, columns) = (4096, 512);
    let mut files = Files::matrices(2, rows, columns);
    let bytes_of_large = tload_testing::fixtures::Rng::new(9).bytes(3 * MIB);
    let large = (
        "large".to_owned(),
        tload::Dtype::U8,
        3 * MIB,
        bytes_of_large,
    );
    files.shard("1", vec![large], None);
    let cuda = cuda();
    let slice = |rank| of_columns(rows, columns, rank, 2);
    let loaded = load_all(2, &files, |rank, it| {
        let it = it.options(registering());
        it.slices(both(&slice(rank)))
    });
    for (rank, (tensors, _)) in loaded.iter().enumerate() {
        let wanted = on_host(&files, both(&slice(rank)));
        assert_eq!(tensors.len(), 3);
        for tensor in tensors {
            let wanted = wanted.iter().find(|it| it.name() == tensor.name());
            let wanted = wanted.expect("loaded too");
            assert!(bytes(tensor) == wanted.bytes(), "{}", tensor.name());
        }
    }
    assert!(cuda.stub.count("read_only_copies") > 0, "the large tensor");
}

#[test]
fn memory_that_cannot_be_registered_is_copied_and_noted() {
    for (key, value, reason) in [
        ("read_only_register", "0", "cannot read registered memory"),
        // Most of the time the slabs of both ranks come first.
        ("fail", "cuMemHostRegister_v2:2:3", "cannot pin memory"),
    ] {
        let cuda = cuda();
        cuda.stub.set(key, value);
        let files = Files::even(3, 24, MIB);
        let loaded = load_all(2, &files, |_, it| it.options(registering()));
        for (tensors, _) in &loaded {
            files.assert_all(tensors);
        }
        let noted = loaded.iter().filter(|(_, it)| are_noted(it, reason));
        assert!(noted.count() > 0, "{}", loaded[0].1);
        if key != "fail" {
            assert_eq!(cuda.stub.count("pageable_copies"), 0);
        }
    }
}

/// All tensors on the host and on the GPU come from the same regions.
#[test]
fn rank_with_host_tensors_copies() {
    let cuda = cuda();
    let files = Files::even(4, 24, MIB);
    let loaded = load_all(2, &files, |_, it| {
        let it = it.options(registering());
        let map = DeviceMap::new([("t1", Device::Cpu), ("t20", Device::Cpu)]);
        it.device_map(map.expect("valid"))
    });
    for (tensors, report) in &loaded {
        files.assert_all(tensors);
        assert!(are_noted(report, "some tensors go to host memory"));
    }
    assert_eq!(cuda.stub.count("read_only_copies"), 0);
}

#[test]
fn registered_engine_keeps_contract() {
    let cuda = cuda();
    let context = Context::open(0).expect("the stub");
    engine_suite_within_sources("shared, registered", &|request| {
        tload_testing::registered_engine(request, &context)
    });
    drop(context);
    cuda.assert_nothing_left();
}

#[test]
fn memory_is_registered_once_and_used_many_times() {
    let cuda = cuda();
    let context = Context::open(0).expect("the stub");
    let regions = RegisteredRegions::new(&context, vec![true, true, true, false]);
    let memories = [(); 2].map(|()| SharedMemory::new(MIB).expect("room"));
    regions.keep(MIB);
    let use_once = |region, memory: &SharedMemory| {
        regions.shown(region, memory.as_fd());
        regions.released(region);
    };
    for region in [0, 1, 2, 0] {
        use_once(region, &memories[0]);
    }
    let count = |fresh, reused| RegisteredUsage { fresh, reused };
    assert_eq!(regions.usage(), count(1, 3));
    // Another one takes the place of the oldest.
    use_once(1, &memories[1]);
    assert_eq!(
        cuda.stub.live("registered_bytes"),
        MIB.try_into().unwrap_or(0)
    );
    use_once(1, &memories[0]);
    assert_eq!(regions.usage(), count(3, 3));
    // A region that no GPU reads is not registered.
    use_once(3, &memories[0]);
    assert_eq!(regions.usage(), count(3, 3));
    assert_eq!(regions.refusal(), None);
    drop((regions, context));
    assert_eq!(cuda.stub.live("registrations"), 0);
}

/// Every variant of a load, alone and together: a variant must never change a byte.
#[test]
fn eight_ranks_are_right_with_every_variant() {
    let all =
        "regions=2MiB,align=16,chunk=256KiB,slot=2MiB,ring=8MiB,batch,early,nice,register,numa";
    let mut names: Vec<_> = all.split(',').collect();
    names.extend(["", all]);
    let (rows, columns) = (512, 256);
    let mut files = Files::matrices(2, rows, columns);
    let mut rng = tload_testing::fixtures::Rng::new(5);
    files.mixed("1", &mut rng, 60, MIB);
    for name in names {
        let _cuda = cuda();
        let trial: Trial = name.parse().expect("valid");
        let slice = |rank| of_columns(rows, columns, rank, 8);
        let loaded = load_all(8, &files, |rank, it| {
            let it = it.options(within(512, trial));
            it.slices(both(&slice(rank)))
        });
        for (rank, (tensors, report)) in loaded.iter().enumerate() {
            let wanted = on_host(&files, both(&slice(rank)));
            assert_eq!(tensors.len(), wanted.len());
            for tensor in tensors {
                let wanted = wanted.iter().find(|it| it.name() == tensor.name());
                let wanted = wanted.expect("loaded too").bytes();
                assert!(bytes(tensor) == wanted, "{name:?}: {}", tensor.name());
            }
            // The stub's GPUs are in no slot of this machine.
            let is_bound = !are_noted(report, "threads are not bound");
            assert!(is_bound || trial.numa, "{report}");
        }
        assert_read_once(&loaded);
    }
}

#[test]
fn cancelled_rank_leaves_nothing_and_the_others_complete() {
    for (cancelled, variants) in [(1, ""), (0, ""), (1, "register"), (0, "register")] {
        let cuda = cuda();
        cuda.stub.set("copy_delay_us", "300");
        let files = Files::even(2, 48, MIB);
        std::thread::scope(|scope| {
            for (rank, group) in ranks_as_threads(4).into_iter().enumerate() {
                let files = &files;
                scope.spawn(move || {
                    let mut set = options(little);
                    set.trial = variants.parse().expect("valid");
                    let loader = files.loader().options(set);
                    let loader = loader.device(Device::Cuda(0)).group(group);
                    let mut stream = loader.stream().expect("starts");
                    if rank == cancelled {
                        assert!(stream.next().expect("the first").is_ok());
                        stream.canceller().cancel();
                        let error = stream.find_map(Result::err).expect("was cancelled");
                        assert_eq!(error.kind(), ErrorKind::Cancelled);
                    } else {
                        let tensors = stream.collect::<Result<Vec<_>>>().expect("loads");
                        files.assert_all(&tensors);
                    }
                });
            }
        });
        assert!(finish_serving(PATIENCE));
    }
}

/// Not a test: the processes of [`joined`] run this function. A rank loads, waits for a line after
/// two tensors, and answers how the load ended, once nothing is left on its GPU.
#[test]
fn serves() {
    let Some(words) = child::words() else {
        return;
    };
    let number = |text: &str| text.parse::<usize>().expect("a number");
    let cuda = cuda();
    cuda.stub.set("copy_delay_us", "100");
    let group = LocalGroup::join(
        Path::new(&words[0]),
        number(&words[1]),
        number(&words[2]),
        PATIENCE,
    );
    let group: Arc<dyn Group> = Arc::new(group.expect("joins"));
    let loader = Loader::open(tload::Location::from(Path::new(&words[3]))).expect("valid");
    let (wanted, _) = load(&loader).expect("loads without a group");
    child::answer("joined");
    let mut lines = child::lines();
    let mut set = options(little);
    let line = lines.next().expect("a policy");
    let (policy, variants) = line.split_once(' ').expect("and variants");
    set.set("on_peer_loss", policy).expect("valid");
    set.trial = variants.parse().expect("valid");
    let loader = loader.device(Device::Cuda(0)).options(set).group(group);
    let mut stream = loader.stream().expect("starts");
    let mut tensors: Vec<_> = stream.by_ref().take(2).collect();
    child::answer("holds");
    assert_eq!(lines.next().as_deref(), Some("go"));
    tensors.extend(stream.by_ref());
    let mut failure = None;
    let mut count = 0;
    for tensor in tensors {
        match tensor {
            Ok(tensor) => {
                let wanted = wanted.iter().find(|it| it.name() == tensor.name());
                let wanted = wanted.expect("loaded before");
                assert!(bytes(&tensor) == wanted.bytes(), "{}", tensor.name());
                count += 1;
            }
            Err(error) => failure = Some(error),
        }
    }
    drop((stream, loader));
    cuda.assert_nothing_left();
    cuda.assert_in_order();
    if let Some(error) = failure {
        child::answer(&format!("{} {:?}", error.kind().name(), error.ranks()));
        return;
    }
    assert_eq!(count, wanted.len());
    child::answer("complete");
}

fn joined(socket: &Path, size: usize, model: &Path) -> Vec<Child> {
    let [socket, model] = [socket, model].map(|path| path.display().to_string());
    let start = |rank: usize| {
        let words = [&*socket, &rank.to_string(), &size.to_string(), &model];
        Child::start("ranks::serves", &words)
    };
    let ranks: Vec<_> = (0..size).map(start).collect();
    for rank in &ranks {
        assert_eq!(rank.answer(), "joined");
    }
    ranks
}

#[test]
fn dead_leader_leaves_nothing_on_the_gpus_of_the_others() {
    let files = Files::even(4, 48, MIB);
    for (size, policy, wanted) in [
        (2, "error ", "peer [0]"),
        (4, "error ", "peer [0]"),
        (2, "read ", "complete"),
        (4, "read ", "complete"),
        (2, "error register", "peer [0]"),
        (3, "read register", "complete"),
    ] {
        let mut ranks = joined(&files.path().join("g.sock"), size, files.path());
        for rank in &mut ranks {
            rank.tell(policy);
        }
        for rank in &ranks {
            assert_eq!(rank.answer(), "holds");
        }
        ranks[0].signal(Signal::KILL);
        assert_eq!(ranks[0].answer(), "gone");
        for rank in &mut ranks[1..] {
            rank.tell("go");
        }
        for rank in ranks.drain(1..) {
            assert_eq!(rank.answer(), wanted, "{size} ranks, {policy}");
            rank.end();
        }
    }
}
