//! Reads a checkpoint while the program that will load it is still starting: `tload exec`.
//!
//! Programs depend on the crate `tload`. This one is of its command, is released with it, and may
//! change in any release.
//!
//! An engine spends most of its start on imports, during which nothing reads. [`launch`] starts a
//! *reader*, a process of its own that reads what will be loaded into the cache of objects or the
//! page cache, and then replaces the calling process by the command. So signals, the terminal and
//! the exit status need nothing passed on, and the command cannot tell that the reader exists: it
//! is not its child, is in another session and holds none of its descriptors but standard error.
//!
//! [`read_ahead`] is the reader. It ends when all is read, when memory is short, when the command
//! has ended, or when a load begins: that calls [`load_begins`], which finds the reader by the
//! variable [`VARIABLE`]. Bytes are not read twice, since the cache has a claim on each range that
//! is being requested, and loads look for what is in the page cache.
//!
//! `launch.rs` starts both processes, `program.rs` is the command line of the reader, `meeting.rs`
//! what a load tells it, `watch.rs` decides when it stops, `read.rs` reads, `memory.rs` says how
//! much may be read, `priority.rs` keeps out of the command's way.

mod launch;
mod meeting;
mod memory;
mod priority;
mod program;
mod read;
mod watch;

pub use launch::{Failed, launch};
pub use meeting::{VARIABLE, load_begins};
pub use program::{again, is_reader};
pub use watch::read_ahead;
