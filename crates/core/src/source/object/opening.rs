//! Opens an object: its state and its first bytes by one request, and a sample of one that has no validator.
//!
//! A validator (RFC 9110, 8.8) tells one state of an object from another: an entity tag, the time of
//! the last change, a version. Without one, several answers may be of several states.

use std::ops::Range;

use futures_util::StreamExt;
use object_store::path::Path;
use object_store::{GetOptions, GetRange, ObjectMeta};

use super::super::remote::Remote;
use super::super::store::{Fault, Store};
use super::{
    ObjectIdentity, ObjectSource, Source, StoreOptions, cut_short, status, too_long, with_retries,
};
use crate::crc::Crcs;
use crate::error::{Error, ErrorKind, Result, counted};
use crate::format::{HEADER_BYTES_MAX, LENGTH_BYTES, SUFFIX};

/// Bytes of an object that has no validator: only when they are compared again can a replaced object
/// be noticed at all, other than by its length.
///
/// The first bytes hold the header: objects with the same one have tensors at the same places. And
/// objects that differ in training differ at their ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sample {
    /// Number of first bytes that were asked for.
    pub(super) first: u64,
    /// Checksums over the first bytes, the rest of the header, and the last bytes.
    crcs: Crcs,
}

/// Last bytes of a [`Sample`].
const LAST_BYTES: u64 = 64 << 10;

/// Returns what the store says of an object, its first bytes, and a sample of one without a validator.
pub(super) async fn look(
    remote: &Remote,
    store: &Store,
    path: &Path,
    first: u64,
) -> Result<(ObjectMeta, Vec<u8>, Option<Sample>)> {
    let (options, tally) = (remote.options(), remote.tally());
    let ask = |range: Range<u64>| {
        with_retries(options.retries(), tally, move || {
            open_once(store, path, range.clone())
        })
    };
    let (meta, bytes) = ask(0..first).await?;
    if ObjectIdentity::of(&meta).is_versioned() {
        return Ok((meta, bytes, None));
    }
    let behind = bytes.len() as u64;
    if behind < meta.size && !allows_unversioned(options) {
        return Err(unversioned());
    }
    let header_end = header_end(path, &bytes).min(meta.size).max(behind);
    let start = meta.size.saturating_sub(LAST_BYTES).max(header_end);
    let mut more = Vec::new();
    for range in [behind..header_end, start..meta.size] {
        if !range.is_empty() {
            more.extend(ask(range).await?.1);
        }
    }
    let crcs = Crcs::of(&[&bytes, &more]);
    Ok((meta, bytes, Some(Sample { first, crcs })))
}

/// Returns where the header of an object ends that is called like a safetensors file and begins with
/// `bytes`; zero if there is none.
fn header_end(path: &Path, bytes: &[u8]) -> u64 {
    let is_named = path.as_ref().ends_with(SUFFIX);
    let len = bytes.first_chunk().map(|len| u64::from_le_bytes(*len));
    let len = len.filter(|&len| is_named && len <= HEADER_BYTES_MAX);
    len.map_or(0, |len| LENGTH_BYTES + len)
}

/// Returns a report's note on those of the objects that could change without a trace.
pub(crate) fn unversioned_note<'a>(
    objects: impl IntoIterator<Item = &'a ObjectSource>,
) -> Option<String> {
    let objects = objects.into_iter();
    let mut objects = objects.filter(|object| !object.identity().is_versioned());
    let first = objects.next()?.location();
    let count = counted(1 + objects.count() as u64, "object");
    Some(format!(
        "the store sends neither ETag nor Last-Modified of {count} ({first}): length, first and last bytes \
         were compared once more, and a change of other bytes would not be noticed"
    ))
}

pub(super) fn allows_unversioned(options: &StoreOptions) -> bool {
    options.flag("allow_unversioned") == Some(true)
}

pub(super) fn unversioned() -> Error {
    Error::new(
        ErrorKind::Unsupported,
        "the store sends neither ETag nor Last-Modified: an object that is replaced while it is read \
         cannot be told from the old one",
    )
    .with_hint(
        "let the server send one of them; or, if nothing replaces the object meanwhile, allow it \
         (store option allow_unversioned=true)",
    )
}

/// A range from the beginning of an object, or within it, and what the store says of the object.
async fn open_once(
    store: &Store,
    path: &Path,
    range: Range<u64>,
) -> Result<(ObjectMeta, Vec<u8>), Fault> {
    let options = GetOptions {
        range: Some(GetRange::Bounded(range.clone())),
        ..GetOptions::default()
    };
    let (result, exchange) = match store.get(path, options).await {
        Ok(answer) => answer,
        Err(fault) if may_be_empty(&fault) => {
            return match store.head(path).await {
                Ok((meta, _)) if meta.size == 0 => Ok((meta, Vec::new())),
                _ => Err(fault),
            };
        }
        Err(fault) => return Err(fault),
    };
    let meta = result.meta.clone();
    let wanted = range.end.min(meta.size).saturating_sub(range.start);
    let misbehaved = |message: String| store.misbehaved(&exchange, &message);
    let mut bytes = Vec::with_capacity(usize::try_from(wanted).unwrap_or_default());
    let mut body = result.into_stream();
    while let Some(more) = body.next().await {
        bytes.extend_from_slice(&more.map_err(|error| store.fault(&error, &exchange, "GET"))?);
        if bytes.len() as u64 > wanted {
            return Err(misbehaved(too_long(wanted)));
        }
    }
    if (bytes.len() as u64) < wanted {
        return Err(cut_short(misbehaved, bytes.len() as u64, wanted));
    }
    Ok((meta, bytes))
}

/// An object without bytes has no range either, and stores say so in different ways: 416, the whole of nothing, a range that is
/// none, or (those without HTTP) an error of their own.
fn may_be_empty(fault: &Fault) -> bool {
    fault.transient.is_none()
        && match status(&fault.error) {
            Some(status) => status == 416 || (200..300).contains(&status),
            None => fault.error.kind() == ErrorKind::Remote,
        }
}
