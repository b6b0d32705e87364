//! Storage of a checkpoint: file system, mount, direct I/O, disk, and its bytes in the page cache.

use std::path::Path;
use std::time::{Duration, Instant};

use tload::internal::probe::StoreProbe;
use tload::internal::{format_bytes, probe};
use tload::{Checkpoint, Error, ErrorKind};

use super::{Finding, Level, Settings, Urgency, disk, gpudirect, store, verify};
use crate::host::System;
use crate::host::mount::Mount;
use tload_config::flag;
use tload_quantity::{float, format_count, format_share};

/// Largest NFS request unless the server sets another limit. Smaller ones cost round trips.
const NFS_READ_BYTES: u64 = 1 << 20;
/// Options of a mount for reading weights: errors after half a minute without a response (10 s,
/// three attempts), large reads, many connections.
const NFS_OPTIONS: &str = "ro,soft,timeo=100,retrans=2,rsize=1048576,nconnect=8";

/// Result of examining the storage of a checkpoint.
#[derive(Debug)]
pub struct Storage {
    /// Findings about the file system, the disk or the store.
    pub findings: Vec<Finding>,
    /// Measurements of the object store, if shards are in one.
    pub store: Option<StoreProbe>,
}

/// Returns the findings for the directory of the first shard: the shards of one checkpoint lie
/// together. An object store is measured until `deadline`.
pub fn findings(
    system: &System,
    settings: &Settings,
    checkpoint: &Checkpoint,
    deadline: Instant,
) -> Storage {
    let paths = || {
        checkpoint
            .shards()
            .iter()
            .filter_map(|shard| shard.location().as_path())
    };
    let value = format!(
        "{} in {}, {}",
        format_count(checkpoint.tensors().len() as u64, "tensor"),
        format_count(checkpoint.shards().len() as u64, "shard"),
        format_bytes(checkpoint.total_bytes()),
    );
    let mut checkpoint_finding = Finding::ok("checkpoint", "checkpoint", value);
    if let [note, ..] = checkpoint.notes() {
        checkpoint_finding = checkpoint_finding.advise(Level::Note, note);
    }
    let mut findings = vec![checkpoint_finding];
    if let Some(first) = paths().next() {
        let (is_network, of_file_system) = file_system(system, first);
        findings.extend(of_file_system);
        let waits = is_network && settings.options.timeout.is_none();
        findings.push(mount(system, first, waits));
        findings.push(direct_io(first));
    }
    if paths().next().is_some() {
        findings.push(residency(paths()));
    }
    let measured = probe::store(checkpoint, deadline);
    let store = match measured {
        Ok(Some(probe)) => {
            let remote = checkpoint.shards().len() - paths().count();
            findings.extend(store::findings(&probe, remote));
            Some(probe)
        }
        Ok(None) => None,
        // A store that does not answer is not asked for checksums.
        Err(error) => {
            findings.push(store::unknown(&error));
            return Storage {
                findings,
                store: None,
            };
        }
    };
    findings.push(verify::finding(checkpoint));
    Storage { findings, store }
}

/// Returns the finding for a location that cannot be loaded or did not answer in time.
pub fn no_answer(location: &str, timeout: Duration, error: &Error) -> Finding {
    if error.kind() == ErrorKind::TimedOut {
        return hangs(location, timeout, error);
    }
    unreadable(error)
}

fn hangs(location: &str, timeout: Duration, error: &Error) -> Finding {
    let change = if is_remote(location) {
        "see the last failure if one is named; else check the endpoint and the region, the proxy (option proxy, \
         HTTPS_PROXY, NO_PROXY) and the firewall: this machine must reach the store; if it is only slow, raise \
         --timeout"
    } else {
        "check that the server of the mount is up, and mount it again (umount -f releases blocked processes); if it \
         is only slow, raise --timeout"
    };
    Finding::ok(
        "checkpoint",
        "checkpoint",
        format!(
            "{location} did not answer within {timeout:?}: {}",
            told(error)
        ),
    )
    .advise(
        Level::Fail,
        format!("a load would not start either; {change}"),
    )
    .change(Urgency::Hang, change)
}

/// Returns an error with its request and causes in one line, without its hint.
pub(crate) fn told(error: &Error) -> String {
    one_line(&error.chain_with(flag))
}

/// Returns the chain of an error in one line, without its hint.
pub(crate) fn one_line(chain: &str) -> String {
    let lines: Vec<_> = chain
        .lines()
        .map(str::trim)
        .filter(|line| !line.starts_with("hint: "))
        .collect();
    lines.join("; ")
}

/// Returns whether the location is a URL of a store.
fn is_remote(location: &str) -> bool {
    let scheme = location.split_once("://");
    scheme.is_some_and(|(scheme, _)| !scheme.eq_ignore_ascii_case("file"))
}

fn unreadable(error: &Error) -> Finding {
    let value = told(error);
    let advice = error.hint_with(flag).unwrap_or_else(|| {
        "pass the path of a readable checkpoint: see tload ls LOCATION".to_owned()
    });
    Finding::ok("checkpoint", "checkpoint", value)
        .advise(Level::Fail, advice.clone())
        .change(Urgency::Failure, advice)
}

/// Returns whether the file system is reached over a network, and the findings about it.
fn file_system(system: &System, path: &Path) -> (bool, Vec<Finding>) {
    let found = match probe::file_system(path) {
        Ok(found) => found,
        Err(error) => {
            let value = format!("unknown: {error}");
            return (
                false,
                vec![Finding::ok("file_system", "file system", value)],
            );
        }
    };
    let finding = Finding::ok("file_system", "file system", found.name.clone());
    if found.in_memory {
        let finding = finding.advise(
            Level::Note,
            "the files are already in memory: loads use threads, and cold and warm are the same",
        );
        return (
            false,
            [Some(finding), small_pages(system, path)]
                .into_iter()
                .flatten()
                .collect(),
        );
    }
    if found.network {
        let finding = finding.advise(
            Level::Note,
            "a network file system needs many reads in flight; loads tune their number, and tload bench LOCATION --sweep compares it with fixed ones",
        );
        return (true, vec![finding]);
    }
    let mut findings = vec![finding, disk::finding(system, found.device)];
    findings.extend(gpudirect::disk(system, found.device));
    (false, findings)
}

/// Returns the finding about a tmpfs that has no huge pages, if the kernel has them for others.
///
/// One core copied from pages of 4 KiB at 0.127 CPU seconds per GiB, from huge ones at 0.056 (AMD
/// EPYC 9004, Linux 6.18, 2026-11).
fn small_pages(system: &System, path: &Path) -> Option<Finding> {
    let mount = Mount::for_path(system, path).ok()?;
    let setting = system.read("sys/kernel/mm/transparent_hugepage/shmem_enabled");
    // `force` and `deny` hold for every mount, whatever its option.
    let setting = setting.ok().filter(|setting| {
        !["[force]", "[deny]"]
            .iter()
            .any(|all| setting.contains(all))
    });
    let has_huge = matches!(mount.option("huge"), Some("always" | "within_size"));
    if mount.file_system != "tmpfs" || has_huge || setting.is_none() {
        return None;
    }
    let point = mount.point.display();
    let command = format!("mount -o remount,huge=within_size {point} (as root)");
    let advice = format!(
        "a core copies from huge pages at twice the speed: {command}, and write the files again"
    );
    let finding = Finding::ok("tmpfs_pages", "pages of the tmpfs", "4 KiB");
    Some(
        finding
            .advise(Level::Note, advice)
            .change(Urgency::Speed, command),
    )
}

/// Returns the finding about the mount. `waits`: the file system is on a network, and loads have no
/// timeout.
fn mount(system: &System, path: &Path, waits: bool) -> Finding {
    let (id, title) = ("mount", "mount");
    let mount = match Mount::for_path(system, path) {
        Ok(mount) => mount,
        Err(unreadable) => return Finding::known(id, title, Err::<String, _>(unreadable)),
    };
    let source = format!("{} on {}", mount.source, mount.point.display());
    let finding = Finding::ok(id, title, format!("{source} ({})", mount.options.join(",")));
    if mount.file_system.starts_with("nfs") {
        return nfs(finding, &mount);
    }
    if waits {
        let command = "set TLOAD_TIMEOUT=10m, or give loads a --timeout";
        return finding
            .advise(
                Level::Warn,
                format!(
                    "if its server is gone, reads from this kind of mount ({}) may hang: {command}",
                    mount.file_system
                ),
            )
            .change(Urgency::Hang, command);
    }
    if !["noatime", "relatime", "ro"]
        .iter()
        .any(|option| mount.has(option))
    {
        let command = format!(
            "mount -o remount,noatime {} (as root)",
            mount.point.display()
        );
        return finding
            .advise(
                Level::Note,
                format!("each read updates the access time: {command}"),
            )
            .change(Urgency::Little, command);
    }
    finding
}

fn nfs(finding: Finding, mount: &Mount) -> Finding {
    let number = |option| {
        mount
            .option(option)
            .and_then(|value| value.parse::<u64>().ok())
    };
    let mount_with = |options: &str| {
        let (source, point) = (&mount.source, mount.point.display());
        let kind = &mount.file_system;
        format!("umount {point} && mount -t {kind} -o {options} {source} {point} (as root)")
    };
    // The kernel shows one of the two; `hard` is the default (nfs(5)).
    if !mount.has("soft") && !mount.has("softerr") {
        // Tenths of a second.
        let waits = number("timeo").map_or_else(String::new, |timeo| {
            format!(" (timeo={timeo}: it retries after {} s)", timeo / 10)
        });
        let command = mount_with(NFS_OPTIONS);
        let advice = format!(
            "hard mount{waits}: if the server is gone, reads hang and cannot be interrupted; \
             a soft mount is safe for weights, which are only read: {command}; otherwise, give loads a --timeout"
        );
        return finding
            .advise(Level::Warn, advice)
            .change(Urgency::Hang, command);
    }
    if number("rsize").is_some_and(|bytes| bytes < NFS_READ_BYTES) {
        let command = mount_with(NFS_OPTIONS);
        return finding
            .advise(
                Level::Warn,
                format!("reads are small: mount with rsize={NFS_READ_BYTES}: {command}"),
            )
            .change(Urgency::Speed, command);
    }
    if number("nconnect").is_none_or(|connections| connections < 2) {
        let command = mount_with(NFS_OPTIONS);
        return finding
            .advise(
                Level::Note,
                format!("all reads share one TCP connection; try eight and measure: {command}"),
            )
            .change(Urgency::Little, command);
    }
    finding
}

fn direct_io(path: &Path) -> Finding {
    let (id, title) = ("direct_io", "direct I/O");
    match probe::direct_io(path) {
        Ok(direct) if direct.accepted => {
            let bytes = |alignment: Option<u32>| {
                alignment.map_or("unknown".to_owned(), |bytes| format!("{bytes} bytes"))
            };
            let (memory, offset) = (
                bytes(direct.memory_alignment),
                bytes(direct.offset_alignment),
            );
            Finding::ok(
                id,
                title,
                format!("yes; memory alignment {memory}, offset alignment {offset}"),
            )
        }
        Ok(direct) => {
            let reason = direct.error.unwrap_or_else(|| "refused".to_owned());
            Finding::ok(id, title, format!("no: {reason}")).advise(
                Level::Note,
                "reads go through the page cache, which costs a copy; local ext4 and xfs avoid it",
            )
        }
        Err(error) => Finding::ok(id, title, format!("unknown: {error}")),
    }
}

fn residency<'a>(paths: impl Iterator<Item = &'a Path>) -> Finding {
    let (id, title) = ("page_cache", "page cache");
    let (mut resident, mut total, mut method) = (0, 0, "");
    for path in paths {
        match probe::residency(path) {
            Ok(found) => {
                resident += found.resident_bytes;
                total += found.total_bytes;
                method = found.method;
            }
            Err(error) => return Finding::ok(id, title, format!("unknown: {error}")),
        }
    }
    let share = if total == 0 {
        0.0
    } else {
        float(resident) / float(total)
    };
    let (resident, total) = (format_bytes(resident), format_bytes(total));
    let share = format_share(share);
    let value = format!("{resident} of {total} in memory ({share}, by {method})");
    Finding::ok(id, title, value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::testing::system;

    /// Returns the finding for a mount on `/` of this type with these options.
    fn of_mount(kind: &str, options: &str) -> Finding {
        waiting(kind, options, false)
    }

    fn waiting(kind: &str, options: &str, waits: bool) -> Finding {
        let line = format!("30 22 0:40 / / {options} - {kind} host:/x {options}\n");
        let (_folder, system) = system(&[("proc/self/mountinfo", &line)]);
        mount(&system, Path::new("/models"), waits)
    }

    #[test]
    fn tmpfs_without_huge_pages_is_advised_to_have_them() {
        let file = "sys/kernel/mm/transparent_hugepage/shmem_enabled";
        let never = "always within_size advise [never] deny force\n";
        let found = |kind: &str, options: &str, setting: Option<&str>| {
            let line = format!("30 22 0:40 / /dev/shm rw,nosuid - {kind} none rw{options}\n");
            let mut files = vec![("proc/self/mountinfo", line.as_str())];
            files.extend(setting.map(|setting| (file, setting)));
            let (_folder, system) = system(&files);
            small_pages(&system, Path::new("/dev/shm/model.safetensors"))
        };
        for options in ["", ",size=1g", ",huge=never", ",huge=advise"] {
            let finding = found("tmpfs", options, Some(never)).expect("small pages");
            assert_eq!(
                (finding.level, finding.value.as_str()),
                (Level::Note, "4 KiB")
            );
            let change = finding.change.expect("can be changed");
            assert_eq!(change.urgency, Urgency::Speed);
            assert_eq!(
                change.command,
                "mount -o remount,huge=within_size /dev/shm (as root)"
            );
        }
        for (kind, options, setting) in [
            ("tmpfs", ",huge=always", Some(never)),
            ("tmpfs", ",huge=within_size", Some(never)),
            ("tmpfs", "", Some("always never deny [force]")),
            ("tmpfs", "", Some("always never [deny] force")),
            ("tmpfs", "", None),
            ("ramfs", "", Some(never)),
            ("ext4", "", Some(never)),
        ] {
            assert_eq!(
                found(kind, options, setting),
                None,
                "{kind}{options} {setting:?}"
            );
        }
    }

    #[test]
    fn network_mount_without_timeout_warns_of_hang() {
        for kind in ["fuse.sshfs", "lustre", "ceph", "cifs", "beegfs"] {
            let found = waiting(kind, "rw,relatime", true);
            assert_eq!(found.level, Level::Warn, "{kind}");
            let change = found.change.expect("says what to do");
            assert_eq!(change.urgency, Urgency::Hang);
            assert!(change.command.contains("TLOAD_TIMEOUT"));
            assert!(found.advice.is_some_and(|advice| advice.contains(kind)));
            assert_eq!(waiting(kind, "rw,relatime", false).change, None);
        }
        // NFS has options of its own for that.
        let soft = waiting("nfs4", "soft,rsize=1048576,nconnect=8", true);
        assert_eq!(soft.change, None);
    }

    #[test]
    fn hard_mount_warns_and_advises_soft() {
        let hard = of_mount(
            "nfs4",
            "rw,hard,timeo=600,retrans=2,rsize=1048576,nconnect=8",
        );
        assert_eq!(hard.level, Level::Warn);
        let advice = hard.advice.expect("says why");
        assert!(
            advice.contains("(timeo=600: it retries after 60 s)"),
            "{advice}"
        );
        let change = hard.change.expect("says what to do");
        assert_eq!(change.urgency, Urgency::Hang);
        assert_eq!(
            change.command,
            "umount / && mount -t nfs4 -o ro,soft,timeo=100,retrans=2,rsize=1048576,nconnect=8 host:/x / (as root)"
        );
        let urgency = |options| of_mount("nfs", options).change.map(|change| change.urgency);
        assert_eq!(urgency("soft,rsize=65536"), Some(Urgency::Speed));
        assert_eq!(urgency("softerr,rsize=1048576"), Some(Urgency::Little));
        assert_eq!(urgency("soft,rsize=1048576,nconnect=8"), None);
        assert_eq!(of_mount("ext4", "rw,relatime").change, None);
        assert_eq!(
            of_mount("ext4", "rw").change.map(|change| change.command),
            Some("mount -o remount,noatime / (as root)".to_owned())
        );
    }
}
