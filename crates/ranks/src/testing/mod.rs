//! Groups whose ranks are threads of one process, for tests.

mod thread_nodes;
mod thread_ranks;

pub use thread_nodes::Network;
pub use thread_ranks::{nodes_as_threads, ranks_as_threads};
