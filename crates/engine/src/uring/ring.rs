//! Ring: setting it up, registering files and memory, queueing reads, entering the kernel.
//!
//! Every optional feature that a kernel may refuse (flags, registered files, registered buffers) is
//! tried and done without. Only a ring that cannot be made, or that cannot read, is a [`Refusal`].

#![expect(
    unsafe_code,
    reason = "queues reads into leased memory and registers it with the kernel"
)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use io_uring::types::{Fd, Fixed, Timespec};
use io_uring::{IoUring, Probe, opcode, squeue};
use rustix::event::{EventfdFlags, eventfd};

use crate::fill::Read;
use crate::memory::{Lease, Slab};
use crate::setup::Refusal;
use crate::storage::{Access, ReadFile};

/// Ring and the resources registered with it.
pub(super) struct Ring {
    io: IoUring,
    single_issuer: bool,
    defer_taskrun: bool,
    registered_files: bool,
    /// Keeps registered memory mapped for as long as the ring may refer to it. Declared after `io`:
    /// dropped after it.
    registered_slab: Option<Arc<Slab>>,
    /// Indexed by slot: duration of its pause. The kernel reads it when the entry is submitted.
    pauses: Box<[Timespec]>,
    /// Descriptor that wakes a thread waiting in the ring, until it has done so.
    waker: Option<Arc<OwnedFd>>,
}

/// User data of entries that belong to no slot: the waker, and cancellations.
const WOKEN: u64 = u64::MAX;
const IGNORED: u64 = u64::MAX - 1;

/// Completion reported by the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Completion {
    /// The read of a slot, or its pause, has ended: a count of bytes, or an error number.
    Of(usize, Result<usize, i32>),
    /// The waker has woken the ring.
    Woken,
}

/// Read to queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct Submission<'a> {
    /// Index returned with the completion.
    pub(super) slot: usize,
    /// Index of the source.
    pub(super) source: usize,
    /// Descriptor of the source for this read.
    pub(super) descriptor: BorrowedFd<'a>,
    /// Read to do.
    pub(super) read: Read,
    /// True if kernel threads do the read.
    pub(super) punted: bool,
    /// True if the descriptor is registered.
    pub(super) registered: bool,
}

impl Ring {
    /// Opens a ring that takes `depth` reads at a time.
    pub(super) fn open(depth: usize) -> Result<Self, Refusal> {
        let entries = u32::try_from(depth.max(1)).unwrap_or(u32::MAX);
        let (io, single_issuer, defer_taskrun) = build(entries)?;
        let mut opened = Self {
            io,
            single_issuer,
            defer_taskrun,
            registered_files: false,
            registered_slab: None,
            pauses: vec![Timespec::new(); depth].into(),
            waker: None,
        };
        opened.try_reading()?;
        Ok(opened)
    }

    /// Tests the ring: some sandboxes let a ring be made and then refuse to enter it; kernels
    /// before 5.6 have no read.
    fn try_reading(&mut self) -> Result<(), Refusal> {
        let too_old = || io::Error::from_raw_os_error(libc::ENOSYS);
        let mut probe = Probe::new();
        let probed = self.io.submitter().register_probe(&mut probe);
        // The probe itself was added in 5.6; older kernels do not know its number.
        probed.map_err(|error| match error.raw_os_error() {
            Some(libc::EINVAL) => too_old(),
            _ => error,
        })?;
        if !probe.is_supported(opcode::Read::CODE) {
            return Err(too_old().into());
        }
        let nop = opcode::Nop::new().build();
        // SAFETY: a no-op refers to no memory.
        unsafe { self.io.submission().push(&nop) }.expect("a fresh ring has room");
        loop {
            match self.io.submit_and_wait(1) {
                Ok(_) => break,
                Err(error) if error.raw_os_error() == Some(libc::EINTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        self.io
            .completion()
            .next()
            .map(drop)
            .ok_or_else(|| Refusal {
                reason: "the ring returned no completion for a no-op".to_owned(),
                hint: "this kernel's io_uring does not work".to_owned(),
                errno: None,
            })
    }

    /// Registers the files, which saves the kernel a look-up for every read. Refused when there are
    /// more files than descriptors allowed.
    pub(super) fn register_files(&mut self, files: &[ReadFile]) {
        let descriptors: Vec<_> = files
            .iter()
            .flat_map(|file| {
                [Access::Buffered, Access::Direct].map(|access| file.descriptor(access))
            })
            .map(|descriptor| descriptor.as_raw_fd())
            .collect();
        let registered = self.io.submitter().register_files(&descriptors);
        self.registered_files = !descriptors.is_empty() && registered.is_ok();
    }

    /// Registers the slab, which saves the kernel pinning the pages for every read. Refused without
    /// enough locked memory (`ulimit -l`).
    pub(super) fn register_slab(&mut self, slab: Arc<Slab>) {
        let buffers: Vec<_> = slab
            .registrations()
            .into_iter()
            .map(|(start, len)| libc::iovec {
                iov_base: start.cast(),
                iov_len: len,
            })
            .collect();
        if buffers.is_empty() {
            return;
        }
        // SAFETY: the buffers lie in the slab's mapping, which `registered_slab` keeps until after
        // the ring is gone.
        if unsafe { self.io.submitter().register_buffers(&buffers) }.is_ok() {
            self.registered_slab = Some(slab);
        }
    }

    /// Limits the kernel's threads to one for each read in flight; by default it starts four for
    /// each core. Not supported before Linux 5.15.
    pub(super) fn want_threads(&mut self, depth: usize) {
        let threads = u32::try_from(depth).unwrap_or(u32::MAX);
        let _ = self
            .io
            .submitter()
            .register_iowq_max_workers(&mut [threads, 0]);
    }

    /// Returns the kernel features in use.
    pub(super) fn features(&self) -> Vec<String> {
        [
            ("single_issuer", self.single_issuer),
            ("defer_taskrun", self.defer_taskrun),
            ("registered_files", self.registered_files),
            ("registered_buffers", self.registered_slab.is_some()),
        ]
        .into_iter()
        .filter(|(_, used)| *used)
        .map(|(name, _)| name.to_owned())
        .collect()
    }

    /// Queues a read into `lease`, which the caller keeps in its table until the completion of
    /// `slot` has been seen.
    pub(super) fn queue_read(&mut self, lease: &mut Lease, submission: Submission<'_>) {
        let Submission {
            slot,
            source,
            descriptor,
            read,
            punted,
            registered,
        } = submission;
        assert!(
            read.window_offset + read.len <= lease.len(),
            "a read leaves its window"
        );
        let len = u32::try_from(read.len).expect("windows are at most about 1 GiB");
        let registration = lease
            .registration()
            .filter(|_| self.registered_slab.is_some());
        let target = lease.as_mut_ptr().wrapping_add(read.window_offset);
        let fixed = u32::try_from(2 * source).expect("few files")
            + u32::from(read.access == Access::Direct);
        let entry: squeue::Entry = match (self.registered_files && registered, registration) {
            (true, Some(index)) => opcode::ReadFixed::new(Fixed(fixed), target, len, index)
                .offset(read.offset)
                .build(),
            (true, None) => opcode::Read::new(Fixed(fixed), target, len)
                .offset(read.offset)
                .build(),
            (false, Some(index)) => {
                opcode::ReadFixed::new(Fd(descriptor.as_raw_fd()), target, len, index)
                    .offset(read.offset)
                    .build()
            }
            (false, None) => opcode::Read::new(Fd(descriptor.as_raw_fd()), target, len)
                .offset(read.offset)
                .build(),
        }
        .user_data(slot as u64)
        .flags(if punted {
            squeue::Flags::ASYNC
        } else {
            squeue::Flags::empty()
        });
        // SAFETY: the target lies inside the lease's window (asserted above). The engine's slot
        // table owns the lease until it has seen this entry's completion, also when the engine is
        // dropped; files live as long as the engine.
        unsafe { self.push(&entry) };
    }

    /// Queues an entry; if there is no room, the entries in the queue are submitted first.
    ///
    /// # Safety
    ///
    /// As for `SubmissionQueue::push`: whatever the entry refers to must stay valid until its
    /// completion has been seen.
    unsafe fn push(&mut self, entry: &squeue::Entry) {
        // SAFETY: guaranteed by the caller.
        while unsafe { self.io.submission().push(entry) }.is_err() {
            self.enter(0);
        }
    }

    /// Queues a timeout: `slot` completes after `pause`.
    pub(super) fn queue_pause(&mut self, slot: usize, pause: Duration) {
        self.pauses[slot] = Timespec::from(pause);
        let entry = opcode::Timeout::new(&raw const self.pauses[slot])
            .build()
            .user_data(slot as u64);
        // SAFETY: the kernel reads the time when it takes the entry; `pauses` never moves and lives
        // as long as the ring, and this element is not written to again before the slot's
        // completion.
        unsafe { self.push(&entry) };
    }

    /// Asks the kernel to cancel the entry of `slot`. That entry then completes, as cancelled or
    /// normally.
    pub(super) fn queue_cancel(&mut self, slot: usize) {
        let entry = opcode::AsyncCancel::new(slot as u64)
            .build()
            .user_data(IGNORED);
        // SAFETY: refers to no memory.
        unsafe { self.push(&entry) };
    }

    /// Returns a descriptor that wakes the ring, once, when it is written to. `None` if the system
    /// has no descriptor left.
    pub(super) fn waker(&mut self) -> Option<Arc<OwnedFd>> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let descriptor = Arc::new(eventfd(0, flags).ok()?);
        let ready = u32::try_from(libc::POLLIN).expect("a small positive number");
        let entry = opcode::PollAdd::new(Fd(descriptor.as_raw_fd()), ready)
            .build()
            .user_data(WOKEN);
        // SAFETY: refers to no memory; the ring keeps the descriptor open.
        unsafe { self.push(&entry) };
        self.waker = Some(Arc::clone(&descriptor));
        Some(descriptor)
    }

    /// Returns whether there are queued entries that the kernel has not seen.
    pub(super) fn has_queued(&mut self) -> bool {
        !self.io.submission().is_empty()
    }

    /// Submits everything queued to the kernel and waits for `want` completions.
    pub(super) fn enter(&mut self, want: usize) {
        loop {
            match self.io.submit_and_wait(want) {
                Ok(_) => return,
                Err(error) => match error.raw_os_error() {
                    Some(libc::EINTR) => {}
                    // The kernel is out of request memory, or completions must be taken first: the
                    // caller takes the completions and calls again; nothing queued is lost.
                    Some(libc::EAGAIN | libc::EBUSY) => {
                        std::thread::yield_now();
                        return;
                    }
                    _ => unreachable!("io_uring_enter worked when the ring was opened: {error}"),
                },
            }
        }
    }

    /// Returns the next completion.
    pub(super) fn next_completion(&mut self) -> Option<Completion> {
        loop {
            let entry = self.io.completion().next()?;
            match entry.user_data() {
                WOKEN => {
                    self.waker = None;
                    return Some(Completion::Woken);
                }
                IGNORED => {}
                slot => {
                    let slot = usize::try_from(slot).expect("set from a usize");
                    let result = entry.result();
                    let count = usize::try_from(result).map_err(|_| -result);
                    return Some(Completion::Of(slot, count));
                }
            }
        }
    }

    /// Unregisters the slab of a ring without reads in flight: closing a ring releases its locked
    /// memory only later, but the next ring may need it immediately.
    pub(super) fn unregister_slab(&mut self) {
        // Before Linux 5.13 the kernel first waits until nothing is in flight, which includes the
        // poll of the waker.
        if self.registered_slab.is_some() && self.end_poll() {
            let _ = self.io.submitter().unregister_buffers();
        }
    }

    /// Ends the poll of the waker, if there is one. Returns false if the ring has failed.
    fn end_poll(&mut self) -> bool {
        let Some(waker) = self.waker.clone() else {
            return true;
        };
        // Writing fails only if the eventfd is full, which means that it has been written to.
        let _ = rustix::io::write(&waker, &1u64.to_ne_bytes());
        while self.waker.is_some() {
            match self.io.submit_and_wait(1).map_err(|it| it.raw_os_error()) {
                Ok(_) | Err(Some(libc::EINTR)) => {}
                Err(Some(libc::EAGAIN | libc::EBUSY)) => std::thread::yield_now(),
                Err(_) => return false,
            }
            while self.next_completion().is_some() {}
        }
        true
    }
}

#[cfg(test)]
impl Ring {
    /// Replaces the ring's descriptor by another file: entering it fails from now on.
    pub(super) fn fail(&self) {
        let other = eventfd(0, EventfdFlags::CLOEXEC).expect("the waker has one, too");
        // SAFETY: both descriptors are open. The ring's stays open until the ring closes it.
        let put = unsafe { libc::dup2(other.as_raw_fd(), self.io.as_raw_fd()) };
        assert!(put >= 0, "{}", io::Error::last_os_error());
    }

    /// Returns whether the poll of the waker is in flight.
    pub(super) fn is_polling(&self) -> bool {
        self.waker.is_some()
    }
}

impl std::fmt::Debug for Ring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ring")
            .field("features", &self.features())
            .finish_non_exhaustive()
    }
}

/// Tries the flags from the best to none. `SINGLE_ISSUER` was added in Linux 6.0, `DEFER_TASKRUN`
/// in 6.1; older kernels return `EINVAL`.
fn build(entries: u32) -> io::Result<(IoUring, bool, bool)> {
    let mut builder = IoUring::builder();
    builder.dontfork();
    let plain = builder.clone();
    // TASKRUN_FLAG lets an enter that does not wait still run deferred completions.
    let single = builder.setup_single_issuer().clone();
    let deferred = builder.setup_defer_taskrun().setup_taskrun_flag();
    if let Ok(ring) = deferred.build(entries) {
        return Ok((ring, true, true));
    }
    if let Ok(ring) = single.build(entries) {
        return Ok((ring, true, false));
    }
    plain.build(entries).map(|ring| (ring, false, false))
}
