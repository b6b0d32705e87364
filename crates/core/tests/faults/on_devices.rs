//! Faults of GPUs and their driver, simulated by the stub (`tload_cuda_stub`).

use tload::ErrorKind::{Device as DeviceFailed, OutOfMemory};
use tload::{Device, ErrorKind, LoadOptions, Loader, Location};

use crate::bench::{Oracle, load, watched};
use crate::files::{even, folder, options, write};
use crate::row::{Ended, Names, Outcome, Place, Retried, Row, Via, fails};
use crate::stub::{Cuda, bytes};

/// Row about devices, with its configuration of the stub.
#[derive(Clone, Debug)]
pub(crate) struct DeviceFault {
    pub(crate) row: Row,
    /// Settings of the stub.
    settings: Vec<(&'static str, &'static str)>,
    /// Sets further options of the load.
    set: fn(&mut LoadOptions),
}

fn row(
    fault: &'static str,
    key: &'static str,
    value: &'static str,
    outcome: Outcome,
) -> DeviceFault {
    DeviceFault {
        row: Row {
            place: Place::Devices,
            fault,
            made: format!("`{key}={value}`"),
            engines: &[Via::Pread],
            outcome,
        },
        settings: vec![(key, value)],
        set: |_| {},
    }
}

const LOST: &str = "start a new process";
const LOOK: &str = "nvidia-smi";
const FREE: &str = "free memory of the GPU";

#[expect(clippy::too_many_lines, reason = "a table")]
pub(crate) fn rows() -> Vec<DeviceFault> {
    let failing = |fault, value, kind, says| {
        let outcome = fails(kind, says, Names::Nothing, Retried::No);
        row(fault, "fail", value, outcome)
    };
    let gone = |fault, value, says| failing(fault, value, DeviceFailed, says);
    vec![
        row(
            "the GPU's memory is full during the load",
            "fail",
            "cuMemAllocAsync:2:3",
            fails(
                OutOfMemory,
                &["cuda:0 has no room for", FREE],
                Names::Tensor,
                Retried::No,
            ),
        ),
        gone(
            "the driver cannot allocate",
            "cuMemAllocAsync:999:3",
            &["cannot allocate memory", "UNKNOWN", LOOK],
        ),
        gone(
            "a copy is rejected",
            "cuMemcpyHtoDAsync_v2:1:4:1",
            &["to the GPU", "INVALID_VALUE", LOOK],
        ),
        gone(
            "a copy fails while it runs, and the context with it",
            "copy:719:4:1",
            &["LAUNCH_FAILED (719)", LOST],
        ),
        gone(
            "a copy writes to an illegal address",
            "copy:700:8:1",
            &["ILLEGAL_ADDRESS (700)", LOST],
        ),
        failing(
            "a stream cannot be created",
            "cuStreamCreate:2:1:1",
            OutOfMemory,
            &["cannot create a stream", FREE],
        ),
        failing(
            "an event cannot be created",
            "cuEventCreate:2:2:1",
            OutOfMemory,
            &["cannot create an event", FREE],
        ),
        gone(
            "an event cannot be recorded",
            "cuEventRecord:999:2:1",
            &["cannot record an event", LOOK],
        ),
        gone(
            "an event cannot be queried",
            "cuEventQuery:999:5:1",
            &["copying to the GPU failed", LOOK],
        ),
        failing(
            "the GPU has no room for a context",
            "cuDevicePrimaryCtxRetain:2:1:1",
            OutOfMemory,
            &["cannot use GPU cuda:0", FREE],
        ),
        gone(
            "the GPU is not ready",
            "cuDevicePrimaryCtxRetain:802:1:1",
            &["cannot use GPU cuda:0", "SYSTEM_NOT_READY", LOOK],
        ),
        row(
            "staging memory cannot be pinned",
            "fail",
            "cuMemHostRegister_v2:2",
            Outcome::Loads(Retried::No),
        ),
        row(
            "there is no such GPU",
            "devices",
            "0",
            fails(
                ErrorKind::InvalidRequest,
                &["cuda:0"],
                Names::Nothing,
                Retried::No,
            ),
        ),
        row(
            "the GPU shares the host's memory, which is full",
            "kind",
            "integrated",
            fails(
                OutOfMemory,
                &["cuda:0 shares the host's memory", "are needed at once"],
                Names::Tensor,
                Retried::No,
            ),
        )
        .with("memory", "1048576"),
        row(
            "copies are slow",
            "copy_delay_us",
            "3000",
            Outcome::Loads(Retried::No),
        ),
    ]
}

impl DeviceFault {
    /// Adds a setting of the stub.
    fn with(mut self, key: &'static str, value: &'static str) -> Self {
        self.row.made = format!("{}, `{key}={value}`", self.row.made);
        self.settings.push((key, value));
        self
    }

    /// Runs the row on a recovered driver; returns `None` if it hangs.
    pub(crate) fn run(&self, cuda: &Cuda) -> Option<Ended> {
        let folder = folder();
        let file = even("0.", 1, 12, 1 << 20);
        write(&folder.path().join("m-0.safetensors"), &file);
        let oracle = Oracle(vec![file]);
        let loader = || {
            let mut wanted = options(|it| {
                it.extent_bytes = Some(300_000);
                it.memory_limit = Some(1_300_000);
                it.device_memory_limit = Some(3 << 20);
            });
            (self.set)(&mut wanted);
            let loader = Loader::open(Location::from(folder.path()))?;
            Ok(loader.device(Device::Cuda(0)).options(wanted))
        };
        tload::release_staging();
        for (key, value) in &self.settings {
            cuda.stub.set(key, value);
        }
        let ended = watched(|| load(&oracle, loader(), bytes), || (), || ());
        cuda.recover();
        ended
    }
}
