//! Cache modes: pages in the page cache are copied, mapped or dropped as requested; all others are
//! read directly.

use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::{Advice, fadvise};
use tload::CacheMode;
use tload::internal::probe;
use tload::internal::storage::FileSource;
use tload::{Dtype, EngineChoice, ErrorKind, LoadOptions, Loader};
use tload_testing::fixtures::{FileBuilder, Rng, byte_len};

use crate::files::{
    assert_all, even, evict, folder, load_with_report, location, mixed, options, read, write,
};
use crate::overlay::Overlay;
use crate::requirement;

/// Returns the bytes of a file that are in the page cache.
fn resident(path: &Path) -> u64 {
    probe::residency(path)
        .expect("Linux answers")
        .resident_bytes
}

/// Reads the file at `path` and returns the result of `act`, which does not read it through the
/// page cache, if all of the file is resident before and after. The kernel may evict pages at any
/// time.
fn while_resident<T>(path: &Path, file: &[u8], act: impl FnOnce() -> T) -> Option<T> {
    assert_eq!(read(path), file);
    let is_resident = || resident(path) >= file.len() as u64;
    let was_resident = is_resident();
    let result = act();
    (was_resident && is_resident()).then_some(result)
}

/// Asserts that a load of a cold file reads it directly.
fn assert_read_directly(path: &Path, file: &[u8], options: LoadOptions) {
    let (tensors, report) = load_with_report(path, options);
    assert_all(&tensors, &[file]);
    let through_cache = (report.buffered_bytes, report.mapped_bytes);
    assert_eq!(through_cache, (0, 0), "{report}");
}

/// Asserts that a load of a file that is resident while it is read does not read it directly.
fn assert_copied(path: &Path, file: &[u8], options: LoadOptions) {
    let loaded = while_resident(path, file, || load_with_report(path, options));
    if let Some((tensors, report)) = loaded {
        assert_all(&tensors, &[file]);
        assert_eq!(
            (report.direct_bytes, report.mapped_bytes),
            (0, 0),
            "{report}"
        );
    }
}

#[test]
fn resident_files_are_copied_and_cold_ones_read_directly() {
    if requirement::direct().is_none() {
        return;
    }
    let folder = folder();
    let file = even("t", 1, 24, 1 << 20);
    let path = write(&folder.path().join("m.safetensors"), &file);
    for engine in requirement::engines() {
        let auto = || options(|it| it.engine = engine);
        if evict(folder.path()) {
            assert_read_directly(&path, &file, auto());
        }
        assert_copied(&path, &file, auto());
    }
}

#[test]
fn resident_half_is_copied_and_cold_half_read_directly() {
    if requirement::direct().is_none() {
        return;
    }
    let folder = folder();
    let file = even("t", 2, 32, 1 << 20);
    let path = write(&folder.path().join("m.safetensors"), &file);
    for engine in requirement::engines() {
        let cold = evict(folder.path());
        let opened = FileSource::open(&location(&path)).expect("just written");
        let opened = opened.file();
        fadvise(opened, 0, None, Advice::Random).expect("is advice");
        let mut half = vec![0; file.len() / 2];
        opened.read_exact_at(&mut half, 0).expect("is there");
        // A page that the kernel has evicted: the copy brings it back, and nothing beyond it.
        let page = std::num::NonZeroU64::new(4096);
        fadvise(opened, 12 << 20, page, Advice::DontNeed).expect("is advice");
        let before = resident(&path);
        let (tensors, report) = load_with_report(&path, options(|it| it.engine = engine));
        let after = resident(&path);
        assert_all(&tensors, &[&file]);
        assert_eq!(
            report.read_bytes,
            report.direct_bytes + report.buffered_bytes
        );
        // The kernel may evict pages at any time.
        let kept = 14 << 20..17 << 20;
        if cold && kept.contains(&before) && after >= kept.start {
            assert!(kept.contains(&after), "{after} bytes resident; {report}");
            assert!(report.buffered_bytes >= 12 << 20, "{report}");
            assert!(report.direct_bytes >= 15 << 20, "{report}");
        }
    }
}

#[test]
fn files_on_overlay_are_copied_if_resident_else_read_directly() {
    if requirement::direct().is_none() {
        return;
    }
    let folder = folder();
    let file = even("t", 10, 24, 1 << 20);
    let below = write(&folder.path().join("m.safetensors"), &file);
    let overlay = Overlay::mount(folder.path());
    let Some(overlay) = requirement::requirement("overlay", overlay) else {
        return;
    };
    let path = overlay.path().join("m.safetensors");
    for engine in requirement::engines() {
        let auto = || options(|it| it.engine = engine);
        if evict(folder.path()) {
            assert_eq!(resident(&path), 0);
            assert_read_directly(&path, &file, auto());
        }
        if let Some(seen) = while_resident(&below, &file, || resident(&path)) {
            assert_eq!(seen, file.len() as u64);
        }
        assert_copied(&path, &file, auto());
    }
}

/// Maximum number of loads until one leaves no page in the cache.
const TRIES: usize = 50;

#[test]
fn drop_leaves_nothing_in_the_page_cache() {
    let folder = folder();
    let file = even("t", 3, 16, 1 << 20);
    let path = write(&folder.path().join("m.safetensors"), &file);
    if !evict(folder.path()) {
        requirement::say("SKIPPED: this file system keeps its pages");
        return;
    }
    for engine in requirement::engines() {
        for warm in [false, true] {
            if warm {
                assert_eq!(read(&path), file);
            }
            // The advice does not bind the kernel: it keeps pages that it is moving at that moment
            // (compaction). So most loads leave no page, but not all.
            let drops = || {
                let drop = options(|it| (it.engine, it.cache) = (engine, CacheMode::Drop));
                let (tensors, _) = load_with_report(&path, drop);
                assert_all(&tensors, &[&file]);
                resident(&path)
            };
            assert!((0..TRIES).any(|_| drops() == 0), "{engine}, {warm}");
        }
    }
}

#[test]
fn views_map_files_without_copying() {
    let folder = folder();
    let files: Vec<_> = (0..3)
        .map(|shard| mixed(&format!("{shard}."), shard, 40, 700_000))
        .collect();
    for (shard, file) in files.iter().enumerate() {
        write(&folder.path().join(format!("m-{shard}.safetensors")), file);
    }
    let files: Vec<_> = files.iter().map(Vec::as_slice).collect();
    for cold in [true, false] {
        if cold {
            evict(folder.path());
        }
        for (writable, lanes) in [(false, None), (true, Some(3))] {
            let map = options(|it| {
                (it.cache, it.writable, it.lanes) = (CacheMode::Map, writable, lanes);
                // Views take no memory of the budget.
                it.memory_limit = Some(1);
            });
            let (tensors, report) = load_with_report(folder.path(), map);
            assert_all(&tensors, &files);
            assert!(
                tensors
                    .iter()
                    .all(|it| it.byte_len() == 0 || it.is_writable() == writable)
            );
            assert_eq!(
                (report.engine.name.as_str(), report.memory_peak),
                ("map", 0)
            );
            assert_eq!(report.read_bytes, report.mapped_bytes);
            assert_eq!((report.direct_bytes, report.copied_bytes), (0, 0));
        }
    }
}

#[test]
fn tensors_other_than_views_survive_file_truncation() {
    let folder = folder();
    let file = even("t", 4, 6, 1 << 20);
    for cache in [
        CacheMode::Auto,
        CacheMode::Buffered,
        CacheMode::Drop,
        CacheMode::Map,
    ] {
        let path = write(&folder.path().join("m.safetensors"), &file);
        let (tensors, _) = load_with_report(&path, options(|it| it.cache = cache));
        let maps = read(Path::new("/proc/self/maps"));
        let maps = String::from_utf8(maps).expect("paths of this test are UTF-8");
        let is_mapped = maps.contains(path.to_str().expect("UTF-8"));
        assert_eq!(is_mapped, cache == CacheMode::Map, "{cache}");
        if !is_mapped {
            write(&path, b"");
            assert_all(&tensors, &[&file]);
        }
    }
}

#[test]
fn misaligned_tensors_are_copied_instead_of_mapped() {
    let folder = folder();
    let mut rng = Rng::new(7);
    let mut file = FileBuilder::new().unaligned(3);
    for (index, dtype) in [Dtype::U8, Dtype::F64, Dtype::F32, Dtype::F64]
        .into_iter()
        .enumerate()
    {
        let len = byte_len(dtype, 5000).expect("whole bytes");
        file = file.tensor(&format!("t{index}"), dtype, &[5000], &rng.bytes(len));
    }
    let file = file.build();
    let path = write(&folder.path().join("m.safetensors"), &file);
    let (tensors, report) = load_with_report(&path, options(|it| it.cache = CacheMode::Map));
    assert_all(&tensors, &[&file]);
    assert!(report.copied_bytes >= 5000 * 4, "{report}");
    let copied = tensors.iter().find(|tensor| tensor.name() == "t1");
    assert!(
        copied.expect("is there").is_writable(),
        "has memory of its own"
    );
}

/// Only the tensor that no view can align takes memory: 4 KiB, not the 8 MiB of the first one.
#[test]
fn limit_of_mapped_load_applies_only_to_copied_tensors() {
    let folder = folder();
    let mut rng = Rng::new(8);
    let mut file = FileBuilder::new();
    for (name, dtype, elements) in [
        ("large", Dtype::U8, 8 << 20),
        ("byte", Dtype::U8, 1),
        ("misaligned", Dtype::F32, 1024),
    ] {
        let len = byte_len(dtype, elements).expect("whole bytes");
        file = file.tensor(name, dtype, &[elements], &rng.bytes(len));
    }
    let file = file.build();
    let path = write(&folder.path().join("m.safetensors"), &file);
    let limited = |limit| options(|it| (it.cache, it.memory_limit) = (CacheMode::Map, Some(limit)));
    let (tensors, report) = load_with_report(&path, limited(64 << 10));
    assert_all(&tensors, &[&file]);
    assert!(report.copied_bytes >= 4096, "{report}");
    let loader = Loader::open(location(&path)).expect("opens");
    let error = loader.options(limited(4095)).stream();
    let error = error.expect_err("too little for a copy");
    assert_eq!(error.tensor(), Some("misaligned"));
}

#[test]
fn view_outlives_stream_and_loader() {
    let folder = folder();
    let file = even("t", 5, 3, 300_000);
    let path = write(&folder.path().join("m.safetensors"), &file);
    let (tensors, _) = load_with_report(&path, options(|it| it.cache = CacheMode::Map));
    std::fs::remove_file(&path).expect("the view needs no name");
    assert_all(&tensors, &[&file]);
}

#[test]
fn file_truncated_before_mapping_is_error_and_no_signal() {
    let folder = folder();
    let path = write(
        &folder.path().join("m.safetensors"),
        &even("t", 6, 16, 1 << 20),
    );
    let loader = Loader::open(location(&path)).expect("opens");
    let shrink = std::fs::OpenOptions::new().write(true).open(&path);
    shrink
        .and_then(|file| file.set_len(3 << 20))
        .expect("truncates");
    let stream = loader
        .options(options(|it| it.cache = CacheMode::Map))
        .stream();
    let error = stream
        .expect("starts")
        .find_map(Result::err)
        .expect("bytes are missing");
    assert_eq!(error.kind(), ErrorKind::Changed, "{error}");
}

#[test]
fn views_into_memory_of_caller_are_unsupported() {
    let folder = folder();
    let file = even("t", 8, 1, 4096);
    let path = write(&folder.path().join("m.safetensors"), &file);
    let target = crate::sinks::lend(4096);
    let loader = Loader::open(location(&path)).expect("opens");
    let loader = loader.targets([("t0".to_owned(), target)]);
    let stream = loader
        .options(options(|it| it.cache = CacheMode::Map))
        .stream();
    let error = stream.expect_err("would be a copy");
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert_eq!(error.hint(), Some("use cache=auto"));
}

#[test]
fn resident_file_is_copied_by_one_lane_per_core() {
    if requirement::uring().is_none() || requirement::direct().is_none() {
        return;
    }
    let folder = folder();
    let file = even("t", 9, 40, 1 << 20);
    let path = write(&folder.path().join("m.safetensors"), &file);
    let ring = || options(|it| it.engine = EngineChoice::Uring);
    assert_eq!(read(&path), file);
    if resident(&path) >= file.len() as u64 {
        let (_, report) = load_with_report(&path, ring());
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        assert_eq!(report.lanes, cores.min(8));
    }
    let one = options(|it| (it.engine, it.lanes) = (EngineChoice::Uring, Some(1)));
    let (_, report) = load_with_report(&path, one);
    assert_eq!(report.lanes, 1, "as requested");
}
