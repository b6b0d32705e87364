//! Files of Tensorizer, read as shards: their index takes the place of the header.
//!
//! Gaps between tensors hold the header of each. Loads do not need them, and the plan skips them.

use std::collections::BTreeMap;

use tload_tensorizer::Tensor;

use super::headers::ReadHeader;
use crate::crc::Crcs;
use crate::error::{Result, printable, shortened};
use crate::format::Header;
use crate::storage::Source;

pub(super) use tload_boxed::begins;

/// Reads and checks the index, given the file's first bytes `first`. A key must have opened the
/// source if the file is encrypted.
pub(super) fn header_of(source: &dyn Source, first: Vec<u8>) -> Result<ReadHeader> {
    let (index, bytes) = tload_boxed::index_of(source, first)?;
    tload_boxed::require_opened(source, &index)?;
    let (without, with) = (index.tensors.iter()).partition::<Vec<_>, _>(|it| it.is_meta());
    let header = Header {
        tensors: with.into_iter().map(Tensor::entry).collect(),
        metadata: BTreeMap::new(),
        bytes: index.bytes,
    };
    let crcs = Crcs::new(&[&bytes]);
    let note = without
        .first()
        .map(|first| note(&first.name, without.len() - 1));
    Ok(ReadHeader {
        header,
        crcs,
        text: bytes,
        note,
    })
}

/// Returns the note about tensors that have no bytes: the first, and the number of others.
fn note(first: &str, others: usize) -> String {
    let first = printable(&shortened(first));
    format!(
        "meta tensors have no bytes in files of Tensorizer and are left out: {first} and {others} more"
    )
}
