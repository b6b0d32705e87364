//! Patches of checkpoints for the extension module `tload._tload` in `crates/py`: the work of a
//! call on its thread, and what follows it.
//!
//! The functions that Python sees are in `crates/py`, which waits for the calls.

#![expect(
    unsafe_code,
    reason = "changes memory that torch or numpy says is a tensor's"
)]

use std::path::PathBuf;
use std::ptr::{NonNull, with_exposed_provenance_mut};
use std::slice::from_raw_parts_mut;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pyo3::prelude::*;
use pyo3::types::PyDict;
use tload::{Checkpoint, Error, Result, Target};
use tload_delta::{Summary, TensorMemory};
use tload_pymemory::error::exception;
use tload_pymemory::load_targets::LoadTargets;

pub use tload_delta::{Control, Patch};

/// Work of a call on its own thread. Returns the summary as JSON.
pub type Work = Box<dyn FnOnce(&Control) -> Result<String> + Send>;

/// Last step of a call that has ended, or that is not waited for any more.
#[derive(Debug)]
pub enum After {
    /// Remove the incomplete output of a call that failed: a call that is not waited for does not.
    Discard(PathBuf),
    /// Wait until nothing uses the caller's memory, which is locked while something does.
    Wait(Arc<Mutex<()>>),
}

impl After {
    /// Does it.
    pub fn run(self, py: Python<'_>, has_failed: bool) {
        py.detach(|| match self {
            Self::Discard(out) if has_failed => tload_delta::discard(&out),
            Self::Discard(_) => {}
            Self::Wait(memory) => drop(lock(&memory)),
        });
    }
}

/// Writes what differs between two checkpoints as a patch.
#[must_use]
pub fn diff(base: Checkpoint, new: Checkpoint, out: PathBuf) -> (Work, After) {
    let after = After::Discard(out.clone());
    let work =
        move |control: &Control| tload_delta::diff(&base, &new, &out, control).map(|it| json(&it));
    (Box::new(work), after)
}

/// Writes the checkpoint that a patch makes of its base.
#[must_use]
pub fn apply(base: Checkpoint, patch: Checkpoint, out: PathBuf) -> (Work, After) {
    let after = After::Discard(out.clone());
    let work = move |control: &Control| {
        tload_delta::apply(&base, &Patch::open(&patch)?, &out, control).map(|it| json(&it))
    };
    (Box::new(work), after)
}

/// Applies a patch to tensors in host memory, by name.
///
/// # Errors
///
/// For a tensor that is not contiguous or not in host memory, and for tensors that share a part of
/// their memory.
pub fn apply_into(targets: &Bound<'_, PyAny>, patch: Patch) -> PyResult<(Work, After)> {
    let py = targets.py();
    // Others may be anything.
    let known = PyDict::new(py);
    for name in patch.names() {
        if targets.contains(name)? {
            known.set_item(name, targets.get_item(name)?)?;
        }
    }
    let read = LoadTargets::read(known.as_any())?;
    read.check(py, None)?;
    let memory = read.valid.into_iter().map(|target| {
        let no = |message: &str| Error::unsupported(message).with_tensor(&target.name);
        match (target.memory, target.layout) {
            (Some(memory), _) if memory.is_host() => Ok((memory, target.name)),
            (None, None) => Ok((empty(), target.name)),
            (Some(_), _) => Err(no("is not in the memory of the host")
                .with_hint("apply the patch to a copy on the CPU, or to files")),
            (None, Some(_)) => Err(no("is not contiguous in memory")),
        }
    });
    let memory = memory.collect::<Result<Vec<_>>>().and_then(grouped);
    let memory = memory.map_err(|error| exception(py, &error))?;
    let in_use = Arc::new(Mutex::new(()));
    let after = After::Wait(Arc::clone(&in_use));
    let work = move |control: &Control| {
        let tensors = || {
            let tensors = memory.iter().map(|(memory, names)| TensorMemory {
                names: names.clone(),
                bytes: lend(memory),
            });
            tensors.collect()
        };
        // A call that is cancelled does not begin to use the memory again: its caller has it.
        let begin = || {
            let guard = lock(&in_use);
            control.check().map(|()| guard)
        };
        {
            let _in_use = begin()?;
            patch.check_fit(tensors())?;
        }
        // A store may not answer for minutes.
        let kept = patch.fetch()?;
        let _in_use = begin()?;
        let summary = patch.apply_in_place(tensors(), &kept, control)?;
        Ok(json(&summary))
    };
    Ok((Box::new(work), after))
}

fn lock(memory: &Mutex<()>) -> MutexGuard<'_, ()> {
    memory.lock().unwrap_or_else(PoisonError::into_inner)
}

fn json(summary: &Summary) -> String {
    serde_json::to_string(summary).unwrap_or_default()
}

/// Gives tensors that are one memory one entry. Fails if others share a part of theirs.
fn grouped(mut tensors: Vec<(Target, String)>) -> Result<Vec<(Target, Vec<String>)>> {
    tensors.sort_by_key(|(memory, _)| (memory.address(), memory.len()));
    let mut grouped: Vec<(Target, Vec<String>)> = Vec::new();
    for (memory, name) in tensors {
        match grouped.last_mut() {
            Some((last, names)) if last.address() + last.len() as u64 > memory.address() => {
                if (last.address(), last.len()) != (memory.address(), memory.len()) {
                    let other = names.first().cloned().unwrap_or_default();
                    let message = format!("shares a part of its memory with {other:?}");
                    return Err(Error::invalid_request(message).with_tensor(name));
                }
                names.push(name);
            }
            _ => grouped.push((memory, vec![name])),
        }
    }
    Ok(grouped)
}

fn empty() -> Target {
    // SAFETY: there is nothing to write to.
    unsafe { Target::host(NonNull::dangling(), 0, None) }
}

/// Returns the bytes of a target in host memory.
#[expect(
    clippy::mut_from_ref,
    reason = "no two targets share memory, and each is lent once"
)]
fn lend(memory: &Target) -> &mut [u8] {
    let address = usize::try_from(memory.address()).expect("an address of this process");
    let start = with_exposed_provenance_mut(address);
    // SAFETY: torch or numpy gave address and length, whose owner is in the target; `grouped` has
    // refused others that share it, and the docs of `apply_into` forbid other use until it returns,
    // which it does not while the lock for the memory is held. An empty target is dangling, which
    // an empty slice may be.
    unsafe { from_raw_parts_mut(start, memory.len()) }
}
