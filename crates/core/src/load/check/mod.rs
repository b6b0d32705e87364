//! Verification during a load: compares bytes with known digests, as they pass from the engine to
//! the sink.
//!
//! [`verify::find`](crate::verify::find) returns the expectation for each source, `coverage.rs`
//! selects the part of it that can be compared with what is read, `setup.rs` compares everything
//! that needs no reading, and [`Check`] (`compare.rs`) does the rest: CRCs and BLAKE3 (`sum.rs`,
//! `tree.rs`) in any order and on all lanes at once, SHA-256 in file order (`in_order.rs`). A
//! tensor with its own digest is never handed over unless its bytes match; with a digest of the
//! whole file, the load fails before its stream ends. The last extent of a tensor, or of a file,
//! waits until its digest matches. No lane waits for another one.
//!
//! All of this is prepared beside the first reads (`late.rs`). Lanes pass nothing on before.

mod compare;
mod coverage;
mod in_order;
mod late;
mod setup;
mod sum;
mod tree;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

pub(crate) use compare::Blame;
pub use compare::Check;
pub use coverage::SourceFacts;
pub use late::LateCheck;
pub(in crate::load) use late::Passage;

use crate::checkpoint::OpenedCheckpoint;
use crate::crc::Polynomial;
use crate::error::{Error, ErrorKind, Result};
use crate::format::TensorInfo;
use crate::plan::Plan;
use crate::sync::detached::{PendingOps, TooLong, run_with_timeout};
use crate::verify::{Expectation, Verify, find_now, require_files};

/// Message and hint for a lookup that exceeds the load's timeout.
const TOO_LONG: TooLong = TooLong {
    message: "looking up the expected digests took longer than the load's timeout",
    hint: "check the file system, or the endpoint and network; or raise ‹timeout›",
};

/// Load to verify.
pub(crate) struct Loaded {
    plan: Arc<Plan>,
    tensors: Arc<[TensorInfo]>,
    /// True if the caller selected these tensors by name.
    by_name: bool,
    /// Shards that another node reads and compares.
    elsewhere: HashSet<usize>,
    blame: Arc<dyn Blame>,
}

impl Loaded {
    /// Describes the load of `tensors` by `plan`; `blame` knows who sends the bytes, and `by_name`
    /// tells how the caller selected the tensors.
    pub(crate) fn new(
        plan: &Arc<Plan>,
        tensors: &Arc<[TensorInfo]>,
        blame: Arc<dyn Blame>,
        by_name: bool,
    ) -> Self {
        Self {
            plan: Arc::clone(plan),
            tensors: Arc::clone(tensors),
            blame,
            by_name,
            elsewhere: HashSet::new(),
        }
    }

    /// Leaves out shards that another node reads and compares.
    pub(crate) fn without(mut self, shards: impl IntoIterator<Item = usize>) -> Self {
        self.elsewhere.extend(shards);
        self
    }
}

/// Returns the comparisons to make during a load, or `None` if verification is off. Compares with
/// `given` if there is any, else with the expectations that it finds. Takes no longer than `limit`:
/// the storage may have failed since the checkpoint was opened.
///
/// # Errors
///
/// Fails like [`Check::new`] and [`find()`]; [`ErrorKind::InvalidRequest`] unless there is one
/// expectation per shard; [`ErrorKind::TimedOut`].
pub(crate) fn check(
    checkpoint: &OpenedCheckpoint,
    loaded: Loaded,
    given: Option<&Arc<[Expectation]>>,
    choice: &Verify,
    limit: Option<Duration>,
) -> Result<Option<Arc<Check>>> {
    if *choice == Verify::Off {
        return Ok(None);
    }
    let (checkpoint, choice, given) = (checkpoint.clone(), choice.clone(), given.cloned());
    let pending = PendingOps::of(checkpoint.location());
    let waits = pending.clone();
    let blame = Arc::clone(&loaded.blame);
    let check = run_with_timeout(limit, &pending, TOO_LONG, move || {
        let found = match given {
            Some(given) => given,
            None => find_now(&checkpoint, &choice, loaded.by_name, &waits)?.into(),
        };
        new_check(&checkpoint, loaded, &found, &choice, &waits)
    });
    let check = check.map_err(|error| blame.blame(error))?;
    Ok(Some(Arc::new(check)))
}

/// Returns the CRC that a load is probably compared by: manifests have it of everything, and it is
/// the cheapest of their digests.
pub(crate) fn likely_crc(choice: &Verify) -> Option<Polynomial> {
    match choice {
        Verify::Off | Verify::Sha256(_) => None,
        Verify::Auto | Verify::Require | Verify::Manifest(_) | _ => Some(Polynomial::Crc64Nvme),
    }
}

/// As [`require_files`], but takes no longer than `limit`.
///
/// # Errors
///
/// Those of [`require_files`]; [`ErrorKind::TimedOut`].
pub(crate) fn require_files_within(
    checkpoint: &OpenedCheckpoint,
    choice: &Verify,
    limit: Option<Duration>,
) -> Result<()> {
    let (checkpoint, choice) = (checkpoint.clone(), choice.clone());
    let pending = PendingOps::of(checkpoint.location());
    run_with_timeout(limit, &pending, TOO_LONG, move || {
        require_files(&checkpoint, &choice)
    })
}

fn new_check(
    checkpoint: &OpenedCheckpoint,
    loaded: Loaded,
    expectations: &[Expectation],
    choice: &Verify,
    pending: &PendingOps,
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
            .with_hint("pass one for each shard, in the order of OpenedCheckpoint::shards"));
    }
    let facts: Vec<_> = shards
        .iter()
        .enumerate()
        .map(|(index, shard)| SourceFacts {
            source: &**shard.source(),
            header_bytes: shard.header_bytes(),
            header: shard.header_crcs(),
            tensors: &checkpoint.tensors()[shard.tensors()],
            is_elsewhere: loaded.elsewhere.contains(&index),
        })
        .collect();
    let Loaded {
        plan,
        tensors,
        blame,
        ..
    } = loaded;
    let mut check = Check::new(plan, tensors, &facts, expectations, choice, pending)?;
    check.blame = Some(blame);
    Ok(check)
}
