//! Whole loads of real files: the same bytes as from the `safetensors` crate, with all options.

use std::collections::BTreeSet;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake};
use std::time::Duration;

use futures_core::Stream;
use tload::CacheMode;
use tload::internal::Ceiling;
use tload::{
    Dtype, EngineChoice, ErrorKind, LoadOptions, Loader, Order, Report, Selection, Tensor,
    TensorStream,
};
use tload_testing::fixtures::{FileBuilder, Rng, byte_len};

use crate::files::{
    assert_all, even, evict, folder, load, load_with_report, location, mixed, open, options, write,
};
use crate::requirement;

/// The `safetensors` crate checks the files that it reads, so it is an oracle for files written by
/// hand too.
#[test]
fn every_dtype_loads_in_every_length() {
    let folder = folder();
    let mut rng = Rng::new(1);
    for dtype in Dtype::ALL {
        let mut file = FileBuilder::new();
        let shapes: [&[usize]; 12] = [
            &[],
            &[0],
            &[1],
            &[2, 0, 3],
            &[3],
            &[5, 1],
            &[4096],
            &[4097],
            &[7, 11, 13],
            &[1, 1, 1, 1],
            &[70_001],
            &[2, 300_000],
        ];
        for (index, shape) in shapes.iter().enumerate() {
            let elements = shape.iter().product();
            // A header cannot describe half bytes.
            if let Some(len) = byte_len(dtype, elements) {
                file = file.tensor(&format!("t{index}"), dtype, shape, &rng.bytes(len));
            }
        }
        let file = file.build();
        let path = write(&folder.path().join("m.safetensors"), &file);
        for order in [Order::Ready, Order::File] {
            let (tensors, report) = load_with_report(&path, options(|it| it.order = order));
            assert_all(&tensors, &[&file]);
            assert_eq!(report.copied_bytes, 0, "{dtype}");
        }
    }
}

#[test]
fn every_engine_cache_order_and_lane_count_loads_right_bytes() {
    let folder = folder();
    let files: Vec<_> = (0..4)
        .map(|shard| mixed(&format!("{shard}."), shard, 25, 900_000))
        .collect();
    for (shard, file) in files.iter().enumerate() {
        write(&folder.path().join(format!("m-{shard}.safetensors")), file);
    }
    let files: Vec<_> = files.iter().map(Vec::as_slice).collect();
    let has_ring = requirement::uring().is_some();
    let is_direct = requirement::direct().is_some();
    let checkpoint = open(folder.path()).expect("opens");
    let total = checkpoint.total_bytes();
    let engines = requirement::engines();
    for engine in engines.into_iter().chain([EngineChoice::Auto]) {
        for cache in [CacheMode::Auto, CacheMode::Buffered, CacheMode::Direct] {
            if cache == CacheMode::Direct && !is_direct {
                continue;
            }
            for (order, lanes) in [
                (Order::Ready, 1),
                (Order::File, 1),
                (Order::Ready, 4),
                (Order::File, 3),
            ] {
                let is_cold = evict(folder.path());
                let (tensors, report) = load_with_report(
                    folder.path(),
                    options(|it| {
                        (it.engine, it.cache, it.order) = (engine, cache, order);
                        it.lanes = Some(lanes);
                    }),
                );
                assert_all(&tensors, &files);
                if order == Order::File {
                    let names = checkpoint.tensors().iter().map(tload::TensorInfo::name);
                    assert!(tensors.iter().map(Tensor::name).eq(names));
                }
                check_report(&report, total, 100, lanes);
                assert_eq!(report.engine.requested, engine.name());
                let automatic = if has_ring { "uring" } else { "pread" };
                let used = if engine == EngineChoice::Auto {
                    automatic
                } else {
                    engine.name()
                };
                assert_eq!(report.engine.name, used);
                if cache == CacheMode::Buffered {
                    assert_eq!(report.direct_bytes, 0);
                } else if is_direct && (is_cold || cache == CacheMode::Direct) {
                    assert_eq!((report.buffered_bytes, report.copied_bytes), (0, 0));
                }
            }
        }
    }
}

fn check_report(report: &Report, bytes: u64, tensors: u64, lanes: usize) {
    assert_eq!(report.outcome, "complete");
    assert_eq!((report.tensors, report.tensor_bytes), (tensors, bytes));
    assert_eq!(report.lanes, lanes);
    assert_eq!(
        report.read_bytes,
        report.direct_bytes + report.buffered_bytes
    );
    assert!(report.read_bytes >= bytes, "every byte was read");
    assert!(
        report.read_bytes < bytes + (report.extents + 1) * 2 * (64 << 10),
        "and few more"
    );
    assert!(report.memory_peak <= report.memory_limit && report.memory_peak > 0);
    assert!(report.fresh_regions + report.recycled_regions > 0 && report.extents > 0);
    let first = report.first_tensor_seconds.expect("there were tensors");
    assert!(first > 0.0 && first <= report.seconds);
    assert!(report.bytes_per_second() > 0.0);
    assert!(report.notes.is_empty(), "{:?}", report.notes);
    let text = report.to_string();
    assert!(
        text.contains(&report.engine.name) && text.contains("complete"),
        "{text}"
    );
}

#[test]
fn reads_of_every_size_load_right_bytes() {
    let folder = folder();
    let file = mixed("t", 5, 40, 300_000);
    let path = write(&folder.path().join("m.safetensors"), &file);
    for extent_bytes in [4096, 5000, 12_288, 65_536, 1 << 20, 1 << 30] {
        for depth in [1, 2, 64] {
            let (tensors, report) = load_with_report(
                &path,
                options(|it| (it.extent_bytes, it.depth) = (Some(extent_bytes), Some(depth))),
            );
            assert_all(&tensors, &[&file]);
            assert_eq!(report.depth, depth);
            assert!(report.extent_bytes <= extent_bytes.max(300_000) + 3 * 4096);
        }
    }
    // A limit of one byte in flight still allows one read.
    let few = options(|it| it.in_flight_bytes = Some(1));
    assert_all(&load(&path, few), &[&file]);
    let unlimited = options(|it| it.in_flight_bytes = Some(u64::MAX));
    assert_all(&load(&path, unlimited), &[&file]);
}

/// Offsets that are not multiples of the dtype's alignment: right bytes at aligned addresses, and
/// the report counts the copies. Where reads may begin anywhere, there are none.
#[test]
fn misaligned_tensors_are_copied_and_counted() {
    let folder = folder();
    let mut rng = Rng::new(2);
    for padding in 0..8 {
        let mut file = FileBuilder::new().unaligned(padding);
        let mut misaligned = 0;
        for (index, dtype) in [Dtype::U8, Dtype::F64, Dtype::F32, Dtype::Bf16, Dtype::F64]
            .into_iter()
            .enumerate()
        {
            let elements = [3, 100_001, 5, 7, 300_000][index];
            let len = byte_len(dtype, elements).expect("whole bytes");
            file = file.tensor(&format!("t{index}"), dtype, &[elements], &rng.bytes(len));
        }
        let file = file.build();
        let path = write(&folder.path().join("m.safetensors"), &file);
        for tensor in open(&path).expect("valid").tensors() {
            if tensor.file_range().start % tensor.dtype().alignment() as u64 != 0 {
                misaligned += tensor.byte_len();
            }
        }
        for cache in [CacheMode::Auto, CacheMode::Buffered] {
            for lanes in [1, 3] {
                let options = options(|it| {
                    it.cache = cache;
                    it.lanes = Some(lanes);
                    it.extent_bytes = Some(65_536);
                });
                let mut aligned = options.clone();
                let (tensors, report) = load_with_report(&path, options);
                assert_all(&tensors, &[&file]);
                // On tmpfs, no read is direct.
                let is_anywhere = cache == CacheMode::Buffered || report.copied_bytes == 0;
                let copied = if is_anywhere { 0 } else { misaligned };
                assert_eq!(report.copied_bytes, copied, "padding {padding}");
                aligned.align = Some(33);
                let tensors = load(&path, aligned);
                assert_all(&tensors, &[&file]);
                for tensor in &tensors {
                    let address = tensor.bytes().as_ptr().addr();
                    assert_eq!(address % 64, 0, "{} at {address:x}", tensor.info().name());
                }
            }
        }
    }
}

#[test]
fn selections_load_matches_and_read_little_else() {
    let folder = folder();
    let files = [even("a", 1, 8, 1 << 20), even("b", 2, 8, 1 << 20)];
    write(&folder.path().join("1.safetensors"), &files[0]);
    write(&folder.path().join("2.safetensors"), &files[1]);
    let loader = Loader::open(location(folder.path())).expect("opens");
    let select = |selection: Selection| {
        let mut stream = loader.clone().select(selection).stream().expect("starts");
        let announced: BTreeSet<_> = stream.tensors().map(|it| it.name().to_owned()).collect();
        let names: BTreeSet<_> = stream
            .by_ref()
            .map(|tensor| {
                let tensor = tensor.expect("loads");
                let file = &files[usize::from(tensor.name().starts_with('b'))];
                crate::files::assert_same(&tensor, file);
                tensor.name().to_owned()
            })
            .collect();
        assert_eq!(announced, names);
        let read = stream.report().read_bytes;
        assert!(
            read <= names.len() as u64 * ((1 << 20) + 8192),
            "{read} bytes read"
        );
        names.into_iter().collect::<Vec<_>>().join(" ")
    };
    assert_eq!(select(Selection::names(["b7", "a3"])), "a3 b7");
    assert_eq!(select(Selection::glob("b[01]").expect("valid")), "b0 b1");
    assert_eq!(select(Selection::regex("^a[67]$").expect("valid")), "a6 a7");
    let either = Selection::names(["a0"]).union(Selection::regex("b3").expect("valid"));
    assert_eq!(select(either), "a0 b3");
    assert_eq!(select(Selection::names::<&str>([])), "");

    let error = loader.select(Selection::names(["a0", "b9"])).stream();
    let error = error.expect_err("b9 is not there");
    assert_eq!(
        (error.kind(), error.tensor()),
        (ErrorKind::NoSuchTensor, Some("b9"))
    );
}

#[test]
fn checkpoint_without_bytes_needs_no_engine() {
    let folder = folder();
    let empty = FileBuilder::new()
        .tensor("e", Dtype::F32, &[0, 4], &[])
        .build();
    for (file, tensors) in [(FileBuilder::new().build(), 0), (empty, 1)] {
        let path = write(&folder.path().join("m.safetensors"), &file);
        let (loaded, report) = load_with_report(&path, LoadOptions::default());
        assert_all(&loaded, &[&file]);
        assert_eq!(
            (report.tensors, report.engine.name.as_str()),
            (tensors, "none")
        );
        assert_eq!(report.outcome, "complete");
    }
}

#[test]
fn invalid_options_are_rejected_before_first_read() {
    let folder = folder();
    let path = write(&folder.path().join("m.safetensors"), &even("t", 1, 1, 10));
    for (name, options) in [
        ("depth", options(|it| it.depth = Some(0))),
        ("lanes", options(|it| it.lanes = Some(100_000))),
        ("extent_bytes", options(|it| it.extent_bytes = Some(17))),
        ("timeout", options(|it| it.timeout = Some(Duration::ZERO))),
    ] {
        let loader = Loader::open(location(&path))
            .expect("opens")
            .options(options);
        let error = loader.stream().expect_err("refused");
        assert_eq!(error.kind(), ErrorKind::InvalidRequest);
        assert!(error.message().starts_with(name), "{error}");
    }
}

#[test]
fn both_ceilings_read_same_bytes_as_load() {
    let folder = folder();
    for shard in 0..3 {
        let file = mixed(&format!("{shard}."), shard, 20, 500_000);
        write(&folder.path().join(format!("{shard}.safetensors")), &file);
    }
    for engine in [EngineChoice::Auto, EngineChoice::Pread] {
        for lanes in [1, 3] {
            let options = options(|it| (it.engine, it.lanes) = (engine, Some(lanes)));
            let (_, wanted) = load_with_report(folder.path(), options.clone());
            let loader = Loader::open(location(folder.path()))
                .expect("opens")
                .options(options);
            for ceiling in [Ceiling::Recycled, Ceiling::Fresh] {
                let report = loader.ceiling(ceiling).expect("reads");
                assert_eq!(report.read_bytes, wanted.read_bytes, "{ceiling:?}");
                assert_eq!(report.extents, wanted.extents, "{ceiling:?}");
                assert_eq!(report.tensor_bytes, wanted.tensor_bytes, "{ceiling:?}");
                assert_eq!(report.engine.name, wanted.engine.name, "{ceiling:?}");
                assert_eq!(report.outcome, "complete");
            }
        }
    }
}

/// Longer than any step here takes; only a failure waits so long.
const PATIENCE: Duration = Duration::from_secs(60);

/// Waker that unparks the test's thread.
struct Unpark(std::thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Polls as a runtime would: only after a wake-up. A lost wake-up parks the thread until its
/// timeout, which fails the test.
fn next(stream: &mut TensorStream) -> Option<tload::Result<Tensor>> {
    let waker = Arc::new(Unpark(std::thread::current())).into();
    let mut context = Context::from_waker(&waker);
    loop {
        if let Poll::Ready(item) = Pin::new(&mut *stream).poll_next(&mut context) {
            return item;
        }
        let parked = std::time::Instant::now();
        std::thread::park_timeout(PATIENCE);
        assert!(parked.elapsed() < PATIENCE, "the task was not woken");
    }
}

#[test]
fn futures_stream_yields_same_tensors() {
    let folder = folder();
    let file = mixed("t", 9, 60, 400_000);
    let path = write(&folder.path().join("m.safetensors"), &file);
    for order in [Order::Ready, Order::File] {
        let options = options(|it| {
            it.order = order;
            // One region or two: the reader must often wait until this test receives a tensor.
            it.memory_limit = Some(3 << 19);
        });
        let loader = Loader::open(location(&path))
            .expect("opens")
            .options(options);
        let mut stream = loader.stream().expect("starts");
        let tensors: Vec<_> = std::iter::from_fn(|| next(&mut stream))
            .map(|tensor| tensor.expect("loads"))
            .collect();
        assert_all(&tensors, &[&file]);
        assert!(next(&mut stream).is_none(), "it stays ended");
    }
}

#[test]
fn polling_and_waiting_yield_same_tensors() {
    let folder = folder();
    let file = mixed("t", 10, 30, 400_000);
    let path = write(&folder.path().join("m.safetensors"), &file);
    let mut stream = Loader::open(location(&path))
        .expect("opens")
        .stream()
        .expect("starts");
    let total = stream.progress().tensors_total;
    let mut tensors = Vec::new();
    loop {
        let item = match tensors.len() % 3 {
            0 => stream.wait(Duration::from_millis(1)),
            1 => stream.try_next(),
            _ => match stream.take_ready() {
                Some(tensor) => Poll::Ready(Some(Ok(tensor))),
                // It says nothing about the end.
                None => stream.wait(Duration::from_millis(1)),
            },
        };
        match item {
            Poll::Pending => std::thread::yield_now(),
            Poll::Ready(Some(tensor)) => tensors.push(tensor.expect("loads")),
            Poll::Ready(None) => break,
        }
        assert_eq!(stream.progress().tensors_received, tensors.len() as u64);
    }
    assert_eq!(total, tensors.len() as u64);
    assert!(stream.take_ready().is_none(), "the stream has ended");
    let progress = stream.progress();
    assert_eq!(progress.bytes_received, progress.bytes_total);
    assert_all(&tensors, &[&file]);
}

#[test]
fn files_in_tmpfs_are_read_by_threads_and_report_says_why() {
    let memory = tempfile::tempdir_in("/dev/shm").map_err(|error| error.to_string());
    let is_tmpfs = |folder: &tempfile::TempDir| {
        let found = tload::internal::probe::file_system(folder.path()).expect("a folder");
        found.in_memory
    };
    let found = memory.and_then(|folder| {
        is_tmpfs(&folder)
            .then_some(folder)
            .ok_or_else(|| "/dev/shm is not in memory".to_owned())
    });
    let Some(folder) = requirement::requirement("tmpfs", found) else {
        return;
    };
    let file = mixed("t", 11, 30, 400_000);
    let path = write(&folder.path().join("m.safetensors"), &file);
    let (tensors, report) = load_with_report(&path, LoadOptions::default());
    assert_all(&tensors, &[&file]);
    assert_eq!(report.engine.name, "pread");
    assert!(
        report.engine.reason.contains("tmpfs"),
        "{}",
        report.engine.reason
    );
    assert_eq!(report.direct_bytes, 0);
}
