//! Inspection for tests: live objects, calls and violations.

use std::collections::HashMap;
use std::time::Instant;

use crate::driver::Driver;
use crate::settings::Settings;

#[derive(Debug, Default)]
pub(crate) struct Counters {
    /// Calls by function, and other counters by name.
    numbers: HashMap<&'static str, i64>,
    violation: String,
}

impl Counters {
    pub(crate) fn call(&mut self, name: &'static str) {
        self.add(name, 1);
        self.add("calls", 1);
    }

    pub(crate) fn add(&mut self, name: &'static str, count: i64) {
        let number = self.numbers.entry(name).or_default();
        *number = number.saturating_add(count);
    }

    pub(crate) fn highest(&mut self, name: &'static str, value: i64) {
        let number = self.numbers.entry(name).or_default();
        *number = value.max(*number);
    }

    pub(crate) fn get(&self, name: &str) -> i64 {
        self.numbers.get(name).copied().unwrap_or(0)
    }

    /// Text of the last violation, or an empty string.
    pub(crate) fn violation(&self) -> &str {
        &self.violation
    }
}

impl Driver {
    /// Records that the caller has relied on an order that nothing guarantees.
    pub(crate) fn violation(&mut self, text: String) {
        self.counters.add("violations", 1);
        self.counters.violation = text;
    }

    /// Number of live objects of a kind; `None` for an unknown kind.
    pub(crate) fn live(&self, kind: &str) -> Option<i64> {
        use crate::stream::Kind;

        let own = self.memory.values().filter(|it| !it.memory.is_adopted());
        let registered = self.pinned.values().filter(|it| it.is_registration());
        let created = |kind: Kind, closing: bool| kind == Kind::Created && !closing;
        let streams = self.streams.values();
        let count = match kind {
            "allocations" => own.count(),
            "allocated_bytes" => return Some(self.allocated_bytes()),
            "registrations" => registered.count(),
            "registered_bytes" => registered.map(|it| it.len).sum(),
            "host_allocations" => self.pinned.len() - registered.count(),
            "streams" => streams.filter(|it| created(it.kind, it.closing)).count(),
            "threads" => self.streams.len(),
            "events" => self.events.len(),
            "pools" => self.pools.values().filter(|it| !it.is_default).count(),
            "contexts" => {
                return Some(self.devices.values().map(|it| i64::from(it.retains)).sum());
            }
            _ => return None,
        };
        Some(i64::try_from(count).unwrap_or(i64::MAX))
    }

    /// Resets counters, faults, delays and lost contexts; live objects stay.
    pub(crate) fn reset(&mut self) {
        self.counters = Counters::default();
        self.settings = Settings::from_environment();
        for device in self.devices.values_mut() {
            device.lost = None;
        }
        self.forget_pace();
        let bytes = self.allocated_bytes();
        self.counters.highest("peak_allocated_bytes", bytes);
    }

    /// Discards the planned times of copies after a change of settings.
    pub(crate) fn forget_pace(&mut self) {
        for device in self.devices.values_mut() {
            device.engine_free = Instant::now();
        }
    }
}
