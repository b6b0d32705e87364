//! Connections between the ranks of one node, on systems that have none: every rank reads alone.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::PollFlags;

use super::wire::Record;

/// Pause before records are sent again.
pub(super) const RESEND: Duration = Duration::from_millis(10);

/// Descriptor that a record carries, with what keeps it open.
pub type Carried = Arc<dyn AsFd + Send + Sync>;

/// Socket that other processes can connect to: there is none.
#[derive(Debug)]
pub(crate) enum Listener {}

impl Listener {
    pub(crate) fn new(_prefix: &str) -> io::Result<Self> {
        Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "processes share memory on Linux only",
        ))
    }

    pub(crate) fn name(&self) -> &str {
        match *self {}
    }

    pub(super) fn accept(&self) -> io::Result<Option<Channel>> {
        match *self {}
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match *self {}
    }
}

/// Connection to another rank: there is none.
#[derive(Debug)]
pub(super) enum Channel {}

/// State of the other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Peer {
    Open,
    Gone,
}

impl Channel {
    pub(super) fn connect(_name: &str) -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(super) fn pair() -> io::Result<(Self, Self)> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(super) fn post(&self, _record: Record, _carried: Option<Carried>) {
        match *self {}
    }

    pub(super) fn flush(&self) -> io::Result<bool> {
        match *self {}
    }

    pub(super) fn receive(
        &self,
        _records: &mut Vec<(Record, Option<OwnedFd>)>,
    ) -> io::Result<Peer> {
        match *self {}
    }

    pub(super) fn forget_memory(&self) {
        match *self {}
    }

    pub(super) fn incoming(&self) -> std::iter::Empty<(BorrowedFd<'_>, PollFlags)> {
        match *self {}
    }

    pub(super) fn outgoing<'a>(
        &'a self,
        _waits: &mut Vec<(BorrowedFd<'a>, PollFlags)>,
    ) -> Option<Instant> {
        match *self {}
    }

    pub(super) fn has_queued(&self) -> bool {
        match *self {}
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match *self {}
    }
}
