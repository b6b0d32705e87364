//! Objects that are served: below a URL, or in the cache.

use std::io::ErrorKind::ConnectionAborted;
use std::io::{self, Write};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use tload::internal::storage::ObjectSource;
use tload::internal::storage::object::ObjectSite;
use tload::verify::{Algorithm, Digest};
use tload::{Error, ErrorKind, FailedRequest, Location, Result, StoreOptions};

use crate::listing::Entry;
use crate::socket::Transport;
use crate::target::Target;
use crate::transmit::Ended;
use crate::version::Version;

/// Longest time that the start of a server waits for its store.
const LOOK: Duration = Duration::from_secs(10);

/// Objects that are served.
#[derive(Debug)]
pub(crate) struct Objects {
    site: ObjectSite,
    /// True if nothing but the cache is read.
    is_cache: bool,
    /// Why the store or the cache could not be asked at the start.
    doubt: Option<Error>,
}

/// Object that is sent.
#[derive(Debug)]
pub(crate) struct Object {
    source: ObjectSource,
    is_cache: bool,
}

impl Objects {
    /// Opens what is below `location`, or what is in the cache.
    ///
    /// # Errors
    ///
    /// Mistakes, which would fail the requests of all clients: the bucket does not exist, or the
    /// store does not accept the credentials. What may be otherwise later is kept as the
    /// [doubt](Self::doubt).
    pub(crate) fn open(location: Option<&Location>, store: &StoreOptions) -> Result<Self> {
        let site = match location {
            Some(location) => ObjectSite::below(location, store)?,
            None => ObjectSite::cached(store)?,
        };
        let doubt = match site.require_existing(Instant::now() + LOOK) {
            Err(error) if is_mistake(&error, location) => return Err(error),
            looked => looked.err(),
        };
        Ok(Self {
            site,
            is_cache: location.is_none(),
            doubt,
        })
    }

    /// Returns why the store or the cache could not be asked at the start.
    pub(crate) fn doubt(&self) -> Option<&Error> {
        self.doubt.as_ref()
    }

    /// Returns whether nothing but the cache is read. Its clients may name any store.
    pub(crate) fn is_cache(&self) -> bool {
        self.is_cache
    }

    /// Finds the object that `target` names, and its version.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotFound`], and the errors of the store.
    pub(crate) fn find(&self, target: &Target) -> Result<(Object, Version)> {
        let source = self.site.open(&names(target)?)?;
        let version = Version::of_object(source.identity());
        let is_cache = self.is_cache;
        Ok((Object { source, is_cache }, version))
    }

    /// Lists one level of what is below the directory that `target` names. Stores tell no more than
    /// names at little cost.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotFound`] where nothing is listed, and the errors of the store.
    pub(crate) fn list(&self, target: &Target) -> Result<Vec<Entry>> {
        let (directories, files) = self.site.list(&names(target)?)?;
        let entry = |is_directory| {
            move |name: String| Entry {
                name: name.into(),
                is_directory,
                bytes: None,
                modified: None,
                digest: None,
            }
        };
        let directories = directories.into_iter().map(entry(true));
        Ok(directories
            .chain(files.into_iter().map(entry(false)))
            .collect())
    }
}

/// Returns whether a failure at the start would be that of every request.
fn is_mistake(error: &Error, location: Option<&Location>) -> bool {
    // The store may come back.
    let later = [ErrorKind::Remote, ErrorKind::TimedOut, ErrorKind::Io];
    if later.contains(&error.kind()) {
        return false;
    }
    if error.kind() == ErrorKind::NotFound {
        // The first load creates the cache.
        return location.is_some();
    }
    // Credentials may read objects and not list them.
    let may_read = |request: &FailedRequest| {
        let is_denied = request.status == Some(403);
        let code = request.code.as_deref().unwrap_or("AccessDenied");
        request.operation == "LIST" && is_denied && code == "AccessDenied"
    };
    error.kind() != ErrorKind::PermissionDenied || !error.request().is_some_and(may_read)
}

/// Returns the components of a path; keys of objects are UTF-8.
fn names(target: &Target) -> Result<Vec<&str>> {
    let names: Option<_> = target.components.iter().map(|it| it.to_str()).collect();
    names.ok_or_else(|| Error::new(ErrorKind::NotFound, "not found"))
}

impl Object {
    /// Returns the SHA-256 of the object if a server has stated it.
    pub(crate) fn digest(&self) -> Option<Digest> {
        Digest::from_hex(Algorithm::Sha256, &self.source.stated_sha256()?)
    }

    /// Returns whether a range can be read: of an object in the cache, what the cache has.
    pub(crate) fn has(&self, range: &Range<u64>) -> bool {
        !self.is_cache || self.source.is_cached(range)
    }

    /// Sends a range to a client, which had `closed` these directions before it had anything of the
    /// response.
    pub(crate) fn send(
        &self,
        range: Range<u64>,
        to: &mut Transport,
        closed: PollFlags,
        sent_bytes: &AtomicU64,
    ) -> std::result::Result<(), Ended> {
        let mut counted = Counted {
            to,
            closed,
            sent_bytes,
            failed: None,
        };
        let copied = self.source.copy_to(range, &mut counted);
        match (counted.failed, copied) {
            (Some(error), _) => Err(Ended::Client(error)),
            (None, Err(error)) => Err(Ended::Store(error)),
            (None, Ok(())) => to.flush().map_err(Ended::Client),
        }
    }
}

/// Connection that counts, and keeps its own error.
struct Counted<'a> {
    to: &'a mut Transport,
    closed: PollFlags,
    sent_bytes: &'a AtomicU64,
    failed: Option<io::Error>,
}

impl Write for Counted<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.to.write(bytes);
        match &written {
            Ok(len) => {
                self.sent_bytes.fetch_add(*len as u64, Ordering::Relaxed);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => self.failed = Some(error.kind().into()),
        }
        written
    }

    /// Fails also if the client has hung up. One that had closed its direction with its request,
    /// as `nc -N` does, reads on, or has answered the head with a reset. One that closes it later
    /// has given up.
    fn flush(&mut self) -> io::Result<()> {
        let checked = self.to.flush().and_then(|()| {
            let is_same = self.closed.contains(self.to.socket().closed());
            is_same
                .then_some(())
                .ok_or_else(|| ConnectionAborted.into())
        });
        checked.inspect_err(|error| self.failed = Some(error.kind().into()))
    }
}
