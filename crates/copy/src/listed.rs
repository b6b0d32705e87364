//! Lists the files below a source, for callers that copy nothing.

use std::sync::Arc;

use crate::CopyOptions;
use crate::error::{Error, ErrorKind, Result};
use crate::fetch::Sources;
use crate::list::{self, Listing};
use crate::options::{Location, StoreOptions};
use crate::paths::Filter;
use crate::storage::StoreClient;
use crate::unusable;

/// File below a source.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ListedFile {
    /// Path below the source, with `/`; the file's own name when the source is a file.
    pub name: String,
    /// Length, bytes; `None` if only opening the file would tell (web servers, which list nothing).
    pub bytes: Option<u64>,
}

/// Lists all files below a source by name, including hidden ones. Returns none for a prefix that no
/// object of a store begins with.
///
/// # Errors
///
/// Errors of listing the source: [`ErrorKind::NotFound`] for a path that does not exist,
/// [`ErrorKind::PermissionDenied`], [`ErrorKind::Remote`].
///
/// # Examples
///
/// ```
/// # mod tload {
/// #     pub use tload_base::error::Error;
/// #     pub use tload_base::options::StoreOptions;
/// #     pub mod copy { pub use tload_copy::*; }
/// # }
/// # let folder = tempfile::tempdir().unwrap();
/// # let path = folder.path();
/// # std::fs::write(path.join("model.safetensors"), b"\x02\0\0\0\0\0\0\0{}").unwrap();
/// use tload::StoreOptions;
/// use tload::copy::list_files;
///
/// let files = list_files(path, &StoreOptions::new())?;
/// assert_eq!(files[0].name, "model.safetensors");
/// # Ok::<(), tload::Error>(())
/// ```
pub fn list_files(source: impl Into<Location>, store: &StoreOptions) -> Result<Vec<ListedFile>> {
    list_files_or(&source.into(), store, |error| {
        tracing::info!(target: "tload::notes", "{}", error.message());
        Ok(())
    })
}

/// Like [`list_files`], and passes the error about files with names that cannot be used to
/// `left_out`, which may return it.
///
/// # Errors
///
/// Those of [`list_files`] and of `left_out`.
#[doc(hidden)]
pub fn list_files_or(
    source: &Location,
    store: &StoreOptions,
    left_out: impl FnOnce(Error) -> Result<()>,
) -> Result<Vec<ListedFile>> {
    let options = CopyOptions {
        hidden: true,
        ..CopyOptions::default()
    };
    let (filter, sources) = (
        Filter::new(&options)?,
        Sources::new(store, &StoreClient::default()),
    );
    let ongoing = Arc::default();
    let mut listed = Vec::new();
    let Listing {
        entries, unusable, ..
    } = list::find(source, &filter, &sources, &ongoing)?;
    if !unusable.is_empty() {
        left_out(unusable::error(&unusable, source))?;
    }
    for entry in entries {
        let mut bytes = entry.listed.map(|listed| listed.len);
        if bytes.is_none() && entry.location == *source {
            // Nothing is below the source, so open it to find out whether it is an object itself.
            match sources.open(source, &ongoing) {
                Ok(opened) => bytes = Some(opened.origin()?.len),
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                Err(error) => return Err(error),
            }
        }
        listed.push(ListedFile {
            name: entry.name,
            bytes,
        });
    }
    Ok(listed)
}
