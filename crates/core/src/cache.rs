//! The directory that objects of stores are cached in: what it holds, and removals.
//!
//! The store option `cache_dir` makes loads use such a directory. They create it, and several
//! processes may use it at once.

pub use crate::storage::object::cache::{
    CacheDirectory, CacheEntry, CacheRemoval, Pruning, finish_caching,
};
