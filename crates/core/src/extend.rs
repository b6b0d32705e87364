//! Interfaces that a load is built from, for engines, sinks and sources of other crates.
//!
//! ```text
//! Job { extent, lease } ─▶ Engine ─▶ Done { Ok(Filled) } ─▶ Sink ─▶ tensors
//! ```
//!
//! A [`Lease`] is the exclusive right to one window of memory. An [`Engine`] owns the lease of a
//! job while storage writes to its window, and returns it [`Filled`], or fails the job. A [`Sink`]
//! owns what is filled until it has moved the bytes to where the tensors are. Memory therefore
//! outlives every write to it, and no window has two owners. A [`Source`] is where small pieces,
//! such as headers, are fetched from.
//!
//! The crate `tload-testing` has suites that check the contracts, in `conformance`. The built-in
//! engines pass the same ones.
//!
//! # Examples
//!
//! An engine over bytes in memory. `crates/core/examples/engine.rs` has one that reads files.
//!
//! ```
//! use tload::extend::{Done, Engine, Job, Transfer, Wait};
//!
//! struct InMemory {
//!     source: Vec<u8>,
//!     ended: Vec<Done>,
//! }
//!
//! impl Engine for InMemory {
//!     fn depth(&self) -> usize {
//!         8
//!     }
//!
//!     fn in_flight(&self) -> usize {
//!         self.ended.len()
//!     }
//!
//!     fn submit(&mut self, job: Job) {
//!         let start = usize::try_from(job.offset).expect("the source is in memory");
//!         let bytes = &self.source[start..start + job.needed];
//!         self.ended.push(Done {
//!             extent: job.extent,
//!             result: Ok(job.lease.fill_from(bytes)),
//!             window: None,
//!             transfer: Transfer::default(),
//!         });
//!     }
//!
//!     fn reap(&mut self, _: Wait, done: &mut Vec<Done>) {
//!         done.append(&mut self.ended);
//!     }
//! }
//! ```

pub use crate::engine::{Done, Engine, Job, Wait};
pub use crate::memory::{Filled, Filling, Lease};
pub use crate::plan::{Extent, Piece, Plan};
#[doc(no_inline)]
pub use crate::report::Transfer;
pub use crate::sink::Sink;
pub use crate::storage::Source;
#[doc(inline)]
pub use crate::sync::cancel::CancelFlag;
