//! For tests, ours and yours: contracts as suites, storage without a disk, checkpoints to read.
//!
//! Only with the feature `testing`. [`conformance`] says what every engine and every sink must do; [`sim`] is an engine over
//! memory that is as unkind as storage can be; [`simulation`] runs a whole load on it; [`storage`] says how long
//! reads would take on storage of any kind; [`fixtures`] makes bytes and files; [`fuzz`] is what fuzzers ask.

pub mod conformance;
pub mod fixtures;
pub mod fuzz;
mod random_load;
pub mod sim;
pub mod simulation;
pub mod storage;

use crate::engine::Engine;
use crate::error::Result;
use crate::pipeline::{self, Feed, LaneWork};
use crate::report::Counters;
use crate::sink::Sink;
use crate::tensor::Tensor;

/// Runs one lane on the calling thread, as a load does on a thread of its own. Stops the feed if it fails.
///
/// # Errors
///
/// The first failure of engine or sink, after all that was in flight has come back.
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

/// The tensor now belongs to the caller, as if a stream had handed it out: its bytes leave the budget.
pub fn receive(tensor: &Tensor) {
    tensor.received();
}

/// How many tensors a header, without the length before it, describes in a file of `file_bytes` bytes.
///
/// # Errors
///
/// What is wrong with it.
pub fn parse_header(header: &[u8], file_bytes: u64) -> Result<usize, crate::HeaderError> {
    crate::format::parse(header, file_bytes).map(|header| header.tensors.len())
}
