//! One copy with random options, cancelled or not, and resumed until it is complete; every file is
//! compared with what was written.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use tload::ErrorKind;
use tload::copy::{CopyJob, CopyOptions};
use tload_testing::fixtures::Rng;

use crate::counting::{Ended, Outcome};
use crate::loads::{after, assert_fair};
use crate::places::{Land, Place};

/// Attempts of one copy: other loads inject faults into the same servers.
const ATTEMPTS: usize = 4;

/// Runs one copy. Panics on wrong bytes, and on failures where no fault is injected.
pub(crate) fn run(land: &Land, rng: &mut Rng, seed: u64) -> Outcome {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR"));
    let folder = folder.expect("cargo made the folder");
    let target = folder.path().join("copy");
    let (source, store) = land.source(rng);
    let mut outcome = Outcome {
        ended: Ended::Complete,
        tensors: 0,
        bytes: 0,
    };
    let mut turns = rng.once_in(2).then(|| rng.below(2000));
    for _ in 0..ATTEMPTS {
        let mut options = CopyOptions::default();
        options.depth = 1 + rng.index(4);
        options.range_bytes = rng.pick(&[16 << 10, 64 << 10, 1 << 20]);
        let copy = CopyJob::new(&source, &target)
            .options(options)
            .store(store.clone());
        let (control, is_over) = (copy.control(), AtomicBool::new(false));
        let copied = std::thread::scope(|scope| {
            if let Some(turns) = turns.take() {
                let is_over = &is_over;
                scope.spawn(move || after(turns, is_over, || control.cancel()));
            }
            let copied = copy.run();
            is_over.store(true, Ordering::Relaxed);
            copied
        });
        match copied {
            Ok(_) => {
                outcome.tensors = land.contents.len() as u64;
                outcome.bytes = assert_same(land, &target, seed);
                break;
            }
            Err(error) if error.kind() == ErrorKind::Cancelled => outcome.ended = Ended::Cancelled,
            Err(error) => {
                assert_fair(Place::Copies, &error, seed);
                outcome.ended = Ended::Failed;
            }
        }
    }
    outcome
}

/// Asserts that the folder holds the files, and nothing in progress. Returns the bytes compared.
#[expect(clippy::disallowed_methods, reason = "a test reads what was written")]
fn assert_same(land: &Land, target: &Path, seed: u64) -> u64 {
    let names = std::fs::read_dir(target).expect("the copy made it");
    let names = names.map(|entry| entry.expect("listed").file_name());
    let mut names: Vec<_> = names
        .map(|name| name.into_string().expect("UTF-8"))
        // Records of copies, where the file system has no attributes.
        .filter(|name| !name.ends_with(".tload-copied"))
        .collect();
    names.sort();
    assert!(names.iter().eq(land.files.keys()), "{names:?}, seed {seed}");
    let mut compared = 0;
    for (name, wanted) in &land.files {
        let found = std::fs::read(target.join(name)).expect("listed above");
        assert!(found == *wanted, "{name}, seed {seed}: wrong bytes");
        compared += found.len() as u64;
    }
    compared
}
