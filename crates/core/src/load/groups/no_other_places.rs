//! Stands in for `other_places.rs` in builds without object stores: all bytes come from files.

#![expect(clippy::unused_self, reason = "files have no other places")]

use std::ops::Range;

use super::Sources;
use crate::error::{Error, Result};
use crate::memory::Provenance;
use crate::sync::cancel::CancelFlag;

impl Sources {
    pub(crate) fn have_other_places(&self) -> bool {
        false
    }

    pub(crate) fn read_origin(&self, _: usize, _: Range<u64>, _: &CancelFlag) -> Result<Vec<u8>> {
        unreachable!("only objects have other places")
    }

    pub(crate) fn distrust(&self, _: usize, _: Provenance, _: &Range<u64>, _: &Error) -> String {
        String::new()
    }
}
