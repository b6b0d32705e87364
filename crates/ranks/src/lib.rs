//! Processes that load together: ranks.
//!
//! A [`Group`] says which ranks there are and carries a few small messages between them before a
//! load. During the load, the ranks of one node use sockets and shared memory; the leaders of
//! several nodes send each other bytes over a [`Transport`], if the group has one.
//!
//! Programs depend on the crate `tload`, which re-exports what they need of this one. The crates
//! are released together, and anything else here may change in any release.

#![cfg_attr(
    not(target_os = "linux"),
    allow(
        dead_code,
        unreachable_code,
        unused_variables,
        reason = "nothing connects there"
    )
)]

mod agreement;
#[cfg(target_os = "linux")]
mod channel;
#[cfg(not(target_os = "linux"))]
#[path = "no_channel.rs"]
mod channel;
mod cluster;
mod dispatcher;
mod group;
#[cfg_attr(
    not(loom),
    expect(unreachable_pub, reason = "a model with loom's threads uses it")
)]
mod holdings;
mod link;
mod local;
mod messages;
mod node;
mod opening;
mod payload;
mod process;
mod serving;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod transport;
mod wait;
#[cfg_attr(not(loom), expect(unreachable_pub, reason = "as above"))]
mod wire;

use std::time::Duration;

// Paths that the crates of tload share.
pub(crate) use tload_base::{crc, error, sync};
pub(crate) use {tload_format as format, tload_memory as memory};

pub use agreement::Hello;
pub use channel::Carried;
pub use cluster::{Cluster, ClusterEvent, Fetch, Outcome, Received, Served, ServedRange};
pub use dispatcher::{Dispatcher, Start, encode};
pub use group::{Group, MESSAGE_BYTES_MAX};
#[cfg(loom)]
pub use holdings::{Holdings, SharedBytes};
pub use link::{Availability, Joining, Link, RegionListener};
pub use local::LocalGroup;
pub use messages::{RankPlace, RankPlan, RankStatistics, RegionOrigin, Request};
pub use node::{JoinLimits, Node, Role, Scope, give_up, join, join_timeout_or_default};
pub use opening::{Opened, Opener, OpeningRole, meet};
pub use serving::finish_serving;
pub use transport::Transport;
#[cfg(loom)]
pub use wire::Record;

/// Longest timeout; a longer one counts as none.
const TIMEOUT_MAX: Duration = Duration::from_secs(1 << 30);
