//! Fields of the JSON of a report that pages show. What is missing is empty.

use serde::Deserialize;
use serde_json::Value;

use crate::waterfall::Phase;

/// Fields of a report that are shown.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ReportFields {
    pub(super) location: String,
    pub(super) outcome: String,
    pub(super) verdict: Option<String>,
    pub(super) tensors: u64,
    pub(super) tensor_bytes: u64,
    pub(super) read_bytes: u64,
    pub(super) extents: u64,
    pub(super) seconds: f64,
    pub(super) import_seconds: f64,
    pub(super) first_tensor_seconds: Option<f64>,
    pub(super) engine: EngineFields,
    pub(super) direct_bytes: u64,
    pub(super) buffered_bytes: u64,
    pub(super) mapped_bytes: u64,
    pub(super) remote_bytes: u64,
    pub(super) cached_bytes: u64,
    pub(super) received_bytes: u64,
    pub(super) copied_bytes: u64,
    pub(super) requests: u64,
    pub(super) short_reads: u64,
    pub(super) retries: u64,
    pub(super) opening_retries: u64,
    pub(super) last_retry: Option<String>,
    pub(super) stalls: u64,
    pub(super) hedges: u64,
    pub(super) hedges_won: u64,
    pub(super) parked_bytes: u64,
    pub(super) memory_limit: u64,
    pub(super) memory_peak: u64,
    pub(super) staging: Option<StagingFields>,
    pub(super) devices: Vec<DeviceFields>,
    pub(super) stages: StagesFields,
    pub(super) phases: Vec<Phase>,
    pub(super) lanes: u64,
    pub(super) depth: u64,
    pub(super) in_flight_bytes: u64,
    pub(super) depths: Vec<DepthFields>,
    pub(super) extent_bytes: u64,
    pub(super) group: Option<Value>,
    pub(super) verification: Option<VerificationFields>,
    pub(super) cache: Option<Value>,
    pub(super) mirrors: Vec<MirrorFields>,
    pub(super) notes: Vec<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct EngineFields {
    pub(super) name: String,
    pub(super) reason: String,
    pub(super) features: Vec<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct StagingFields {
    pub(super) bytes: u64,
    pub(super) slots: u64,
    pub(super) pinned_bytes: u64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct DeviceFields {
    pub(super) device: String,
    pub(super) memory_limit: u64,
    pub(super) memory_peak: u64,
    pub(super) copies: u64,
    pub(super) copied_bytes: u64,
    pub(super) copy_seconds: f64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct StagesFields {
    pub(super) submit: f64,
    pub(super) storage_wait: f64,
    pub(super) memory_wait: f64,
    pub(super) copy_wait: f64,
    pub(super) deliver: f64,
    pub(super) verify: f64,
    pub(super) consumer_wait: f64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct DepthFields {
    pub(super) sources: String,
    pub(super) in_flight_bytes: u64,
    pub(super) changes: u64,
    pub(super) best_bytes_per_second: u64,
    pub(super) reason: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct VerificationFields {
    pub(super) choice: String,
    pub(super) bytes: u64,
    pub(super) by: Vec<VerifiedByFields>,
    pub(super) unverified_files: u64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct VerifiedByFields {
    pub(super) by: String,
    pub(super) algorithm: String,
    pub(super) files: u64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct MirrorFields {
    pub(super) location: String,
    pub(super) read_bytes: u64,
    pub(super) failure: Option<String>,
}
