//! Disk behind a file system, and its queue, from `/sys/dev/block` (see the kernel's sysfs-block).

use std::path::Path;

use super::System;

/// Facts about one disk from `/sys`; `None` if unknown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Disk {
    pub(crate) name: String,
    pub(crate) model: Option<String>,
    pub(crate) scheduler: Option<String>,
    pub(crate) requests: Option<u64>,
    pub(crate) rotational: Option<bool>,
    pub(crate) read_ahead_kib: Option<u64>,
    pub(crate) request_kib_max: Option<u64>,
}

impl Disk {
    /// Returns the disk with the device number `number`, major and minor; `None` for file systems
    /// without a disk (overlay, btrfs, NFS, tmpfs).
    pub(crate) fn for_device(system: &System, number: (u32, u32)) -> Option<Self> {
        let (major, minor) = number;
        let link = format!("sys/dev/block/{major}:{minor}");
        let device = system.path(&link).canonicalize().ok()?;
        // A partition has no queue; it lies in the directory of its disk, which has one.
        let disk = if device.join("queue").exists() {
            device
        } else {
            device.parent()?.to_owned()
        };
        let read = |file: &str| {
            system
                .read(disk.join(file))
                .ok()
                .filter(|text| !text.is_empty())
        };
        let number = |file: &str| read(file).and_then(|text| text.parse().ok());
        Some(Self {
            name: name(&disk),
            model: read("device/model"),
            scheduler: read("queue/scheduler").map(|schedulers| chosen(&schedulers)),
            requests: number("queue/nr_requests"),
            rotational: number("queue/rotational").map(|rotational: u64| rotational == 1),
            read_ahead_kib: number("queue/read_ahead_kb"),
            request_kib_max: number("queue/max_sectors_kb"),
        })
    }
}

fn name(disk: &Path) -> String {
    disk.file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned()
}

/// Returns the chosen scheduler: `"none"` for `"mq-deadline kyber [none]"`.
fn chosen(schedulers: &str) -> String {
    let bracketed = schedulers
        .split_once('[')
        .and_then(|(_, rest)| rest.split_once(']'));
    bracketed
        .map_or(schedulers, |(chosen, _)| chosen)
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::testing::system;

    #[test]
    fn partition_reports_queue_of_its_disk() {
        let (folder, system) = system(&[
            (
                "sys/devices/vda/queue/scheduler",
                "mq-deadline [none] kyber\n",
            ),
            ("sys/devices/vda/queue/nr_requests", "256\n"),
            ("sys/devices/vda/queue/rotational", "0\n"),
            ("sys/devices/vda/vda1/partition", "1\n"),
            ("sys/dev/block/.keep", ""),
        ]);
        let link = folder.path().join("sys/dev/block/254:1");
        std::os::unix::fs::symlink("../../devices/vda/vda1", link).unwrap();
        let disk = Disk::for_device(&system, (254, 1)).unwrap();
        assert_eq!(disk.name, "vda");
        assert_eq!(disk.scheduler.as_deref(), Some("none"));
        assert_eq!(disk.requests, Some(256));
        assert_eq!(disk.rotational, Some(false));
        assert_eq!(disk.read_ahead_kib, None);
        assert_eq!(Disk::for_device(&system, (0, 40)), None);
    }
}
