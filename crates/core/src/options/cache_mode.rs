//! Page cache modes.

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, Result};

/// Page cache mode of a load.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum CacheMode {
    /// Copies resident bytes from the page cache. Reads the rest with direct I/O where the file
    /// system supports it, else through the page cache.
    #[default]
    Auto,
    /// Bypasses the page cache with direct I/O, or fails.
    Direct,
    /// Reads through the page cache.
    Buffered,
    /// Like [`Self::Auto`], and drops the files' pages from the page cache, except those not yet
    /// written back to storage.
    Drop,
    /// Copies nothing: tensors are views of the files, private to the process, for host memory
    /// alone. Their memory is the page cache's and counts towards no budget. While they live the
    /// files must not be truncated: touching a page that is gone kills the process (`SIGBUS`).
    /// Overwriting a file in place may change tensors.
    Map,
}

impl CacheMode {
    const ALL: [Self; 5] = [
        Self::Auto,
        Self::Direct,
        Self::Buffered,
        Self::Drop,
        Self::Map,
    ];

    /// Returns the name that options and reports use.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Direct => "direct",
            Self::Buffered => "buffered",
            Self::Drop => "drop",
            Self::Map => "map",
        }
    }
}

impl fmt::Display for CacheMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for CacheMode {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let found = Self::ALL.into_iter().find(|cache| cache.name() == text);
        found.ok_or_else(|| Error::unknown_name("cache", text, &Self::ALL.map(Self::name)))
    }
}
