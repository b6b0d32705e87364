//! Stands in for `objects.rs` in builds without object stores.

use std::convert::Infallible;
use std::ops::Range;
use std::sync::atomic::AtomicU64;

use rustix::event::PollFlags;
use tload::verify::Digest;
use tload::{Error, ErrorKind, Location, Result, StoreOptions};

use super::listing::Entry;
use super::socket::Transport;
use super::target::Target;
use super::transmit::Ended;
use super::version::Version;

#[derive(Debug)]
pub(super) struct Objects(Infallible);

#[derive(Debug)]
pub(super) struct Object(Infallible);

impl Objects {
    pub(super) fn open(location: Option<&Location>, _store: &StoreOptions) -> Result<Self> {
        let message = "this build does not support object stores";
        let error = Error::new(ErrorKind::Unsupported, message);
        Err(match location {
            Some(location) => error.with_location(location),
            None => error,
        })
    }

    pub(super) fn is_cache(&self) -> bool {
        match self.0 {}
    }

    pub(super) fn find(&self, _target: &Target) -> Result<(Object, Version)> {
        match self.0 {}
    }

    pub(super) fn list(&self, _target: &Target) -> Result<Vec<Entry>> {
        match self.0 {}
    }
}

impl Object {
    pub(super) fn digest(&self) -> Option<Digest> {
        match self.0 {}
    }

    pub(super) fn has(&self, _range: &Range<u64>) -> bool {
        match self.0 {}
    }

    pub(super) fn send(
        &self,
        _range: Range<u64>,
        _to: (&mut Transport, PollFlags),
        _sent_bytes: &AtomicU64,
    ) -> std::result::Result<(), Ended> {
        match self.0 {}
    }
}
