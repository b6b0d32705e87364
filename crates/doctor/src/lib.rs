//! The findings of the command `tload doctor`: what on a machine, in the options and in the storage
//! of a checkpoint makes loads slow or fail, with advice.
//!
//! `host` reads facts from `/proc` and `/sys`. Beside it there is one file per subject, each with a
//! list of [`Finding`]s. A check never fails: a file that cannot be read is reported as a finding.
//! Programs depend on the crate `tload`.

#![forbid(unsafe_code)]

mod arguments;
mod configuration;
mod disk;
mod files;
mod gpu;
mod gpudirect;
pub mod host;
mod kernel;
mod memory;
mod mount;
mod procfs;
mod program;
mod ring;
mod settings;
mod sharing;
mod store;
mod threads;
mod top_fix;
mod variables;
mod verify;

use std::fmt;

use serde::Serialize;
use tload::Checkpoint;

pub use arguments::Arguments;
pub use configuration::finding as examine_configuration;
pub use mount::{Storage, findings as examine_storage, no_answer};
pub use settings::Settings;
pub use top_fix::{Change, Urgency, first};
pub use variables::findings as examine_variables;

use crate::host::limits::Limits;
use crate::host::{System, Unreadable};

/// Importance of a finding for a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// Nothing to do.
    Ok,
    /// A fact that may be unknown or unusual, and does no harm by itself.
    Note,
    /// Loads are slower, or less safe, than they need to be.
    Warn,
    /// Loads fail or hang.
    Fail,
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Ok => "ok",
            Self::Note => "note",
            Self::Warn => "warn",
            Self::Fail => "fail",
        })
    }
}

/// Result of one check, with advice.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Stable identifier for programs.
    pub id: &'static str,
    /// Importance for a load.
    pub level: Level,
    /// Subject, in a word or two.
    pub title: &'static str,
    /// Facts that were found.
    pub value: String,
    /// Sentence that says how to improve it; none if there is nothing to improve.
    pub advice: Option<String>,
    /// Present if a change is worthwhile.
    pub change: Option<Change>,
}

impl Finding {
    fn ok(id: &'static str, title: &'static str, value: impl Into<String>) -> Self {
        Self {
            id,
            level: Level::Ok,
            title,
            value: value.into(),
            advice: None,
            change: None,
        }
    }

    fn advise(mut self, level: Level, advice: impl Into<String>) -> Self {
        self.level = level;
        self.advice = Some(advice.into());
        self
    }

    fn change(mut self, urgency: Urgency, command: impl Into<String>) -> Self {
        self.change = Some(Change {
            urgency,
            command: command.into(),
        });
        self
    }

    /// Returns a finding with `value`, or a note that the value is unknown.
    fn known(
        id: &'static str,
        title: &'static str,
        value: Result<impl Into<String>, Unreadable>,
    ) -> Self {
        match value {
            Ok(value) => Self::ok(id, title, value),
            Err(unreadable) => Self {
                id,
                level: Level::Note,
                title,
                value: unreadable.to_string(),
                advice: None,
                change: None,
            },
        }
    }
}

/// Checks the machine, for loads of the `opened` checkpoint if there is one. Does not access its
/// storage.
pub fn examine(
    system: &System,
    limits: &Limits,
    settings: &Settings,
    opened: Option<&Checkpoint>,
) -> Vec<Finding> {
    let mut findings = kernel::findings(system);
    let (path, this) = (std::env::var_os("PATH"), std::env::current_exe().ok());
    findings.push(program::finding(path.as_deref(), this.as_deref()));
    findings.extend(procfs::findings(system));
    findings.extend(ring::findings(system));
    findings.extend(memory::findings(system, limits, opened));
    let shards = opened.map(|checkpoint| checkpoint.shards().len());
    findings.push(files::finding(limits.files, shards));
    findings.push(threads::finding(system, limits.threads));
    findings.extend(sharing::findings(system));
    findings.extend(gpu::findings(system, &gpu::Cuda::query()));
    findings.push(gpudirect::finding(system));
    findings.push(settings.finding());
    findings
}

#[cfg(test)]
mod tests;
