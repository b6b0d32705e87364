//! Which CPUs are near a GPU, and threads bound to them.
//!
//! On a machine with two sockets, half of the CPUs reach a GPU, and the memory beside it, only
//! through the other socket. `cpus.rs` parses lists of CPUs, `topology.rs` reads from `/sys` which
//! of them are near a device, and divides devices by the CPUs to bind threads to; both are tested
//! on fixtures. `bind.rs` has the two system calls.
//!
//! Programs depend on the crate `tload`, which re-exports what they need of this one. The crates
//! are released together, and anything else here may change in any release.

mod bind;
mod cpus;
mod topology;

pub use bind::{Binding, allowed};
pub use cpus::Cpus;
pub use topology::{Near, PRETENDED_SYSFS, Placement, Places, near, places, sysfs};
