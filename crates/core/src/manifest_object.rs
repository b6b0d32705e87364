//! Manifest that a verification leaves in an object store.

use tload_upload::SmallObject;

use crate::error::{Error, ErrorKind, Result};
use crate::options::{Location, Protocol, StoreOptions};
use crate::verify::{FileError, MANIFEST_NAME, ManifestTarget, VerifyOptions, VerifyReport};

/// Manifest that a verification leaves in an object store.
///
/// # Examples
///
/// ```no_run
/// use tload::verify::{ManifestObject, ManifestTarget, Verification, VerifyOptions};
/// use tload::{Location, StoreOptions};
///
/// let location = Location::parse("s3://bucket/model")?;
/// let mut options = VerifyOptions::default().write(ManifestTarget::Beside);
/// let object = ManifestObject::open(&location, &mut options, &StoreOptions::new())?;
/// let mut report = Verification::new(&location).options(options).run()?;
/// if let Some(object) = object {
///     object.finish(&mut report);
/// }
/// # Ok::<(), tload::Error>(())
/// ```
#[derive(Debug)]
pub struct ManifestObject {
    object: SmallObject,
    location: Location,
}

impl ManifestObject {
    /// Looks at the object that the verification of `location` is to write, and has the
    /// verification leave that to [`Self::finish`]. Returns `None` if nothing is to be written, or
    /// to a disk. A [`ManifestTarget::Path`] may be a URL.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidRequest`] for an object that exists and is not to be replaced,
    /// [`ErrorKind::Unsupported`] for a URL of anything but S3, GCS and Azure, those of the store.
    pub fn open(
        location: &Location,
        options: &mut VerifyOptions,
        store: &StoreOptions,
    ) -> Result<Option<Self>> {
        let target = match &options.write {
            Some(ManifestTarget::Beside) => folder(location).join(MANIFEST_NAME),
            Some(ManifestTarget::Path(path)) => match path.to_str().map(Location::parse) {
                Some(target) => target?,
                None => return Ok(None),
            },
            Some(ManifestTarget::Caller(_)) | None => return Ok(None),
        };
        let is_store = matches!(
            target.protocol(),
            Some(Protocol::S3 | Protocol::Gcs | Protocol::Azure)
        );
        match &options.write {
            _ if is_store => {}
            Some(ManifestTarget::Path(_)) if target.as_path().is_none() => {
                // Without the URL: it may contain credentials.
                let message = "the target is a URL that no manifest can be written to";
                return Err(Error::new(ErrorKind::Unsupported, message)
                    .with_hint("write to S3, GCS, Azure or a local path"));
            }
            _ => return Ok(None),
        }
        let object = SmallObject::open(&target, store, options.force)?;
        options.write = Some(ManifestTarget::Caller(target.clone()));
        Ok(Some(Self {
            object,
            location: target,
        }))
    }

    /// Writes the manifest of `report`, which says then that it is written, or why it is not.
    pub fn finish(self, report: &mut VerifyReport) {
        let Some(text) = &report.manifest else {
            return;
        };
        match self.object.put(text) {
            Ok(()) => report.written = Some(self.location.to_string()),
            Err(error) => report.not_written = Some(FileError::new(error)),
        }
    }
}

/// Returns the directory of a checkpoint, which may be a file in it.
fn folder(location: &Location) -> Location {
    if location.has_extension("safetensors") || location.has_extension("json") {
        location.parent()
    } else {
        location.clone()
    }
}
