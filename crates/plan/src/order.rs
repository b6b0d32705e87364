//! The option `order`: which tensors are handed out first.

use crate::error::named;

named! {
    /// Order in which tensors are handed out.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub enum Order {
        /// In order of completion.
        #[default]
        Ready = "ready",
        /// By shard, then by offset in the shard. Shards are then read one after another.
        File = "file",
    }
    const ALL;
    /// Returns the name that options and reports use.
    pub fn name;
    impl FromStr as "order";
}
