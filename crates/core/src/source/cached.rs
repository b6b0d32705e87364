//! Which bytes of a file need not be read past the page cache, because it holds them.
//!
//! Asked once a file; only of files that are there in part, read by read. Copying what is resident is three to four times as fast as
//! reading it again, and a second load must not be slower than the first because it insists on the device.

use super::residency::{self, PageMap};
use super::{FileSource, Source};

/// What the header of a file and the kernel's read-ahead leave behind, bytes: not worth asking for.
const NEGLIGIBLE_BYTES: u64 = 4 << 20;

/// What of one file the page cache holds.
#[derive(Debug)]
pub(super) enum Cached {
    /// As good as nothing.
    Nothing,
    /// All of it.
    Everything,
    /// Some of it; the kernel says which (`cachestat`).
    Ask {
        /// So much of it, bytes.
        resident_bytes: u64,
        /// Of so many.
        total_bytes: u64,
    },
    /// Some of it: these pages, when they were asked for (`mincore`).
    Known(PageMap),
}

impl Cached {
    /// Asks about `source`, as it is now. Where the system cannot be asked, or cannot be trusted, nothing is cached.
    pub(super) fn of(source: &FileSource) -> Self {
        // A file on an overlay is a front: the pages are those of the file below, which only a mapping reaches.
        let is_front = source.file_system().name == "overlay";
        let counted = if is_front {
            None
        } else {
            residency::resident_bytes(source.file(), 0, source.len())
        };
        match counted {
            Some(resident_bytes) => Self::counted(resident_bytes, source.len()),
            None => match PageMap::of(source.file(), source.len()) {
                Some(map) if map.is_trustworthy(source.file()) => Self::Known(map),
                _ => Self::Nothing,
            },
        }
    }

    fn counted(resident_bytes: u64, total_bytes: u64) -> Self {
        if resident_bytes >= total_bytes {
            Self::Everything
        } else if resident_bytes <= NEGLIGIBLE_BYTES {
            Self::Nothing
        } else {
            Self::Ask {
                resident_bytes,
                total_bytes,
            }
        }
    }

    /// Whether `len` bytes at `offset` are there but for a few pages, so that copying them is faster than reading them all again.
    pub(super) fn holds(&self, source: &FileSource, offset: u64, len: usize) -> bool {
        match self {
            Self::Nothing => false,
            Self::Everything => true,
            Self::Ask { .. } => {
                let end = source.len().min(offset + len as u64);
                let page = rustix::param::page_size() as u64;
                let pages = end.div_ceil(page) - offset / page;
                residency::resident_bytes(source.file(), offset, end - offset)
                    .is_some_and(|bytes| nearly(bytes, pages * page))
            }
            Self::Known(map) => {
                let (there, all) = map.counts(offset, len);
                nearly(there, all)
            }
        }
    }

    /// Whether only a few pages are missing.
    pub(super) fn holds_nearly_all(&self) -> bool {
        match self {
            Self::Nothing => false,
            Self::Everything => true,
            Self::Ask {
                resident_bytes,
                total_bytes,
            } => nearly(*resident_bytes, *total_bytes),
            Self::Known(map) => nearly(map.resident_bytes(), map.total_bytes()),
        }
    }
}

/// Whether so little is missing that it is brought in on the way: an eighth. The kernel takes pages back here and there; an extent
/// with a hole in it is still copied in less time than it is read (an estimate of 2026-11: a copy takes a third of the time).
fn nearly(resident: u64, all: u64) -> bool {
    resident >= all - all / 8
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn a_header_alone_is_nothing_and_the_rest_is_asked_for() {
        assert!(matches!(Cached::counted(MIB, 64 * MIB), Cached::Nothing));
        assert!(matches!(
            Cached::counted(64 * MIB, 64 * MIB),
            Cached::Everything
        ));
        let some = Cached::counted(60 * MIB, 64 * MIB);
        assert!(matches!(some, Cached::Ask { .. }) && some.holds_nearly_all());
        assert!(!Cached::counted(40 * MIB, 64 * MIB).holds_nearly_all());
    }
}
