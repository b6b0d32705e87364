//! What a caller may ask of the page cache.

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, Result};

/// How a load of files uses the page cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Cache {
    /// What the page cache holds is copied from there; everything else is read past it where the file system can, else through it.
    #[default]
    Auto,
    /// Past it, or fail.
    Direct,
    /// Through it.
    Buffered,
    /// As [`Self::Auto`], and nothing of the files is left in it, unless it has yet to be written to storage.
    Drop,
    /// Nothing is copied: tensors are views of the files, private to the process, for host memory alone. Their memory is the page
    /// cache's and counts towards no budget. While they live nobody may truncate the files: touching what is gone kills the process
    /// (`SIGBUS`). Who overwrites a file in place may change tensors.
    Map,
}

impl Cache {
    const ALL: [Self; 5] = [
        Self::Auto,
        Self::Direct,
        Self::Buffered,
        Self::Drop,
        Self::Map,
    ];

    /// The name that options and reports use.
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

impl fmt::Display for Cache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Cache {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let found = Self::ALL.into_iter().find(|cache| cache.name() == text);
        found.ok_or_else(|| Error::unknown_name("cache", text, &Self::ALL.map(Self::name)))
    }
}
