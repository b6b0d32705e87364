//! Traces of loads: what each lane read, copied and waited for, as JSON in the trace-event format
//! of Chrome, which <https://ui.perfetto.dev> opens.
//!
//! Programs depend on the crate `tload`. This one is of its command, is released with it, and may
//! change in any release.
//!
//! A [`Recorder`] watches loads through the seam of `tload::internal::watch`: wrappers around the
//! engines and sinks of their lanes. Each event is a few words in memory, and a trace has
//! a limited number of each kind; what exceeds it is counted, and the trace says so. [`write`]
//! lays the events out on tracks and writes them one by one.

mod layer;
mod record;
mod write;

pub use record::Recorder;
