//! The memory budget: a load that cannot fit is refused, none exceeds it, and none starves in it.

use std::sync::Arc;

use tload::internal::parse_bytes;
use tload::{EngineChoice, ErrorKind, Indices, LoadOptions, Loader, Order, Slice, Tensor};

use crate::files::{assert_all, even, folder, load, location, mixed, options, write};
use crate::sharing::matrices;

const MIB: u64 = 1 << 20;

#[test]
fn budget_below_largest_tensor_is_rejected_before_first_read() {
    let folder = folder();
    let mut file = tload_testing::fixtures::FileBuilder::new();
    for (name, bytes) in [
        ("small", 1000),
        ("largest", 5_000_000),
        ("large", 4_000_000),
    ] {
        file = file.tensor(name, tload::Dtype::U8, &[bytes], &vec![1; bytes]);
    }
    let path = write(&folder.path().join("m.safetensors"), &file.build());
    let limited = |limit| {
        let options = options(|it| it.memory_limit = Some(limit));
        Loader::open(location(&path))
            .expect("opens")
            .options(options)
    };
    for limit in [1, 4096, 5_000_000] {
        let error = limited(limit).stream().expect_err("too small");
        assert_eq!(error.kind(), ErrorKind::OutOfMemory);
        assert_eq!(error.tensor(), Some("largest"));
        assert!(error.message().contains(&limit.to_string()), "{error}");
    }
    // The limit that the hint names is enough.
    let error = limited(1).stream().expect_err("too small");
    let hint = error.hint().expect("says what to do");
    let size = hint
        .strip_prefix("set memory_limit to at least ")
        .expect("a size");
    let wanted = parse_bytes(size.trim_end_matches(" bytes")).expect("a size as options take it");
    let stream = limited(wanted)
        .stream()
        .expect("the hinted limit is enough");
    let tensors: tload::Result<Vec<_>> = stream.collect();
    assert_eq!(tensors.expect("loads").len(), 3);
}

/// A slow caller does not let the load read ahead beyond the budget.
#[test]
fn slow_caller_pauses_load_at_budget() {
    let folder = folder();
    let file = even("t", 1, 64, 1 << 20);
    let path = write(&folder.path().join("m.safetensors"), &file);
    for (lanes, order) in [(1, Order::Ready), (3, Order::Ready), (2, Order::File)] {
        let limit = 4 * MIB + 16_384;
        let options = options(|it| {
            (it.lanes, it.order) = (Some(lanes), order);
            it.memory_limit = Some(limit);
            it.extent_bytes = Some(300_000);
        });
        let loader = Loader::open(location(&path))
            .expect("opens")
            .options(options);
        let mut stream = loader.stream().expect("starts");
        let mut kept: Vec<Tensor> = Vec::new();
        let mut received = 0;
        while let Some(tensor) = stream.next() {
            let tensor = tensor.expect("loads");
            if tensor.name().ends_with('7') {
                kept.push(tensor);
            }
            received += 1;
            if received % 8 != 0 {
                continue;
            }
            // Wait until the readers have filled the budget, without a clock.
            let mut read = (0, 0);
            while read.1 < 300 {
                let now = stream.progress().bytes_read;
                read = if now == read.0 {
                    (now, read.1 + 1)
                } else {
                    (now, 0)
                };
                std::thread::yield_now();
            }
            let progress = stream.progress();
            let ahead = progress.bytes_read.saturating_sub(progress.bytes_received);
            // Edges are read twice: at most one alignment on each side of a tensor.
            let edges = 64 * 2 * 4096;
            assert!(ahead <= limit + edges, "{ahead} bytes ahead of the caller");
        }
        let report = stream.report();
        assert_eq!(report.memory_limit, limit);
        assert!(
            report.memory_peak <= limit,
            "{} of {limit}",
            report.memory_peak
        );
        for tensor in &kept {
            crate::files::assert_same(tensor, &file);
        }
    }
}

#[test]
fn caller_keeping_all_tensors_never_starves_load() {
    let folder = folder();
    let file = mixed("t", 2, 80, 1 << 20);
    let path = write(&folder.path().join("m.safetensors"), &file);
    for (lanes, order) in [(1, Order::Ready), (4, Order::Ready), (3, Order::File)] {
        let options = options(|it| {
            (it.lanes, it.order) = (Some(lanes), order);
            it.memory_limit = Some(2 * MIB);
        });
        let loader = Loader::open(location(&path))
            .expect("opens")
            .options(options);
        let mut stream = loader.stream().expect("starts");
        let kept: Vec<_> = stream
            .by_ref()
            .map(|tensor| tensor.expect("loads"))
            .collect();
        assert!(stream.report().memory_peak <= 2 * MIB);
        drop(stream);
        assert_all(&kept, &[&file]);
    }
}

#[test]
fn memory_of_dropped_tensors_is_used_again() {
    let folder = folder();
    let path = write(
        &folder.path().join("m.safetensors"),
        &even("t", 3, 60, 1 << 20),
    );
    let options = options(|it| it.memory_limit = Some(3 * MIB));
    let loader = Loader::open(location(&path))
        .expect("opens")
        .options(options);
    let mut stream = loader.stream().expect("starts");
    for tensor in stream.by_ref() {
        drop(tensor.expect("loads"));
    }
    let report = stream.report();
    assert!(
        report.recycled_regions > 40,
        "{} of 60",
        report.recycled_regions
    );
}

/// Tensors are used and dropped on another thread than the one that receives them, after the stream
/// was dropped.
#[test]
fn tensors_are_used_and_dropped_on_other_threads() {
    let folder = folder();
    let file = Arc::new(mixed("t", 4, 40, 300_000));
    let path = write(&folder.path().join("m.safetensors"), &file);
    let (sender, receiver) = std::sync::mpsc::channel::<Tensor>();
    let checker = std::thread::spawn({
        let file = Arc::clone(&file);
        move || {
            let mut clones = Vec::new();
            for tensor in receiver {
                clones.push(tensor.clone());
                drop(tensor);
            }
            assert_all(&clones, &[&file]);
        }
    });
    for tensor in load(&path, LoadOptions::default()) {
        sender.send(tensor).expect("the checker listens");
    }
    drop(sender);
    checker.join().expect("all right");
}

#[test]
fn eight_concurrent_loads_return_right_bytes() {
    let folder = folder();
    let files: Vec<_> = (0..3)
        .map(|shard| mixed(&format!("{shard}."), shard, 20, 500_000))
        .collect();
    for (shard, file) in files.iter().enumerate() {
        write(&folder.path().join(format!("{shard}.safetensors")), file);
    }
    let files: Vec<_> = files.iter().map(Vec::as_slice).collect();
    let loader = Loader::open(location(folder.path())).expect("opens");
    std::thread::scope(|scope| {
        for lanes in 1..=8 {
            let options = options(|it| it.lanes = Some(1 + lanes % 3));
            let (loader, files) = (loader.clone().options(options), &files);
            scope.spawn(move || {
                let stream = loader.stream().expect("starts");
                let tensors: Vec<_> = stream.map(|tensor| tensor.expect("loads")).collect();
                assert_all(&tensors, files);
            });
        }
    });
}

/// Small tensors share a region, and the budget must hold it: the error names one of them.
#[test]
fn budget_below_largest_shared_region_names_its_tensor() {
    let folder = folder();
    let mut file = tload_testing::fixtures::FileBuilder::new();
    // One large tensor, then thirty that together are larger and share the largest region.
    for index in 0..31 {
        let bytes = if index == 0 { 1_028_000 } else { 34_900 };
        file = file.tensor(
            &format!("t{index}"),
            tload::Dtype::U8,
            &[bytes],
            &vec![1; bytes],
        );
    }
    let path = write(&folder.path().join("m.safetensors"), &file.build());
    let options = options(|it| it.memory_limit = Some(4096));
    let loader = Loader::open(location(&path))
        .expect("opens")
        .options(options);
    let error = loader.stream().expect_err("too small");
    assert_eq!(error.kind(), ErrorKind::OutOfMemory);
    assert!(error.tensor().is_some_and(|name| name != "t0"), "{error}");
}

#[test]
fn sparse_file_of_too_many_reads_is_rejected() {
    let folder = folder();
    let len = 64u64 << 30;
    let header =
        format!(r#"{{"t": {{"dtype": "U8", "shape": [{len}], "data_offsets": [0, {len}]}}}}"#);
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    let path = write(&folder.path().join("sparse.safetensors"), &bytes);
    std::fs::OpenOptions::new()
        .write(true)
        .open(&path)
        .and_then(|file| file.set_len(bytes.len() as u64 + len))
        .expect("holes cost nothing");
    let loader = Loader::open(location(&path)).expect("a valid header");
    let loader = loader.options(options(|it| it.extent_bytes = Some(4096)));
    let error = loader.stream().expect_err("sixteen million reads");
    assert_eq!(error.kind(), ErrorKind::InvalidRequest);
    assert_eq!(
        error.message(),
        "64.0 GiB in reads of 4.0 KiB would take more than 4194304 reads"
    );
}

/// A slice takes memory for its own bytes, and for the reads in flight: not for all rows.
#[test]
fn columns_fit_into_budget_below_their_rows() {
    let folder = folder();
    let (rows, columns) = (16_384, 512);
    let file = matrices(2, rows, columns);
    let path = write(&folder.path().join("m.safetensors"), &file);
    let limit = 4 * MIB;
    let slice = Slice::new([Indices::from(0..rows), Indices::from(8..40)]);
    for engine in [EngineChoice::Auto, EngineChoice::Pread] {
        let options = options(|it| (it.memory_limit, it.engine) = (Some(limit), engine));
        let loader = Loader::open(location(&path)).expect("opens");
        let slices = ["m0", "m1"].map(|name| (name.to_owned(), slice.clone()));
        let mut stream = (loader.options(options).slices(slices).stream()).expect("starts");
        let tensors: tload::Result<Vec<_>> = stream.by_ref().collect();
        let (tensors, report) = (tensors.expect("loads"), stream.report());
        assert!(report.read_bytes > 2 * limit, "{report}");
        assert!(report.memory_peak <= limit, "{report}");
        assert_eq!(report.copied_bytes, report.tensor_bytes, "{report}");
        let parsed = safetensors::SafeTensors::deserialize(&file).expect("valid");
        for tensor in tensors {
            let whole = parsed.tensor(tensor.name()).expect("is there");
            let wanted = whole.data().chunks(2 * columns).map(|row| &row[16..80]);
            let wanted: Vec<_> = wanted.collect();
            assert!(tensor.bytes() == wanted.concat(), "{}", tensor.name());
        }
    }
}
