//! Loads of several ranks: each gets its own tensors, and what several want is read once.
//!
//! The ranks are threads of this process here, which share nothing but the group; sockets and
//! shared memory are those between processes.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tload::ranks::finish_serving;
use tload::report::GroupReport;
use tload::verify::MANIFEST_NAME;
use tload::{
    Canceller, Dtype, ErrorKind, Group, Indices, LoadOptions, Loader, Order, Report, Result,
    Selection, Slice, Tensor, TensorStream, Verify,
};
use tload_testing::fixtures::{FileBuilder, Rng};
use tload_testing::ranks_as_threads;

use crate::files::{assert_all, even, folder, location, mixed, options, write, write_manifest};

pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) type Loaded = Result<(Vec<Tensor>, Report)>;

/// Loads on every rank at once; `set` makes the loader of each.
pub(crate) fn load_all(
    size: usize,
    path: &Path,
    set: impl Fn(usize, Loader) -> Loader + Sync,
) -> Vec<Loaded> {
    load_in(ranks_as_threads(size), path, set)
}

/// Loads on every rank of a group at once.
pub(crate) fn load_in(
    group: Vec<Arc<dyn Group>>,
    path: &Path,
    set: impl Fn(usize, Loader) -> Loader + Sync,
) -> Vec<Loaded> {
    let set = &set;
    std::thread::scope(|scope| {
        let ranks = group.into_iter().enumerate().map(|(rank, group)| {
            scope.spawn(move || {
                let loader = Loader::open(location(path)).expect("a good checkpoint");
                let mut stream = set(rank, loader).group(group).stream()?;
                let tensors = stream.by_ref().collect::<Result<Vec<_>>>()?;
                Ok((tensors, stream))
            })
        });
        let ranks: Vec<_> = ranks.collect();
        let joined = ranks.into_iter().map(|rank| rank.join().expect("no panic"));
        let joined: Vec<Result<_>> = joined.collect();
        // The leader may be done before it has read everything for the others.
        assert!(finish_serving(PATIENCE));
        let reported = |(tensors, stream): (_, TensorStream)| (tensors, stream.report());
        let joined = joined.into_iter();
        joined.map(|loaded| loaded.map(reported)).collect()
    })
}

pub(crate) fn all_good(loaded: Vec<Loaded>) -> Vec<(Vec<Tensor>, Report)> {
    let good = loaded.into_iter().map(|loaded| loaded.expect("loads"));
    good.collect()
}

pub(crate) fn of_group(report: &Report) -> &GroupReport {
    report.group.as_ref().expect("a load with a group")
}

/// Asserts that storage was read once: at most `percent` more than the distinct bytes, for whole
/// sectors.
pub(crate) fn assert_read_once(loaded: &[(Vec<Tensor>, Report)], percent: u64) {
    let reports = loaded.iter().map(|(_, report)| of_group(report));
    let read: u64 = reports.map(|group| group.read_bytes).sum();
    let unique = of_group(&loaded[0].1).unique_bytes;
    assert!(
        unique <= read && read * 100 <= unique * (100 + percent),
        "{read} bytes for {unique}"
    );
}

/// Compares the tensors of a rank with those of a load without a group.
pub(crate) fn assert_alone(path: &Path, set: impl Fn(Loader) -> Loader, found: &[Tensor]) {
    let loader = Loader::open(location(path)).expect("a good checkpoint");
    let alone: Vec<Tensor> = set(loader)
        .stream()
        .expect("starts")
        .collect::<Result<_>>()
        .expect("loads");
    assert_eq!(alone.len(), found.len());
    for tensor in &alone {
        let mut same = found.iter().filter(|it| it.name() == tensor.name());
        let same = same.next().expect("loaded too");
        assert_eq!(same.shape(), tensor.shape(), "{}", tensor.name());
        assert!(same.bytes() == tensor.bytes(), "{}: bytes", tensor.name());
        let address = same.as_ptr().addr();
        assert_eq!(address % tensor.dtype().alignment(), 0, "{}", tensor.name());
    }
}

pub(crate) fn two_shards(folder: &Path, seed: u64) -> [Vec<u8>; 2] {
    let files = [
        mixed("a", seed, 60, 3 << 20),
        even("b", seed + 1, 9, 5 << 20),
    ];
    for (index, file) in files.iter().enumerate() {
        let name = format!("model-{:05}-of-00002.safetensors", index + 1);
        write(&folder.join(name), file);
    }
    files
}

/// Matrices of 2 bytes an element, `rows` × `columns`.
pub(crate) fn matrices(count: usize, rows: usize, columns: usize) -> Vec<u8> {
    let mut rng = Rng::new(7);
    let file = (0..count).fold(FileBuilder::new(), |file, index| {
        let bytes = rng.bytes(rows * columns * 2);
        file.tensor(&format!("m{index}"), Dtype::Bf16, &[rows, columns], &bytes)
    });
    file.build()
}

/// A digest is one of a whole tensor, whatever rows the ranks take.
#[test]
fn rows_are_verified() {
    let folder = folder();
    let path = folder.path().join("model.safetensors");
    let mut file = matrices(2, 1024, 1024);
    write(&path, &file);
    write_manifest(folder.path());
    let load = || {
        load_all(2, folder.path(), |rank, loader| {
            let rows = Indices::from(rank * 512..(rank + 1) * 512);
            let slice = Slice::new([rows, (0..1024).into()]);
            let required = options(|it| it.verify = Verify::Require);
            loader
                .select(Selection::names(["m1"]))
                .slices([("m1".to_owned(), slice)])
                .options(required)
        })
    };
    all_good(load());
    *file.last_mut().expect("tensors") ^= 1;
    write(&path, &file);
    for loaded in load() {
        assert_eq!(loaded.expect_err("damaged").kind(), ErrorKind::Corrupt);
    }
}

/// The rank that reads for all has selected tensors by name, where files may be missing.
#[test]
fn rank_that_wants_everything_requires_listed_files() {
    let folder = folder();
    for (name, seed) in [("a", 1), ("b", 2)] {
        let path = folder.path().join(format!("{name}.safetensors"));
        write(&path, &even(name, seed, 4, 100_000));
    }
    write_manifest(folder.path());
    let manifest = folder.path().join(MANIFEST_NAME);
    std::fs::remove_file(folder.path().join("b.safetensors")).expect("a file");
    let manifest = manifest.to_str().expect("UTF-8").to_owned();
    for choice in [
        Verify::Manifest(manifest.clone()),
        Verify::Sha256(Some(manifest)),
    ] {
        let loaded = load_all(2, folder.path(), |rank, loader| {
            let loader = loader.options(options(|it| it.verify = choice.clone()));
            match rank {
                0 => loader.select(Selection::names(["a0", "a1", "a2", "a3"])),
                _ => loader,
            }
        });
        let error = loaded[1].as_ref().expect_err("a file is missing");
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        assert!(error.message().contains("b.safetensors"), "{error}");
    }
}

#[test]
fn ranks_that_want_everything_read_it_once() {
    let folder = folder();
    let files = two_shards(folder.path(), 1);
    for size in [2, 4, 8] {
        let loaded = all_good(load_all(size, folder.path(), |_, loader| loader));
        for (tensors, report) in &loaded {
            assert_all(tensors, &[&files[0], &files[1]]);
            let group = of_group(report);
            assert_eq!((group.size, group.leader), (size, 0), "{group:?}");
            assert_eq!(group.node_ranks, (0..size).collect::<Vec<_>>());
            assert!(report.received_bytes > 0, "{report}");
            // Shared bytes are counted where they are read.
            let read = report.direct_bytes + report.buffered_bytes;
            assert_eq!((read, read), (report.read_bytes, group.read_bytes));
            assert_eq!(read > 0, group.rank == group.leader, "{report}");
            let amplification = group.amplification.expect("is planned");
            assert!((1.0..1.02).contains(&amplification), "{group:?}");
        }
        assert_read_once(&loaded, 2);
        let (leader, follower) = (&loaded[0].1, &loaded[1].1);
        assert!(leader.engine.name.ends_with(" + shared"), "{leader}");
        assert_eq!(follower.engine.name, "shared");
    }
}

#[test]
fn tensors_are_writable_unless_views_are_wanted() {
    let folder = folder();
    let files = two_shards(folder.path(), 2);
    for (tensors, _) in all_good(load_all(2, folder.path(), |_, loader| loader)) {
        assert_all(&tensors, &[&files[0], &files[1]]);
        assert!(tensors.iter().all(Tensor::is_writable));
    }
    let views = |_, loader: Loader| loader.options(options(|it| it.private = Some(false)));
    for (tensors, _) in all_good(load_all(2, folder.path(), views)) {
        assert_all(&tensors, &[&files[0], &files[1]]);
        let large = tensors.iter().find(|it| it.byte_len() > 1 << 20);
        assert!(!large.expect("a large one").is_writable());
    }
}

#[test]
fn ranks_read_rows_of_their_own() {
    let folder = folder();
    write(
        &folder.path().join("m.safetensors"),
        &matrices(3, 4096, 2048),
    );
    let rows = |rank: usize| {
        let slice = Slice::new([Indices::from(rank * 1024..(rank + 1) * 1024)]);
        (0..3).map(move |index| (format!("m{index}"), slice.clone()))
    };
    let loaded = all_good(load_all(4, folder.path(), |rank, loader| {
        loader.slices(rows(rank))
    }));
    for (rank, (tensors, report)) in loaded.iter().enumerate() {
        assert_alone(folder.path(), |loader| loader.slices(rows(rank)), tensors);
        assert_eq!(report.received_bytes, 0, "{report}");
    }
    assert_read_once(&loaded, 1);
}

#[test]
fn narrow_columns_are_read_by_the_leader() {
    let folder = folder();
    write(
        &folder.path().join("m.safetensors"),
        &matrices(2, 2048, 256),
    );
    let columns = |rank: usize| {
        let slice = Slice::new([
            Indices::from(0..2048),
            Indices::from(rank * 64..(rank + 1) * 64),
        ]);
        (0..2).map(move |index| (format!("m{index}"), slice.clone()))
    };
    let loaded = all_good(load_all(4, folder.path(), |rank, loader| {
        loader.slices(columns(rank))
    }));
    for (rank, (tensors, report)) in loaded.iter().enumerate() {
        assert_alone(
            folder.path(),
            |loader| loader.slices(columns(rank)),
            tensors,
        );
        assert_eq!(report.read_bytes > 0, rank == 0, "{report}");
    }
    assert_read_once(&loaded, 2);
}

#[test]
fn ranks_may_want_different_tensors() {
    let folder = folder();
    two_shards(folder.path(), 3);
    let selections = ["a*", "*", "b[0-4]", "b[3-8]"];
    let select = |rank: usize, loader: Loader| {
        loader.select(Selection::glob(selections[rank]).expect("a glob"))
    };
    let loaded = all_good(load_all(4, folder.path(), select));
    for (rank, (tensors, _)) in loaded.iter().enumerate() {
        assert_alone(folder.path(), |loader| select(rank, loader), tensors);
    }
    assert_read_once(&loaded, 2);
}

#[test]
fn small_budget_and_file_order_are_kept() {
    let folder = folder();
    let files = two_shards(folder.path(), 4);
    let small = |_, loader: Loader| {
        loader.options(options(|it| {
            it.memory_limit = Some(48 << 20);
            it.order = Order::File;
        }))
    };
    let loaded = all_good(load_all(4, folder.path(), small));
    for (tensors, report) in &loaded {
        assert_all(tensors, &[&files[0], &files[1]]);
        assert_eq!(of_group(report).reason, None);
    }
    assert_read_once(&loaded, 2);
}

#[test]
fn differing_options_are_an_error_on_every_rank() {
    let folder = folder();
    two_shards(folder.path(), 5);
    let limit = |rank: usize| {
        LoadOptions::default()
            .memory_limit
            .or(Some(1 << (30 + rank / 2)))
    };
    let differ = |rank, loader: Loader| loader.options(options(|it| it.memory_limit = limit(rank)));
    for loaded in load_all(3, folder.path(), differ) {
        let error = loaded.expect_err("they differ");
        assert_eq!(error.kind(), ErrorKind::Peer);
        assert_eq!(error.ranks(), [2]);
        assert_eq!(
            error.message(),
            "the ranks disagree on memory_limit: rank 0 has 1.0 GiB, rank 2 has 2.0 GiB"
        );
    }
}

#[test]
fn rank_that_never_joins_is_named() {
    let folder = folder();
    two_shards(folder.path(), 6);
    let mut group = ranks_as_threads(3);
    group.pop();
    let waits = Duration::from_millis(300);
    std::thread::scope(|scope| {
        for rank in group {
            let path = folder.path();
            scope.spawn(move || {
                let loader = Loader::open(location(path)).expect("a good checkpoint");
                let loader = loader.options(options(|it| it.join_timeout = Some(waits)));
                let error = loader.group(rank).stream().expect_err("one is missing");
                assert_eq!(error.kind(), ErrorKind::Peer);
                // On a busy machine, the other one may be late, too.
                assert!(error.ranks().contains(&2), "{error}");
            });
        }
    });
}

/// The others do not wait until the limit, and the group can be used for another load.
#[test]
fn rank_that_cannot_begin_is_named() {
    let folder = folder();
    let files = two_shards(folder.path(), 8);
    std::thread::scope(|scope| {
        for (rank, group) in ranks_as_threads(3).into_iter().enumerate() {
            let (path, files) = (folder.path(), &files);
            scope.spawn(move || {
                let patient = options(|it| it.join_timeout = Some(20 * PATIENCE));
                let loader = Loader::open(location(path)).expect("a good checkpoint");
                let loader = loader.options(patient).group(group);
                let wrong = if rank == 1 { "nothing" } else { "a0" };
                let error = loader.clone().select(Selection::names([wrong])).stream();
                let error = error.expect_err("rank 1 has no such tensor");
                if rank == 1 {
                    assert_eq!(error.kind(), ErrorKind::NoSuchTensor);
                } else {
                    assert_eq!((error.kind(), error.ranks()), (ErrorKind::Peer, &[1][..]));
                    let wanted = "rank 1 did not begin the load: ";
                    assert!(error.message().starts_with(wanted), "{error}");
                }
                let tensors = loader.stream().expect("starts").collect::<Result<Vec<_>>>();
                assert_all(&tensors.expect("loads"), &[&files[0], &files[1]]);
            });
        }
    });
    assert!(finish_serving(PATIENCE));
}

/// Rank whose caller cancels the load while it waits for the others, and is told of the end.
#[derive(Debug)]
struct Interrupted {
    rank: Arc<dyn Group>,
    canceller: Canceller,
}

impl Group for Interrupted {
    fn rank(&self) -> usize {
        self.rank.rank()
    }

    fn size(&self) -> usize {
        self.rank.size()
    }

    fn exchange(&self, message: &[u8], deadline: Instant) -> Result<Vec<Vec<u8>>> {
        self.canceller.cancel();
        self.rank.exchange(message, deadline)
    }
}

#[test]
fn load_cancelled_while_it_joins_is_refused_before_it_writes() {
    let folder = folder();
    write(&folder.path().join("a.safetensors"), &even("t", 3, 8, 4096));
    let canceller = Canceller::default();
    let mut group = ranks_as_threads(2);
    group[0] = Arc::new(Interrupted {
        rank: Arc::clone(&group[0]),
        canceller: canceller.clone(),
    });
    let loaded = load_in(group, folder.path(), |rank, loader| match rank {
        0 => loader.cancelled_by(canceller.clone()),
        _ => loader,
    });
    let error = loaded[0].as_ref().expect_err("was cancelled");
    assert_eq!(error.kind(), ErrorKind::Cancelled, "{error}");
}

#[test]
fn more_ranks_than_one_node_can_have_share_nothing() {
    let folder = folder();
    let file = mixed("a", 7, 5, 10_000);
    write(&folder.path().join("a.safetensors"), &file);
    let loaded = all_good(load_all(129, folder.path(), |_, loader| loader));
    for (tensors, report) in &loaded {
        assert_all(tensors, &[&file]);
        let group = of_group(report);
        let reason = group.reason.as_deref().expect("shares nothing");
        assert_eq!(
            (&*group.share, reason),
            ("none", "more than 128 ranks on one node")
        );
    }
}
