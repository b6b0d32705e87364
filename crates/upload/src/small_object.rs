//! One small object that is written beside others, unless another program has written it meanwhile.

use std::sync::Arc;

use bytes::Bytes;
use object_store::PutMode;
use object_store::path::Path;
use tload_write::objects::{CLAIM, Client, FRAGMENTS_NAME, shards};

use crate::error::{Error, ErrorKind, Result};
use crate::options::{Location, StoreOptions};

/// Small object to write, such as a manifest. It is looked at before work begins whose result it
/// takes.
///
/// # Examples
///
/// ```no_run
/// # mod tload {
/// #     pub use tload_base::{error::Result, options::{Location, StoreOptions}};
/// #     pub mod copy { pub use tload_upload::SmallObject; }
/// # }
/// # fn main() -> tload::Result<()> {
/// use tload::copy::SmallObject;
/// use tload::{Location, StoreOptions};
///
/// let location = Location::parse("s3://bucket/model/config.json")?;
/// SmallObject::open(&location, &StoreOptions::new(), false)?.put(b"{}")?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct SmallObject {
    client: Arc<Client>,
    location: Location,
    path: Path,
    mode: PutMode,
}

impl SmallObject {
    /// Looks at what is there.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidRequest`] for an object that exists, unless it is to be replaced;
    /// [`ErrorKind::Unsupported`] for a place that cannot be written to; those of the store.
    pub fn open(location: &Location, store: &StoreOptions, replace: bool) -> Result<Self> {
        let client = Client::open(&location.parent(), store)?;
        let path = client.path_below(location.file_name())?;
        let asked = path.clone();
        let state = client.wait(|client| async move { client.state(&asked).await })?;
        let mode = match state {
            Some(state) if replace => PutMode::Update(state.version),
            Some(_) => {
                return Err(Error::new(ErrorKind::InvalidRequest, "already exists")
                    .with_location(location)
                    .with_hint("use ‹force› to replace it, or write to another path"));
            }
            None => PutMode::Create,
        };
        Ok(Self {
            client,
            location: location.clone(),
            path,
            mode,
        })
    }

    /// Writes the object.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Changed`] if it has been written since [`Self::open`]; those of the store.
    pub fn put(self, text: &[u8]) -> Result<()> {
        let (path, mode, text) = (self.path, self.mode, Bytes::copy_from_slice(text));
        let put = |client: Arc<Client>| async move { client.put(&path, &text, mode).await };
        let put = self.client.wait(put);
        match put.map_err(|error| error.or_location(&self.location))? {
            Some(_) => Ok(()),
            None => Err(Error::new(ErrorKind::Changed, "was written meanwhile")
                .with_location(&self.location)
                .with_hint("see that no two programs write to the same place, and write again")),
        }
    }
}

/// Writes the list of files of several processes: they are the checkpoint below `location` then.
///
/// # Errors
///
/// [`ErrorKind::Changed`] if another write was faster or has claimed the prefix, which the error
/// names: then the files are removed. Those of the store.
#[doc(hidden)]
pub fn publish_fragments(location: &Location, list: &[u8], store: &StoreOptions) -> Result<()> {
    let client = Client::open(location, store)?;
    let (claim, path) = (client.path(CLAIM), client.path(FRAGMENTS_NAME));
    let text = Bytes::copy_from_slice(list);
    let taken = client.wait(|client| async move {
        // A writer that claims the prefix later than this lists it, and finds the files.
        if client.state(&claim).await?.is_some() {
            return Ok(Some(CLAIM));
        }
        let put = client.put(&path, &text, PutMode::Create).await?;
        Ok(put.is_none().then_some(FRAGMENTS_NAME))
    })?;
    let Some(taken) = taken else { return Ok(()) };
    let files = shards(list);
    client.delete(files.iter().map(|name| client.path(name)).collect())?;
    Err(client.conflict(taken))
}
