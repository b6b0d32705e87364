//! Messages between the command and the processes that it starts: one line of JSON each.
//!
//! ```text
//!  command                                    rank
//!    job and seat          ───────────────▶     joins the others, opens, loads
//!    draws the progress    ◀───────────────   progress, again and again
//!    waits for all ranks   ◀───────────────   loaded
//!    "report"              ───────────────▶     what it read is final once all have loaded
//!    measures memory       ◀───────────────   finished, with all tensors still kept
//!    closes the pipe       ───────────────▶     drops its tensors and exits
//! ```
//!
//! A rank that fails answers with that instead. If the pipe closes while it loads, the command has
//! died, and the rank exits at once.

use std::ffi::OsString;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tload::{Error, ErrorKind};

use crate::args::{DeviceArg, OpenArgs, SelectArgs, ShardArg};
use tload_config::flag;

/// Line that asks a rank for its report.
pub(super) const REPORT: &str = "report";

/// A load, the same for all ranks.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Job {
    pub(super) location: OsString,
    pub(super) opening: OpenArgs,
    pub(super) select: SelectArgs,
    pub(super) device: DeviceArg,
    pub(super) device_map: Vec<String>,
    /// Options that are set, by name, as text.
    pub(super) options: Vec<(String, String)>,
    pub(super) shard: ShardArg,
    pub(super) keep: bool,
}

/// Place of one process in its group.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Seat {
    pub(super) rank: usize,
    pub(super) size: usize,
    /// Path of the group's socket.
    pub(super) socket: OsString,
}

/// Line that a rank writes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Answer {
    Progress { done: u64, total: u64 },
    Loaded(Loaded),
    Finished(Finished),
    Failed(Failed),
}

/// End of a rank's load.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Loaded {
    /// Seconds of the clock `CLOCK_MONOTONIC`, which all processes see: before the checkpoint was
    /// opened, and after the last tensor.
    pub(super) started: f64,
    pub(super) ended: f64,
    /// Bytes of all selected tensors, of which the rank may have its part only.
    pub(super) selected_bytes: u64,
}

/// Report of a rank, made when all ranks had loaded.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Finished {
    pub(super) read_bytes: u64,
    pub(super) received_bytes: u64,
    pub(super) tensor_bytes: u64,
    pub(super) cpu_seconds: f64,
    /// Scope of the sharing, and the reason if it is smaller than requested.
    pub(super) share: String,
    pub(super) reason: Option<String>,
    pub(super) notes: Vec<String>,
    pub(super) report: Value,
}

/// Error of a rank.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Failed {
    kind: String,
    message: String,
    location: Option<String>,
    tensor: Option<String>,
    range: Option<(u64, u64)>,
    hint: Option<String>,
    errno: Option<i32>,
    cause: Option<String>,
    pub(super) ranks: Vec<usize>,
}

impl Failed {
    pub(super) fn new(error: &Error) -> Self {
        Self {
            kind: error.kind().name().to_owned(),
            message: error.message().to_owned(),
            location: error.location().map(str::to_owned),
            tensor: error.tensor().map(str::to_owned),
            range: error.range().map(|range| (range.start, range.end)),
            hint: error.hint_with(flag),
            errno: error.errno(),
            cause: std::error::Error::source(error).map(ToString::to_string),
            ranks: error.ranks().to_vec(),
        }
    }

    pub(super) fn kind(&self) -> ErrorKind {
        let mut known = ErrorKind::ALL.into_iter();
        let kind = known.find(|kind| kind.name() == self.kind);
        kind.unwrap_or(ErrorKind::Peer)
    }

    /// Returns the error of `rank` for the user.
    pub(super) fn error(&self, rank: usize) -> Error {
        let message = if self.message.starts_with("rank ") {
            self.message.clone()
        } else {
            format!("rank {rank}: {}", self.message)
        };
        let mut error = Error::new(self.kind(), message);
        if let Some(location) = &self.location {
            error = error.with_location(location);
        }
        if let Some(tensor) = &self.tensor {
            error = error.with_tensor(tensor);
        }
        if let Some((start, end)) = self.range {
            error = error.with_range(start..end);
        }
        if let Some(hint) = &self.hint {
            error = error.with_hint(hint);
        }
        error = match (self.errno, &self.cause) {
            (Some(errno), _) => error.with_source(std::io::Error::from_raw_os_error(errno)),
            (None, Some(cause)) => error.with_source(cause.clone()),
            (None, None) => error,
        };
        let ranks = if self.ranks.is_empty() {
            vec![rank]
        } else {
            self.ranks.clone()
        };
        error.with_ranks(ranks)
    }
}
