//! Headers of a checkpoint's shards: many are read at a time, with one read each where it is long
//! enough.

use std::sync::Arc;

use super::backend::Backend;
use super::shards::ShardSet;
use super::tensorizer;
use crate::crc::Crcs;
use crate::error::{Error, ErrorKind, Result};
use crate::format::{self, Header};
use crate::options::Location;
use crate::storage::{Source, is_network, of_many};
use crate::sync::parallel::parallel_map;

/// First read of a shard, bytes: holds the header of most files (a shard of a dense 70B model has
/// about 10 KiB of it, one of a mixture of experts with 20,000 tensors about 2 MiB and needs a
/// second read).
const FIRST_READ_BYTES: usize = 256 << 10;

/// First read of a shard on a network file system, bytes: the kernel requests 128 KiB at a time
/// there, one after another, and most headers fit into half.
const MOUNT_READ_BYTES: usize = 64 << 10;

/// Headers read at a time from a local disk: more threads than this slow down opening.
const HEADER_THREADS_MAX: usize = 16;

/// Headers read at a time where each costs a round trip of milliseconds: on a network file system
/// or in an object store, unless the cache has them.
const FAR_HEADERS_MAX: usize = 64;

/// Opened file with its header.
#[derive(Debug)]
pub(super) struct OpenedShard {
    pub(super) source: Arc<dyn Source>,
    pub(super) header: Header,
    pub(super) crcs: Crcs,
    /// The header as it was read, if another rank gets it; else nothing.
    pub(super) text: Vec<u8>,
}

/// Header as it was read and parsed.
#[derive(Debug)]
pub(super) struct ReadHeader {
    pub(super) header: Header,
    pub(super) crcs: Crcs,
    /// Its bytes.
    pub(super) text: Vec<u8>,
    /// Note on what the file does not have.
    pub(super) note: Option<String>,
}

impl OpenedShard {
    /// Parses the header that another rank has read.
    pub(super) fn from_text(source: Arc<dyn Source>, text: &[u8]) -> Result<Self> {
        let (header, crcs) = if tensorizer::begins(text) {
            let read = tensorizer::header_of(&*source, text.to_vec())?;
            (read.header, read.crcs)
        } else {
            let header = format::parse(text, source.len())
                .map_err(|error| error.into_error(source.location()))?;
            let length_field = (text.len() as u64).to_le_bytes();
            (header, Crcs::new(&[&length_field, text]))
        };
        Ok(Self {
            source,
            header,
            crcs,
            text: Vec::new(),
        })
    }
}

/// Opens all files and reads their headers, many at a time, so that none waits for the ones before
/// it. Returns the first error in the order of the files.
pub(super) fn open_shards(set: &ShardSet, backend: &Backend) -> Result<Vec<OpenedShard>> {
    // If the first file is near, the others probably are too.
    let first = set.files.first();
    let threads = if first.is_some_and(|file| backend.is_far(file)) {
        FAR_HEADERS_MAX
    } else {
        HEADER_THREADS_MAX
    };
    let opened = parallel_map(&set.files, threads, |file| open_shard(file, set, backend));
    let each = set.files.iter().zip(opened);
    each.map(|(file, opened)| {
        let opened = opened.map_err(|error| set.missing(file, error));
        opened.map_err(|error| of_many(error, set.files.len()))
    })
    .collect()
}

fn open_shard(location: &Location, set: &ShardSet, backend: &Backend) -> Result<OpenedShard> {
    let is_mount = location.as_path().is_some_and(is_network);
    let first_bytes = if is_mount {
        MOUNT_READ_BYTES
    } else {
        FIRST_READ_BYTES
    };
    let (source, first) = backend.open(location, set.root.as_ref(), first_bytes)?;
    source.require_versioned()?;
    let byte = first.first().copied();
    let mut read =
        read_text(&*source, first).map_err(|error| backend.explain(error, location, byte))?;
    if let Some(note) = read.note {
        backend.add_note(location, note);
    }
    if !backend.passes_on() {
        read.text = Vec::new();
    }
    Ok(OpenedShard {
        source,
        header: read.header,
        crcs: read.crcs,
        text: read.text,
    })
}

/// Reads and checks the header, given the file's first bytes `first`: without a further read if it
/// fits into them, else with one. Also returns the CRCs of the bytes read, which are not kept.
///
/// The cache forgets an object with an invalid header, which is then read from its origin: wrong
/// bytes that once got into the cache would fail every start.
pub fn read_header(source: &dyn Source, first: Vec<u8>) -> Result<(Header, Crcs)> {
    read_text(source, first).map(|read| (read.header, read.crcs))
}

/// As [`read_header`]; also returns the header as it was read.
fn read_text(source: &dyn Source, first: Vec<u8>) -> Result<ReadHeader> {
    let first_bytes = first.len();
    let read = header_of(source, first);
    let is_invalid = |error: &Error| error.kind() == ErrorKind::InvalidFormat;
    if read.as_ref().is_err_and(is_invalid) && source.clear_cached() {
        return header_of(source, source.fetch(0, first_bytes)?);
    }
    read
}

fn header_of(source: &dyn Source, first: Vec<u8>) -> Result<ReadHeader> {
    const LENGTH: usize = 8;
    if tensorizer::begins(&first) {
        return tensorizer::header_of(source, first);
    }
    let invalid = |error: format::HeaderError| error.into_error(source.location());
    let len = format::header_len(&first, source.len()).map_err(invalid)?;
    let length_field = len.to_le_bytes();
    let len = usize::try_from(len).expect("at most 100 MB");
    let mut bytes = first;
    bytes.drain(..LENGTH);
    if bytes.len() < len {
        bytes.extend(source.fetch(format::LENGTH_BYTES + bytes.len() as u64, len - bytes.len())?);
    }
    bytes.truncate(len);
    let header = format::parse(&bytes, source.len()).map_err(invalid)?;
    let crcs = Crcs::new(&[&length_field, &bytes]);
    Ok(ReadHeader {
        header,
        crcs,
        text: bytes,
        note: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::MemorySource;

    #[derive(Debug)]
    struct Counted {
        source: MemorySource,
        fetches: std::sync::atomic::AtomicUsize,
    }

    impl Source for Counted {
        fn location(&self) -> &Location {
            self.source.location()
        }

        fn len(&self) -> u64 {
            self.source.len()
        }

        fn fetch(&self, offset: u64, len: usize) -> Result<Vec<u8>> {
            self.fetches
                .fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            self.source.fetch(offset, len)
        }
    }

    /// Returns how many fetches a header of `len` bytes takes.
    fn fetches(len: usize) -> usize {
        let mut bytes = (len as u64).to_le_bytes().to_vec();
        bytes.extend(b"{}");
        bytes.resize(8 + len, b' ');
        let source = Counted {
            source: MemorySource::new("memory", bytes),
            fetches: 0.into(),
        };
        let first = source.fetch(0, FIRST_READ_BYTES).expect("in memory");
        header_of(&source, first).expect("an empty header with spaces is valid");
        source.fetches.into_inner()
    }

    #[test]
    fn header_takes_second_read_only_beyond_first_read() {
        assert_eq!(fetches(2), 1);
        assert_eq!(fetches(FIRST_READ_BYTES - 8), 1);
        assert_eq!(fetches(FIRST_READ_BYTES - 7), 2);
        assert_eq!(fetches(3 * FIRST_READ_BYTES), 2);
    }
}
