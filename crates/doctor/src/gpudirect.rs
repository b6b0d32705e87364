//! Readiness for `GPUDirect` Storage without the kernel module `nvidia-fs`: whether an NVMe disk
//! could write to GPU memory over the PCI bus (P2PDMA), and if not, why. Loads do not use it.
//!
//! Requirements: NVIDIA, "GDS Support for NVMe Drives Using Linux PCI P2PDMA Support", 2026-09. Not
//! checked: the model of the GPU and the IOMMU.

use tload::internal::format_bytes;

use super::Finding;
use crate::host::System;
use crate::host::disk::Disk;

const DRIVER: &str = "proc/driver/nvidia";
/// First driver whose open module supports it.
const DRIVER_MIN: u32 = 565;
/// First kernel on which NVIDIA supports it.
const KERNEL_MIN: (u32, u32) = (6, 2);
/// Smallest memory of the GPUs that support it, bytes. A static BAR1 shows all of a GPU's memory.
const BAR_MIN: u64 = 24 << 30;

/// Requirements that are not met, and those of which that is not known.
#[derive(Default)]
struct Missing {
    reasons: Vec<String>,
    unknown: Vec<&'static str>,
}

impl Missing {
    /// Adds a requirement: whether it `is_met`, if that is known, what is unknown otherwise, and
    /// the reason why it is not met.
    fn check(&mut self, is_met: Option<bool>, subject: &'static str, reason: impl Into<String>) {
        match is_met {
            Some(true) => {}
            Some(false) => self.reasons.push(reason.into()),
            None => self.unknown.push(subject),
        }
    }

    fn text(&self) -> String {
        let (reasons, unknown) = (self.reasons.join("; "), self.unknown.join("; "));
        match (reasons.as_str(), unknown.as_str()) {
            ("", "") => "would work by P2PDMA".to_owned(),
            ("", unknown) => format!("unknown: {unknown}"),
            (reasons, "") => format!("would not work by P2PDMA: {reasons}"),
            (reasons, unknown) => {
                format!("would not work by P2PDMA: {reasons}; unknown: {unknown}")
            }
        }
    }
}

/// Returns the finding about this machine.
pub(crate) fn finding(system: &System) -> Finding {
    let finding = |value: String| Finding::ok("gpudirect", "GPUDirect Storage", value);
    let Ok(version) = system.read(format!("{DRIVER}/version")) else {
        return finding("would not work: no NVIDIA kernel module is loaded".to_owned());
    };
    let mut missing = Missing::default();
    check_module(&mut missing, &version);
    check_kernel(&mut missing, system);
    check_devices(&mut missing, system);
    let has_module = system.path("proc/driver/nvidia-fs").exists();
    let module = if has_module {
        "; nvidia-fs is loaded"
    } else {
        ""
    };
    finding(format!("{}{module} (loads do not use it)", missing.text()))
}

/// Returns the finding about the disk with this device number; `None` without an NVIDIA driver.
pub(crate) fn disk(system: &System, device: (u32, u32)) -> Option<Finding> {
    system.read(format!("{DRIVER}/version")).ok()?;
    let value = match Disk::for_device(system, device).map(|disk| disk.name) {
        Some(name) if name.starts_with("nvme") && is_remote(system, &name) => {
            format!("{name} cannot: it is behind a network")
        }
        Some(name) if name.starts_with("nvme") => format!("{name} can"),
        Some(name) if name.starts_with("md") => format!("{name} cannot: it is a RAID"),
        Some(name) if name.starts_with("dm-") => {
            format!("{name} cannot: it is a mapped device, such as an encrypted or logical volume")
        }
        Some(name) => format!("{name} cannot: it is no NVMe disk"),
        None => "unknown: the file system names no disk of its own".to_owned(),
    };
    Some(Finding::ok("gpudirect_disk", "disk to GPU memory", value))
}

/// Returns whether the controller of a disk such as `nvme0n1` is not on the PCI bus.
fn is_remote(system: &System, disk: &str) -> bool {
    let number = disk["nvme".len()..].split('n').next().unwrap_or_default();
    let transport = system.read(format!("sys/class/nvme/nvme{number}/transport"));
    transport.is_ok_and(|transport| transport != "pcie")
}

/// Checks a text such as
/// `NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build`.
fn check_module(missing: &mut Missing, version: &str) {
    let has = |text: &str| version.contains(text);
    let is_open = has("Kernel Module").then(|| has("Open Kernel Module"));
    let subject = "the kind of the kernel module";
    missing.check(is_open, subject, "the kernel module is not the open one");
    let mut words = version
        .lines()
        .next()
        .unwrap_or_default()
        .split_whitespace();
    let major = words.find_map(|word| word.split_once('.')?.0.parse::<u32>().ok());
    let is_new = major.map(|major| major >= DRIVER_MIN);
    let reason = format!("driver {} is older than {DRIVER_MIN}", major.unwrap_or(0));
    missing.check(is_new, "the version of the kernel module", reason);
    let is_x86 = has("x86_64");
    let is_x86 = (is_x86 || has("aarch64")).then_some(is_x86);
    missing.check(is_x86, "the platform", "the platform is not x86-64");
}

fn check_kernel(missing: &mut Missing, system: &System) {
    let release = system.read("proc/sys/kernel/osrelease").unwrap_or_default();
    let mut numbers = release
        .split(|it: char| !it.is_ascii_digit())
        .map(str::parse);
    let version: Option<(u32, u32)> = match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => Some((major, minor)),
        _ => None,
    };
    let is_new = version.map(|version| version >= KERNEL_MIN);
    let reason = format!(
        "Linux {release} is older than {}.{}",
        KERNEL_MIN.0, KERNEL_MIN.1
    );
    missing.check(is_new, "the version of the kernel", reason);
    let config = system.read(format!("boot/config-{release}")).ok();
    let has_p2pdma = |config: String| config.lines().any(|it| it == "CONFIG_PCI_P2PDMA=y");
    let has_p2pdma = config.map(has_p2pdma).or_else(|| {
        // Without privileges, the addresses of symbols are zeros, but they have their names.
        let symbols = system.read("proc/kallsyms").ok();
        let symbols = symbols.filter(|symbols| !symbols.is_empty())?;
        // Other symbols of the name exist without it.
        Some(symbols.contains("pci_p2pdma_add_resource"))
    });
    let subject = "CONFIG_PCI_P2PDMA of the kernel, since /boot and /proc/kallsyms hide it";
    missing.check(
        has_p2pdma,
        subject,
        "the kernel is built without CONFIG_PCI_P2PDMA",
    );
}

fn check_devices(missing: &mut Missing, system: &System) {
    let bar = |gpu: &String| {
        let file = format!("sys/bus/pci/devices/{}/resource", gpu.to_lowercase());
        system
            .read(file)
            .ok()?
            .lines()
            .nth(1)
            .and_then(region_bytes)
    };
    let gpus = system.list(format!("{DRIVER}/gpus"));
    // `None`, if any size is unknown: it is less than every size.
    let smallest = gpus.iter().map(bar).min().flatten();
    let is_large = smallest.map(|bytes| bytes >= BAR_MIN);
    let bytes = format_bytes(smallest.unwrap_or(0));
    let reason = format!("BAR1 has {bytes}, not all memory of a GPU");
    missing.check(is_large, "the size of BAR1", reason);
    let options = system
        .field(&format!("{DRIVER}/params"), "RegistryDwords")
        .ok();
    let is_static = options.map(|it| it.to_lowercase().contains("rmforcestaticbar1=1"));
    let reason = "BAR1 is not static (nvidia NVreg_RegistryDwords=\"RMForceStaticBar1=1;RmForceDisableIomapWC=1;\")";
    missing.check(is_static, "the options of the kernel module", reason);
    let has_nvme = !system.list("sys/class/nvme").is_empty();
    missing.check(Some(has_nvme), "the disks", "there is no NVMe disk");
    // A kernel without multipath has no such file.
    let multipath = system.read("sys/module/nvme_core/parameters/multipath");
    let is_single = multipath.as_deref() != Ok("Y");
    let reason = "NVMe multipath is on (nvme_core.multipath=N)";
    missing.check(Some(is_single), "NVMe multipath", reason);
}

/// Returns the size of a region such as `0x000000e000000000 0x000000efffffffff 0x000000000014220c`.
fn region_bytes(line: &str) -> Option<u64> {
    let mut numbers = line
        .split_whitespace()
        .map(|number| u64::from_str_radix(number.strip_prefix("0x")?, 16).ok());
    let (start, end) = (numbers.next()??, numbers.next()??);
    end.checked_sub(start)?.checked_add(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Level;
    use crate::host::testing::system;

    const OPEN: &str = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  (root@x)\nGCC version:  gcc version 13.3.0\n";
    const BARS: &str = "0x00000000fa000000 0x00000000faffffff 0x0000000000040200\n0x000000e000000000 0x000000ffffffffff 0x000000000014220c\n0x0000000000000000 0x0000000000000000 0x0000000000000000\n";
    const SYMBOLS: &str =
        "0000000000000000 T pci_disable_device\n0000000000000000 T pci_p2pdma_add_resource\n";
    const STATIC: &str = "ResmanDebugLevel: 4294967295\nRegistryDwords: \"RMForceStaticBar1=1;RmForceDisableIomapWC=1;\"\n";

    /// Files of a machine on which it would work.
    const READY: [(&str, &str); 8] = [
        ("proc/driver/nvidia/version", OPEN),
        (
            "proc/driver/nvidia/gpus/0000:17:00.0/information",
            "Model: NVIDIA H100\n",
        ),
        ("proc/driver/nvidia/params", STATIC),
        ("sys/bus/pci/devices/0000:17:00.0/resource", BARS),
        ("proc/sys/kernel/osrelease", "6.8.0-45-generic\n"),
        ("proc/kallsyms", SYMBOLS),
        ("sys/class/nvme/nvme0/model", "x\n"),
        ("sys/module/nvme_core/parameters/multipath", "N\n"),
    ];

    /// Returns the finding for that machine with these files in place of its own; a text of `None`
    /// removes the file.
    fn value(changes: &[(&str, Option<&str>)]) -> String {
        let is_changed = |path: &str| changes.iter().any(|(other, _)| *other == path);
        let kept = READY.into_iter().filter(|(path, _)| !is_changed(path));
        let new = changes
            .iter()
            .filter_map(|(path, text)| Some((*path, (*text)?)));
        let files: Vec<_> = kept.chain(new).collect();
        let (_folder, system) = system(&files);
        let finding = finding(&system);
        assert_eq!((finding.level, finding.change), (Level::Ok, None));
        finding.value
    }

    #[test]
    fn ready_machine_would_work() {
        assert_eq!(value(&[]), "would work by P2PDMA (loads do not use it)");
        let with_module = [("proc/driver/nvidia-fs/stats", Some(""))];
        assert_eq!(
            value(&with_module),
            "would work by P2PDMA; nvidia-fs is loaded (loads do not use it)"
        );
        let config = [
            ("proc/kallsyms", None),
            (
                "boot/config-6.8.0-45-generic",
                Some("CONFIG_PCI=y\nCONFIG_PCI_P2PDMA=y\n"),
            ),
        ];
        assert_eq!(value(&config), "would work by P2PDMA (loads do not use it)");
        // A kernel without multipath.
        let multipath = [("sys/module/nvme_core/parameters/multipath", None)];
        assert_eq!(
            value(&multipath),
            "would work by P2PDMA (loads do not use it)"
        );
    }

    #[test]
    fn each_reason_alone_is_named() {
        let version = "proc/driver/nvidia/version";
        for (path, text, reason) in [
            (
                version,
                "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  Tue Oct\n",
                "the kernel module is not the open one",
            ),
            (
                version,
                "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  560.35.03  Release\n",
                "driver 560 is older than 565",
            ),
            (
                version,
                "NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  580.95.05  Release\n",
                "the platform is not x86-64",
            ),
            (
                "proc/sys/kernel/osrelease",
                "6.1.0-18-amd64\n",
                "Linux 6.1.0-18-amd64 is older than 6.2",
            ),
            (
                "proc/kallsyms",
                "0000000000000000 T dma_pci_p2pdma_supported\n",
                "the kernel is built without CONFIG_PCI_P2PDMA",
            ),
            (
                "boot/config-6.8.0-45-generic",
                "# CONFIG_PCI_P2PDMA is not set\n",
                "the kernel is built without CONFIG_PCI_P2PDMA",
            ),
            (
                "sys/bus/pci/devices/0000:17:00.0/resource",
                "0x0 0x0 0x0\n0x00000000e0000000 0x00000000efffffff 0x14220c\n",
                "BAR1 has 256.0 MiB, not all memory of a GPU",
            ),
            (
                "proc/driver/nvidia/params",
                "RegistryDwords: \"\"\n",
                "BAR1 is not static (nvidia NVreg_RegistryDwords=\"RMForceStaticBar1=1;RmForceDisableIomapWC=1;\")",
            ),
            (
                "sys/module/nvme_core/parameters/multipath",
                "Y\n",
                "NVMe multipath is on (nvme_core.multipath=N)",
            ),
        ] {
            let expected = format!("would not work by P2PDMA: {reason} (loads do not use it)");
            assert_eq!(value(&[(path, Some(text))]), expected);
        }
        let disks = value(&[("sys/class/nvme/nvme0/model", None)]);
        assert!(disks.contains(": there is no NVMe disk ("), "{disks}");
        let driver = value(&[(version, None)]);
        assert_eq!(driver, "would not work: no NVIDIA kernel module is loaded");
    }

    #[test]
    fn absent_and_invalid_files_are_unknown() {
        for (path, text, what) in [
            ("proc/kallsyms", None, "CONFIG_PCI_P2PDMA"),
            ("proc/kallsyms", Some(""), "CONFIG_PCI_P2PDMA"),
            ("proc/driver/nvidia/params", None, "the options"),
            (
                "proc/driver/nvidia/params",
                Some("\u{fffd}:"),
                "the options",
            ),
            ("proc/sys/kernel/osrelease", None, "version of the kernel"),
            (
                "proc/sys/kernel/osrelease",
                Some("six"),
                "version of the kernel",
            ),
            (
                "proc/sys/kernel/osrelease",
                Some("6"),
                "version of the kernel",
            ),
            (
                "proc/driver/nvidia/gpus/0000:17:00.0/information",
                None,
                "the size of BAR1",
            ),
            (
                "sys/bus/pci/devices/0000:17:00.0/resource",
                None,
                "the size of BAR1",
            ),
            (
                "sys/bus/pci/devices/0000:17:00.0/resource",
                Some("a\nb c d\n"),
                "the size of BAR1",
            ),
            (
                "sys/bus/pci/devices/0000:17:00.0/resource",
                Some("\n0x9 0x1 0x0"),
                "the size of BAR1",
            ),
            (
                "sys/bus/pci/devices/0000:17:00.0/resource",
                Some("\n0x0 0xffffffffffffffff 0x0"),
                "the size of BAR1",
            ),
        ] {
            let value = value(&[(path, text)]);
            assert!(value.starts_with("unknown: "), "{path}: {value}");
            assert!(value.contains(what), "{path}: {value}");
        }
        let garbage = value(&[("proc/driver/nvidia/version", Some("\u{1}\u{2}"))]);
        assert!(garbage.starts_with("unknown: "), "{garbage}");
        let (_folder, bare) = system(&[]);
        assert!(finding(&bare).value.contains("no NVIDIA kernel module"));
    }

    #[test]
    fn disk_behind_a_file_system_is_named() {
        let folder = |name: &str, driver: bool| {
            let queue = format!("sys/devices/{name}/queue/nr_requests");
            let mut files = vec![(queue.as_str(), "1\n"), ("sys/dev/block/.keep", "")];
            files.push(("sys/class/nvme/nvme0/transport", "pcie\n"));
            files.push(("sys/class/nvme/nvme12/transport", "tcp\n"));
            if driver {
                files.push(READY[0]);
            }
            let (folder, system) = system(&files);
            let link = folder.path().join("sys/dev/block/9:0");
            std::os::unix::fs::symlink(format!("../../devices/{name}"), link).unwrap();
            disk(&system, (9, 0)).map(|finding| finding.value)
        };
        for (name, expected) in [
            ("nvme0n1", "nvme0n1 can"),
            ("nvme12n3", "nvme12n3 cannot: it is behind a network"),
            ("md0", "md0 cannot: it is a RAID"),
            ("sda", "sda cannot: it is no NVMe disk"),
        ] {
            assert_eq!(folder(name, true).as_deref(), Some(expected));
        }
        let mapped = folder("dm-0", true).unwrap();
        assert!(
            mapped.starts_with("dm-0 cannot: it is a mapped device"),
            "{mapped}"
        );
        assert_eq!(folder("nvme0n1", false), None);
        let (_folder, system) = system(&READY);
        let value = disk(&system, (0, 40)).unwrap().value;
        assert!(value.contains("no disk of its own"), "{value}");
    }
}
