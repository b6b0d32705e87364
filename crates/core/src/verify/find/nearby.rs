//! Reads small files beside a checkpoint, wherever that is.

#[cfg(feature = "object")]
use std::sync::Arc;

use crate::checkpoint::ShardSource;
use crate::error::{Error, ErrorKind, Result};
use crate::request::format_bytes;
use crate::source::{FileSource, Location, Protocol, Source, StoreOptions};
#[cfg(feature = "object")]
use crate::source::{ObjectSource, Remote};

/// First read of an object, bytes: all of most manifests.
#[cfg(feature = "object")]
const FIRST_BYTES: u64 = 1 << 20;

/// How files beside a checkpoint are reached.
#[derive(Debug)]
pub(in super::super) struct Nearby<'a> {
    store: &'a StoreOptions,
    /// The threads and stores of the checkpoint itself.
    #[cfg(feature = "object")]
    remote: Option<Arc<Remote>>,
}

impl<'a> Nearby<'a> {
    /// As the sources are reached; files elsewhere as `store` says.
    pub(in super::super) fn of<'s>(
        sources: impl IntoIterator<Item = &'s ShardSource>,
        store: &'a StoreOptions,
    ) -> Self {
        #[cfg(feature = "object")]
        {
            let remote = sources.into_iter().find_map(|source| match source {
                ShardSource::Object(object) => Some(Arc::clone(object.remote())),
                ShardSource::File(_) => None,
            });
            Self { store, remote }
        }
        #[cfg(not(feature = "object"))]
        {
            drop(sources.into_iter());
            Self { store }
        }
    }

    /// All of a file, if it is there. Servers that must not be listed say 403 of what is not.
    pub(in super::super) fn read_if_there(
        &self,
        location: &Location,
        bytes_max: u64,
    ) -> Result<Option<Vec<u8>>> {
        match self.read(location, bytes_max) {
            Err(error)
                if error.kind() == ErrorKind::PermissionDenied && location.as_path().is_none() =>
            {
                Ok(None)
            }
            // Some sites have a page for whatever is asked for.
            Ok(Some(text)) if location.protocol() == Some(Protocol::Http) && !is_object(&text) => {
                Ok(None)
            }
            found => found,
        }
    }

    /// All of a file; none if it is not there.
    pub(in super::super) fn read(
        &self,
        location: &Location,
        bytes_max: u64,
    ) -> Result<Option<Vec<u8>>> {
        let found = if location.as_path().is_some() {
            read_file(location, bytes_max)
        } else {
            self.read_object(location, bytes_max)
        };
        match found {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            found => found.map(Some),
        }
    }

    #[cfg(feature = "object")]
    fn read_object(&self, location: &Location, bytes_max: u64) -> Result<Vec<u8>> {
        let remote = match &self.remote {
            Some(remote) => Arc::clone(remote),
            None => Remote::start(self.store)?,
        };
        let (object, first) = ObjectSource::open(&remote, location, FIRST_BYTES, None)?;
        whole(&object, first, bytes_max)
    }

    #[cfg(not(feature = "object"))]
    fn read_object(&self, location: &Location, _bytes_max: u64) -> Result<Vec<u8>> {
        let _ = self.store;
        Err(
            Error::new(ErrorKind::Unsupported, "this build reads no object stores")
                .with_location(location)
                .with_hint("build with the feature `object`"),
        )
    }
}

pub(super) fn read_file(location: &Location, bytes_max: u64) -> Result<Vec<u8>> {
    let file = FileSource::open(location)?;
    whole(&file, Vec::new(), bytes_max)
}

/// All bytes of a source, of which `first` are there already.
fn whole(source: &impl Source, mut first: Vec<u8>, bytes_max: u64) -> Result<Vec<u8>> {
    let too_long = || {
        let (found, most) = (format_bytes(source.len()), format_bytes(bytes_max));
        Error::new(
            ErrorKind::InvalidFormat,
            format!("has {found}, and such a file has at most {most}"),
        )
        .with_location(source.location())
    };
    if source.len() > bytes_max {
        return Err(too_long());
    }
    let len = usize::try_from(source.len()).map_err(|_| too_long())?;
    if first.len() < len {
        first.extend(source.fetch(first.len() as u64, len - first.len())?);
    }
    Ok(first)
}

/// Whether it looks like an object of JSON.
fn is_object(text: &[u8]) -> bool {
    text.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'{')
}
