//! CPUs near a PCI device, as `/sys` tells, and the choice of those that threads are bound to.

use std::fs::read_to_string;
use std::path::Path;

use crate::Cpus;

/// Root of the files that describe devices.
pub const SYSFS: &str = "/sys";

/// CPUs and memory near a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Near {
    /// NUMA node; `None` where the system has none or does not know it.
    pub node: Option<u32>,
    /// CPUs from which the device is as near as from any other.
    pub cpus: Cpus,
}

/// CPUs that threads of a load are bound to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Placement {
    /// All that the process may use are equally near.
    Anywhere,
    /// These, which are only some of them.
    At(Cpus),
    /// None, for this reason, although some may be nearer than others.
    Unknown(String),
}

/// Returns what is near the PCI device at an address such as `0000:3b:00.0`; `root` is [`SYSFS`].
///
/// # Errors
///
/// Returns the reason if the system does not say.
pub fn near(root: &Path, address: &str) -> Result<Near, String> {
    // The address comes from a driver, and becomes part of a path.
    let is_address = !address.is_empty()
        && address
            .bytes()
            .all(|byte| byte.is_ascii_hexdigit() || matches!(byte, b':' | b'.'))
        && !address.contains("..");
    if !is_address {
        return Err(format!("{address:?} is no PCI address"));
    }
    let device = root.join("bus/pci/devices").join(address);
    let file = device.join("local_cpulist");
    let list = read_to_string(&file).map_err(|error| format!("{}: {error}", file.display()))?;
    let Ok(cpus) = list.parse::<Cpus>() else {
        return Err(format!("{}: no list of CPUs", file.display()));
    };
    if cpus.is_empty() {
        return Err(format!("{}: no CPU", file.display()));
    }
    // -1 where the firmware does not tell.
    let node = read_to_string(device.join("numa_node")).ok();
    Ok(Near {
        node: node.and_then(|node| node.trim().parse().ok()),
        cpus,
    })
}

/// Chooses the CPUs for the threads of a load to devices with these surroundings, of the `allowed`
/// ones.
#[must_use]
pub fn placement(devices: &[Result<Near, String>], allowed: &Cpus) -> Placement {
    let mut chosen: Option<&Near> = None;
    for device in devices {
        match (device, chosen) {
            (Err(reason), _) => return Placement::Unknown(reason.clone()),
            (Ok(near), Some(other)) if near.cpus != other.cpus => {
                let reason = format!(
                    "its GPUs are near different CPUs ({} and {})",
                    other.cpus, near.cpus
                );
                return Placement::Unknown(reason);
            }
            (Ok(near), _) => chosen = Some(near),
        }
    }
    let Some(near) = chosen else {
        return Placement::Anywhere;
    };
    let usable = near.cpus.intersection(allowed);
    if usable.is_empty() {
        return Placement::Unknown(format!(
            "the process may only use CPUs {allowed}, and the GPU is near {}",
            near.cpus
        ));
    }
    if usable == *allowed {
        Placement::Anywhere
    } else {
        Placement::At(usable)
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{create_dir_all, write};

    use tempfile::TempDir;

    use super::*;

    /// `/sys` with devices: address, `local_cpulist`, `numa_node`.
    fn sys(devices: &[(&str, &str, Option<&str>)]) -> TempDir {
        let root = tempfile::tempdir().expect("a temporary folder");
        for (address, cpus, node) in devices {
            let device = root.path().join("bus/pci/devices").join(address);
            create_dir_all(&device).expect("a folder");
            write(device.join("local_cpulist"), cpus).expect("room");
            if let Some(node) = node {
                write(device.join("numa_node"), node).expect("room");
            }
        }
        root
    }

    fn cpus(list: &str) -> Cpus {
        list.parse().expect("a list")
    }

    const FIRST: &str = "0000:3b:00.0";
    const SECOND: &str = "0000:af:00.0";

    fn two_sockets() -> TempDir {
        sys(&[
            (FIRST, "0-15,32-47\n", Some("0\n")),
            (SECOND, "16-31,48-63\n", Some("1\n")),
        ])
    }

    /// Returns the placement for devices of a `/sys`.
    fn placed(root: &TempDir, devices: &[&str], allowed: &str) -> Placement {
        let near = devices.iter().map(|device| near(root.path(), device));
        placement(&near.collect::<Vec<_>>(), &cpus(allowed))
    }

    fn reason(placement: Placement) -> String {
        match placement {
            Placement::Unknown(reason) => reason,
            Placement::Anywhere | Placement::At(_) => String::new(),
        }
    }

    #[test]
    fn threads_are_bound_to_the_socket_of_their_gpu() {
        let root = two_sockets();
        let at = |device| placed(&root, &[device], "0-63");
        assert_eq!(at(FIRST), Placement::At(cpus("0-15,32-47")));
        assert_eq!(at(SECOND), Placement::At(cpus("16-31,48-63")));
        let found = near(root.path(), SECOND).expect("there");
        assert_eq!(found.node, Some(1));
    }

    #[test]
    fn gpus_of_one_socket_share_it_and_those_of_two_bind_nothing() {
        let third = "0000:5e:00.0";
        let root = sys(&[
            (FIRST, "0-15", Some("0")),
            (third, "0-15", Some("0")),
            (SECOND, "16-31", Some("1")),
        ]);
        let together = placed(&root, &[FIRST, third], "0-31");
        assert_eq!(together, Placement::At(cpus("0-15")));
        let apart = placed(&root, &[FIRST, third, SECOND], "0-31");
        assert!(reason(apart).contains("0-15 and 16-31"));
    }

    #[test]
    fn one_socket_or_no_numa_binds_nothing() {
        for node in [Some("0"), Some("-1"), None] {
            let root = sys(&[(FIRST, "0-15", node)]);
            assert_eq!(placed(&root, &[FIRST], "0-15"), Placement::Anywhere);
            let found = near(root.path(), FIRST).expect("there");
            assert_eq!(found.node, node.and_then(|node| node.parse().ok()));
        }
        assert_eq!(placed(&two_sockets(), &[], "0-63"), Placement::Anywhere);
    }

    #[test]
    fn restricted_cpus_are_respected() {
        let root = two_sockets();
        // Both sockets in part; only the near one; only the far one.
        let part = placed(&root, &[FIRST], "14-17");
        assert_eq!(part, Placement::At(cpus("14-15")));
        assert_eq!(placed(&root, &[FIRST], "3,5"), Placement::Anywhere);
        let far = reason(placed(&root, &[FIRST], "16-19"));
        assert_eq!(
            far,
            "the process may only use CPUs 16-19, and the GPU is near 0-15,32-47"
        );
    }

    #[test]
    fn garbage_is_a_reason() {
        for list in ["", "\n", "garbage", "3-1", "\u{0}"] {
            let root = sys(&[(FIRST, list, Some("garbage"))]);
            let found = reason(placed(&root, &[FIRST], "0-3"));
            assert!(found.contains("local_cpulist: no "), "{list:?}: {found}");
        }
        let root = sys(&[(FIRST, "0-1", Some("garbage"))]);
        assert_eq!(near(root.path(), FIRST).expect("there").node, None);
        let missing = reason(placed(&root, &[SECOND], "0-3"));
        assert!(missing.contains(SECOND), "{missing}");
        for address in ["", "..", "../../etc", "0000:3b:00.0/..", "a/b"] {
            let found = near(root.path(), address).expect_err("no address");
            assert!(found.contains("no PCI address"), "{found}");
        }
    }
}
