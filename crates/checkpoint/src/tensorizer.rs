//! Files of Tensorizer, read as shards: their index takes the place of the header.
//!
//! Gaps between tensors hold the header of each. Loads do not need them, and the plan skips them.

use std::collections::BTreeMap;

use tload_tensorizer::Tensor;

use super::headers::ReadHeader;
use crate::crc::Crcs;
use crate::error::{Error, ErrorKind, Result, printable, shortened};
use crate::format::Header;
use crate::storage::Source;

pub(super) use tload_tensorizer::begins;

/// Reads and checks the index, given the file's first bytes `first`: without a further read if it
/// fits into them, else with one.
pub(super) fn header_of(source: &dyn Source, first: Vec<u8>) -> Result<ReadHeader> {
    let location = source.location();
    let invalid = |error: tload_tensorizer::FormatError| error.into_error(location);
    let mut bytes = first;
    let end = tload_tensorizer::index_end(&bytes, source.len()).map_err(invalid)?;
    let end = usize::try_from(end).expect("at most 100 MB");
    if bytes.len() < end {
        bytes.extend(source.fetch(bytes.len() as u64, end - bytes.len())?);
    }
    bytes.truncate(end);
    let index = tload_tensorizer::parse(&bytes, source.len()).map_err(invalid)?;
    if index.is_encrypted {
        return Err(Error::new(
            ErrorKind::Unsupported,
            "is encrypted by Tensorizer, and loads do not decrypt it",
        )
        .with_location(location)
        .with_hint("tload convert FILE DIR --key-file KEY writes it as safetensors"));
    }
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
