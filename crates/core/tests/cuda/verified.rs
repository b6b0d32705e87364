//! Wrong bytes reach neither a GPU's tensors nor memory of the caller.

use std::os::unix::fs::FileExt;
use std::ptr::NonNull;
use std::sync::Arc;

use tload::verify::{Algorithm, Digest, Expectation, Expected};
use tload::{Checkpoint, Device, Dtype, Error, ErrorKind, Loader, Location, Target, Verify};
use tload_testing::fixtures::{FileBuilder, Rng};

use crate::fixtures::options;
use crate::stub::{bytes, cuda};

const MIB: usize = 1 << 20;
const TENSORS: usize = 6;
const UNTOUCHED: u8 = 0xEE;

/// Six tensors of 1 MiB, `t3` of which has a wrong bit at its end, and the digests of the right
/// ones.
struct Wrong {
    _folder: tempfile::TempDir,
    checkpoint: Checkpoint,
    right: Vec<Vec<u8>>,
    expectation: Expectation,
}

fn wrong(algorithm: Algorithm) -> Wrong {
    let mut rng = Rng::new(1);
    let right: Vec<_> = (0..TENSORS).map(|_| rng.bytes(MIB)).collect();
    let tensors = right.iter().enumerate();
    let file = tensors
        .clone()
        .fold(FileBuilder::new(), |file, (index, bytes)| {
            file.tensor(&format!("t{index}"), Dtype::U8, &[MIB], bytes)
        });
    let file = file.build();
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("cargo made the folder");
    let path = folder.path().join("m.safetensors");
    std::fs::write(&path, &file).expect("the temporary folder is writable");
    let checkpoint = Checkpoint::open(Location::from(path.as_path())).expect("opens");
    let header = usize::try_from(checkpoint.shards()[0].header_bytes()).expect("small");
    let digests =
        tensors.map(|(index, bytes)| (format!("t{index}"), Digest::compute(algorithm, bytes)));
    let expectation = Expectation::Of(Expected {
        by: "the test".to_owned(),
        len: Some(file.len() as u64),
        header: Some(Digest::compute(algorithm, &file[..header])),
        whole: None,
        tensors: digests.collect(),
        ..Expected::default()
    });
    let at = checkpoint
        .get("t3")
        .expect("in the checkpoint")
        .file_range()
        .end
        - 1;
    let byte = file[usize::try_from(at).expect("small")] ^ 1;
    let opened = std::fs::OpenOptions::new().write(true).open(&path);
    opened
        .and_then(|file| file.write_all_at(&[byte], at))
        .expect("writable");
    // Opened after the last change.
    let checkpoint = Checkpoint::open(checkpoint.location()).expect("opens");
    Wrong {
        _folder: folder,
        checkpoint,
        right,
        expectation,
    }
}

impl Wrong {
    fn loader(&self) -> Loader {
        let options = options(|it| {
            it.verify = Verify::Require;
            it.extent_bytes = Some(200_000);
            it.lanes = Some(2);
            it.memory_limit = Some(2 * MIB as u64);
        });
        Loader::new(self.checkpoint.clone())
            .options(options)
            .expectations([self.expectation.clone()])
    }
}

fn assert_found(error: &Error) {
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error:?}");
    assert_eq!(error.tensor(), Some("t3"));
}

#[test]
fn corrupt_tensor_is_never_delivered_on_gpu() {
    let cuda = cuda();
    for algorithm in Algorithm::ALL {
        let wrong = wrong(algorithm);
        let loader = wrong.loader().device(Device::Cuda(0));
        let mut found = None;
        for tensor in loader.stream().expect("starts") {
            match tensor {
                Ok(tensor) => {
                    let index: usize = tensor.name()[1..].parse().expect("a number");
                    assert_ne!(index, 3, "the wrong tensor was delivered");
                    assert!(bytes(&tensor) == wrong.right[index]);
                }
                Err(error) => found = Some(error),
            }
        }
        assert_found(&found.expect("a bit is wrong"));
        drop(loader);
        cuda.assert_nothing_left();
    }
}

/// The last piece of the wrong tensor is not written; earlier pieces may be.
#[test]
#[expect(unsafe_code, reason = "lends memory to loads")]
fn corrupt_piece_is_not_written_to_caller_memory() {
    let _cuda = cuda();
    for algorithm in [Algorithm::Crc64Nvme, Algorithm::Sha256] {
        let wrong = wrong(algorithm);
        let lent = |_| Arc::<[u8]>::from(vec![UNTOUCHED; MIB]);
        let memory: Vec<_> = (0..TENSORS).map(lent).collect();
        let targets = memory.iter().enumerate().map(|(index, memory)| {
            let start = NonNull::from(&**memory).cast();
            // SAFETY: the owner keeps the memory alive, and the test reads it after the load is
            // over.
            let target = unsafe { Target::host(start, MIB, Some(Arc::new(Arc::clone(memory)))) };
            (format!("t{index}"), target)
        });
        let loader = wrong.loader().targets(targets.collect::<Vec<_>>());
        let mut stream = loader.stream().expect("starts");
        let found = stream.by_ref().find_map(Result::err);
        assert_found(&found.expect("a bit is wrong"));
        drop((stream, loader));
        // The tensor's reads are of 200 kB; the wrong bit is detected by the last of them. For a
        // CRC that is the one that completes last.
        let untouched = |bytes: &[u8]| bytes.iter().all(|byte| *byte == UNTOUCHED);
        let unwritten = memory[3].chunks(4096).filter(|bytes| untouched(bytes));
        assert!(unwritten.count() > 0, "all of the wrong tensor was written");
        if algorithm == Algorithm::Sha256 {
            assert!(untouched(&memory[3][MIB - 4096..]));
        }
    }
}
