//! Other places than the origin that bytes of objects come from: the cache and mirrors.

use std::ops::Range;

use super::{Group, Sources};
use crate::error::{Error, Result};
use crate::memory::Provenance;
use crate::schedule::Member;
use crate::storage::{ObjectSource, Source};
use crate::sync::cancel::CancelFlag;

impl Sources {
    fn object(&self, source: usize) -> Option<&ObjectSource> {
        let Member { group, index } = *self.members.get(source)?;
        match &self.groups[group] {
            Group::Objects(objects) | Group::Cached(_, objects) => objects.get(index),
            Group::Files(_) | Group::Shared(_) | Group::Remote(_) => None,
        }
    }

    /// Returns whether any bytes may come from elsewhere than their origin.
    pub(crate) fn have_other_places(&self) -> bool {
        self.objects().any(ObjectSource::has_other_places)
    }

    /// Reads a range of a source from its origin. Blocks, until `cancel` is set.
    ///
    /// # Errors
    ///
    /// Errors of the store; [`crate::ErrorKind::Cancelled`].
    pub(crate) fn read_origin(
        &self,
        source: usize,
        range: Range<u64>,
        cancel: &CancelFlag,
    ) -> Result<Vec<u8>> {
        let object = self.object(source).expect("only objects have other places");
        object.read_origin(range, cancel)
    }

    /// Uses `places` no more for a source: this range of its bytes there is wrong. Returns their
    /// names.
    pub(crate) fn distrust(
        &self,
        source: usize,
        places: Provenance,
        range: &Range<u64>,
        error: &Error,
    ) -> String {
        let object = self.object(source);
        object.map_or_else(String::new, |object| {
            tracing::warn!(location = %object.location(), %error, "wrong bytes came from elsewhere");
            object.distrust(places, range, error)
        })
    }
}
