//! Place of a device's memory: its own, or the host's. Pure.

/// Attributes of a device that tell its memory from the host's, by their names in `cuda.h`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryAttributes {
    /// `INTEGRATED` (18): the device uses the host's memory.
    pub is_integrated: bool,
    /// `PAGEABLE_MEMORY_ACCESS` (88): the device reads ordinary memory of the process.
    pub reads_pageable: bool,
    /// `PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES` (100): the hardware does so. Without it the
    /// kernel moves pages between the two memories (HMM), as for any GPU on a bus.
    pub uses_host_page_tables: bool,
}

/// Relation of a device's memory to the host's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MemoryKind {
    /// The device has memory of its own, behind a bus.
    #[default]
    Own,
    /// The device has memory of its own, and both processors reach both memories (GH200, GB200).
    Coherent,
    /// There is one memory: the host's (GB10, Jetson).
    Shared,
}

impl MemoryAttributes {
    /// Returns the relation of the device's memory to the host's.
    #[must_use]
    pub fn kind(self) -> MemoryKind {
        match self {
            Self {
                is_integrated: true,
                ..
            } => MemoryKind::Shared,
            Self {
                reads_pageable: true,
                uses_host_page_tables: true,
                ..
            } => MemoryKind::Coherent,
            _ => MemoryKind::Own,
        }
    }

    /// Returns whether tensors can stay where they were read to: in memory that the host and the
    /// device share, at addresses that both can use.
    #[must_use]
    pub fn reads_in_place(self) -> bool {
        self.kind() == MemoryKind::Shared && self.reads_pageable
    }
}

impl MemoryKind {
    /// Returns the bytes that can be allocated on a device whose driver calls `free` of `total`
    /// bytes free. In shared memory the driver counts the page cache as used, although the kernel
    /// gives it back; `available` is what the kernel would give.
    #[must_use]
    pub fn free_bytes(self, free: u64, total: u64, available: Option<u64>) -> u64 {
        match self {
            Self::Own | Self::Coherent => free,
            Self::Shared => free.max(available.unwrap_or(0)).min(total),
        }
    }
}

/// Returns the available bytes that a text as of `/proc/meminfo` states.
pub(super) fn available(meminfo: &str) -> Option<u64> {
    let mut lines = meminfo.lines();
    let text = lines.find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kibibytes: u64 = text.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kibibytes.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Attributes as published for each machine, and what follows from them.
    #[test]
    fn kinds_follow_from_attributes() {
        let attributes = |attributes: [u8; 3]| {
            let [is_integrated, reads_pageable, uses_host_page_tables] =
                attributes.map(|value| value != 0);
            MemoryAttributes {
                is_integrated,
                reads_pageable,
                uses_host_page_tables,
            }
        };
        for (machine, values, kind, in_place) in [
            ("H100", [0, 0, 0], MemoryKind::Own, false),
            ("H100 with HMM", [0, 1, 0], MemoryKind::Own, false),
            ("GH200", [0, 1, 1], MemoryKind::Coherent, false),
            ("GB10", [1, 1, 1], MemoryKind::Shared, true),
            ("Jetson Orin", [1, 0, 0], MemoryKind::Shared, false),
            ("integrated with HMM", [1, 1, 0], MemoryKind::Shared, true),
            ("no access", [0, 0, 1], MemoryKind::Own, false),
        ] {
            let attributes = attributes(values);
            assert_eq!(attributes.kind(), kind, "{machine}");
            assert_eq!(attributes.reads_in_place(), in_place, "{machine}");
        }
    }

    /// The numbers of the second row were measured on a GB10 with 60 GiB of files in the page
    /// cache, in GiB.
    #[test]
    fn page_cache_is_free_in_shared_memory_alone() {
        for (kind, free, total, available, expected) in [
            (MemoryKind::Own, 10, 80, Some(70), 10),
            (MemoryKind::Shared, 41, 121, Some(115), 115),
            (MemoryKind::Coherent, 10, 80, Some(400), 10),
            (MemoryKind::Shared, 41, 121, None, 41),
            (MemoryKind::Shared, 41, 121, Some(30), 41),
            (MemoryKind::Shared, 41, 121, Some(500), 121),
        ] {
            assert_eq!(kind.free_bytes(free, total, available), expected);
        }
    }

    #[test]
    fn available_bytes_are_found_or_unknown() {
        let text = "MemTotal:  100 kB\nMemFree:  5 kB\nMemAvailable:     12 kB\n";
        assert_eq!(available(text), Some(12 * 1024));
        for text in [
            "",
            "MemFree: 5 kB",
            "MemAvailable: 12",
            "MemAvailable: x kB",
            "MemAvailable: 18446744073709551615 kB",
        ] {
            assert_eq!(available(text), None, "{text}");
        }
    }
}
