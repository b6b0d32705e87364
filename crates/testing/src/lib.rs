//! Test support for `tload` and for its extensions: contracts as suites, simulated storage,
//! checkpoints to read.
//!
//! Programs depend on the crate `tload`; tests of extensions use this crate too. The crates are
//! released together, and anything here may change in any release.
//!
//! [`conformance`] checks what every engine and every sink must do; [`sim`] is an engine over
//! memory with the worst behaviour that storage can have, and [`null`] one that reads nothing;
//! [`simulation`] runs a whole load on them; [`storage`] models how long reads take on storage of
//! any kind; [`ranks_as_threads`] makes a group, [`nodes_as_threads`] one of several nodes, and
//! `shared_engine` the engine of a rank that follows; [`fixtures`] makes bytes and files; `fuzz`
//! has the targets of fuzzers, and needs the feature `object`.

pub mod conformance;
mod example_model;
pub mod fixtures;
#[cfg(feature = "object")]
pub mod fuzz;
pub mod null;
mod random_load;
#[cfg(target_os = "linux")]
mod shared_engine;
pub mod sim;
pub mod simulation;
pub mod storage;

pub use example_model::ExampleModel;
#[cfg(target_os = "linux")]
pub use shared_engine::{registered_engine, shared_engine};
pub use tload_ranks::testing::{Network, nodes_as_threads, ranks_as_threads};

use tload::Tensor;
use tload::internal::Counters;
use tload::internal::engine::Engine;
use tload::internal::pipeline::{self, Feed, LaneWork};
use tload::internal::sink::Sink;
use tload_base::error::Result;

/// Runs one lane on the calling thread, as a load does on a separate thread. Stops the feed on
/// failure.
///
/// # Errors
///
/// Returns the first failure of the engine or the sink, after all reads in flight have ended.
pub fn run_lane<E: Engine, S: Sink>(
    feed: &Feed,
    engine: &mut E,
    sink: &mut S,
    deliver: &dyn Fn(S::Tensor),
) -> Result<()> {
    let counters = Counters::default();
    let work = LaneWork {
        index: 0,
        deliver: &|ready| ready.drain(..).for_each(deliver),
        failing: &|_| (),
        counters: &counters,
    };
    let result = pipeline::run(feed, 0, engine, sink, &work);
    if result.is_err() {
        feed.stop();
    }
    result
}

/// Passes the tensor to the caller, as if a stream had handed it out: its bytes leave the budget.
pub fn receive(tensor: &Tensor) {
    tensor.received();
}

/// Returns the number of tensors that a header, without the length before it, describes in a file
/// of `file_bytes` bytes.
///
/// # Errors
///
/// The defect of the header.
pub fn parse_header(header: &[u8], file_bytes: u64) -> Result<usize, tload_format::HeaderError> {
    tload_format::parse(header, file_bytes).map(|header| header.tensors.len())
}
