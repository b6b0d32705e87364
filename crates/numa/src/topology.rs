//! CPUs near a PCI device, as `/sys` tells, and the choice of those that threads are bound to.

use std::fs::read_to_string;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::Cpus;

/// Root of the files that describe devices, if it is not `/sys`: tests set it, once per process.
pub static PRETENDED_SYSFS: OnceLock<PathBuf> = OnceLock::new();

/// Returns the root of the files that describe devices.
#[must_use]
pub fn sysfs() -> &'static Path {
    PRETENDED_SYSFS
        .get()
        .map_or(Path::new("/sys"), PathBuf::as_path)
}

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

/// Places for the threads of a load: one for each set of CPUs that some of its devices are near.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Places {
    /// CPUs of each place.
    pub placements: Vec<Placement>,
    /// By device: its place.
    pub of_device: Vec<usize>,
}

/// Returns what is near the PCI device at an address such as `0000:3b:00.0`; `root` is
/// that of [`sysfs`].
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

/// Divides devices with these surroundings by the CPUs that they are near, of the `allowed` ones.
/// Devices whose surroundings are not known have a place of their own, with the first reason.
#[must_use]
pub fn places(devices: &[Result<Near, String>], allowed: &Cpus) -> Places {
    let mut distinct: Vec<&Result<Near, String>> = Vec::new();
    let mut of_device = Vec::new();
    for device in devices {
        let cpus = |device: &Result<Near, String>| device.as_ref().ok().map(|it| it.cpus.clone());
        let known = distinct.iter().position(|it| cpus(it) == cpus(device));
        of_device.push(known.unwrap_or(distinct.len()));
        if known.is_none() {
            distinct.push(device);
        }
    }
    let placement = |device: &Result<Near, String>| match device {
        Ok(near) => near.placement(allowed),
        Err(reason) => Placement::Unknown(reason.clone()),
    };
    Places {
        placements: distinct.into_iter().map(placement).collect(),
        of_device,
    }
}

impl Near {
    /// Returns the CPUs for the threads of a load to the device, of the `allowed` ones.
    fn placement(&self, allowed: &Cpus) -> Placement {
        let usable = self.cpus.intersection(allowed);
        if usable.is_empty() {
            Placement::Unknown(format!(
                "the process may only use CPUs {allowed}, and the GPU is near {}",
                self.cpus
            ))
        } else if usable == *allowed {
            Placement::Anywhere
        } else {
            Placement::At(usable)
        }
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

    fn reason(placement: Placement) -> String {
        match placement {
            Placement::Unknown(reason) => reason,
            Placement::Anywhere | Placement::At(_) => String::new(),
        }
    }

    fn all_places(root: &TempDir, devices: &[&str], allowed: &str) -> Places {
        let near = devices.iter().map(|device| near(root.path(), device));
        places(&near.collect::<Vec<_>>(), &cpus(allowed))
    }

    /// Returns the placement for a device of a `/sys`.
    fn placed(root: &TempDir, device: &str, allowed: &str) -> Placement {
        let mut places = all_places(root, &[device], allowed);
        assert_eq!((places.placements.len(), &*places.of_device), (1, &[0][..]));
        places.placements.remove(0)
    }

    #[test]
    fn threads_are_bound_to_the_socket_of_their_gpu() {
        let root = two_sockets();
        let at = |device| placed(&root, device, "0-63");
        assert_eq!(at(FIRST), Placement::At(cpus("0-15,32-47")));
        assert_eq!(at(SECOND), Placement::At(cpus("16-31,48-63")));
        let found = near(root.path(), SECOND).expect("there");
        assert_eq!(found.node, Some(1));
    }

    #[test]
    fn gpus_of_one_socket_share_a_place_and_those_of_two_have_one_each() {
        let third = "0000:5e:00.0";
        let root = sys(&[
            (FIRST, "0-15", Some("0")),
            (third, "0-15", Some("0")),
            (SECOND, "16-31", Some("1")),
        ]);
        let at = |list| Placement::At(cpus(list));
        let together = all_places(&root, &[FIRST, third], "0-31");
        assert_eq!(together.placements, [at("0-15")]);
        let apart = all_places(&root, &[SECOND, FIRST, third, SECOND], "0-31");
        assert_eq!(apart.placements, [at("16-31"), at("0-15")]);
        assert_eq!(apart.of_device, [0, 1, 1, 0]);
    }

    /// One of two devices has no files, or a socket that the process may not use.
    #[test]
    fn place_of_one_device_does_not_depend_on_the_other() {
        let root = two_sockets();
        let found = all_places(&root, &[FIRST, "0000:00:00.0", "0000:00:00.1"], "0-63");
        assert_eq!(found.of_device, [0, 1, 1]);
        assert_eq!(found.placements[0], Placement::At(cpus("0-15,32-47")));
        assert!(reason(found.placements[1].clone()).contains("0000:00:00.0"));
        let found = all_places(&root, &[FIRST, SECOND], "0-15");
        assert_eq!(found.placements[0], Placement::Anywhere);
        assert!(reason(found.placements[1].clone()).contains("may only use CPUs 0-15"));
    }

    #[test]
    fn one_socket_or_no_numa_binds_nothing() {
        for node in [Some("0"), Some("-1"), None] {
            let root = sys(&[(FIRST, "0-15", node)]);
            assert_eq!(placed(&root, FIRST, "0-15"), Placement::Anywhere);
            let found = near(root.path(), FIRST).expect("there");
            assert_eq!(found.node, node.and_then(|node| node.parse().ok()));
        }
        let none = all_places(&two_sockets(), &[], "0-63");
        assert!(none.placements.is_empty() && none.of_device.is_empty());
    }

    #[test]
    fn restricted_cpus_are_respected() {
        let root = two_sockets();
        // Both sockets in part; only the near one; only the far one.
        let part = placed(&root, FIRST, "14-17");
        assert_eq!(part, Placement::At(cpus("14-15")));
        assert_eq!(placed(&root, FIRST, "3,5"), Placement::Anywhere);
        let far = reason(placed(&root, FIRST, "16-19"));
        assert_eq!(
            far,
            "the process may only use CPUs 16-19, and the GPU is near 0-15,32-47"
        );
    }

    #[test]
    fn garbage_is_a_reason() {
        for list in ["", "\n", "garbage", "3-1", "\u{0}"] {
            let root = sys(&[(FIRST, list, Some("garbage"))]);
            let found = reason(placed(&root, FIRST, "0-3"));
            assert!(found.contains("local_cpulist: no "), "{list:?}: {found}");
        }
        let root = sys(&[(FIRST, "0-1", Some("garbage"))]);
        assert_eq!(near(root.path(), FIRST).expect("there").node, None);
        let missing = reason(placed(&root, SECOND, "0-3"));
        assert!(missing.contains(SECOND), "{missing}");
        for address in ["", "..", "../../etc", "0000:3b:00.0/..", "a/b"] {
            let found = near(root.path(), address).expect_err("no address");
            assert!(found.contains("no PCI address"), "{found}");
        }
    }
}
