//! Connections between the ranks of one node: packets of records, with descriptors.
//!
//! Sequenced-packet sockets keep the limits of messages and report the death of the other process.
//! Their abstract names need no directory, and are visible within one network namespace only.

use std::collections::VecDeque;
use std::io;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind,
    connect, listen, recvmsg, sendmsg, socket_with, socketpair,
};

use super::process::Process;
use super::wait::wait_for;
use super::wire::{DESCRIPTORS_MAX, RECORD_BYTES, RECORDS_MAX, Record};
use crate::sync::lock::Mutex;

/// Pause before records are sent again that the system had no memory or no descriptors for: no
/// event tells when it has.
pub(super) const RESEND: Duration = Duration::from_millis(10);

const FLAGS: SocketFlags = SocketFlags::CLOEXEC.union(SocketFlags::NONBLOCK);

/// Descriptor that a record carries, with what keeps it open.
pub type Carried = Arc<dyn AsFd + Send + Sync>;

/// Socket that other processes of the network namespace can connect to.
#[derive(Debug)]
pub(crate) struct Listener {
    socket: OwnedFd,
    name: String,
}

impl Listener {
    /// Listens under a new abstract name that begins with `prefix`.
    pub(crate) fn new(prefix: &str) -> io::Result<Self> {
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, FLAGS, None)?;
        let name = format!("{prefix}{}-{:016x}", std::process::id(), fastrand::u64(..));
        bind(
            &socket,
            &SocketAddrUnix::new_abstract_name(name.as_bytes())?,
        )?;
        listen(&socket, 1024)?;
        Ok(Self { socket, name })
    }

    /// Makes one that the system refuses to accept from.
    #[cfg(test)]
    pub(super) fn refused() -> Self {
        let (channel, _) = Channel::pair().expect("a pair");
        Self {
            socket: channel.socket,
            name: String::new(),
        }
    }

    /// Returns the name to connect to.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Accepts a connection of a process of the same user, if there is one. Closes those of others.
    pub(super) fn accept(&self) -> io::Result<Option<Channel>> {
        loop {
            match accept_with(&self.socket, FLAGS) {
                Ok(socket) => {
                    if let Some(peer) = of_same_user(&socket) {
                        return Ok(Some(Channel::new(socket, peer.end())));
                    }
                }
                Err(Errno::AGAIN) => return Ok(None),
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Connection to another rank.
pub(super) struct Channel {
    socket: OwnedFd,
    /// Readable when the process at the other end has ended: a child that it has forked may keep
    /// the connection open.
    end: Option<OwnedFd>,
    outbox: Mutex<VecDeque<(Record, Option<Carried>)>>,
    /// True if the system had no memory or no descriptors for queued records. The socket counts as
    /// ready meanwhile.
    is_refused: AtomicBool,
}

/// State of the other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Peer {
    /// It may send more.
    Open,
    /// It closed the connection, or died.
    Gone,
}

impl Channel {
    fn new(socket: OwnedFd, end: Option<OwnedFd>) -> Self {
        Self {
            socket,
            end,
            outbox: Mutex::default(),
            is_refused: AtomicBool::new(false),
        }
    }

    /// Connects to the listener of this abstract name, which must be of the same user.
    pub(super) fn connect(name: &str) -> io::Result<Self> {
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, FLAGS, None)?;
        connect(
            &socket,
            &SocketAddrUnix::new_abstract_name(name.as_bytes())?,
        )?;
        let Some(peer) = of_same_user(&socket) else {
            return Err(Errno::PERM.into());
        };
        Ok(Self::new(socket, peer.end()))
    }

    /// Creates two connected channels.
    pub(super) fn pair() -> io::Result<(Self, Self)> {
        let (one, other) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, FLAGS, None)?;
        Ok((Self::new(one, None), Self::new(other, None)))
    }

    /// Queues a record. [`Self::flush`] sends it.
    pub(super) fn post(&self, record: Record, carried: Option<Carried>) {
        debug_assert_eq!(record.has_descriptor(), carried.is_some());
        self.outbox.lock().push_back((record, carried));
    }

    /// Sends queued records as far as the other end takes them. Returns whether none is left.
    ///
    /// # Errors
    ///
    /// The other end is gone, or the system refuses.
    pub(super) fn flush(&self) -> io::Result<bool> {
        let mut outbox = self.outbox.lock();
        self.is_refused.store(false, Ordering::Relaxed);
        while !outbox.is_empty() {
            let mut bytes = Vec::new();
            let (mut records, mut descriptors) = (0, Vec::new());
            for (record, carried) in outbox.iter().take(RECORDS_MAX) {
                if carried.is_some() && descriptors.len() == DESCRIPTORS_MAX {
                    break;
                }
                bytes.extend_from_slice(&record.encode());
                descriptors.extend(carried.as_ref().map(AsFd::as_fd));
                records += 1;
            }
            let mut space =
                [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
            let mut ancillary = SendAncillaryBuffer::new(&mut space);
            if !descriptors.is_empty() {
                ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
            }
            let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
            match sendmsg(&self.socket, &[IoSlice::new(&bytes)], &mut ancillary, flags) {
                Ok(_) => drop(outbox.drain(..records)),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(false),
                Err(Errno::NOBUFS | Errno::TOOMANYREFS) => {
                    self.is_refused.store(true, Ordering::Relaxed);
                    return Ok(false);
                }
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(true)
    }

    /// Moves all received records into `records`.
    ///
    /// # Errors
    ///
    /// The system refuses, or the other end sent bytes that are no records.
    pub(super) fn receive(&self, records: &mut Vec<(Record, Option<OwnedFd>)>) -> io::Result<Peer> {
        // Looked at first: everything that the process sent before its end is received below.
        let has_ended = self.has_ended()?;
        loop {
            let mut bytes = [0; RECORDS_MAX * RECORD_BYTES];
            let mut space =
                [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
            let mut ancillary = RecvAncillaryBuffer::new(&mut space);
            let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
            let mut parts = [IoSliceMut::new(&mut bytes)];
            let received = match recvmsg(&self.socket, &mut parts, &mut ancillary, flags) {
                Ok(received) => received,
                // A connection that is closed before all was received is reported as reset, once,
                // and before what came over it: that may name the cause.
                Err(Errno::INTR | Errno::CONNRESET) => continue,
                Err(Errno::AGAIN) if has_ended => return Ok(Peer::Gone),
                Err(Errno::AGAIN) => return Ok(Peer::Open),
                Err(errno) => return Err(errno.into()),
            };
            if received.bytes == 0 {
                return Ok(Peer::Gone);
            }
            let mut descriptors = VecDeque::new();
            for message in ancillary.drain() {
                if let RecvAncillaryMessage::ScmRights(rights) = message {
                    descriptors.extend(rights);
                }
            }
            for bytes in bytes[..received.bytes].chunks(RECORD_BYTES) {
                let record = Record::decode(bytes).ok_or(io::ErrorKind::InvalidData)?;
                let carried = if record.has_descriptor() {
                    // The kernel leaves descriptors out when the process has too many open.
                    Some(descriptors.pop_front().ok_or(Errno::MFILE)?)
                } else {
                    None
                };
                records.push((record, carried));
            }
        }
    }

    /// Replaces queued announcements of memory by the record that it is gone.
    pub(super) fn forget_memory(&self) {
        let forgotten: Vec<_> = {
            let mut outbox = self.outbox.lock();
            let forget = |(record, carried): &mut (Record, Option<Carried>)| {
                let Record::Here { region } = *record else {
                    return None;
                };
                *record = Record::Gone { region };
                carried.take()
            };
            outbox.iter_mut().filter_map(forget).collect()
        };
        // Without the lock: this may free memory.
        drop(forgotten);
    }

    /// Returns what to wait for until the other end has sent something, or its process has ended.
    pub(super) fn incoming(&self) -> impl Iterator<Item = (BorrowedFd<'_>, PollFlags)> {
        let descriptors = std::iter::once(&self.socket).chain(&self.end);
        descriptors.map(|descriptor| (descriptor.as_fd(), PollFlags::IN))
    }

    /// Adds to `waits` what to wait for before the rest of the queue is sent. Returns the time when
    /// to try again where the system has refused it.
    pub(super) fn outgoing<'a>(
        &'a self,
        waits: &mut Vec<(BorrowedFd<'a>, PollFlags)>,
    ) -> Option<Instant> {
        if !self.has_queued() {
            return None;
        }
        if self.is_refused.load(Ordering::Relaxed) {
            return Some(Instant::now() + RESEND);
        }
        waits.push((self.as_fd(), PollFlags::OUT));
        None
    }

    fn has_ended(&self) -> io::Result<bool> {
        let Some(end) = &self.end else {
            return Ok(false);
        };
        let ready = wait_for(&[(end.as_fd(), PollFlags::IN)], Some(Instant::now()))?;
        Ok(ready[0])
    }

    /// Returns whether records wait to be sent.
    pub(super) fn has_queued(&self) -> bool {
        !self.outbox.lock().is_empty()
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl std::fmt::Debug for Channel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Channel")
            .field("socket", &self.socket)
            .finish_non_exhaustive()
    }
}

/// Returns the process at the other end if it belongs to the same user.
fn of_same_user(socket: &OwnedFd) -> Option<Process> {
    let peer = Process::at_other_end(socket).ok()?;
    peer.is_same_user().then_some(peer)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::SharedMemory;

    #[test]
    fn records_and_descriptors_arrive_in_order() {
        let (one, other) = Channel::pair().expect("sockets");
        let memory: Carried = Arc::new(SharedMemory::new(4096).expect("room"));
        for region in 0..300 {
            one.post(Record::Ask { region }, None);
            if region % 3 == 0 {
                one.post(Record::Here { region }, Some(Arc::clone(&memory)));
            }
        }
        assert!(one.flush().expect("open"));
        let mut records = Vec::new();
        assert_eq!(other.receive(&mut records).expect("open"), Peer::Open);
        assert_eq!(records.len(), 400);
        let here = records.iter().filter(|(_, carried)| carried.is_some());
        assert_eq!(here.count(), 100);
        assert_eq!(records[0].0, Record::Ask { region: 0 });
        assert_eq!(records[1].0, Record::Here { region: 0 });
    }

    #[test]
    fn full_socket_keeps_the_rest_queued() {
        let (one, other) = Channel::pair().expect("sockets");
        for region in 0..1_000_000 {
            one.post(Record::Ask { region }, None);
        }
        assert!(!one.flush().expect("open"));
        let mut records = Vec::new();
        while records.len() < 1_000_000 {
            other.receive(&mut records).expect("open");
            one.flush().expect("open");
        }
        assert_eq!(records[999_999].0, Record::Ask { region: 999_999 });
    }

    /// The socket is ready, and a thread that waits for that would wait for nothing.
    #[test]
    fn queue_that_the_system_refuses_is_sent_after_a_pause() {
        let (one, _other) = Channel::pair().expect("sockets");
        one.post(Record::Alive, None);
        let outgoing = || {
            let mut waits = Vec::new();
            let again = one.outgoing(&mut waits);
            (waits.len(), again.is_some())
        };
        assert_eq!(outgoing(), (1, false));
        one.is_refused.store(true, Ordering::Relaxed);
        assert_eq!(outgoing(), (0, true));
        assert!(one.flush().expect("open"));
        assert_eq!(outgoing(), (0, false));
        one.post(Record::Alive, None);
        assert_eq!(outgoing(), (1, false));
    }

    #[test]
    fn closed_end_is_gone() {
        let (one, other) = Channel::pair().expect("sockets");
        drop(one);
        assert_eq!(other.receive(&mut Vec::new()).expect("closed"), Peer::Gone);
    }

    #[test]
    fn last_records_of_an_end_that_had_not_received_all_arrive() {
        let (one, other) = Channel::pair().expect("sockets");
        other.post(Record::Alive, None);
        assert!(other.flush().expect("open"));
        one.post(Record::Whole, None);
        assert!(one.flush().expect("open"));
        drop(one);
        let mut records = Vec::new();
        assert_eq!(other.receive(&mut records).expect("closed"), Peer::Gone);
        assert!(matches!(records[..], [(Record::Whole, None)]));
    }

    #[test]
    fn listener_accepts_process_of_same_user() {
        let listener = Listener::new("tload-").expect("a socket");
        assert!(listener.accept().expect("listens").is_none());
        let one = Channel::connect(listener.name()).expect("listens");
        let other = listener.accept().expect("listens").expect("connected");
        one.post(Record::Joined, None);
        assert!(one.flush().expect("open"));
        wait_for(&[(other.as_fd(), PollFlags::IN)], None).expect("polls");
        let mut records = Vec::new();
        other.receive(&mut records).expect("open");
        assert_eq!(records[0].0, Record::Joined);
        drop(listener);
    }
}
