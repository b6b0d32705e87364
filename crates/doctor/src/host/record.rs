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
pub struct HostRecord {
    /// Release of the kernel.
    pub kernel: Option<String>,
    /// Architecture of the CPU: `x86_64`.
    pub architecture: &'static str,
    /// Model of the CPU.
    pub cpu: Option<String>,
    /// CPUs that this process may use.
    pub cores: Option<usize>,
    /// Memory of the machine, bytes.
    pub memory_bytes: Option<u64>,
    /// File system of the checkpoint.
    pub file_system: Option<String>,
    /// Options of its mount.
    pub mount_options: Option<String>,
    /// Name of the disk below it.
    pub disk: Option<String>,
    /// Model of the disk.
    pub disk_model: Option<String>,
    /// I/O scheduler of the disk.
    pub disk_scheduler: Option<String>,
    /// Protocol and host of an object store: `s3 at 127.0.0.1:9000`.
    pub store: Option<String>,
    /// GPU that tensors went to: `cuda:0, NVIDIA H200`.
    pub gpu: Option<String>,
}

impl HostRecord {
    /// Collects the record. `path` is a file of the checkpoint, if one is on a file system; `store`
    /// is the object store, if a shard is in one; `gpu` is the GPU that tensors go to, if any.
    pub fn collect(
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
