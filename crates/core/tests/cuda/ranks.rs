//! Loads of several ranks to GPUs: right bytes, read once; only slabs are pinned; and nothing is
//! left on any device, however a rank ends.
//!
//! Ranks are threads where all of them live, which also shows all that they pin, and processes
//! where one dies.

use std::path::Path;
use std::sync::Arc;

use rustix::process::Signal;
use tload::ranks::finish_serving;
use tload::{
    Device, Error, ErrorKind, Group, Indices, LoadOptions, Loader, LocalGroup, Order, Report,
    Result, Slice, Tensor, TensorStream,
};
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

#[test]
fn cancelled_rank_leaves_nothing_and_the_others_complete() {
    for cancelled in [1, 0] {
        let cuda = cuda();
        cuda.stub.set("copy_delay_us", "300");
        let files = Files::even(2, 48, MIB);
        std::thread::scope(|scope| {
            for (rank, group) in ranks_as_threads(4).into_iter().enumerate() {
                let files = &files;
                scope.spawn(move || {
                    let loader = files.loader().options(options(little));
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
    set.set("on_peer_loss", &lines.next().expect("a policy"))
        .expect("valid");
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
        (2, "error", "peer [0]"),
        (4, "error", "peer [0]"),
        (2, "read", "complete"),
        (4, "read", "complete"),
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
