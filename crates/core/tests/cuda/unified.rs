//! GPUs that share the host's memory, and GPUs that only reach it: kinds of memory that the stub
//! simulates, and what loads do differently.

use tload::internal::cuda::{Context, MemoryKind};
use tload::{
    CacheMode, Device, DeviceMap, ErrorKind, Indices, LoadOptions, Loader, Report, Slice, Tensor,
};

use crate::fixtures::{Files, MIB, failure, load, options};
use crate::foreign::Stream;
use crate::stub::{Cuda, PATIENCE, bytes, cuda};

/// Tries of a load that should leave nothing in the page cache: the kernel keeps pages that it is
/// moving at that moment.
const TRIES: usize = 20;

fn tried(set: impl FnOnce(&mut LoadOptions)) -> LoadOptions {
    options(|it| {
        it.trial.unified = true;
        set(it);
    })
}

/// Loads everything to the first GPU of this kind, and checks it.
fn loaded(cuda: &Cuda, files: &Files, kind: &str, options: LoadOptions) -> (Vec<Tensor>, Report) {
    tload::release_staging();
    cuda.stub.reset();
    cuda.stub.set("kind", kind);
    let loader = files.loader().device(Device::Cuda(0)).options(options);
    let (tensors, report) = load(&loader).expect("loads");
    files.assert_all(&tensors);
    let mut filled = tensors.iter().filter(|tensor| tensor.byte_len() > 0);
    assert!(filled.all(|tensor| tensor.ordinal() == Some(0)));
    assert_eq!(report.outcome, "complete");
    (tensors, report)
}

#[test]
fn contexts_know_the_kind_of_memory() {
    let cuda = cuda();
    for (kind, expected, in_place) in [
        ("discrete", MemoryKind::Own, false),
        ("coherent", MemoryKind::Coherent, false),
        ("integrated", MemoryKind::Shared, true),
    ] {
        cuda.stub.set("kind", kind);
        let context = Context::open(0).expect("there is a GPU");
        let memory = context.facts().memory;
        assert_eq!(
            (memory.kind(), memory.reads_in_place()),
            (expected, in_place)
        );
    }
}

/// The variant changes nothing on a GPU with memory of its own, and without it nothing changes
/// anywhere, except that a report says what the memory is.
#[test]
fn loads_are_the_same_without_shared_memory_and_without_the_variant() {
    let cuda = cuda();
    let files = Files::even(1, 12, MIB);
    let variant = |unified| options(|it| it.trial.unified = unified);
    let done = |kind, unified| {
        let (_, report) = loaded(&cuda, &files, kind, variant(unified));
        let staging = report.staging.expect("staged");
        let driver = ["cuMemAllocAsync", "cuMemHostRegister_v2", "pageable_copies"];
        let device = &report.devices[0];
        (
            (staging.bytes, staging.slots, device.memory_limit),
            (device.copies, device.copied_bytes, report.notes.len()),
            driver.map(|name| cuda.stub.count(name)),
        )
    };
    let plain = done("discrete", false);
    assert_eq!(plain.1.2, 0, "no notes");
    assert_eq!(done("discrete", true), plain);
    assert_eq!(done("coherent", false), plain);
    assert_eq!(done("coherent", true), plain);
    let (memory, copies, driver) = done("integrated", false);
    assert_eq!((memory, driver), (plain.0, plain.2));
    assert_eq!(copies, (plain.1.0, plain.1.1, 1), "a note");
}

#[test]
fn shared_memory_holds_each_tensor_once() {
    let cuda = cuda();
    let mut files = Files::new();
    let mut rng = tload_testing::fixtures::Rng::new(2);
    for shard in 0..3 {
        files.mixed(&shard.to_string(), &mut rng, 30, MIB);
    }
    let (tensors, report) = loaded(&cuda, &files, "integrated", tried(|_| ()));
    for tensor in tensors.iter().filter(|tensor| tensor.byte_len() > 0) {
        let bytes = tensor.device_bytes().expect("on the GPU");
        assert_eq!(bytes.address(), tensor.as_ptr().addr() as u64);
        assert_eq!(bytes.len() as u64, tensor.byte_len());
        assert_eq!(bytes.address() % 16, 0, "{tensor:?}");
        assert!(bytes.owner().is_none());
    }
    for name in [
        "cuMemcpyHtoDAsync_v2",
        "cuMemAllocAsync",
        "cuMemHostRegister_v2",
    ] {
        assert_eq!(cuda.stub.count(name), 0, "{name}");
    }
    assert_eq!(report.staging, None);
    let [note] = report.notes.as_slice() else {
        panic!("{:?}", report.notes)
    };
    assert!(note.contains("nothing is copied"), "{note}");
}

/// Slices with gaps pass through memory of the host, which is not pinned: no GPU copies from it.
#[test]
fn slices_are_gathered_where_they_stay() {
    let cuda = cuda();
    cuda.stub.set("kind", "integrated");
    let files = Files::matrices(4, 64, 48);
    let columns = || Slice::new([Indices::from(0..64), Indices::from(8..24)]);
    let slices = (0..4).map(|index| (format!("m{index}"), columns()));
    let loader = files.loader().device(Device::Cuda(0)).slices(slices);
    let (tensors, _) = load(&loader.options(tried(|_| ()))).expect("loads");
    assert_eq!(tensors.len(), 4);
    for tensor in &tensors {
        assert_eq!((tensor.ordinal(), tensor.shape()), (Some(0), &[64, 16][..]));
        let rows = files.contents[tensor.name()].chunks_exact(48 * 2);
        let expected: Vec<u8> = rows.flat_map(|row| row[16..48].to_vec()).collect();
        assert!(bytes(tensor) == expected, "{tensor:?}");
    }
    assert_eq!(cuda.stub.count("cuMemHostRegister_v2"), 0);
}

/// A load that fills the host as well copies to the GPU, by a short ring.
#[test]
fn loads_to_both_copy_by_a_short_ring() {
    let cuda = cuda();
    cuda.stub.set("kind", "integrated");
    let files = Files::even(3, 6, 40 * MIB);
    let map = DeviceMap::new([("t0", Device::Cpu), ("*", Device::Cuda(0))]).expect("a map");
    let large = |it: &mut LoadOptions| {
        (it.depth, it.extent_bytes) = (Some(32), Some(8 << 20));
        it.in_flight_bytes = Some(1 << 30);
    };
    let staged = |options: LoadOptions| {
        tload::release_staging();
        let loader = files.loader().device_map(map.clone()).options(options);
        let (tensors, report) = load(&loader).expect("loads");
        files.assert_all(&tensors);
        report.staging.expect("staged").bytes
    };
    assert!(staged(options(large)) > 64 << 20);
    assert!(staged(tried(large)) <= 64 << 20);
}

#[test]
#[expect(clippy::disallowed_methods, reason = "a test reads files")]
fn files_leave_the_page_cache_unless_the_caller_wants_them_there() {
    let cuda = cuda();
    let files = Files::even(4, 8, MIB);
    let path = files.file("0");
    let resident = || {
        let found = tload::internal::probe::residency(&path).expect("Linux answers");
        found.resident_bytes
    };
    let evict = || tload::internal::probe::evict(&path).expect("it was written here");
    evict();
    if resident() > 0 {
        println!("SKIPPED: this file system keeps its pages");
        return;
    }
    let warm = || drop(std::fs::read(&path).expect("is there"));
    let left = |set: &dyn Fn(&mut LoadOptions)| {
        warm();
        assert!(resident() > 0);
        drop(loaded(&cuda, &files, "integrated", tried(set)));
        resident()
    };
    assert!((0..TRIES).any(|_| left(&|_| ()) == 0));
    // Once more with copies to the GPU: not all tensors are for it.
    let copied = || {
        warm();
        let map = DeviceMap::new([("t0", Device::Cpu), ("*", Device::Cuda(0))]);
        let loader = files.loader().device_map(map.expect("a map"));
        let (tensors, _) = load(&loader.options(tried(|_| ()))).expect("loads");
        files.assert_all(&tensors);
        resident()
    };
    assert!((0..TRIES).any(|_| copied() == 0));
    let buffered = left(&|it| it.cache = CacheMode::Buffered);
    assert!(buffered > 0, "the caller's choice");
}

/// Host and GPU together, before the first read: also without the variant.
#[test]
fn memory_that_cannot_hold_both_is_refused() {
    let cuda = cuda();
    let files = Files::of_lengths(5, &[MIB, 20 * MIB, 3 * MIB]);
    let read = |it: &mut LoadOptions| it.extent_bytes = Some(MIB as u64);
    cuda.stub.set("kind", "integrated");
    let loader = |options| files.loader().device(Device::Cuda(0)).options(options);
    let memory = |bytes: usize| cuda.stub.set("memory", &bytes.to_string());
    let refused = |options: LoadOptions| {
        let error = failure(loader(options).stream());
        assert_eq!(error.kind(), ErrorKind::OutOfMemory, "{}", error.chain());
        assert_eq!(error.tensor(), Some("t1"));
        let text = error.to_string();
        assert!(text.contains("shares the host's memory"), "{text}");
        assert!(text.contains("are needed at once"), "{text}");
        assert!(error.hint().is_some());
        assert_eq!(cuda.stub.count("cuMemAllocAsync"), 0);
        assert_eq!(cuda.stub.count("cuMemHostRegister_v2"), 0);
        text
    };
    // A slot does not fit beside the tensor, although the tensor and the edges of its reads do.
    let least = 20 * MIB + 4096;
    memory(least);
    let text = refused(options(read));
    assert!(text.contains("to stage reads"), "{text}");
    // Read in place, it needs no slot.
    let (tensors, _) = load(&loader(tried(read))).expect("fits exactly");
    files.assert_all(&tensors);
    drop(tensors);
    memory(least - 1);
    let text = refused(tried(read));
    assert!(!text.contains("to stage reads"), "{text}");
    // Two memories: the same GPU with its own.
    cuda.stub.set("kind", "coherent");
    memory(least);
    let mut stream = loader(options(read)).stream().expect("fits");
    let first = stream.next().expect("one").expect("loads");
    drop((first, stream));
}

/// The smallest memory that is not refused suffices, of which the stub keeps account. (One tensor:
/// the caller may hold one while the next one gets its memory.)
#[test]
fn smallest_memory_that_is_accepted_suffices() {
    let cuda = cuda();
    let files = Files::of_lengths(6, &[8 * MIB]);
    cuda.stub.set("kind", "integrated");
    let loader = files.loader().device(Device::Cuda(0));
    let loader = loader.options(options(|it| it.extent_bytes = Some(MIB as u64)));
    let fits = |bytes: usize| {
        cuda.stub.set("memory", &bytes.to_string());
        tload::release_staging();
        loader.stream()
    };
    let (mut least, mut most) = (8 * MIB, 64 * MIB);
    while most - least > 4096 {
        let middle = least.midpoint(most);
        match fits(middle) {
            Ok(_) => most = middle,
            Err(_) => least = middle,
        }
    }
    assert!(most < 12 * MIB, "a tensor and a few slots: {most}");
    let stream = fits(most).expect("was accepted");
    let tensors: Vec<_> = stream.map(|tensor| tensor.expect("loads")).collect();
    files.assert_all(&tensors);
}

/// The driver counts the page cache as used, which is full after a download.
#[test]
fn page_cache_does_not_count_as_used() {
    let cuda = cuda();
    let files = Files::of_lengths(7, &[MIB, 20 * MIB]);
    let cached = (1 << 30) - 4 * MIB;
    cuda.stub.set("cached", &cached.to_string());
    let loader = files.loader().device(Device::Cuda(0));
    let error = failure(loader.stream());
    assert_eq!(error.kind(), ErrorKind::OutOfMemory, "memory of its own");
    cuda.stub.set("kind", "integrated");
    let (tensors, _) = load(&loader).expect("the kernel makes room");
    files.assert_all(&tensors);
}

/// Work that the caller has queued may still read a tensor that is dropped. Its memory is reused by
/// the next load, and must not change before.
#[test]
fn dropped_tensor_stays_until_the_gpu_is_done() {
    let cuda = cuda();
    let files = Files::even(8, 4, MIB);
    cuda.stub.set("kind", "integrated");
    let loader = files.loader().device(Device::Cuda(0));
    let loader = loader.options(tried(|it| it.memory_limit = Some(2 * MIB as u64)));
    let mut stream = loader.stream().expect("starts");
    let tensor = stream.next().expect("the first").expect("loads");
    let expected = bytes(&tensor);
    let other = Stream::new(0);
    let copy = other.allocate(MIB).expect("room");
    cuda.stub.set("stalled", "0");
    other.copy(copy, tensor.as_ptr().addr() as u64, MIB);
    let dropping = std::thread::spawn(move || drop(tensor));
    let started = std::time::Instant::now();
    while cuda.stub.count("cuCtxSynchronize") == 0 && started.elapsed() < PATIENCE {
        tload_testbed::pause_between_looks();
    }
    assert!(!dropping.is_finished(), "it waits");
    cuda.stub.set("stalled", "");
    dropping.join().expect("ends");
    // The other tensors take its memory.
    for tensor in stream {
        drop(tensor.expect("loads"));
    }
    let copied = address_bytes(copy, MIB);
    assert!(copied == expected, "the copy has the bytes of its time");
    other.free(copy);
}

#[expect(unsafe_code, reason = "reads memory that the stub calls a device")]
fn address_bytes(address: u64, len: usize) -> Vec<u8> {
    let address = usize::try_from(address).expect("64 bits");
    let start = std::ptr::with_exposed_provenance::<u8>(address);
    // SAFETY: the stub's memory is host memory, of this length, and the copy into it has run.
    unsafe { std::slice::from_raw_parts(start, len) }.to_vec()
}

/// Tensors that the caller has not received are freed at once, whatever the GPU does.
#[test]
fn cancelled_load_waits_for_no_gpu() {
    let cuda = cuda();
    let files = Files::even(9, 6, MIB);
    cuda.stub.set("kind", "integrated");
    let loader: Loader = files.loader().device(Device::Cuda(0));
    let mut stream = loader.options(tried(|_| ())).stream().expect("starts");
    let first = stream.next().expect("one").expect("loads");
    let other = Stream::new(0);
    let busy = other.allocate(1).expect("room");
    cuda.stub.set("stalled", "0");
    other.dally(busy);
    drop(stream);
    cuda.stub.set("stalled", "");
    drop(first);
    other.free(busy);
}
