//! Lists of objects: the pages that stores send, and the trees of files that callers get.

pub(crate) mod object_list;
pub(crate) mod tree;
