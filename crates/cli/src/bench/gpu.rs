//! The GPU that a benchmark loads to: opened before the first run and kept to the end, so that no run pays for its context.

use tload::cuda::Context;
use tload::{Device, Error, ErrorKind, Result, format_bytes};

/// A GPU with its context.
#[derive(Debug)]
pub(crate) struct Gpu(Context);

impl Gpu {
    /// Opens `device`; none for CPU memory.
    pub(crate) fn open(device: Device) -> Result<Option<Self>> {
        match device {
            Device::Cuda(ordinal) => Ok(Some(Self(Context::open(ordinal)?))),
            // `Device` may grow; a load then says what it thinks of it.
            Device::Cpu | _ => Ok(None),
        }
    }

    /// `cuda:0, NVIDIA H200`, for the record.
    pub(crate) fn describe(&self) -> String {
        let facts = self.0.facts();
        format!("cuda:{}, {}", facts.ordinal, facts.name)
    }

    /// Refuses to keep more than is free.
    pub(crate) fn has_room_for(&self, bytes: u64) -> Result<()> {
        let free = self.0.free_memory()?.free;
        if bytes <= free {
            return Ok(());
        }
        let ordinal = self.0.ordinal();
        Err(Error::new(
            ErrorKind::OutOfMemory,
            format!(
                "mode keep takes {} of memory of cuda:{ordinal}, {} are free",
                format_bytes(bytes),
                format_bytes(free)
            ),
        )
        .with_hint("use --mode stream, or a smaller checkpoint (--size)"))
    }
}
