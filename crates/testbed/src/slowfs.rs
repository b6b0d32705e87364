//! Slow file system: shows a folder through a mount whose reads take a configured time, and fail on
//! command ([`Rule`]).
//!
//! ```text
//! kernel ─▶ fuser's thread ─▶ queue, ordered by due time ─▶ a few workers: read the file, respond
//! ```
//!
//! Always runs in a process of its own ([`Mount`]): a thread that is killed in the middle of a read
//! waits for the response before it dies. If a thread of the same process had to send the response,
//! it would never come, and neither thread could be killed. The program `slowfs` ([`run`]) serves
//! the same for manual use. A change of the real files, while a read is held or at any other time,
//! is visible in the mount: that is how files are truncated, rewritten and replaced in the middle
//! of a load. Linux only. Does not depend on `tload`.

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
