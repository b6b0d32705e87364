//! GPU that a benchmark loads to. It is opened before the first run and kept to the end, so that no
//! run includes the creation of its context.

use tload::internal::cuda::Context;
use tload::internal::format_bytes;
use tload::{Device, Error, ErrorKind, Result};

/// GPU with its context.
#[derive(Debug)]
pub(crate) struct Gpu(Context);

impl Gpu {
    /// Opens `device`; returns `None` for CPU memory.
    pub(crate) fn open(device: Device) -> Result<Option<Self>> {
        match device {
            Device::Cuda(ordinal) => Ok(Some(Self(Context::open(ordinal)?))),
            // `Device` may grow; a load then reports whether it supports the device.
            Device::Cpu | _ => Ok(None),
        }
    }

    /// Describes the GPU for the record: `cuda:0, NVIDIA H200`.
    pub(crate) fn describe(&self) -> String {
        let facts = self.0.facts();
        format!("cuda:{}, {}", facts.ordinal, facts.name)
    }

    /// Returns an error if fewer than `bytes` are free.
    pub(crate) fn has_room_for(&self, bytes: u64) -> Result<()> {
        let free = self.0.free_memory()?.free;
        if bytes <= free {
            return Ok(());
        }
        let ordinal = self.0.ordinal();
        Err(Error::new(
            ErrorKind::OutOfMemory,
            format!(
                "mode keep needs {} of memory of cuda:{ordinal}, {} are free",
                format_bytes(bytes),
                format_bytes(free)
            ),
        )
        .with_hint("use --mode stream, or a smaller checkpoint (--size)"))
    }
}
