//! Stands in for `objects.rs` in builds without object stores.

use std::convert::Infallible;
use std::ops::Range;
use std::sync::atomic::AtomicU64;

use rustix::event::PollFlags;
use tload::verify::Digest;
use tload::{Error, ErrorKind, Location, Result, StoreOptions};

use crate::listing::Entry;
use crate::socket::Transport;
use crate::target::Target;
use crate::transmit::Ended;
use crate::version::Version;

#[derive(Debug)]
pub(crate) struct Objects(Infallible);

#[derive(Debug)]
pub(crate) struct Object(Infallible);

impl Objects {
    pub(crate) fn open(location: Option<&Location>, _store: &StoreOptions) -> Result<Self> {
        let message = "this build does not support object stores";
        let error = Error::new(ErrorKind::Unsupported, message);
        Err(match location {
            Some(location) => error.with_location(location),
            None => error,
        })
    }

    pub(crate) fn is_cache(&self) -> bool {
        match self.0 {}
    }

    pub(crate) fn find(&self, _target: &Target) -> Result<(Object, Version)> {
        match self.0 {}
    }

    pub(crate) fn list(&self, _target: &Target) -> Result<Vec<Entry>> {
        match self.0 {}
    }
}

impl Object {
    pub(crate) fn digest(&self) -> Option<Digest> {
        match self.0 {}
    }

    pub(crate) fn has(&self, _range: &Range<u64>) -> bool {
        match self.0 {}
    }

    pub(crate) fn send(
        &self,
        _range: Range<u64>,
        _to: &mut Transport,
        _closed: PollFlags,
        _sent_bytes: &AtomicU64,
    ) -> std::result::Result<(), Ended> {
        match self.0 {}
    }
}
