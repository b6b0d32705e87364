//! Opens an object that the cache has: a conditional request asks whether the object is still in
//! the state that the cache knows, and sends its first bytes only if it is not.

use std::sync::Arc;

use super::cache::{State, TILE_BYTES};
use super::opening::{Seen, header_end, question};
use super::remote::Remote;
use super::{ObjectPath, ObjectSource, Version};
use crate::options::Location;
use crate::options::location::Protocol;

/// Object in the state that the cache knows.
pub(super) struct Known {
    object: ObjectSource,
    /// First bytes: at least the header.
    bytes: Vec<u8>,
    /// Entity tag of the state.
    tag: String,
}

impl Known {
    /// Returns the object at `location`, if the cache has up to `first` bytes of it, or its whole
    /// header, in a state that a store can compare.
    pub(super) fn find(
        remote: &Arc<Remote>,
        object: &ObjectPath,
        location: &Location,
        first: u64,
    ) -> Option<Self> {
        let (cache, url) = (remote.cache()?, location.remote()?);
        let state = question(remote, &object.store, location)?.last::<State>()?;
        let sha256 = state.sha256();
        let identity = state.identity()?;
        let tag = identity.strong_tag()?.to_owned();
        let entry = cache
            .find_entry(location, object.store.origin(), &identity)
            .ok()??;
        // The version that the cache knows may be gone from the store, although its bytes are the
        // same; the remaining bytes are requested by version. A hub sends the place of the
        // remaining bytes with the first ones.
        let is_asked_again = identity.version.is_some() || url.protocol == Protocol::Hub;
        if is_asked_again && !entry.has(&(0..identity.len)) {
            return None;
        }
        let first = first.min(identity.len);
        let bytes = entry.find_all(0..first.min(TILE_BYTES))?;
        let header = header_end(&object.path, &bytes).min(first);
        let bytes = match header {
            1.. if header <= bytes.len() as u64 => bytes,
            1.. => entry.find_all(0..header)?,
            0 => entry.find_all(0..first)?,
        };
        let version = Version {
            identity,
            seen: Seen::known(sha256),
        };
        let (object, entry) = (object.clone(), Some(entry));
        let object = ObjectSource::with_entry(remote, object, location.clone(), version, entry);
        Some(Self { object, bytes, tag })
    }

    pub(super) fn tag(&self) -> &str {
        &self.tag
    }

    pub(super) fn opened(self) -> (ObjectSource, Vec<u8>) {
        (self.object, self.bytes)
    }
}
