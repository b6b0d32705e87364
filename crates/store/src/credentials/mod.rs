//! Credentials of stores: the words for where they come from, the cache of those that expire, and
//! the programs that hand them out. How each protocol finds its own is in `protocols`.

pub(crate) mod cache;
pub(crate) mod origin;
pub(crate) mod program;
