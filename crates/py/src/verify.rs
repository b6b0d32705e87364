//! Verification of whole checkpoints for Python.
//!
//! `python/tload/_files/verify.py` is the public interface, and checks signatures.

use std::borrow::Cow;
use std::path::PathBuf;

use pyo3::prelude::*;
use tload::verify::{
    Algorithm, Digest, ManifestObject, ManifestTarget, SignedFiles, Verification, VerifyOptions,
};
use tload::{Error, ErrorKind, OpenOptions};

use crate::checkpoint::LocationArgument;
use crate::interrupt;
use crate::key::KeyArgument;
use crate::store::StoreArgument;
use crate::watch::Watch;

/// Destination of a new manifest: beside the checkpoint (`True`) or at a path.
#[derive(FromPyObject)]
pub(crate) enum WriteArgument {
    Beside(bool),
    Path(PathBuf),
}

/// Content of a checked signature: names with their SHA-256 in hexadecimal, and paths that may be
/// unsigned.
type SignedArgument = (Vec<(String, String)>, Vec<String>);

fn signed((files, ignored): SignedArgument) -> tload::Result<SignedFiles> {
    let digest = |(name, hex): (String, String)| {
        let digest = Digest::from_hex(Algorithm::Sha256, &hex).ok_or_else(|| {
            let message = format!("the signed file {name:?} has no SHA-256");
            Error::new(ErrorKind::InvalidFormat, message)
        })?;
        Ok((name, digest))
    };
    let files = files.into_iter().map(digest);
    Ok(SignedFiles {
        files: files.collect::<tload::Result<_>>()?,
        ignored,
    })
}

/// Returns the signature beside a location: its location and its unchecked content.
#[pyfunction]
#[pyo3(signature = (location, *, store, follow_symlinks))]
pub(crate) fn read_signature(
    py: Python<'_>,
    location: LocationArgument,
    store: StoreArgument,
    follow_symlinks: bool,
) -> PyResult<(String, Cow<'static, [u8]>)> {
    let read = move || {
        let opening = OpenOptions::from(store.read()?).follow_symlinks(follow_symlinks);
        tload::verify::read_signature(&location.parse()?, opening)
    };
    let found = interrupt::run(py, read)?;
    Ok((found.location.to_string(), Cow::Owned(found.text)))
}

/// Report as JSON and as text, and the error if something differs.
type Verified = (String, String, Option<Py<PyAny>>);

/// Compares a location with its known digests.
#[pyfunction]
#[pyo3(signature = (
    location, *, manifest, write, force, signed, options, store, follow_symlinks, key, progress
))]
#[expect(
    clippy::too_many_arguments,
    reason = "keywords; Python gives each by its name"
)]
pub(crate) fn verify(
    py: Python<'_>,
    location: LocationArgument,
    manifest: Option<LocationArgument>,
    write: Option<WriteArgument>,
    force: bool,
    signed: Option<SignedArgument>,
    options: &Bound<'_, PyAny>,
    store: StoreArgument,
    follow_symlinks: bool,
    key: Option<KeyArgument>,
    progress: Option<Bound<'_, PyAny>>,
) -> PyResult<Verified> {
    let failed = |error| tload_pymemory::error::exception(py, &error);
    let timeout = crate::options::read(options)?.timeout;
    let mut options = VerifyOptions::default();
    let manifest = manifest.map(LocationArgument::parse).transpose();
    options.manifest = manifest.map_err(failed)?;
    options.write = match write {
        None | Some(WriteArgument::Beside(false)) => None,
        Some(WriteArgument::Beside(true)) => Some(ManifestTarget::Beside),
        Some(WriteArgument::Path(path)) => Some(ManifestTarget::Path(path)),
    };
    options.force = force;
    options.signed = signed.map(self::signed).transpose().map_err(failed)?;
    let mut opening = OpenOptions::from(store.read().map_err(failed)?);
    opening.follow_symlinks = follow_symlinks;
    opening.key = key.map(KeyArgument::read).transpose().map_err(failed)?;
    let location = location.parse().map_err(failed)?;
    let store = opening.store.clone();
    let verification = Verification::new(&location).opening(opening);
    let control = verification.control();
    let watch = Watch {
        timeout,
        show: progress,
        progress: &|| {
            let now = control.progress();
            (now.bytes_done, now.bytes_total)
        },
        cancel: &|| control.cancel(),
        late: &|timeout| control.timed_out(timeout),
    };
    let report = watch.run(py, move || {
        let object = ManifestObject::open(&location, &mut options, &store)?;
        let mut report = verification.options(options).run()?;
        if let Some(object) = object {
            object.finish(&mut report);
        }
        Ok(report)
    })?;
    let error = report.error().map(failed);
    let error = error.map(|error| error.into_value(py).into_any());
    let document = serde_json::to_string(&report).unwrap_or_default();
    Ok((document, report.to_string(), error))
}
