//! Other places than the origin that bytes of objects come from: the cache and mirrors.

use std::ops::Range;

use super::Sources;
use crate::error::{Error, Result};
use crate::memory::Provenance;
use crate::schedule::Member;
use crate::sync::cancel::CancelFlag;

/// Source whose bytes may come from elsewhere than its origin.
pub(crate) trait OtherPlaces {
    fn exist(&self) -> bool;
    fn read_origin(&self, range: Range<u64>, cancel: &CancelFlag) -> Result<Vec<u8>>;
    fn distrust(&self, places: Provenance, range: &Range<u64>, error: &Error) -> String;
}

impl Sources {
    fn other_places(&self, source: usize) -> Option<&dyn OtherPlaces> {
        let Member { group, index } = *self.members.get(source)?;
        self.groups[group].other_places(index)
    }

    /// Returns whether any bytes may come from elsewhere than their origin.
    pub(crate) fn have_other_places(&self) -> bool {
        let mut sources = 0..self.members.len();
        sources.any(|source| self.other_places(source).is_some_and(OtherPlaces::exist))
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
        let object = self.other_places(source);
        let object = object.expect("only objects have other places");
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
        let object = self.other_places(source);
        object.map_or_else(String::new, |object| {
            tracing::warn!(%error, "wrong bytes came from elsewhere");
            object.distrust(places, range, error)
        })
    }
}
