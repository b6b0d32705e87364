//! Digests in files of Tensorizer: the CRC-32 and the SHA-256 in the header before each tensor.
//!
//! It covers that header too, so the CRC of the tensor alone is derived from it. The SHA-256 there
//! cannot be taken apart like this: it is compared with that of header and tensor. All that the
//! index says stands in headers again, so an index that agrees with all of them is as it was
//! written.

use std::collections::BTreeMap;

use tload_boxed::{index_of, read_header, require_opened};
use tload_tensorizer::{Tensor, TensorHeader};

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
/// [`ErrorKind::InvalidFormat`] for headers that are damaged or do not agree with the index;
/// [`ErrorKind::PermissionDenied`] if no key has opened an encrypted file; errors of reading.
pub(super) fn in_file(source: &dyn Source) -> Result<Option<Claim>> {
    if !source.location().has_extension("tensors") {
        return Ok(None);
    }
    let first = source.fetch(0, FIRST_BYTES)?;
    if !tload_boxed::begins(&first) {
        return Ok(None);
    }
    let (index, bytes) = index_of(source, first)?;
    require_opened(source, &index)?;
    let said = parallel_map(&index.tensors, ASKED_AT_A_TIME, |tensor| {
        let header = read_header(source, tensor, &index)?;
        require_meta(tensor, &header).map_err(|error| error.with_location(source.location()))?;
        Ok::<_, Error>(of_tensor(tensor, header).map(|said| (tensor.name.clone(), said)))
    });
    let said = said.into_iter().collect::<Result<Vec<_>>>()?;
    let own = Digest::compute(Algorithm::Sha256, &bytes);
    Ok(Some(Claim {
        by: "Tensorizer's digests in the file".to_owned(),
        len: None,
        header: Some((index.bytes, own)),
        whole: Vec::new(),
        tensors: said.into_iter().flatten().collect::<BTreeMap<_, _>>(),
    }))
}

/// Returns the digests of a tensor. The CRC is that of the header and the bytes, without the
/// contribution of the header: `combine` adds the latter, and adding it twice removes it.
fn of_tensor(tensor: &Tensor, header: TensorHeader) -> Option<TensorClaim> {
    let range = tensor.range.clone();
    let own = header.crc32.map(|both| {
        let before = Polynomial::Crc32.checksum(&[&header.hashed]);
        let own = Polynomial::Crc32.combine(before, both.into(), range.end - range.start);
        Digest::from_crc(Algorithm::Crc32, own)
    });
    let sha256 = header.sha256;
    let sha256 = sha256.and_then(|bytes| Digest::new(Algorithm::Sha256, &bytes));
    (own.is_some() || sha256.is_some()).then(|| TensorClaim {
        range,
        digests: own.into_iter().collect(),
        prefixed: sha256.map(|digest| (header.hashed, digest)),
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
