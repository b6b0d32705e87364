//! Reasons why the feed cannot begin a region now, which it gets over without its lock: memory that
//! is still to be unmapped, and a device that is still to free what was dropped.

use std::sync::Arc;

use crate::error::{Error, Result};
use crate::memory::{Evicted, RegionStart, RegionWriter};
use crate::sink::{DeviceRegions, FreedWait};

/// Reason why a region has not begun, other than a budget that is used up.
pub(super) enum NotBegun {
    /// There will be memory once this is dropped.
    Evicts(Evicted),
    /// There may be memory once the device has freed what was dropped.
    NoRoom(DeviceOf),
    Failed(Error),
}

/// Regions of a destination on a device.
pub(super) struct DeviceOf {
    pub(super) destination: usize,
    pub(super) regions: Arc<DeviceRegions>,
}

/// Wait of a lane for the full device of a destination to free memory.
#[derive(Clone, Copy)]
pub(super) struct DeviceWait {
    pub(super) destination: usize,
    pub(super) wait: FreedWait,
}

impl NotBegun {
    /// Stores a region that has begun. Returns whether there was memory for it.
    pub(super) fn unless(
        begun: RegionStart,
        writer: &mut Option<RegionWriter>,
    ) -> Result<bool, Self> {
        *writer = match begun {
            RegionStart::Region(region) => Some(region),
            RegionStart::Evicts(evicted) => return Err(Self::Evicts(evicted)),
            RegionStart::Full => None,
        };
        Ok(writer.is_some())
    }
}

impl From<Error> for NotBegun {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}
