//! Pinned host memory: registered or allocated. Registering touches no page, but looks whether the
//! pages can be written to.

use crate::clock::Clock;
use crate::driver::{Driver, Lock};
use crate::mapping::{self, Mapping};
use crate::settings::{Kind, linger};
use crate::status::{ALREADY_REGISTERED, INVALID_VALUE, NOT_REGISTERED, OUT_OF_MEMORY, Outcome};

/// Flags `PORTABLE` and `DEVICEMAP`, implied for all memory where addresses are unified.
const IMPLIED: u32 = 1 | 2;
/// Flags `PORTABLE`, `DEVICEMAP`, `IOMEMORY` and `READ_ONLY`.
const REGISTER_FLAGS: u32 = 0xF;
/// Flag for memory that the device only reads.
const READ_ONLY: u32 = 8;
/// Flags `PORTABLE`, `DEVICEMAP` and `WRITECOMBINED`.
const ALLOC_FLAGS: u32 = 0x7;

#[derive(Debug)]
pub(crate) struct Pinned {
    pub(crate) len: usize,
    /// Device whose context was current when the memory was pinned; the memory is freed with that
    /// context.
    pub(crate) ordinal: i32,
    flags: u32,
    /// Mapping of memory allocated here; `None` for registered memory.
    mapping: Option<Mapping>,
    pub(crate) uses: Clock,
}

impl Pinned {
    pub(crate) fn is_registration(&self) -> bool {
        self.mapping.is_none()
    }
}

impl Driver {
    /// Returns the pinned memory that holds this whole range; `None` if no byte of the range is
    /// pinned. A range that is pinned in part, or lies across two registrations, is an error, as
    /// for a real copy.
    pub(crate) fn host_range(&self, address: usize, len: usize) -> Outcome<Option<usize>> {
        let end = address.checked_add(len).ok_or(INVALID_VALUE)?;
        let Some((start, pinned)) = self.pinned.range(..end).next_back() else {
            return Ok(None);
        };
        if start + pinned.len <= address {
            return Ok(None);
        }
        let inside = *start <= address && end <= start + pinned.len;
        inside.then_some(Some(*start)).ok_or(INVALID_VALUE)
    }

    /// Returns whether the device must not write to this pinned memory.
    pub(crate) fn is_read_only(&self, start: Option<usize>) -> bool {
        start.is_some_and(|start| self.pinned[&start].flags & READ_ONLY != 0)
    }

    pub(crate) fn register(
        &mut self,
        start: usize,
        len: usize,
        flags: u32,
        ordinal: i32,
    ) -> Outcome {
        let wraps = start.checked_add(len).is_none();
        if start == 0 || len == 0 || wraps || flags & !REGISTER_FLAGS != 0 {
            return Err(INVALID_VALUE);
        }
        if self.touches_device(start, len) {
            return Err(INVALID_VALUE);
        }
        if flags & READ_ONLY != 0 && !self.settings.read_only_register {
            return Err(crate::status::NOT_SUPPORTED);
        }
        // A driver pins pages for writing without the flag, which the kernel refuses.
        if flags & READ_ONLY == 0 && mapping::is_read_only(start, len) {
            return Err(INVALID_VALUE);
        }
        if self.host_range(start, len) != Ok(None) {
            return Err(ALREADY_REGISTERED);
        }
        if len > self.settings.register_max {
            return Err(OUT_OF_MEMORY);
        }
        let mib = u32::try_from(len >> 20).unwrap_or(u32::MAX);
        linger(self.settings.register_delay * mib);
        let pinned = Pinned {
            len,
            ordinal,
            flags: flags | IMPLIED,
            mapping: None,
            uses: Clock::default(),
        };
        self.pinned.insert(start, pinned);
        Ok(())
    }

    pub(crate) fn allocate_host(&mut self, len: usize, flags: u32, ordinal: i32) -> Outcome<usize> {
        if len == 0 || flags & !ALLOC_FLAGS != 0 {
            return Err(INVALID_VALUE);
        }
        if self.settings.kind == Kind::Integrated {
            self.afford(ordinal, len)?;
        }
        let mapping = Mapping::new(len).ok_or(OUT_OF_MEMORY)?;
        let start = mapping.start();
        let pinned = Pinned {
            len,
            ordinal,
            flags: flags | IMPLIED,
            mapping: Some(mapping),
            uses: Clock::default(),
        };
        self.pinned.insert(start, pinned);
        Ok(start)
    }

    /// Returns the flags of the pinned memory at an address.
    pub(crate) fn host_flags(&self, address: usize) -> Outcome<u32> {
        let start = self.host_range(address, 1)?.ok_or(INVALID_VALUE)?;
        Ok(self.pinned[&start].flags)
    }
}

/// Ends a registration. As for the driver, `start` must be its start.
pub(crate) fn unregister(driver: &mut Lock, start: usize) -> Outcome {
    match driver.pinned.get(&start) {
        Some(pinned) if pinned.is_registration() => {
            let_go(driver, start, "unregistered");
            Ok(())
        }
        _ => Err(NOT_REGISTERED),
    }
}

pub(crate) fn free(driver: &mut Lock, start: usize) -> Outcome {
    match driver.pinned.get(&start) {
        Some(pinned) if !pinned.is_registration() => {
            let_go(driver, start, "freed");
            Ok(())
        }
        _ => Err(INVALID_VALUE),
    }
}

/// Waits until copies of the memory have ended. Releasing memory before the host has waited for its
/// use is a violation.
fn let_go(driver: &mut Lock, start: usize, what: &str) {
    let pinned = &driver.pinned[&start];
    let uses = pinned.uses.clone();
    let is_lost = driver.lost(pinned.ordinal).is_err();
    if let Some(point) = driver.host.misses(&uses).filter(|_| !is_lost) {
        driver.violation(format!(
            "host memory at {start:#x} is {what} before the host has waited for its use on stream {:#x}",
            point.stream
        ));
    }
    driver.wait_while(|driver| !driver.has_run(&uses));
    driver.pinned.remove(&start);
}
