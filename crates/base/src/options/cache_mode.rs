//! Page cache modes.

use crate::error::named;

named! {
    /// Page cache mode of a load.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub enum CacheMode {
        /// Copies resident bytes from the page cache. Reads the rest with direct I/O where the file
        /// system supports it, else through the page cache.
        #[default]
        Auto = "auto",
        /// Bypasses the page cache with direct I/O, or fails.
        Direct = "direct",
        /// Reads through the page cache.
        Buffered = "buffered",
        /// Like [`Self::Auto`], and drops the files' pages from the page cache, except those not
        /// yet written back to storage.
        Drop = "drop",
        /// Copies nothing: tensors are views of the files, private to the process, for host memory
        /// alone. Their memory is the page cache's and counts towards no budget. While they live
        /// the files must not be truncated: touching a page that is gone kills the process
        /// (`SIGBUS`). Overwriting a file in place may change tensors.
        Map = "map",
    }
    const ALL;
    /// Returns the name that options and reports use.
    pub fn name;
    impl FromStr as "cache";
}
