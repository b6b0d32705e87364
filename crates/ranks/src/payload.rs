//! Values of any length on the way to another process: JSON in anonymous memory.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::channel::Carried;

/// Largest value, bytes: a plan of ten million tensors is smaller.
const BYTES_MAX: u64 = 1 << 30;

/// Writes a value into memory whose descriptor can be sent.
pub(super) fn write(value: &impl Serialize) -> io::Result<Carried> {
    write_to(create()?, value)
}

/// Writes a value into memory that [`create`] has made.
pub(super) fn write_to(memory: OwnedFd, value: &impl Serialize) -> io::Result<Carried> {
    let memory = File::from(memory);
    let bytes = serde_json::to_vec(value)?;
    memory.write_all_at(&bytes, 0)?;
    Ok(Arc::new(memory))
}

/// Reads a value that another process has written.
pub(super) fn read<T: DeserializeOwned>(memory: OwnedFd) -> io::Result<T> {
    let memory = File::from(memory);
    let len = memory.metadata()?.len();
    if len > BYTES_MAX {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut bytes = vec![0; usize::try_from(len).map_err(|_| io::ErrorKind::InvalidData)?];
    memory.read_exact_at(&mut bytes, 0)?;
    Ok(serde_json::from_slice(&bytes)?)
}

/// Creates empty memory for one value.
#[cfg(target_os = "linux")]
pub(super) fn create() -> io::Result<OwnedFd> {
    use rustix::fs::{MemfdFlags, memfd_create};
    Ok(memfd_create("tload", MemfdFlags::CLOEXEC)?)
}

#[cfg(not(target_os = "linux"))]
pub(super) fn create() -> io::Result<OwnedFd> {
    Err(io::ErrorKind::Unsupported.into())
}
