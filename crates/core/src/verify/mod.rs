//! Verification: bytes are compared with digests that somebody has made of them, as they pass from the engine to the sink, or of a
//! whole checkpoint (`whole.rs`).
//!
//! `digest` and `expected` are the words, `manifest` is tload's own file of digests, `find` asks who else says something.
//! [`find()`] says what each source is expected to be, `decide.rs` what of that can be compared with what is read, `begin.rs` begins
//! with what needs no reading, and `Check` does the rest: CRCs in any order and on all lanes at once, SHA-256 in the order of the file (`in_order.rs`). A tensor that has a digest of its
//! own and another's bytes is never handed over; with a digest of the whole file the load fails before its stream ends.

mod begin;
mod check;
mod decide;
mod digest;
mod expected;
mod find;
mod in_order;
mod manifest;
mod statement;
mod whole;
mod write;
mod wrong_json;

pub(crate) use check::Check;
pub(crate) use decide::Facts;
pub use digest::{Algorithm, Digest};
pub use expected::{Expectation, Expected};
#[cfg(feature = "testing")]
pub(crate) use find::parse_signature;
pub use find::{find, require_files};
pub use manifest::{MANIFEST_NAME, Manifest, ManifestFile, ManifestTensor};
pub use whole::{
    FileError, FileOutcome, FileReport, ManifestTarget, Mismatch, SignatureText, SignedFiles,
    Verification, VerifyControl, VerifyOptions, VerifyProgress, VerifyReport, read_signature,
};

use std::sync::Arc;
use std::time::Duration;

use crate::checkpoint::Checkpoint;
use crate::error::{Error, ErrorKind, Result};
use crate::plan::Plan;
pub use crate::request::Verify;
use crate::tensor::TensorInfo;
use crate::within::{Underway, within};

/// What is said when asking takes too long, and what to do.
const TOO_LONG: (&str, &str) = (
    "finding out what to compare with took longer than the load's timeout",
    "look at the file system, or at endpoint and network; or raise timeout",
);

/// The load that is to be compared.
pub(crate) struct Loaded {
    plan: Arc<Plan>,
    tensors: Arc<[TensorInfo]>,
    /// Whether the caller selected these tensors by their names.
    by_name: bool,
}

impl Loaded {
    /// The load of `tensors` by `plan`, which the caller selected `by_name` or otherwise.
    pub(crate) fn new(plan: &Arc<Plan>, tensors: &Arc<[TensorInfo]>, by_name: bool) -> Self {
        Self {
            plan: Arc::clone(plan),
            tensors: Arc::clone(tensors),
            by_name,
        }
    }
}

/// What is to be compared in a load, unless nothing is: with what is `given`, or else what there is. Takes no
/// longer than `limit`: storage may have died since the checkpoint was opened.
///
/// # Errors
///
/// As [`Check::new`] and [`find()`]; [`ErrorKind::InvalidRequest`] if not each shard has an expectation; [`ErrorKind::TimedOut`].
pub(crate) fn check(
    checkpoint: &Checkpoint,
    loaded: Loaded,
    given: Option<&Arc<[Expectation]>>,
    choice: &Verify,
    limit: Option<Duration>,
) -> Result<Option<Arc<Check>>> {
    if *choice == Verify::Off {
        return Ok(None);
    }
    let (checkpoint, choice, given) = (checkpoint.clone(), choice.clone(), given.cloned());
    let underway = Underway::default();
    let waits = underway.clone();
    let check = within(limit, &underway, TOO_LONG, move || {
        let found = match given {
            Some(given) => given,
            None => find::find_now(&checkpoint, &choice, loaded.by_name, &waits)?.into(),
        };
        new_check(&checkpoint, loaded, &found, &choice, &waits)
    });
    check.map(|check| Some(Arc::new(check)))
}

fn new_check(
    checkpoint: &Checkpoint,
    loaded: Loaded,
    expectations: &[Expectation],
    choice: &Verify,
    underway: &Underway,
) -> Result<Check> {
    let shards = checkpoint.shards();
    if expectations.len() != shards.len() {
        let message = format!(
            "{} expectations for {} shards",
            expectations.len(),
            shards.len()
        );
        return Err(Error::new(ErrorKind::InvalidRequest, message)
            .with_location(checkpoint.location())
            .with_hint("give one for each shard, in the order of Checkpoint::shards"));
    }
    let facts: Vec<_> = shards
        .iter()
        .map(|shard| Facts {
            source: shard.source(),
            header_bytes: shard.header_bytes(),
            header: shard.header_crcs(),
            tensors: &checkpoint.tensors()[shard.tensors()],
        })
        .collect();
    let Loaded { plan, tensors, .. } = loaded;
    Check::new(plan, tensors, &facts, expectations, choice, underway)
}
