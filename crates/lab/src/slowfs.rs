//! A slow file system: a folder seen through a mount whose reads take as long as they are told to, and fail on command ([`Rule`]).
//!
//! ```text
//! kernel ─▶ fuser's thread ─▶ queue, ordered by when each read is due ─▶ a few workers: read the real file, answer
//! ```
//!
//! Runs in a process of its own, always ([`Mount`]): a thread that is killed in the middle of a read waits for the answer before it
//! dies, and if whoever answers is a thread of the same process then nobody ever comes, and neither can be killed. The program
//! `slowfs` ([`run`]) is the same for people. What happens to the real files, while a read is held or at any other time, happens to those
//! that are shown: that is how files are truncated, rewritten and replaced in the middle of a load. Linux only. Knows nothing of `tload`.

mod commands;
mod fault;
mod mount;
mod options;
mod pace;
mod queue;
mod server;
mod tree;

pub use fault::{Fault, Request, Rule};
pub use mount::{Mount, serve_if_asked};
pub use options::{Options, Setup, USAGE};
pub use queue::Served;
pub use server::run;
