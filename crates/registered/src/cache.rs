//! Registrations that a load keeps: memory that the leader fills again need not be registered
//! again.

use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::error::{Error, ErrorKind, Result};
use crate::mapping::RegisteredMapping;
use crate::sync::lock::Mutex;
use tload_cuda::Context;

/// Identity of shared memory while a mapping keeps it: its device and inode.
type Identity = (rustix::fs::Dev, u64);

/// Number of times that a load has used registered memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RegisteredUsage {
    /// Memory that was registered for it.
    pub fresh: u64,
    /// Memory that had been registered before.
    pub reused: u64,
}

/// Registrations of one load.
#[derive(Debug)]
pub(crate) struct Registrations {
    context: Context,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Registrations that no region uses, the oldest first.
    idle: VecDeque<(Identity, RegisteredMapping)>,
    /// Maximum of the idle bytes. The leader may have freed such memory.
    idle_bytes_max: usize,
    usage: RegisteredUsage,
}

/// Registered memory of one region, idle once it is dropped.
#[derive(Debug)]
pub(crate) struct RegisteredMemory {
    identity: Identity,
    /// Only `None` while being dropped.
    mapping: Option<RegisteredMapping>,
    registrations: Arc<Registrations>,
}

impl Registrations {
    /// Creates a cache that keeps nothing idle until [`Self::keep`] allows it.
    pub(crate) fn new(context: Context) -> Arc<Self> {
        Arc::new(Self {
            context,
            state: Mutex::default(),
        })
    }

    /// Sets the maximum of the idle bytes.
    pub(crate) fn keep(&self, idle_bytes_max: usize) {
        self.state.lock().idle_bytes_max = idle_bytes_max;
    }

    pub(crate) fn usage(&self) -> RegisteredUsage {
        self.state.lock().usage
    }

    /// Returns `memory` registered, by an earlier call if there was one.
    ///
    /// # Errors
    ///
    /// Those of [`RegisteredMapping::new`].
    pub(crate) fn register(self: &Arc<Self>, memory: impl AsFd) -> Result<RegisteredMemory> {
        let found = rustix::fs::fstat(&memory).map_err(|errno| {
            let message = "cannot identify shared memory";
            Error::new(ErrorKind::Io, message).with_source(std::io::Error::from(errno))
        })?;
        let identity = (found.st_dev, found.st_ino);
        let known = {
            let mut state = self.state.lock();
            let mut idle = state.idle.iter();
            let index = idle.position(|(idle, _)| *idle == identity);
            let known = index.and_then(|index| state.idle.remove(index));
            if known.is_some() {
                state.usage.reused += 1;
            } else {
                state.usage.fresh += 1;
            }
            known
        };
        // The lock is released first, because registering takes a while.
        let mapping = match known {
            Some((_, mapping)) => mapping,
            None => RegisteredMapping::new(&self.context, memory)?,
        };
        Ok(RegisteredMemory {
            identity,
            mapping: Some(mapping),
            registrations: Arc::clone(self),
        })
    }

    /// Keeps memory for its next use, and frees the oldest if too much is kept.
    fn give_back(&self, identity: Identity, mapping: RegisteredMapping) {
        let mut unwanted = Vec::new();
        {
            let mut state = self.state.lock();
            state.idle.push_back((identity, mapping));
            let mut bytes: usize = state.idle.iter().map(|(_, idle)| idle.len()).sum();
            while bytes > state.idle_bytes_max
                && let Some(oldest) = state.idle.pop_front()
            {
                bytes -= oldest.1.len();
                unwanted.push(oldest);
            }
        }
        // The lock is released first, because ending a registration takes a while.
        drop(unwanted);
    }
}

impl RegisteredMemory {
    fn mapping(&self) -> &RegisteredMapping {
        let mapping = self.mapping.as_ref();
        mapping.expect("the mapping leaves only in drop")
    }

    /// Pointer to the first byte.
    pub(crate) fn start(&self) -> NonNull<u8> {
        self.mapping().start()
    }

    /// Length in bytes.
    pub(crate) fn len(&self) -> usize {
        self.mapping().len()
    }
}

impl Drop for RegisteredMemory {
    fn drop(&mut self) {
        if let Some(mapping) = self.mapping.take() {
            self.registrations.give_back(self.identity, mapping);
        }
    }
}
