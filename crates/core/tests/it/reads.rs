//! Random reads into memory of the caller, over every engine: right bytes, nothing written beside
//! them, one owner at a time.

#![expect(unsafe_code, reason = "lends memory to reads")]

use std::fs::OpenOptions;
use std::ptr::NonNull;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use tload::{CacheMode, Checkpoint, EngineChoice, ErrorKind, LoadOptions, ReadRequest, Slice};
use tload::{Indices, KeepAlive, Target};
use tload_testing::fixtures::Rng;

use crate::files::{even, evict, folder, options, write};
use crate::requirement;

const MIB: usize = 1 << 20;
const KIB: usize = 1 << 10;
const TENSORS: usize = 8;

/// Value of memory that no read may write to.
const GUARD: u8 = 0xA5;

/// A file that is not in the page cache, its bytes, and the place of its checkpoint.
fn checkpoint() -> (tempfile::TempDir, Vec<u8>, Checkpoint) {
    let folder = folder();
    let file = even("t", 1, TENSORS, MIB + 4096);
    let path = write(&folder.path().join("m.safetensors"), &file);
    let checkpoint = Checkpoint::open(&*path).expect("opens");
    evict(folder.path());
    (folder, file, checkpoint)
}

/// Every engine and cache mode that this machine supports, with extents of 64 KiB.
fn variants() -> Vec<LoadOptions> {
    let engines = requirement::engines().into_iter();
    let variants = engines.flat_map(|it| [(it, CacheMode::Auto), (it, CacheMode::Buffered)]);
    variants
        .map(|(engine, cache)| small(engine, cache))
        .collect()
}

fn small(engine: EngineChoice, cache: CacheMode) -> LoadOptions {
    options(|it| {
        (it.engine, it.cache) = (engine, cache);
        it.extent_bytes = Some(64 * KIB as u64);
        it.memory_limit = Some(200 * KIB as u64);
    })
}

fn bytes_of<'f>(checkpoint: &Checkpoint, file: &'f [u8], name: &str) -> &'f [u8] {
    let range = checkpoint.get(name).expect("written").file_range();
    let at = |offset: u64| usize::try_from(offset).expect("a short file");
    &file[at(range.start)..at(range.end)]
}

#[test]
fn any_range_arrives_at_any_address_and_nothing_else_is_written() {
    for options in variants() {
        let (_folder, file, checkpoint) = checkpoint();
        let reader = checkpoint.reader(&options).expect("opens");
        let mut rng = Rng::new(7);
        let mut memory = vec![GUARD; 2 * MIB];
        for _ in 0..40 {
            // Below a page, of few extents, of many.
            let most = rng.pick(&[4096, 256 * KIB, MIB]);
            let len = rng.index(most);
            let offset = rng.index(file.len() - len);
            // Half of the memory is congruent to the file, so that direct I/O goes straight there.
            let page = memory.as_ptr().addr().wrapping_neg() % 4096;
            let shift = if rng.below(2) == 0 {
                page + offset % 4096
            } else {
                4096 + rng.index(4096)
            };
            reader
                .read_bytes(0, offset as u64, &mut memory[shift..shift + len])
                .expect("reads");
            assert!(memory[shift..shift + len] == file[offset..offset + len]);
            memory[shift..shift + len].fill(GUARD);
            assert!(memory.iter().all(|byte| *byte == GUARD), "{options:?}");
        }
    }
}

#[test]
fn tensors_rows_and_empty_requests_are_read() {
    let (_folder, file, checkpoint) = checkpoint();
    let reader = checkpoint.reader(&LoadOptions::new()).expect("opens");
    let names: Vec<_> = checkpoint
        .tensors()
        .iter()
        .map(|it| it.name().to_owned())
        .collect();
    let mut memory: Vec<Vec<u8>> = names.iter().map(|_| vec![0; MIB + 4096]).collect();
    let wanted = names.iter().map(String::as_str);
    let read = reader.read(wanted.zip(memory.iter_mut().map(|it| &mut it[..])));
    read.expect("reads");
    for (name, memory) in names.iter().zip(&memory) {
        assert!(memory == bytes_of(&checkpoint, &file, name));
    }
    reader.read([]).expect("nothing to do");
    let mut byte = [0];
    let at = Slice::new([Indices::at(5)]);
    reader.read_slice(&names[3], at, &mut byte).expect("reads");
    assert_eq!(byte[0], bytes_of(&checkpoint, &file, &names[3])[5]);
}

#[test]
fn more_threads_than_lanes_share_little_staging_memory() {
    let (_folder, file, checkpoint) = checkpoint();
    let options = small(EngineChoice::Auto, CacheMode::Auto);
    let reader = checkpoint.reader(&options).expect("opens");
    thread::scope(|scope| {
        for first in 0..20 {
            let (reader, checkpoint, file) = (&reader, &checkpoint, &file);
            scope.spawn(move || {
                let tensors = checkpoint.tensors();
                for turn in 0..10 {
                    let info = &tensors[(first + turn) % TENSORS];
                    let mut memory = vec![0; MIB + 4096];
                    reader
                        .read([(info.name(), &mut memory[..])])
                        .expect("reads");
                    assert!(memory == bytes_of(checkpoint, file, info.name()));
                }
            });
        }
    });
}

/// Bytes of memory that was leaked.
struct Leaked(NonNull<u8>, usize);

// SAFETY: bytes, which any thread may free.
unsafe impl Send for Leaked {}

// SAFETY: gives no access.
unsafe impl Sync for Leaked {}

impl Drop for Leaked {
    fn drop(&mut self) {
        let slice = NonNull::slice_from_raw_parts(self.0, self.1);
        // SAFETY: leaked by `owned`, and freed once.
        drop(unsafe { Box::from_raw(slice.as_ptr()) });
    }
}

/// Memory that is freed with its last owner.
fn owned(len: usize) -> (Target, KeepAlive) {
    let memory: Box<[u8]> = vec![GUARD; len].into();
    let memory = Box::leak(memory);
    let start = NonNull::from(&mut *memory).cast();
    let owner: KeepAlive = Arc::new(Leaked(start, len));
    let kept = KeepAlive::clone(&owner);
    // SAFETY: the owner frees it; the tests look only after the reads have ended.
    (unsafe { Target::host(start, len, Some(owner)) }, kept)
}

#[test]
fn memory_is_returned_when_reads_end_or_are_dropped() {
    for options in variants() {
        let (_folder, _, checkpoint) = checkpoint();
        let reader = checkpoint.reader(&options).expect("opens");
        for turn in 0..12 {
            let mut kept = Vec::new();
            let requests = checkpoint.tensors().iter().map(|info| {
                let (target, owner) = owned(MIB + 4096);
                kept.push(owner);
                ReadRequest::tensor(info.name(), target)
            });
            let mut reading = reader.submit(requests.collect()).expect("begins");
            match turn % 3 {
                0 => {
                    let ended = reading.wait_for(Duration::from_secs(600));
                    ended.expect("ends").expect("reads");
                    assert!(reading.wait_for(Duration::ZERO).is_none(), "only once");
                }
                1 => {
                    reading.cancel();
                    let ended = reading.wait();
                    if let Err(error) = ended {
                        assert_eq!(error.kind(), ErrorKind::Cancelled);
                    }
                }
                _ => drop(reading),
            }
            let owners = kept.iter().map(Arc::strong_count);
            assert!(owners.max() == Some(1), "no lane has any of it");
        }
        // The reader goes on after cancelled calls.
        let mut memory = vec![0; MIB + 4096];
        let name = checkpoint.tensors()[0].name();
        reader.read([(name, &mut memory[..])]).expect("reads");
    }
}

#[test]
fn impossible_requests_are_refused() {
    let (_folder, file, checkpoint) = checkpoint();
    let reader = checkpoint.reader(&LoadOptions::new()).expect("opens");
    let refused = |result: tload::Result<()>| result.expect_err("refused").kind();
    let mut memory = vec![GUARD; MIB];
    let name = checkpoint.tensors()[0].name();
    assert_eq!(
        refused(reader.read([(name, &mut memory[..])])),
        ErrorKind::InvalidRequest
    );
    assert_eq!(
        refused(reader.read([("nothing", &mut memory[..])])),
        ErrorKind::NoSuchTensor
    );
    let end = file.len() as u64;
    for offset in [end - MIB as u64 + 1, end, u64::MAX] {
        let read = reader.read_bytes(0, offset, &mut memory);
        assert_eq!(refused(read), ErrorKind::InvalidRequest);
    }
    assert_eq!(
        refused(reader.read_bytes(1, 0, &mut memory)),
        ErrorKind::InvalidRequest
    );
    assert!(memory.iter().all(|byte| *byte == GUARD));
    let mapped = options(|it| it.cache = CacheMode::Map);
    assert!(checkpoint.reader(&mapped).is_err());
}

#[test]
fn truncated_file_is_an_error_with_tensor_and_bytes() {
    for options in variants() {
        let (folder, file, checkpoint) = checkpoint();
        let reader = checkpoint.reader(&options).expect("opens");
        let path = folder.path().join("m.safetensors");
        let opened = OpenOptions::new().write(true).open(&path);
        let cut = file.len() as u64 - 10;
        opened.and_then(|file| file.set_len(cut)).expect("ours");
        let last = checkpoint.tensors().last().expect("eight").name();
        let mut memory = vec![0; MIB + 4096];
        let error = reader.read([(last, &mut memory[..])]).expect_err("is gone");
        assert_eq!(error.kind(), ErrorKind::Changed, "{}", error.chain());
        assert_eq!(error.tensor(), Some(last));
        assert_eq!(error.location(), path.to_str());
        assert!(error.range().is_some());
    }
}
