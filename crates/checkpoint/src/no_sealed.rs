//! Stand-in for sealed checkpoints, in builds without the feature `sealed`: there are no keys.

use super::backend::OpenedSource;
use crate::error::{Error, Result};
use crate::options::Location;

/// Key that opens sealed checkpoints: none in this build.
#[derive(Clone, Copy, Debug)]
pub enum Key {}

/// Opens a file or an object as it is stored.
type Open<'a> = dyn Fn(&Location, usize) -> Result<OpenedSource> + 'a;

#[derive(Debug)]
pub(super) struct Seals(Option<Key>);

impl Seals {
    pub(super) fn new(key: Option<Key>) -> Self {
        Self(key)
    }

    pub(super) fn is_sealed(&self, _: &Location) -> bool {
        self.0.is_some()
    }

    pub(super) fn open(
        &self,
        at: &Location,
        first: usize,
        open: &Open<'_>,
    ) -> Result<OpenedSource> {
        match self.0 {
            Some(key) => match key {},
            None => open(at, first),
        }
    }

    #[expect(clippy::unnecessary_wraps, reason = "with the feature it can fail")]
    pub(super) fn require(&self, _: &Location, _: &[String], _: &Open<'_>) -> Result<()> {
        match self.0 {
            Some(key) => match key {},
            None => Ok(()),
        }
    }

    pub(super) fn explain(&self, error: Error, _: &Location, _: Option<u8>, _: &Open<'_>) -> Error {
        match self.0 {
            Some(key) => match key {},
            None => error,
        }
    }
}
