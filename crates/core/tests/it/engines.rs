//! The engine contract for every engine, and behaviour that only real files can show.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

use tempfile::TempDir;
use tload::CacheMode;
use tload::internal::engine::{
    self, Done, Engine, EngineKind, EngineSetup, Job, OpenedEngine, TransformEngine,
    TransformSetup, TransformSource, Wait,
};
use tload::internal::memory::{EventCount, Slab, Transform, Unit};
use tload::internal::storage::{FileSource, MemorySource, ReadFile, RefusedDirect};
use tload::{ErrorKind, Location};
use tload_testing::conformance::{
    EngineRequest, EngineUnderTest, engine_suite, engine_suite_within_sources,
};
use tload_testing::fixtures::Rng;
use tload_testing::sim::{SimConfig, SimEngine};

use crate::files::folder;
use crate::requirement;

/// Writes the request's sources to files in a folder and opens them for a load.
fn files(request: &EngineRequest<'_>, cache: CacheMode) -> (TempDir, Arc<[ReadFile]>) {
    opened_files(request, cache, false)
}

/// Like [`files`]; they stay in the page cache if `kept` is true.
fn opened_files(
    request: &EngineRequest<'_>,
    cache: CacheMode,
    kept: bool,
) -> (TempDir, Arc<[ReadFile]>) {
    let folder = folder();
    let refused = RefusedDirect::default();
    let open = |(index, bytes): (usize, &Vec<u8>)| {
        let path = crate::files::write(&folder.path().join(index.to_string()), bytes);
        // Pages in the page cache would be copied from there. Also, without dirty pages to write
        // back first, direct reads really are in flight when an engine is dropped.
        if !kept {
            tload::internal::probe::evict(&path).expect("just written");
        }
        let source = FileSource::open(&Location::from_path(&path)).expect("just written");
        let file = ReadFile::open(source, cache, &refused).expect("opens");
        if let Some(shrink) = request.shrink.filter(|shrink| shrink.source == index) {
            std::fs::OpenOptions::new()
                .write(true)
                .open(&path)
                .and_then(|file| file.set_len(shrink.len as u64))
                .expect("truncates");
        }
        file
    };
    let opened = request.contents.iter().enumerate().map(open).collect();
    (folder, opened)
}

fn open_engine(
    files: Arc<[ReadFile]>,
    kind: EngineKind,
    depth: usize,
    slab: Option<Arc<Slab>>,
) -> OpenedEngine {
    let setup = EngineSetup {
        slab,
        ..EngineSetup::new(files, depth)
    };
    engine::open(kind, true, &setup).expect("opens")
}

fn on_files(
    request: &EngineRequest<'_>,
    kind: EngineKind,
    cache: CacheMode,
    registered: bool,
) -> EngineUnderTest {
    over(files(request, cache), request, kind, registered)
}

fn over(
    (folder, files): (TempDir, Arc<[ReadFile]>),
    request: &EngineRequest<'_>,
    kind: EngineKind,
    registered: bool,
) -> EngineUnderTest {
    let alignment = files.iter().map(ReadFile::alignment).max().unwrap_or(1);
    let slab = registered.then(|| Arc::clone(&request.slab));
    let opened = open_engine(files, kind, request.depth, slab);
    assert_eq!(
        opened
            .features
            .iter()
            .any(|feature| feature == "registered_buffers"),
        registered
    );
    EngineUnderTest {
        engine: opened.engine,
        alignment: usize::try_from(alignment).expect("small"),
        remote: false,
        keep: Box::new(folder),
    }
}

#[test]
fn engines_keep_the_contract() {
    for kind in kinds() {
        let is_ring = matches!(kind, EngineKind::Uring | EngineKind::TokioUring);
        for cache in [CacheMode::Auto, CacheMode::Buffered] {
            for registered in [false, true].into_iter().take(1 + usize::from(is_ring)) {
                let name = format!("{kind:?}, cache {cache}, registered memory {registered}");
                engine_suite(&name, &|request| on_files(request, kind, cache, registered));
            }
        }
    }
}

/// The shortest strips, and longer ones; of direct reads, and of copies.
#[test]
fn engine_of_threads_keeps_contract_in_strips() {
    for strip_bytes in [1, 100_000] {
        for (cache, kept) in [
            (CacheMode::Auto, false),
            (CacheMode::Auto, true),
            (CacheMode::Buffered, false),
        ] {
            let name = format!("strips of {strip_bytes}, cache {cache}, in it {kept}");
            engine_suite(&name, &|request| {
                let (folder, files) = opened_files(request, cache, kept);
                let alignment = files.iter().map(ReadFile::alignment).max().unwrap_or(1);
                let setup = EngineSetup {
                    copiers: Some(5),
                    strip_bytes: Some(strip_bytes),
                    ..EngineSetup::new(files, request.depth)
                };
                let opened = engine::open(EngineKind::Pread, true, &setup).expect("opens");
                assert!(
                    opened
                        .features
                        .iter()
                        .any(|it| it.starts_with("strips of "))
                );
                EngineUnderTest {
                    engine: opened.engine,
                    alignment: usize::try_from(alignment).expect("small"),
                    remote: false,
                    keep: Box::new(folder),
                }
            });
        }
    }
}

#[test]
fn engines_keep_contract_on_files_in_page_cache() {
    for kind in kinds() {
        engine_suite(&format!("{kind:?}, in the page cache"), &|request| {
            let opened = opened_files(request, CacheMode::Auto, true);
            over(opened, request, kind, false)
        });
    }
}

/// Engines copy what was in the page cache when the file was opened.
#[test]
fn engines_keep_contract_on_files_that_left_page_cache() {
    for kind in kinds() {
        engine_suite(&format!("{kind:?}, in the page cache before"), &|request| {
            let (folder, files) = opened_files(request, CacheMode::Auto, true);
            crate::files::evict(folder.path());
            over((folder, files), request, kind, false)
        });
    }
}

#[test]
fn simulated_engine_keeps_contract() {
    for seed in 0..20 {
        engine_suite(&format!("sim, seed {seed}"), &|request| {
            let source = |(index, bytes): (usize, &Vec<u8>)| {
                let len = request
                    .shrink
                    .filter(|shrink| shrink.source == index)
                    .map_or(bytes.len(), |shrink| shrink.len);
                MemorySource::new(&index.to_string(), &bytes[..len])
            };
            let sources = request.contents.iter().enumerate().map(source).collect();
            EngineUnderTest {
                engine: Box::new(SimEngine::new(sources, SimConfig::new(seed, request.depth))),
                alignment: [1, 512, 4096][usize::try_from(seed).expect("small") % 3],
                remote: false,
                keep: Box::new(()),
            }
        });
    }
}

/// Stores 1000 bytes with their halves exchanged, in front of which stands the number of the unit.
/// It copies, since tests are not optimised, and a loop over bytes takes minutes then.
#[derive(Debug)]
struct Swapped(u64);

impl Swapped {
    const BYTES: u64 = 1000;
    const STORED: u64 = Self::BYTES + 4;

    fn store(bytes: &[u8]) -> Vec<u8> {
        let mut stored = Vec::new();
        for (number, unit) in bytes.chunks(1000).enumerate() {
            let (first, second) = unit.split_at(unit.len() / 2);
            let number = u32::try_from(number).expect("few").to_le_bytes();
            stored.extend([&number, second, first].concat());
        }
        stored
    }

    fn restored(unit: &[u8]) -> Vec<u8> {
        let (second, first) = unit.split_at(unit.len().div_ceil(2));
        [first, second].concat()
    }
}

impl Transform for Swapped {
    fn units(&self, range: &Range<u64>) -> Range<u32> {
        let number = |unit: u64| u32::try_from(unit).expect("few");
        if range.is_empty() {
            return 0..0;
        }
        number(range.start / Self::BYTES)..number(range.end.div_ceil(Self::BYTES))
    }

    fn unit(&self, number: u32) -> Unit {
        let bytes = u64::from(number) * Self::BYTES;
        let len = Self::BYTES.min(self.0 - bytes);
        let stored = u64::from(number) * Self::STORED;
        Unit {
            bytes: bytes..bytes + len,
            stored: stored..stored + 4 + len,
        }
    }

    fn unit_bytes_max(&self) -> u64 {
        Self::STORED
    }

    fn apply(&self, number: u32, stored: &[u8], to: &mut [u8]) -> tload::Result<()> {
        assert_eq!(stored[..4], number.to_le_bytes(), "another unit");
        to.copy_from_slice(&Self::restored(&stored[4..]));
        Ok(())
    }

    fn apply_in_place<'a>(&self, number: u32, stored: &'a mut [u8]) -> tload::Result<&'a [u8]> {
        assert_eq!(stored[..4], number.to_le_bytes(), "another unit");
        let restored = Self::restored(&stored[4..]);
        stored[4..].copy_from_slice(&restored);
        Ok(&stored[4..])
    }
}

#[test]
fn transformed_sources_satisfy_the_contract_over_simulated_storage() {
    for seed in [0, 5, 10] {
        let name = format!("transformed {seed}");
        engine_suite_within_sources(&name, &|request| {
            let contents = || request.contents.iter();
            let source = |bytes: &Vec<u8>| MemorySource::new("stored", Swapped::store(bytes));
            let storage = SimEngine::new(
                contents().map(source).collect(),
                SimConfig::new(seed, request.depth.min(5)),
            );
            let source = |bytes: &Vec<u8>| TransformSource {
                transform: Arc::new(Swapped(bytes.len() as u64)),
                alignment: [1, 512, 4096][usize::try_from(seed).expect("small") % 3],
            };
            let events = Arc::<EventCount>::default();
            let setup = TransformSetup {
                sources: contents().map(source).collect(),
                // Less than a unit, a few of them, and as many as fit into a slot.
                read_bytes: [1, 4016, 8000][usize::try_from(seed).expect("small") % 3],
                slab: Slab::new(16 << 10, 3, Arc::clone(&events)).expect("maps"),
                events,
                depth: request.depth,
                threads: usize::try_from(seed).expect("small") % 4,
                blame: Box::new(|error| error),
            };
            EngineUnderTest {
                engine: Box::new(TransformEngine::new(Box::new(storage), &Arc::new(setup))),
                alignment: 1,
                // Adjacent jobs share the unit in which they meet.
                remote: true,
                keep: Box::new(()),
            }
        });
    }
}

#[test]
#[should_panic(expected = "more jobs than the depth of 2")]
fn simulation_panics_when_depth_is_exceeded() {
    let mut engine = SimEngine::new(vec![MemorySource::new("a", [0; 64])], SimConfig::new(0, 2));
    let slab = Slab::new(64, 3, Arc::<EventCount>::default()).expect("maps");
    for extent in 0..3 {
        engine.submit(job(&slab, extent, 0, 64, 64));
    }
}

fn job(slab: &Arc<Slab>, extent: usize, offset: u64, window: usize, needed: usize) -> Job {
    Job {
        extent,
        source: 0,
        offset,
        needed,
        lease: slab.try_lease(window).expect("a slot is free"),
    }
}

/// Runs an aligned job and a misaligned one on a file that is open for direct I/O.
fn misaligned(kind: EngineKind, cache: CacheMode) -> (Vec<Done>, Arc<[ReadFile]>, Vec<u8>) {
    let contents = vec![Rng::new(1).bytes(100_000)];
    let slab = Slab::new(1 << 16, 4, Arc::<EventCount>::default()).expect("maps");
    let request = EngineRequest {
        contents: &contents,
        shrink: None,
        depth: 4,
        slab: Arc::clone(&slab),
    };
    let (_folder, files) = files(&request, cache);
    let mut opened = open_engine(Arc::clone(&files), kind, 4, None);
    let mut done = Vec::new();
    opened.engine.submit(job(&slab, 0, 4096, 8192, 8192));
    opened.engine.reap(Wait::ForOne, &mut done);
    opened.engine.submit(job(&slab, 1, 4097, 777, 777));
    opened.engine.reap(Wait::ForOne, &mut done);
    (done, files, contents.into_iter().next().expect("one"))
}

/// Returns the engines for files that this machine supports.
fn kinds() -> Vec<EngineKind> {
    let engines = requirement::engines().into_iter();
    engines.map(|it| engine::choose(it, &[], None).0).collect()
}

#[test]
fn refused_direct_read_uses_page_cache_and_is_remembered() {
    if requirement::direct().is_none() {
        return;
    }
    for kind in kinds() {
        let (done, files, bytes) = misaligned(kind, CacheMode::Auto);
        let filled = |done: &Done| done.result.as_ref().expect("filled").bytes().to_vec();
        assert_eq!(filled(&done[0])[..], bytes[4096..12288]);
        assert_eq!(filled(&done[1])[..777], bytes[4097..4874]);
        assert_eq!(
            (done[0].transfer.direct_bytes, done[0].transfer.retries),
            (8192, 0)
        );
        assert_eq!(
            (done[1].transfer.buffered_bytes, done[1].transfer.retries),
            (777, 1)
        );
        assert!(files[0].is_refused());
    }
}

#[test]
fn refused_direct_read_is_error_with_cache_direct() {
    if requirement::direct().is_none() {
        return;
    }
    for kind in kinds() {
        let (done, files, _) = misaligned(kind, CacheMode::Direct);
        assert!(done[0].result.is_ok());
        let error = done[1].result.as_ref().expect_err("refused");
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert_eq!(error.hint(), Some("use cache=auto or cache=buffered"));
        assert!(!files[0].is_refused(), "later reads are not affected");
    }
}

/// Reads `count` extents of one page each, from each file in turn, with all of them in flight.
fn read_pages(
    opened: &mut OpenedEngine,
    slab: &Arc<Slab>,
    contents: &[Vec<u8>],
    count: usize,
) -> Vec<Done> {
    let page = |extent: usize| extent / contents.len() * 4096;
    for extent in 0..count {
        opened.engine.submit(Job {
            extent,
            source: extent % contents.len(),
            offset: page(extent) as u64,
            needed: 4096,
            lease: slab.try_lease(4096).expect("a slot is free"),
        });
    }
    let mut done = Vec::new();
    while opened.engine.in_flight() > 0 {
        opened.engine.reap(Wait::ForOne, &mut done);
    }
    assert_eq!(done.len(), count);
    for one in &done {
        let filled = one.result.as_ref().expect("filled").bytes();
        let offset = page(one.extent);
        let wanted = &contents[one.extent % contents.len()][offset..][..4096];
        assert!(filled == wanted, "extent {}", one.extent);
    }
    done
}

fn opened_on(
    kind: EngineKind,
    contents: &[Vec<u8>],
    depth: usize,
    slab: &Arc<Slab>,
) -> (TempDir, OpenedEngine) {
    let request = EngineRequest {
        contents,
        shrink: None,
        depth,
        slab: Arc::clone(slab),
    };
    let (folder, files) = files(&request, CacheMode::Auto);
    (
        folder,
        open_engine(files, kind, depth, Some(Arc::clone(slab))),
    )
}

/// Jobs of the engine of a group come from a plan of what the leader reads, so they never go beyond
/// it; a file that has become shorter is the leader's error.
#[cfg(target_os = "linux")]
#[test]
fn shared_engine_keeps_contract() {
    use tload_testing::conformance::engine_suite_within_sources;
    for copiers in [1, 2, 5] {
        engine_suite_within_sources(&format!("shared, {copiers} copiers"), &|request| {
            tload_testing::shared_engine(request, copiers)
        });
    }
}

/// More slots than `tokio-uring` registers, all in flight; also more tasks than its runtime runs in
/// one turn.
#[test]
fn engines_read_into_more_slots_than_can_be_registered() {
    const SLOTS: usize = 1030;
    for kind in kinds() {
        let slab = Slab::new(4096, SLOTS, Arc::<EventCount>::default()).expect("maps");
        let contents = vec![Rng::new(2).bytes(SLOTS * 4096)];
        let (_folder, mut opened) = opened_on(kind, &contents, SLOTS, &slab);
        let registered = opened.features.contains(&"registered_buffers".to_owned());
        assert_eq!(registered, kind == EngineKind::Uring, "{kind:?}");
        for _ in 0..2 {
            read_pages(&mut opened, &slab, &contents, SLOTS);
        }
    }
}

/// The index of a slot does not identify it: slots of another slab have equal indexes.
#[test]
fn tokio_uring_reads_into_slots_of_unregistered_slab() {
    if requirement::tokio_uring().is_none() {
        return;
    }
    let contents = vec![Rng::new(3).bytes(1 << 20)];
    let [registered, other] =
        [(); 2].map(|()| Slab::new(4096, 8, Arc::<EventCount>::default()).expect("maps"));
    let (_folder, mut opened) = opened_on(EngineKind::TokioUring, &contents, 8, &registered);
    read_pages(&mut opened, &other, &contents, 8);
    read_pages(&mut opened, &registered, &contents, 8);
}

/// A panic waits for the reads in flight or leaks their memory: the kernel writes to no free slot.
#[test]
fn panic_with_reads_in_flight_frees_none_of_their_memory() {
    const SLOT_BYTES: usize = 1 << 20;
    for kind in kinds() {
        let slab = Slab::new(SLOT_BYTES, 16, Arc::<EventCount>::default()).expect("maps");
        let contents = vec![Rng::new(4).bytes(16 * SLOT_BYTES)];
        let (folder, mut opened) = opened_on(kind, &contents, 16, &slab);
        let panicked = catch_unwind(AssertUnwindSafe(move || {
            for extent in 0..16 {
                let offset = (extent * SLOT_BYTES) as u64;
                let job = job(&slab, extent, offset, SLOT_BYTES, SLOT_BYTES);
                opened.engine.submit(job);
            }
            opened.engine.reap(Wait::No, &mut Vec::new());
            resume_unwind(Box::new(slab))
        }));
        let slab = panicked.expect_err("panicked");
        let slab = slab.downcast::<Arc<Slab>>().expect("ours");
        let leases: Vec<_> = (0..16).map_while(|_| slab.try_lease(64)).collect();
        let filled: Vec<_> = leases
            .into_iter()
            .map(|lease| lease.fill_from(&[0xC3; 64]))
            .collect();
        // Takes as long as the dropped reads would have taken.
        for file in std::fs::read_dir(folder.path()).expect("lists") {
            let path = file.expect("listed").path();
            tload::internal::probe::evict(&path).expect("ours");
            crate::files::read(&path);
        }
        assert!(
            filled.iter().all(|filled| filled.bytes() == [0xC3; 64]),
            "{kind:?}: written to after the engine was gone"
        );
    }
}
