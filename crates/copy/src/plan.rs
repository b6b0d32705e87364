//! Dry run of a copy: decides for each file, as the copy itself would, and writes nothing.

use std::path::Path;
use std::sync::Arc;

use serde::Serialize;

use super::fetch::Sources;
use super::list::Entry;
use super::target::{TargetDir, free_bytes_at};
use crate::CopyOptions;
use crate::control::Ongoing;
use crate::error::Result;

/// Steps that a copy would take, from a dry run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct CopyPlan {
    /// Files by name.
    pub files: Vec<PlannedFile>,
    /// Bytes of disk space that the copy would need in addition.
    pub needed_bytes: u64,
    /// Bytes of disk space that are free at the target; `None` if its file system does not say.
    pub free_bytes: Option<u64>,
}

/// Step that a copy would take for one file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct PlannedFile {
    /// Path below the source and below the target, with `/`.
    pub name: String,
    /// Action.
    pub action: CopyAction,
    /// Length, bytes.
    pub bytes: u64,
    /// Bytes of these that an earlier copy has fetched.
    pub resumed_bytes: u64,
}

/// Action of a copy for one file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum CopyAction {
    /// Copies all of it, replacing an older file.
    Copy,
    /// Copies the missing bytes.
    Resume,
    /// Leaves it: it was copied from the same source before.
    Skip,
}

impl PlannedFile {
    /// Creates a step.
    #[doc(hidden)]
    pub fn new(name: String, action: CopyAction, bytes: u64, resumed_bytes: u64) -> Self {
        Self {
            name,
            action,
            bytes,
            resumed_bytes,
        }
    }
}

impl CopyAction {
    /// Returns the name used in reports and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Copy => "copy",
            Self::Resume => "resume",
            Self::Skip => "skip",
        }
    }
}

impl CopyPlan {
    /// Returns whether the target has too little free space.
    pub fn lacks_space(&self) -> bool {
        self.free_bytes.is_some_and(|free| self.needed_bytes > free)
    }
}

/// Plans a copy of `entries` into the directory `target`, which need not exist. Opens sources whose
/// listing does not tell enough.
pub(super) fn plan(
    entries: Vec<Entry>,
    target: &Path,
    sources: &Sources,
    options: &CopyOptions,
    ongoing: &Arc<Ongoing>,
) -> Result<CopyPlan> {
    let root = TargetDir::find(target)?;
    let mut plan = CopyPlan {
        free_bytes: free_bytes_at(target)?,
        ..CopyPlan::default()
    };
    for entry in entries {
        let mut held = None;
        let mut begun_bytes = 0;
        if let Some(root) = &root {
            if !options.force {
                held = root.held(&entry.name)?;
            }
            begun_bytes = root.begun_bytes(&entry.name)?;
        }
        let told = entry.listed.filter(|listed| {
            let is_open = held.as_ref().is_some_and(|held| held.may_be(listed));
            !is_open || held.as_ref().is_some_and(|held| held.is_same_state(listed))
        });
        let origin = match (told, entry.opened) {
            (Some(origin), _) => origin,
            (None, Some(opened)) => opened.origin()?,
            (None, None) => sources.open(&entry.location, ongoing)?.origin()?,
        };
        let bytes = origin.len;
        let mut resumed_bytes = 0;
        let action = if held.is_some_and(|held| held.is_same_state(&origin)) {
            CopyAction::Skip
        } else {
            let needed = bytes.saturating_sub(begun_bytes);
            plan.needed_bytes = plan.needed_bytes.saturating_add(needed);
            if let Some(root) = root.as_ref().filter(|_| !options.force) {
                resumed_bytes = root.resumable_bytes(&entry.name, &origin)?;
            }
            if resumed_bytes > 0 {
                CopyAction::Resume
            } else {
                CopyAction::Copy
            }
        };
        count(action, bytes, resumed_bytes, ongoing);
        let step = PlannedFile::new(entry.name, action, bytes, resumed_bytes);
        plan.files.push(step);
    }
    Ok(plan)
}

/// Counts a file like the copy itself.
fn count(action: CopyAction, bytes: u64, resumed_bytes: u64, ongoing: &Ongoing) {
    if action == CopyAction::Skip {
        ongoing.skip(bytes);
        return;
    }
    Ongoing::add(&ongoing.copied_files, 1);
    Ongoing::add(&ongoing.bytes_total, bytes);
    Ongoing::add(&ongoing.bytes_resumed, resumed_bytes);
    Ongoing::add(&ongoing.bytes_read, bytes - resumed_bytes);
}
