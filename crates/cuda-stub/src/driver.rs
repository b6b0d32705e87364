//! The one lock over all state of this driver, and the entry point of every call with its checks.
//!
//! One lock is enough: calls and workers hold it briefly, and copies run without it.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Condvar, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::capture;
use crate::clock::Clock;
use crate::context;
use crate::device::Device;
use crate::event::Event;
use crate::host::Pinned;
use crate::inspect::Counters;
use crate::mapping::Mapping;
use crate::memory::Entry;
use crate::pool::Pool;
use crate::settings::Settings;
use crate::status::{NOT_INITIALIZED, Outcome, STREAM_CAPTURE_UNSUPPORTED, SUCCESS, Status};
use crate::stream::Stream;

static DRIVER: LazyLock<Mutex<Driver>> = LazyLock::new(Mutex::default);

/// Signalled when work has run, and when settings change.
static CHANGED: Condvar = Condvar::new();

/// Process that has called `cuInit`; 0 before that.
static PROCESS: AtomicU32 = AtomicU32::new(0);

#[derive(Debug)]
pub(crate) struct Driver {
    pub(crate) settings: Settings,
    pub(crate) devices: BTreeMap<i32, Device>,
    pub(crate) streams: HashMap<u64, Stream>,
    pub(crate) events: HashMap<u64, Event>,
    pub(crate) pools: HashMap<u64, Pool>,
    /// Live device memory by its first address.
    pub(crate) memory: BTreeMap<usize, Entry>,
    /// Registered and allocated host memory by its first address.
    pub(crate) pinned: BTreeMap<usize, Pinned>,
    /// Freed mappings whose addresses are not reused yet.
    pub(crate) quarantine: VecDeque<Mapping>,
    /// Work that the host has waited for. All threads share one clock: synchronisation between
    /// threads is not visible here, so a thread is assumed to know what any other thread has waited
    /// for.
    pub(crate) host: Clock,
    pub(crate) counters: Counters,
    next: u64,
}

impl Default for Driver {
    fn default() -> Self {
        Self {
            settings: Settings::from_environment(),
            devices: BTreeMap::new(),
            streams: HashMap::new(),
            events: HashMap::new(),
            pools: HashMap::new(),
            memory: BTreeMap::new(),
            pinned: BTreeMap::new(),
            quarantine: VecDeque::new(),
            host: Clock::default(),
            counters: Counters::default(),
            next: 1,
        }
    }
}

impl Driver {
    /// Returns a unique value for a handle. It is not a valid pointer, so dereferencing it traps.
    pub(crate) fn fresh(&mut self) -> u64 {
        const NOWHERE: u64 = 0x7C0D_A000_0000_0000;
        self.next += 1;
        NOWHERE + self.next * 16
    }
}

/// Locked driver.
#[derive(Debug)]
pub(crate) struct Lock(Option<MutexGuard<'static, Driver>>);

impl Lock {
    pub(crate) fn take() -> Self {
        Self(Some(DRIVER.lock().unwrap_or_else(PoisonError::into_inner)))
    }

    /// Releases the lock until `condition` is false.
    pub(crate) fn wait_while(&mut self, condition: impl FnMut(&mut Driver) -> bool) {
        if let Some(guard) = self.0.take() {
            let guard = CHANGED.wait_while(guard, condition);
            self.0 = Some(guard.unwrap_or_else(PoisonError::into_inner));
        }
    }

    /// Releases the lock until something changes, or for `time`.
    pub(crate) fn wait_for(&mut self, time: Duration) {
        if let Some(guard) = self.0.take() {
            let waited = CHANGED.wait_timeout(guard, time);
            self.0 = Some(waited.unwrap_or_else(PoisonError::into_inner).0);
        }
    }

    /// Runs `work` without the lock.
    pub(crate) fn unlocked(&mut self, work: impl FnOnce()) {
        self.0 = None;
        work();
        *self = Self::take();
    }
}

impl Deref for Lock {
    type Target = Driver;

    fn deref(&self) -> &Driver {
        self.0.as_ref().expect("held except while waiting")
    }
}

impl DerefMut for Lock {
    fn deref_mut(&mut self) -> &mut Driver {
        self.0.as_mut().expect("held except while waiting")
    }
}

/// Wakes all threads that wait for a change of the driver.
pub(crate) fn changed() {
    CHANGED.notify_all();
}

/// Precondition of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// None: the function works before `cuInit`.
    Nothing,
    /// A call of `cuInit` before.
    Init,
    /// A context bound to the calling thread, and not lost.
    Context,
    /// A context, lost or not: the documentation says that such functions "return error codes from
    /// previous, asynchronous launches", and they free their argument all the same.
    Release,
}

/// Runs one function of the driver. `body` gets the ordinal of the current context's device, or -1
/// without a context.
pub(crate) fn call(
    name: &'static str,
    need: Need,
    body: impl FnOnce(&mut Lock, i32) -> Outcome,
) -> Status {
    if is_child() {
        // A forked child has none of its parent's threads, and perhaps a lock that is never
        // released.
        return NOT_INITIALIZED;
    }
    let mut driver = Lock::take();
    driver.counters.call(name);
    if let Some(status) = driver.settings.fault(name) {
        return status;
    }
    if driver.settings.capturing && capture::forbids(name) {
        return STREAM_CAPTURE_UNSUPPORTED;
    }
    let outcome = enter(&mut driver, need).and_then(|here| {
        body(&mut driver, here)?;
        if need == Need::Release {
            driver.lost(here)?;
        }
        Ok(())
    });
    outcome.err().unwrap_or(SUCCESS)
}

fn enter(driver: &mut Driver, need: Need) -> Outcome<i32> {
    if need == Need::Nothing {
        return Ok(-1);
    }
    if PROCESS.load(Ordering::Relaxed) == 0 {
        return Err(NOT_INITIALIZED);
    }
    if need == Need::Init {
        return Ok(-1);
    }
    let here = context::here(driver)?;
    if need == Need::Context {
        driver.lost(here)?;
    }
    Ok(here)
}

/// Records that `cuInit` has succeeded.
pub(crate) fn initialised() {
    PROCESS.store(std::process::id(), Ordering::Relaxed);
}

/// Returns whether this process was forked from one that has called `cuInit`.
pub(crate) fn is_child() -> bool {
    let process = PROCESS.load(Ordering::Relaxed);
    process != 0 && process != std::process::id()
}
