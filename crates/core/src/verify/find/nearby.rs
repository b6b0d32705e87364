//! Reads small files beside a checkpoint, wherever that is.

#[cfg(feature = "object")]
use std::sync::Arc;

use crate::checkpoint::ShardSource;
use crate::error::{Error, ErrorKind, Result};
use crate::request::format_bytes;
use crate::source::{FileSource, Location, Protocol, Root, Source, StoreOptions};
#[cfg(feature = "object")]
use crate::source::{ObjectSource, Remote};
use crate::within::Underway;

/// First read of an object, bytes: all of most manifests.
#[cfg(feature = "object")]
const FIRST_BYTES: u64 = 1 << 20;

/// How files beside a checkpoint are reached.
#[derive(Debug)]
pub(in super::super) struct Nearby<'a> {
    store: &'a StoreOptions,
    /// Whether what is found in a folder may be a link that leads out of it.
    follow_symlinks: bool,
    underway: Underway,
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
            Self {
                store,
                follow_symlinks: false,
                underway: Underway::default(),
                remote,
            }
        }
        #[cfg(not(feature = "object"))]
        {
            drop(sources.into_iter());
            Self {
                store,
                follow_symlinks: false,
                underway: Underway::default(),
            }
        }
    }

    /// The same, as the checkpoint was opened: whether links in its folders may lead out of them.
    pub(in super::super) fn following(mut self, follow_symlinks: bool) -> Self {
        self.follow_symlinks = follow_symlinks;
        self
    }

    /// The same, and `underway` is told what is being waited for.
    pub(super) fn telling(mut self, underway: &Underway) -> Self {
        self.underway = underway.clone();
        self
    }

    /// What is being waited for.
    pub(super) fn underway(&self) -> &Underway {
        &self.underway
    }

    /// All of a file that nobody has named, if it is in `folder`. Where a link is in its place, what that leads to has to be in the
    /// folder as well: folders come from anywhere, and errors and reports tell of what is read. Servers that must not be listed say
    /// 403 of what is not there.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::PermissionDenied`] for a link that leads out of the folder; whatever else reading runs into.
    pub(in super::super) fn read_in(
        &self,
        folder: &Location,
        location: &Location,
        bytes_max: u64,
    ) -> Result<Option<Vec<u8>>> {
        let root = || match location.as_path() {
            Some(_) if !self.follow_symlinks => Root::open(folder).map(Some),
            _ => Ok(None),
        };
        let found = self.underway.during(location, || {
            self.read_now(root()?.as_ref(), location, bytes_max)
        });
        match if_there(found) {
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
        let read = || self.read_now(None, location, bytes_max);
        if_there(self.underway.during(location, read))
    }

    fn read_now(
        &self,
        root: Option<&Root>,
        location: &Location,
        bytes_max: u64,
    ) -> Result<Vec<u8>> {
        if location.as_path().is_none() {
            return self.read_object(location, bytes_max);
        }
        let file = FileSource::open_in(root, location, None)?;
        whole(&file, Vec::new(), bytes_max)
    }

    #[cfg(feature = "object")]
    fn read_object(&self, location: &Location, bytes_max: u64) -> Result<Vec<u8>> {
        let remote = match &self.remote {
            Some(remote) => Arc::clone(remote),
            None => Remote::start(self.store)?,
        };
        let (object, first) = ObjectSource::open(&remote, location, FIRST_BYTES, None)?;
        let came = first.len() as u64;
        let text = whole(&object, first, bytes_max)?;
        if came < object.len() {
            object.verify_unchanged()?;
        }
        Ok(text)
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

fn if_there(found: Result<Vec<u8>>) -> Result<Option<Vec<u8>>> {
    match found {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        found => found.map(Some),
    }
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
