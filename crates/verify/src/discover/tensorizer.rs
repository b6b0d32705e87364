//! Digests in files of Tensorizer: the CRC-32 in the header before each tensor.
//!
//! It covers that header too, so the CRC of the tensor alone is derived from it. A SHA-256 cannot
//! be taken apart like this: `tload convert` compares it. All that the index says stands in headers
//! again, so an index that agrees with all of them is as it was written.

use std::collections::BTreeMap;

use tload_tensorizer::{FormatError, Tensor, TensorHeader, index_end, parse};

use super::ASKED_AT_A_TIME;
use crate::claims::{Claim, TensorClaim};
use crate::crc::Polynomial;
use crate::digest::{Algorithm, Digest};
use crate::error::{Error, ErrorKind, Result};
use crate::storage::Source;
use crate::sync::parallel::parallel_map;

/// First read, bytes: the index, for which 256 KiB are reserved.
const FIRST_BYTES: usize = 257 << 10;

/// Returns what a file says about itself, if it is one of Tensorizer by its name and its first
/// bytes.
///
/// # Errors
///
/// [`ErrorKind::InvalidFormat`] for headers that are damaged or do not agree with the index, and
/// errors of reading.
pub(super) fn in_file(source: &dyn Source) -> Result<Option<Claim>> {
    if !source.location().has_extension("tensors") {
        return Ok(None);
    }
    let invalid = |error: FormatError| error.into_error(source.location());
    let mut first = source.fetch(0, FIRST_BYTES)?;
    if !tload_tensorizer::begins(&first) {
        return Ok(None);
    }
    let end = index_end(&first, source.len()).map_err(invalid)?;
    let end = usize::try_from(end).expect("at most 100 MB");
    if first.len() < end {
        first = source.fetch(0, end)?;
    }
    let index = parse(&first, source.len()).map_err(invalid)?;
    let said = parallel_map(&index.tensors, ASKED_AT_A_TIME, |tensor| {
        let len = usize::try_from(tensor.header.end - tensor.header.start);
        let header = source.fetch(tensor.header.start, len.expect("at most 100 MB"))?;
        let header = TensorHeader::parse(&header, tensor, &index).map_err(invalid)?;
        require_meta(tensor, &header).map_err(|error| error.with_location(source.location()))?;
        Ok::<_, Error>(of_tensor(tensor, &header).map(|said| (tensor.name.clone(), said)))
    });
    let said = said.into_iter().collect::<Result<Vec<_>>>()?;
    let crc = Polynomial::Crc64Nvme.checksum(&[&first[..end]]);
    Ok(Some(Claim {
        by: "Tensorizer's digests in the file".to_owned(),
        len: None,
        header: Some((index.bytes, Digest::from_crc(Algorithm::Crc64Nvme, crc))),
        whole: Vec::new(),
        tensors: said.into_iter().flatten().collect::<BTreeMap<_, _>>(),
    }))
}

/// Derives the digest of a tensor's bytes. It is that of the header and the bytes, without the
/// contribution of the header: `combine` adds the latter, and adding it twice removes it.
fn of_tensor(tensor: &Tensor, header: &TensorHeader) -> Option<TensorClaim> {
    let range = tensor.range.clone();
    let before = Polynomial::Crc32.checksum(&[&header.hashed]);
    let both = u64::from(header.crc32?);
    let own = Polynomial::Crc32.combine(before, both, range.end - range.start);
    Some(TensorClaim {
        range,
        digests: vec![Digest::from_crc(Algorithm::Crc32, own)],
    })
}

/// Requires the digest of a tensor without bytes to be that of its header alone: no load compares
/// it, since no load has the tensor.
fn require_meta(tensor: &Tensor, header: &TensorHeader) -> Result<()> {
    if !tensor.is_meta() {
        return Ok(());
    }
    header.digests().finish().map_err(|wrong| {
        let message = format!("found {}, wanted {}", wrong.found, wrong.expected);
        Error::new(ErrorKind::Corrupt, message).with_tensor(&tensor.name)
    })
}
