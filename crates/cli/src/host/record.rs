//! Record of the host in the exports of a benchmark.

use std::path::Path;
use std::thread;

use serde::Serialize;
use tload::internal::probe;

use super::System;
use super::disk::Disk;
use super::mount::Mount;

/// Machine and storage of a benchmark; `null` for unknown values.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct HostRecord {
    pub(crate) kernel: Option<String>,
    pub(crate) architecture: &'static str,
    pub(crate) cpu: Option<String>,
    pub(crate) cores: Option<usize>,
    pub(crate) memory_bytes: Option<u64>,
    pub(crate) file_system: Option<String>,
    pub(crate) mount_options: Option<String>,
    pub(crate) disk: Option<String>,
    pub(crate) disk_model: Option<String>,
    pub(crate) disk_scheduler: Option<String>,
    /// Protocol and host of an object store: `s3 at 127.0.0.1:9000`.
    pub(crate) store: Option<String>,
    /// GPU that tensors went to: `cuda:0, NVIDIA H200`.
    pub(crate) gpu: Option<String>,
}

impl HostRecord {
    /// Collects the record. `path` is a file of the checkpoint, if one is on a file system; `store`
    /// is the object store, if a shard is in one; `gpu` is the GPU that tensors go to, if any.
    pub(crate) fn collect(
        system: &System,
        path: Option<&Path>,
        store: Option<String>,
        gpu: Option<String>,
    ) -> Self {
        let file_system = path.and_then(|path| probe::file_system(path).ok());
        let disk = file_system
            .as_ref()
            .and_then(|found| Disk::for_device(system, found.device))
            .unwrap_or_default();
        Self {
            kernel: system.read("proc/sys/kernel/osrelease").ok(),
            architecture: std::env::consts::ARCH,
            cpu: system.field("proc/cpuinfo", "model name").ok(),
            cores: thread::available_parallelism().ok().map(usize::from),
            memory_bytes: system.field_bytes("proc/meminfo", "MemTotal").ok(),
            file_system: file_system.map(|found| found.name),
            mount_options: path
                .and_then(|path| Mount::for_path(system, path).ok())
                .map(|mount| mount.options.join(",")),
            disk: Some(disk.name).filter(|name| !name.is_empty()),
            disk_model: disk.model,
            disk_scheduler: disk.scheduler,
            store,
            gpu,
        }
    }
}
