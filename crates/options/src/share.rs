//! Sharing of reads between the ranks of a group.

use tload_ranks::JoinLimits;

use super::LoadOptions;
use crate::error::named;

named! {
    /// Ranks that share what is read.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub enum Share {
        /// Those of one node: storage is read once per node.
        #[default]
        Node = "node",
        /// All: storage is read once, and nodes send each other the rest.
        Cluster = "cluster",
        /// None: every rank reads for itself, as without a group.
        None = "none",
    }
    const ALL;
    /// Returns the name that options and reports use.
    pub fn name;
    impl FromStr as "share";
}

named! {
    /// Reaction of a rank to the loss of the rank that reads for it.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub enum OnPeerLoss {
        /// The load fails.
        #[default]
        Error = "error",
        /// The rank reads the missing bytes itself.
        Read = "read",
    }
    const ALL;
    /// Returns the name that options and reports use.
    pub fn name;
    impl FromStr as "on_peer_loss";
}

impl From<&LoadOptions> for JoinLimits {
    fn from(options: &LoadOptions) -> Self {
        Self::new(options.join_timeout, options.timeout)
    }
}
