//! Manifest that a verification leaves in an object store.

use std::sync::Arc;

use tload_upload::SmallObject;
use tload_write::objects::Client;

use crate::error::{Error, ErrorKind, Result};
use crate::options::Protocol::{Azure, Gcs, S3};
use crate::options::{Location, StoreOptions};
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
        let is_store = |it: &Location| matches!(it.protocol(), Some(Azure | Gcs | S3));
        let target = match &options.write {
            Some(ManifestTarget::Beside) if is_store(location) => {
                folder(location, store)?.join(MANIFEST_NAME)
            }
            Some(ManifestTarget::Path(path)) => match path.to_str().map(Location::parse) {
                Some(target) => target?,
                None => return Ok(None),
            },
            _ => return Ok(None),
        };
        if let Some(path) = target.as_path() {
            options.write = Some(ManifestTarget::Path(path.to_owned()));
            return Ok(None);
        }
        if !is_store(&target) {
            // Without the URL: it may contain credentials.
            let message = "the target is a URL that no manifest can be written to";
            return Err(Error::new(ErrorKind::Unsupported, message)
                .with_hint("write to S3, GCS, Azure or a local path"));
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

/// Returns the directory of a checkpoint, which may be a file in it: as for readers, that is what
/// has the end of one, and a name below which there is nothing.
fn folder(location: &Location, store: &StoreOptions) -> Result<Location> {
    let mut ends = ["safetensors", "json", "tensors"].into_iter();
    let is_file = ends.any(|it| location.has_extension(it)) || {
        let list = |client: Arc<Client>| async move { client.list().await };
        let level = Client::open(location, store)?.wait(list)?;
        level.objects.is_empty() && level.prefixes.is_empty()
    };
    let folder = is_file.then(|| location.parent());
    Ok(folder.unwrap_or_else(|| location.clone()))
}
