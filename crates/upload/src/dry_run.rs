//! Says what a copy would do.

use std::collections::BTreeMap;
use std::sync::Arc;

use tload_copy::{CopyAction, CopyPlan, Entry, Ongoing, PlannedFile, Sources};

use crate::error::Result;
use crate::ledger::{Begun, Ledger};

/// Returns the plan of a copy of these files; `skipped` are those that are there.
pub(crate) fn plan(
    entries: Vec<Entry>,
    skipped: &BTreeMap<String, u64>,
    ledger: Option<&Ledger>,
    sources: &Sources,
    ongoing: &Arc<Ongoing>,
) -> Result<CopyPlan> {
    let mut plan = CopyPlan::default();
    for (name, &bytes) in skipped {
        plan.files
            .push(PlannedFile::new(name.clone(), CopyAction::Skip, bytes, 0));
    }
    for entry in entries {
        let origin = match entry.listed {
            Some(listed) => listed,
            None => sources.open(&entry.location, ongoing)?.origin()?,
        };
        let begun = ledger.and_then(|ledger| ledger.files.get(&entry.name));
        let begun = begun.filter(|begun| begun.origin.is_same_state(&origin));
        let resumed = begun.map_or(0, Begun::bytes);
        let action = if resumed > 0 {
            CopyAction::Resume
        } else {
            CopyAction::Copy
        };
        Ongoing::add(&ongoing.copied_files, 1);
        Ongoing::add(&ongoing.bytes_resumed, resumed);
        Ongoing::add(&ongoing.bytes_read, origin.len - resumed);
        plan.needed_bytes += origin.len - resumed;
        plan.files
            .push(PlannedFile::new(entry.name, action, origin.len, resumed));
    }
    plan.files.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(plan)
}
