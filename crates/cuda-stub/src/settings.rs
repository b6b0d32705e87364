//! Settings for tests: the machine, delays and faults. The environment sets them first,
//! `tload_cuda_stub_set` later.

use std::time::Duration;

use crate::status::Status;

/// All keys: lower case in `tload_cuda_stub_set`, upper case after `TLOAD_CUDA_STUB_` in the
/// environment.
const KEYS: [&str; 12] = [
    "devices",
    "memory",
    "busy",
    "version",
    "copy_delay_us",
    "stalled",
    "bandwidth",
    "register_max",
    "missing",
    "fail",
    "stub_library",
    "capturing",
];

#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// Number of devices, by default 2.
    pub(crate) devices: i32,
    /// Bytes of memory of each device, by default 1 GiB.
    pub(crate) memory: usize,
    /// Bytes of them allocated by other processes.
    pub(crate) busy: usize,
    /// Driver version, by default 12080.
    pub(crate) version: i32,
    /// Minimum duration of each copy.
    pub(crate) copy_delay: Duration,
    /// Devices whose copies do not end while they are here.
    pub(crate) stalled: Vec<i32>,
    /// Bytes per second of all copies of a device together; 0 is without limit.
    pub(crate) bandwidth: u64,
    /// Longest range that can be registered, in bytes.
    pub(crate) register_max: usize,
    /// Symbols that `cuGetProcAddress_v2` does not find.
    pub(crate) missing: Vec<String>,
    /// `cuInit` behaves as the library of that name in the CUDA toolkit does.
    pub(crate) stub_library: bool,
    /// Another thread captures a graph.
    pub(crate) capturing: bool,
    faults: Vec<Fault>,
}

#[derive(Clone, Debug)]
struct Fault {
    function: String,
    status: Status,
    /// Number of the first call that fails, from 1.
    first: u64,
    /// Number of calls that fail; 0 is all.
    count: u64,
    /// Calls since the fault was set.
    calls: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            devices: 2,
            memory: 1 << 30,
            busy: 0,
            version: 12_080,
            copy_delay: Duration::ZERO,
            stalled: Vec::new(),
            bandwidth: 0,
            register_max: usize::MAX,
            missing: Vec::new(),
            stub_library: false,
            capturing: false,
            faults: Vec::new(),
        }
    }
}

impl Settings {
    /// Reads the settings from the environment, and panics on an invalid value: a test that sets
    /// one must not run without it.
    pub(crate) fn from_environment() -> Self {
        let mut settings = Self::default();
        for key in KEYS {
            let name = format!("TLOAD_CUDA_STUB_{}", key.to_uppercase());
            if let Some(value) = std::env::var_os(&name) {
                let value = value.to_string_lossy();
                let known = settings.set(key, &value).is_some();
                assert!(known, "{name}={value} is not a valid setting");
            }
        }
        settings
    }

    /// Sets one setting; `None`, without a change, for an unknown key or an invalid value.
    pub(crate) fn set(&mut self, key: &str, value: &str) -> Option<()> {
        match key {
            "devices" => {
                self.devices = value
                    .parse()
                    .ok()
                    .filter(|count| (0..=64).contains(count))?;
            }
            "memory" => self.memory = value.parse().ok()?,
            "busy" => self.busy = value.parse().ok()?,
            "version" => self.version = value.parse().ok()?,
            "copy_delay_us" => self.copy_delay = Duration::from_micros(value.parse().ok()?),
            "stalled" => {
                let ordinals = items(value).map(|item| item.parse().ok());
                self.stalled = ordinals.collect::<Option<_>>()?;
            }
            "bandwidth" => self.bandwidth = value.parse().ok()?,
            "register_max" => self.register_max = value.parse().ok()?,
            "missing" => self.missing = items(value).map(str::to_owned).collect(),
            "fail" => self.faults = items(value).map(Fault::parse).collect::<Option<_>>()?,
            "stub_library" => self.stub_library = matches!(value, "1"),
            "capturing" => self.capturing = matches!(value, "1"),
            _ => return None,
        }
        Some(())
    }

    /// Counts a call and returns the status that it is to fail with, if any. Beside functions,
    /// `copy` is each copy when it runs, and `batch_copy` each copy of a batch when it is queued.
    pub(crate) fn fault(&mut self, function: &str) -> Option<Status> {
        let mut fails = None;
        for fault in &mut self.faults {
            if fault.function == function {
                fault.calls += 1;
                fails = fails.or(fault.is_due().then_some(fault.status));
            }
        }
        fails
    }
}

impl Fault {
    /// Parses `function:status[:first[:count]]`; by default, first is 1 and count 0 (all).
    fn parse(text: &str) -> Option<Self> {
        let mut fields = text.split(':');
        let fault = Self {
            function: fields.next()?.to_owned(),
            status: fields.next()?.parse().ok().filter(|status| *status != 0)?,
            first: fields
                .next()
                .map_or(Some(1), |first| first.parse().ok())
                .filter(|first| *first > 0)?,
            count: fields.next().map_or(Some(0), |count| count.parse().ok())?,
            calls: 0,
        };
        fields.next().is_none().then_some(fault)
    }

    fn is_due(&self) -> bool {
        let past = self.count > 0 && self.calls >= self.first.saturating_add(self.count);
        self.calls >= self.first && !past
    }
}

/// Returns the non-empty items of a list with commas or semicolons.
fn items(list: &str) -> impl Iterator<Item = &str> {
    list.split([',', ';'])
        .map(str::trim)
        .filter(|item| !item.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_count_from_when_they_are_set() {
        let mut settings = Settings::default();
        settings.set("fail", "cuInit:2:2:2, copy:719").unwrap();
        let calls: Vec<_> = (0..5).map(|_| settings.fault("cuInit")).collect();
        assert_eq!(calls, [None, Some(2), Some(2), None, None]);
        assert_eq!(settings.fault("copy"), Some(719));
        assert_eq!(settings.fault("cuMemAlloc_v2"), None);
    }

    #[test]
    fn invalid_settings_are_rejected_and_change_nothing() {
        let mut settings = Settings::default();
        for (key, value) in [
            ("fail", "cuInit"),
            ("fail", "cuInit:0"),
            ("fail", "cuInit:1:0"),
            ("fail", "a:1:1:1:1"),
            ("devices", "-1"),
            ("memory", "much"),
            ("colour", "red"),
        ] {
            assert_eq!(settings.set(key, value), None, "{key}={value}");
        }
        assert_eq!(settings.devices, 2);
    }
}
