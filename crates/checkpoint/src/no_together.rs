//! Opening without object stores: the ranks of a node share the page cache, so each opens files
//! itself.

use super::OpenOptions;
use crate::error::Result;
use crate::options::Location;

/// Task of a rank in the opening of a group.
pub(super) struct Together;

/// Opening of another rank: there is none.
pub(super) enum Opening {}

impl Together {
    #[expect(clippy::unnecessary_wraps, reason = "objects are opened together")]
    pub(super) fn find(_locations: &[Location], _options: &OpenOptions) -> Result<Self> {
        Ok(Self)
    }

    #[expect(clippy::unnecessary_wraps, reason = "objects are opened together")]
    pub(super) fn receive(self) -> Result<(Self, Option<Opening>)> {
        Ok((self, None))
    }

    #[expect(clippy::unused_self, reason = "objects are opened together")]
    pub(super) fn finish<T>(self, opened: Result<T>) -> Result<T> {
        opened
    }
}
