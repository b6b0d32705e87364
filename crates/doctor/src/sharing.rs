//! Memory that the ranks of one node share when they load together.

use super::{Finding, Level, Urgency};
use crate::host::System;

pub(crate) fn findings(system: &System) -> Vec<Finding> {
    vec![memory(sealed_memory()), huge_pages(system)]
}

/// Creates memory that another process can map, and protects it as a load does.
#[cfg(target_os = "linux")]
fn sealed_memory() -> Result<(), String> {
    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let memory =
        memfd_create("tload-doctor", flags).map_err(|error| format!("memfd_create: {error}"))?;
    ftruncate(&memory, 4096).map_err(|error| format!("ftruncate: {error}"))?;
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE | SealFlags::SEAL;
    fcntl_add_seals(&memory, seals).map_err(|error| format!("F_ADD_SEALS: {error}"))
}

#[cfg(not(target_os = "linux"))]
fn sealed_memory() -> Result<(), String> {
    Err("needs Linux".to_owned())
}

fn memory(sealed: Result<(), String>) -> Finding {
    let finding = |value: String| Finding::ok("sharing", "sharing between ranks", value);
    match sealed {
        Ok(()) => finding("sealed shared memory works".to_owned()),
        Err(error) => finding(format!("no shared memory: {error}")).advise(
            Level::Note,
            "processes that load together each read everything: allow memfd_create and fcntl in the \
             container's seccomp profile (Linux 5.1 or later)",
        ),
    }
}

fn huge_pages(system: &System) -> Finding {
    let file = "sys/kernel/mm/transparent_hugepage/shmem_enabled";
    let setting = system.read(file);
    let chosen = setting.map(|setting| {
        let chosen = setting
            .split_once('[')
            .and_then(|(_, rest)| rest.split_once(']'));
        chosen.map_or(setting.clone(), |(chosen, _)| chosen.to_owned())
    });
    let is_off = matches!(chosen.as_deref(), Ok("never" | "deny"));
    let finding = Finding::known("shared_huge_pages", "shared huge pages", chosen);
    if !is_off {
        return finding;
    }
    let command = format!("echo advise > /{file}");
    // Filling fresh shared memory from the page cache costs 0.82 s of CPU per GiB with 4 KiB pages
    // and 0.15 s with huge pages (2 × AMD EPYC, 2026-11).
    let advice = format!(
        "processes that load together and keep their tensors spend several times the CPU on shared \
         memory: {command}"
    );
    finding
        .advise(Level::Note, advice)
        .change(Urgency::Little, command)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::testing::system;

    #[test]
    fn disabled_shared_huge_pages_advise_change() {
        let file = "sys/kernel/mm/transparent_hugepage/shmem_enabled";
        for off in ["never", "deny"] {
            let text = format!("always within_size advise [{off}] force\n");
            let (_folder, system) = system(&[(file, &text)]);
            let finding = huge_pages(&system);
            assert_eq!((finding.level, finding.value.as_str()), (Level::Note, off));
            let change = finding.change.expect("can be changed");
            assert_eq!(change.urgency, Urgency::Little);
            assert_eq!(change.command, format!("echo advise > /{file}"));
        }
        let (_folder, healthy) = system(&[(file, "always [advise] never deny force\n")]);
        let finding = huge_pages(&healthy);
        assert_eq!((finding.level, finding.change), (Level::Ok, None));
        let (_folder, bare) = system(&[]);
        assert_eq!(huge_pages(&bare).change, None);
    }

    #[test]
    fn refused_shared_memory_is_noted() {
        assert_eq!(memory(Ok(())).level, Level::Ok);
        let refused = memory(Err("memfd_create: not permitted".to_owned()));
        assert_eq!(refused.level, Level::Note);
        assert!(
            refused.value.ends_with("memfd_create: not permitted"),
            "{}",
            refused.value
        );
        assert!(refused.advice.expect("says why").contains("seccomp"));
    }
}
