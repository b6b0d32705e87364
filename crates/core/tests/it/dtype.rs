//! `dtype`: floats are converted in host memory, wherever their bytes come from. The crate
//! `tload-convert` compares its results with those of torch; here they are compared with its own.

use std::path::Path;

use tload::internal::parse_bytes;
use tload::{
    CacheMode, Checkpoint, Device, Dtype, EngineChoice, ErrorKind, Indices, LoadOptions,
    LoadTarget, LoadTargetRules, Loader, Report, Selection, Slice, Target, Tensor, Verify,
};
use tload_convert::{convert, converts};
use tload_testing::fixtures::{FileBuilder, Rng};

use crate::files::{
    assert_all, evict, folder, load, load_with_report, location, mixed, open, options, write,
    write_manifest,
};
use crate::requirement;
use crate::sharing::{all_good, load_all};

const TARGETS: [Dtype; 4] = [Dtype::F64, Dtype::F32, Dtype::F16, Dtype::Bf16];
const MIB: usize = 1 << 20;

fn converted(bytes: &[u8], from: Dtype, to: Dtype) -> Vec<u8> {
    let mut converted = vec![0; bytes.len() / (from.bits() / 8) * (to.bits() / 8)];
    convert(bytes, from, &mut converted, to);
    converted
}

/// Compares each tensor with that of a load without conversion.
fn assert_converted(tensors: &[Tensor], plain: &[Tensor], to: Dtype) {
    assert_eq!(tensors.len(), plain.len());
    for tensor in tensors {
        let name = tensor.name();
        let other = plain.iter().find(|other| other.name() == name);
        let other = other.expect("both loads have it");
        assert_eq!(
            (tensor.info(), tensor.shape()),
            (other.info(), other.shape())
        );
        if !converts(other.dtype(), to) {
            assert_eq!(tensor.dtype(), other.dtype(), "{name}");
            assert!(tensor.bytes() == other.bytes(), "{name}");
            continue;
        }
        assert_eq!(tensor.dtype(), to, "{name}");
        assert!(tensor.is_writable() || other.dtype() == to, "{name}");
        assert!(tensor.as_ptr().addr().is_multiple_of(to.alignment()));
        assert_eq!(tensor.byte_len(), tensor.bytes().len() as u64);
        let wanted = converted(other.bytes(), other.dtype(), to);
        assert!(
            tensor.bytes() == wanted,
            "{name}: {} to {to}",
            other.dtype()
        );
    }
}

fn assert_counted(report: &Report, tensors: &[Tensor]) {
    let are = |tensor: &&Tensor| tensor.dtype() != tensor.info().dtype() && tensor.byte_len() > 0;
    let counts = tensors.iter().filter(are).map(Tensor::byte_len);
    let counted = (report.converted_tensors, report.converted_bytes);
    assert_eq!(counted, (counts.clone().count() as u64, counts.sum()));
    // The bytes of the file are what was read and received.
    let read: u64 = tensors.iter().map(|tensor| tensor.info().byte_len()).sum();
    assert_eq!(report.tensor_bytes, read);
    assert!(report.memory_peak <= report.memory_limit, "{report}");
}

#[test]
fn every_engine_and_cache_mode_converts() {
    let folder = folder();
    write(
        &folder.path().join("a.safetensors"),
        &mixed("a", 1, 40, 300_000),
    );
    // No tensor is at a multiple of its alignment.
    let values = Rng::new(2).bytes(3 * MIB);
    let odd = TARGETS
        .iter()
        .fold(FileBuilder::new().unaligned(3), |file, &dtype| {
            let elements = values.len() / (dtype.bits() / 8);
            file.tensor(&format!("odd {dtype}"), dtype, &[elements], &values)
                .tensor(
                    &format!("small {dtype}"),
                    dtype,
                    &[],
                    &values[..dtype.bits() / 8],
                )
                .tensor(&format!("empty {dtype}"), dtype, &[0, 3], &[])
        });
    write(&folder.path().join("b.safetensors"), &odd.build());
    let plain = load(folder.path(), LoadOptions::default());
    let engines = requirement::engines()
        .into_iter()
        .map(|engine| (engine, CacheMode::Direct));
    let all = engines.chain([
        (EngineChoice::Pread, CacheMode::Buffered),
        (EngineChoice::Auto, CacheMode::Auto),
        (EngineChoice::Auto, CacheMode::Map),
    ]);
    for (engine, cache) in all {
        if cache == CacheMode::Direct && requirement::direct().is_none() {
            continue;
        }
        for to in TARGETS {
            evict(folder.path());
            let options = options(|it| (it.engine, it.cache, it.dtype) = (engine, cache, Some(to)));
            let (tensors, report) = load_with_report(folder.path(), options.lanes(3));
            assert_converted(&tensors, &plain, to);
            assert_counted(&report, &tensors);
            assert!(report.to_string().contains("\nconvert  "), "{report}");
        }
    }
}

fn matrix(path: &Path, dtype: Dtype, rows: usize, columns: usize) -> Checkpoint {
    let bytes = Rng::new(3).bytes(rows * columns * dtype.bits() / 8);
    let file = FileBuilder::new().tensor("m", dtype, &[rows, columns], &bytes);
    write(path, &file.build());
    open(path).expect("opens")
}

#[test]
fn slices_are_converted_alone() {
    let folder = folder();
    let checkpoint = matrix(&folder.path().join("m.safetensors"), Dtype::F16, 500, 700);
    let whole = load(&folder.path().join("m.safetensors"), LoadOptions::default());
    let (rows, columns) = (Indices::from(7..99), Indices::from(1..500));
    for (slice, kept) in [
        (Slice::new([rows]), 0..700),
        (Slice::new([rows, columns]), 1..500),
    ] {
        for to in TARGETS {
            let options = LoadOptions::new().dtype(to);
            let loader = checkpoint.load().slices([("m".to_owned(), slice.clone())]);
            let mut stream = loader.options(options.clone()).stream().expect("starts");
            let tensor = stream.next().expect("one").expect("loads");
            let lines = whole[0].bytes().chunks(2 * 700).skip(7).take(92);
            let wanted: Vec<u8> = lines
                .flat_map(|line| &line[2 * kept.start..2 * kept.end])
                .copied()
                .collect();
            let wanted = converted(&wanted, Dtype::F16, to);
            assert_eq!(
                (tensor.dtype(), tensor.shape()),
                (to, &[92, kept.len()][..])
            );
            assert!(tensor.bytes() == wanted, "{to}");
            let read = checkpoint.read("m", &slice, &options).expect("reads");
            assert_eq!(read.dtype(), to);
            assert!(read.bytes() == wanted, "{to}, alone");
        }
    }
    let nothing = Slice::new([Indices::from(3..3)]);
    let options = LoadOptions::new().dtype(Dtype::F32);
    let read = checkpoint.read("m", &nothing, &options).expect("reads");
    assert_eq!((read.dtype(), read.byte_len()), (Dtype::F32, 0));
    let wrong = LoadOptions::new().dtype(Dtype::F4);
    let error = checkpoint
        .read("m", &nothing, &wrong)
        .expect_err("no such target");
    assert_eq!(error.option(), Some("dtype"));
}

#[test]
fn integers_and_quantised_tensors_stay() {
    let folder = folder();
    let file = FileBuilder::new()
        .tensor("a.weight", Dtype::F8E4M3, &[4], &[1, 2, 3, 4])
        .tensor(
            "a.weight_scale_inv",
            Dtype::F32,
            &[],
            &0.5_f32.to_le_bytes(),
        )
        .tensor("a.scales", Dtype::F8E8M0, &[2], &[5, 6])
        .tensor("b.weight", Dtype::F8E4M3, &[2], &[0x38, 0xB8])
        .tensor("b.count", Dtype::I64, &[1], &[7; 8]);
    let path = write(&folder.path().join("m.safetensors"), &file.build());
    let to = Dtype::F16;
    let loader = open(&path)
        .expect("opens")
        .load()
        .options(LoadOptions::new().dtype(to));
    // Also if the scale is not among the tensors that are loaded.
    let weights = Selection::glob("*.weight").expect("a glob");
    for loader in [loader.clone(), loader.select(weights)] {
        for tensor in loader.stream().expect("starts") {
            let tensor = tensor.expect("loads");
            let (dtype, bytes): (Dtype, &[u8]) = match tensor.name() {
                "a.weight" => (Dtype::F8E4M3, &[1, 2, 3, 4]),
                "a.weight_scale_inv" => (to, &[0, 0x38]),
                "a.scales" => (Dtype::F8E8M0, &[5, 6]),
                "b.weight" => (to, &[0, 0x3C, 0, 0xBC]),
                _ => (Dtype::I64, &[7; 8]),
            };
            assert_eq!(
                (tensor.dtype(), tensor.bytes()),
                (dtype, bytes),
                "{tensor:?}"
            );
        }
    }
}

#[test]
#[cfg(target_os = "linux")]
fn ranks_convert_what_they_share() {
    let folder = folder();
    let path = folder.path();
    let file = mixed("t", 5, 40, 2 * MIB);
    write(&path.join("m.safetensors"), &file);
    let plain = load(path, LoadOptions::default());
    let loaded = load_all(3, path, |rank, loader| {
        let dtype = [Some(Dtype::F32), None, Some(Dtype::Bf16)][rank];
        loader.options(options(|it| it.dtype = dtype))
    });
    let loaded = all_good(loaded);
    for (rank, to) in [(0, Dtype::F32), (2, Dtype::Bf16)] {
        let (tensors, report) = &loaded[rank];
        assert_converted(tensors, &plain, to);
        assert_counted(report, tensors);
    }
    assert_eq!(loaded[1].1.converted_tensors, 0);
    assert_all(&loaded[1].0, &[&file]);
}

/// Bytes before and after a conversion count, whichever are more.
#[test]
fn budget_has_room_for_the_larger_dtype() {
    let folder = folder();
    for (from, to) in [(Dtype::F16, Dtype::F64), (Dtype::F64, Dtype::F16)] {
        let path = folder.path().join(format!("{from}.safetensors"));
        let checkpoint = matrix(&path, from, 1024, 512);
        let limited = |limit: usize| {
            let options = LoadOptions::new().dtype(to).memory_limit(limit as u64);
            checkpoint.load().options(options).stream()
        };
        let error = limited(4 * MIB - 1).expect_err("too small");
        assert_eq!(error.kind(), ErrorKind::OutOfMemory, "{error}");
        assert_eq!(error.tensor(), Some("m"));
        let hint = error.hint().expect("says what to do").to_owned();
        let size = hint
            .strip_prefix("set memory_limit to at least ")
            .expect("a size");
        let wanted = parse_bytes(size.trim_end_matches(" bytes")).expect("a size");
        assert!(
            (4 * MIB as u64..4 * MIB as u64 + (64 << 10)).contains(&wanted),
            "{hint}"
        );
        let mut stream = limited(usize::try_from(wanted).expect("small")).expect("fits");
        let tensor = stream.next().expect("one").expect("loads");
        assert_eq!((tensor.dtype(), stream.next().is_none()), (to, true));
        let report = stream.report();
        assert!(
            (4 * MIB as u64..=wanted).contains(&report.memory_peak),
            "{report}"
        );
    }
}

/// The memory behind tensors that are narrower afterwards is free for others: they all fit into a
/// budget that could not hold them as they are in the file.
#[test]
#[cfg(target_os = "linux")]
fn narrower_tensors_leave_room_in_the_budget() {
    let folder = folder();
    let values = Rng::new(6).bytes(MIB);
    let file = (0..8).fold(FileBuilder::new(), |file, index| {
        file.tensor(&format!("t{index}"), Dtype::F64, &[MIB / 8], &values)
    });
    let path = write(&folder.path().join("m.safetensors"), &file.build());
    let options = options(|it| {
        (it.dtype, it.memory_limit) = (Some(Dtype::F16), Some(7 << 19));
        it.engine = EngineChoice::Pread;
    });
    let loader = Loader::open(location(&path))
        .expect("opens")
        .options(options);
    let mut stream = loader.stream().expect("starts");
    // Nothing is received before everything has been read.
    let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while stream.progress().bytes_read < 8 * MIB as u64 {
        assert!(std::time::Instant::now() < until, "{:?}", stream.progress());
        std::thread::yield_now();
    }
    let tensors: Vec<_> = stream.by_ref().map(|it| it.expect("loads")).collect();
    let wanted = converted(&values, Dtype::F64, Dtype::F16);
    assert_eq!(tensors.len(), 8);
    assert!(tensors.iter().all(|tensor| tensor.bytes() == wanted));
    assert!(
        stream.report().memory_peak <= 7 << 19,
        "{}",
        stream.report()
    );
}

#[test]
fn digests_are_of_the_bytes_in_the_file() {
    let folder = folder();
    let file = mixed("t", 8, 12, 100_000);
    let path = write(&folder.path().join("m.safetensors"), &file);
    let plain = load(&path, LoadOptions::default());
    assert_all(&plain, &[&file]);
    write_manifest(folder.path());
    let options = LoadOptions::new().dtype(Dtype::F32).verify(Verify::Require);
    let (tensors, report) = load_with_report(&path, options.clone());
    assert_converted(&tensors, &plain, Dtype::F32);
    assert!(report.verification.is_some());
    let mut broken = file.clone();
    let last = broken.len() - 1;
    broken[last] ^= 1;
    write(&path, &broken);
    let loader = Loader::open(location(&path))
        .expect("opens")
        .options(options);
    let ended: tload::Result<Vec<_>> = match loader.stream() {
        Ok(stream) => stream.collect(),
        Err(error) => Err(error),
    };
    assert_eq!(
        ended.expect_err("a changed byte").kind(),
        ErrorKind::Corrupt
    );
}

#[test]
fn wrong_requests_are_refused() {
    let folder = folder();
    let checkpoint = matrix(&folder.path().join("m.safetensors"), Dtype::F32, 2, 2);
    for wrong in [Dtype::I32, Dtype::F8E4M3, Dtype::F4] {
        let options = LoadOptions::new().dtype(wrong);
        let error = checkpoint
            .load()
            .options(options)
            .stream()
            .expect_err("wrong");
        assert_eq!(
            (error.kind(), error.option()),
            (ErrorKind::InvalidRequest, Some("dtype"))
        );
        let found = wrong.name().to_lowercase();
        let names = "bf16, f16, f32, f64, bfloat16, float16, float32, float64";
        let message = format!("dtype is {found:?}; it can be {names}");
        assert_eq!(error.message(), message);
    }
    let options = LoadOptions::new().dtype(Dtype::Bf16);
    let message =
        "dtype=bf16 has no effect on tensors in the caller's memory, whose dtypes are given";
    let mut memory = [0; 16];
    let start = std::ptr::NonNull::from(&mut memory).cast();
    // SAFETY: the load is refused, and nothing else uses the memory.
    #[expect(unsafe_code, reason = "a target")]
    let target = unsafe { Target::host(start, 16, None) };
    let loader = checkpoint.load().options(options.clone());
    let error = loader
        .targets([("m".to_owned(), target)])
        .stream()
        .expect_err("refused");
    assert_eq!(
        (error.kind(), error.message()),
        (ErrorKind::InvalidRequest, message)
    );
    assert_eq!(error.tensor(), Some("m"));
    let target = LoadTarget {
        name: "m".to_owned(),
        dtype: Some(Dtype::Bf16),
        shape: vec![2, 2],
        device: Device::Cpu,
        memory: None,
        layout: None,
    };
    let rules = LoadTargetRules {
        strict: true,
        cast: true,
    };
    let loader = checkpoint.load().options(options);
    let error = loader
        .into_targets(vec![target], rules)
        .expect_err("refused");
    assert_eq!(
        (error.kind(), error.message()),
        (ErrorKind::InvalidRequest, message)
    );
}
