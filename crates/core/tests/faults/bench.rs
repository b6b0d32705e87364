//! Loads under watch: compares each tensor on arrival and detects a load that hangs.

use std::path::Path;
use std::sync::mpsc::channel;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tload::verify::{ManifestTarget, Verification, VerifyOptions};
use tload::{Loader, Location, Result, Tensor};

use crate::growing_timeouts::TIMEOUTS;
use crate::row::{Ended, Row};

/// Timeout after which a load counts as hung.
const DEADLINE: Duration = Duration::from_secs(120);

/// Original files of a checkpoint, indexed by the prefix of their tensors' names: `0.` is the
/// first.
pub(crate) struct Oracle(pub(crate) Vec<Vec<u8>>);

impl Oracle {
    fn file(&self, tensor: &str) -> &[u8] {
        let shard = tensor
            .split('.')
            .next()
            .expect("a name with a shard number");
        &self.0[shard.parse::<usize>().expect("a name with a shard number")]
    }

    /// Returns the original bytes of a tensor.
    pub(crate) fn bytes(&self, name: &str) -> Vec<u8> {
        let file = safetensors::SafeTensors::deserialize(self.file(name)).expect("a valid file");
        file.tensor(name).expect("in the file").data().to_owned()
    }

    /// Counts the bytes that differ from those of the file.
    fn wrong_bytes(&self, name: &str, bytes: &[u8]) -> usize {
        let wanted = self.bytes(name);
        let differ = wanted.iter().zip(bytes).filter(|(a, b)| a != b).count();
        differ + wanted.len().abs_diff(bytes.len())
    }

    fn tensors(&self) -> usize {
        let count = |file: &Vec<u8>| {
            let file = safetensors::SafeTensors::deserialize(file);
            file.expect("a valid file").len()
        };
        self.0.iter().map(count).sum()
    }

    /// Returns the length of the file whose name ends `location`.
    pub(crate) fn len_of(&self, location: Option<&str>) -> Option<u64> {
        let number = location?.strip_suffix(".safetensors")?.rsplit('-').next()?;
        Some(self.0.get(number.parse::<usize>().ok()?)?.len() as u64)
    }
}

/// Loads everything and compares each tensor on arrival; `bytes` reads the bytes of a tensor.
pub(crate) fn load(
    oracle: &Oracle,
    loader: Result<Loader>,
    bytes: impl Fn(&Tensor) -> Vec<u8>,
) -> Ended {
    let started = loader.and_then(|loader| loader.stream());
    let mut stream = match started {
        Ok(stream) => stream,
        Err(error) => {
            let file_len = oracle.len_of(error.location());
            let ended = Ended::before_it_began(error);
            return Ended { file_len, ..ended };
        }
    };
    let (mut wrong_bytes, mut tensors, mut failure) = (0, 0, None);
    for next in stream.by_ref() {
        match next {
            Ok(tensor) => {
                assert!(failure.is_none(), "no tensor follows an error");
                wrong_bytes += oracle.wrong_bytes(tensor.name(), &bytes(&tensor));
                tensors += 1;
            }
            Err(error) => failure = Some(error),
        }
    }
    Ended {
        wrong_bytes,
        is_whole: tensors == oracle.tensors(),
        file_len: failure
            .as_ref()
            .and_then(|error| oracle.len_of(error.location())),
        error: failure,
        report: Some(stream.report()),
    }
}

/// Writes the manifest of a checkpoint beside it and returns the manifest's bytes.
pub(crate) fn write_manifest(checkpoint: &Location) -> Vec<u8> {
    let mut options = VerifyOptions::default();
    options.write = Some(ManifestTarget::Beside);
    let report = Verification::new(checkpoint).options(options).run();
    let written = report.expect("can be written").written;
    crate::files::read(Path::new(&written.expect("was asked for")))
}

/// Runs `load` on a thread of its own and `meanwhile` on this one. Returns `None` if the load
/// hangs; `unstick` then releases it so that its thread ends.
pub(crate) fn watched<T: Send>(
    load: impl FnOnce() -> T + Send,
    meanwhile: impl FnOnce(),
    unstick: impl FnOnce(),
) -> Option<T> {
    std::thread::scope(|scope| {
        let (ended, end) = channel();
        scope.spawn(move || {
            // The receiver is gone if the load ended too late.
            let _ = ended.send(load());
        });
        meanwhile();
        let found = end.recv_timeout(DEADLINE).ok();
        if found.is_none() {
            unstick();
        }
        found
    })
}

/// Runs a row with increasing timeouts until it ends as the table says: on a busy machine, a short
/// one may expire before the request that hangs. Returns `None` if it hangs.
pub(crate) fn until_tabled(
    row: &Row,
    mut run: impl FnMut(Duration) -> Option<Ended>,
) -> Option<Ended> {
    let (last, timeouts) = TIMEOUTS.split_last()?;
    for timeout in timeouts {
        let ended = run(*timeout)?;
        if row.complaints(&ended).is_empty() {
            return Some(ended);
        }
    }
    run(*last)
}

/// Locks the process for one test: the test counts its descriptors and mappings, and the GPU driver
/// is per process.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}
