//! The disk's queue.

use super::{Finding, Level, Urgency};
use crate::host::System;
use crate::host::disk::Disk;

/// Queue size below which requests of a deep queue wait in the kernel instead of in the disk.
const REQUESTS_FEW: u64 = 64;

/// Returns the finding about the disk. `device` is the device number of the file system.
pub(crate) fn finding(system: &System, device: (u32, u32)) -> Finding {
    let Some(disk) = Disk::for_device(system, device) else {
        let (major, minor) = device;
        let value = format!("unknown: /sys has no disk for device {major}:{minor}");
        return Finding::ok("disk", "disk", value);
    };
    let finding = Finding::ok("disk", "disk", describe(&disk));
    if disk.rotational == Some(true) {
        return finding.advise(
            Level::Note,
            "the kernel reports a spinning disk, as it does for many virtual disks",
        );
    }
    if disk
        .scheduler
        .as_deref()
        .is_some_and(|scheduler| ["bfq", "cfq"].contains(&scheduler))
    {
        let command = format!("echo none > /sys/block/{}/queue/scheduler", disk.name);
        let advice = format!("this scheduler limits fast disks: {command}");
        return finding
            .advise(Level::Warn, advice)
            .change(Urgency::Speed, command);
    }
    if disk
        .requests
        .is_some_and(|requests| requests < REQUESTS_FEW)
    {
        let command = format!("echo 256 > /sys/block/{}/queue/nr_requests", disk.name);
        let advice = format!("its request queue is short: {command}");
        return finding
            .advise(Level::Note, advice)
            .change(Urgency::Little, command);
    }
    finding
}

fn describe(disk: &Disk) -> String {
    let mut facts = vec![disk.name.clone()];
    facts.extend(disk.model.clone());
    facts.extend(
        disk.scheduler
            .as_ref()
            .map(|name| format!("scheduler {name}")),
    );
    facts.extend(disk.requests.map(|requests| format!("{requests} requests")));
    facts.extend(
        disk.request_kib_max
            .map(|size| format!("at most {size} KiB per request")),
    );
    facts.extend(
        disk.read_ahead_kib
            .map(|size| format!("read-ahead {size} KiB")),
    );
    if disk.rotational == Some(true) {
        facts.push("rotational".to_owned());
    }
    facts.join(", ")
}
