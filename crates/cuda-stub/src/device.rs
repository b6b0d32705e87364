//! Devices, each with one context: its primary one.

use std::collections::HashMap;
use std::time::Instant;

use crate::clock::Clock;
use crate::context;
use crate::driver::{Driver, Lock, changed};
use crate::memory;
use crate::settings::linger;
use crate::status::{INVALID_CONTEXT, INVALID_DEVICE, Outcome, Status};
use crate::stream::Kind;

#[derive(Debug)]
pub(crate) struct Device {
    /// Handle of the context, unchanged when the context is retained again.
    pub(crate) context: u64,
    /// Number of retains; at 0 the context does not exist.
    pub(crate) retains: u32,
    /// The last retain was released, and the context is being destroyed.
    ending: bool,
    /// Error of a lost context. Every later call returns it until the context is gone.
    pub(crate) lost: Option<Status>,
    pub(crate) legacy: Option<u64>,
    /// Per-thread default streams, by thread.
    pub(crate) per_thread: HashMap<u64, u64>,
    /// Work of destroyed streams, and of those among them that the legacy stream waits for.
    pub(crate) retired: Clock,
    pub(crate) retired_blocking: Clock,
    /// End of the copies admitted so far, under the set bandwidth.
    pub(crate) engine_free: Instant,
    /// Bytes of memory from `cuMemAlloc`.
    pub(crate) plain_bytes: usize,
    pub(crate) default_pool: u64,
    pub(crate) pool: u64,
}

impl Driver {
    /// Returns the device with this ordinal if it exists.
    pub(crate) fn device(&mut self, ordinal: i32) -> Outcome<&mut Device> {
        if !(0..self.settings.devices).contains(&ordinal) {
            return Err(INVALID_DEVICE);
        }
        Ok(self.known(ordinal))
    }

    /// Returns the device with an ordinal that was checked before, whatever the settings are now.
    pub(crate) fn known(&mut self, ordinal: i32) -> &mut Device {
        if !self.devices.contains_key(&ordinal) {
            let context = self.fresh();
            let pool = self.new_pool(ordinal, 0, true);
            let device = Device {
                context,
                retains: 0,
                ending: false,
                lost: None,
                legacy: None,
                per_thread: HashMap::new(),
                retired: Clock::default(),
                retired_blocking: Clock::default(),
                engine_free: Instant::now(),
                plain_bytes: 0,
                default_pool: pool,
                pool,
            };
            self.devices.insert(ordinal, device);
        }
        self.devices.get_mut(&ordinal).expect("inserted above")
    }

    /// Returns the error of a lost context.
    pub(crate) fn lost(&self, ordinal: i32) -> Outcome {
        match self.devices.get(&ordinal).and_then(|device| device.lost) {
            Some(status) => Err(status),
            None => Ok(()),
        }
    }

    pub(crate) fn lose(&mut self, ordinal: i32, status: Status) {
        // The first error stays: later failures follow from it.
        self.known(ordinal).lost.get_or_insert(status);
        changed();
    }
}

/// Retains the context, and creates it if it does not exist: after its end, if another thread is
/// releasing it.
pub(crate) fn retain(driver: &mut Lock, ordinal: i32) -> Outcome<u64> {
    driver.device(ordinal)?;
    driver.wait_while(|driver| driver.known(ordinal).ending);
    if driver.known(ordinal).retains == 0 {
        linger(driver.settings.context_delay);
    }
    let device = driver.known(ordinal);
    device.retains += 1;
    Ok(device.context)
}

/// Releases one retain. The last one destroys the context with all that is in it, after waiting for
/// its work.
pub(crate) fn release(driver: &mut Lock, ordinal: i32) -> Outcome {
    let device = driver.device(ordinal)?;
    device.retains = device.retains.checked_sub(1).ok_or(INVALID_CONTEXT)?;
    if device.retains > 0 {
        return Ok(());
    }
    device.ending = true;
    context::drain(driver, ordinal);
    let mut abandoned = 0;
    for stream in driver.streams.values_mut() {
        if stream.ordinal == ordinal {
            abandoned += i64::from(stream.kind == Kind::Created && !stream.closing);
            stream.closing = true;
        }
    }
    changed();
    driver.wait_while(|driver| driver.streams.values().any(|it| it.ordinal == ordinal));
    abandoned += remove(driver, ordinal);
    driver.counters.add("abandoned", abandoned);
    driver.empty_pools(ordinal);
    let device = driver.known(ordinal);
    device.lost = None;
    device.legacy = None;
    device.per_thread.clear();
    device.ending = false;
    changed();
    Ok(())
}

/// Frees everything that the caller has left in a context, and returns the number of objects.
fn remove(driver: &mut Lock, ordinal: i32) -> i64 {
    let of_events = driver.events.len();
    driver.events.retain(|_, event| event.ordinal != ordinal);
    let mut abandoned = of_events - driver.events.len();
    let bases: Vec<_> = driver
        .memory
        .iter()
        .filter(|(_, entry)| entry.memory.ordinal == ordinal && !entry.memory.is_adopted())
        .map(|(base, _)| *base)
        .collect();
    abandoned += bases.len();
    for base in bases {
        if let Some(entry) = driver.forget(base) {
            memory::release(driver, &entry.memory);
        }
    }
    let of_pinned = driver.pinned.len();
    driver.pinned.retain(|_, pinned| pinned.ordinal != ordinal);
    abandoned += of_pinned - driver.pinned.len();
    i64::try_from(abandoned).expect("as many things as fit in memory")
}
