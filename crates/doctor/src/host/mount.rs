//! Mount that a path lies on, from `/proc/self/mountinfo` (see proc(5)).

use std::path::{Path, PathBuf};

use super::{System, Unreadable};

/// One line of mountinfo.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mount {
    pub(crate) point: PathBuf,
    pub(crate) file_system: String,
    pub(crate) source: String,
    /// Options of the mount and of the file system.
    pub(crate) options: Vec<String>,
}

impl Mount {
    /// Returns the mount that `path` lies on: among those with the longest mount point, the last
    /// mounted.
    pub(crate) fn for_path(system: &System, path: &Path) -> Result<Self, Unreadable> {
        let file = "proc/self/mountinfo";
        let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        let text = system.read(file)?;
        let mounts = text
            .lines()
            .filter_map(parse)
            .filter(|mount| path.starts_with(&mount.point));
        // `max_by_key` returns the last of several: a later mount hides an earlier one.
        mounts
            .max_by_key(|mount| mount.point.components().count())
            .ok_or_else(|| Unreadable {
                path: system.path(file),
                reason: format!("no mount contains {}", path.display()),
            })
    }

    /// Returns the value of an option such as `rsize=1048576`.
    pub(crate) fn option(&self, name: &str) -> Option<&str> {
        self.options
            .iter()
            .filter_map(|option| option.split_once('='))
            .find_map(|(option, value)| (option == name).then_some(value))
    }

    pub(crate) fn has(&self, option: &str) -> bool {
        self.options.iter().any(|other| other == option)
    }
}

/// Parses a line such as
/// `36 35 98:0 /root /point rw,noatime master:1 - ext4 /dev/sda rw,errors=continue`.
fn parse(line: &str) -> Option<Mount> {
    let (mount, file_system) = line.split_once(" - ")?;
    let mut mount = mount.split(' ');
    let point = unescape(mount.nth(4)?);
    let mount_options = mount.next()?;
    let mut file_system = file_system.split(' ');
    let (name, source) = (file_system.next()?, file_system.next()?);
    let super_options = file_system.next().unwrap_or_default();
    let mut options = Vec::new();
    for option in mount_options.split(',').chain(super_options.split(',')) {
        if !option.is_empty() && !options.iter().any(|known| known == option) {
            options.push(option.to_owned());
        }
    }
    Some(Mount {
        point: point.into(),
        file_system: name.to_owned(),
        source: unescape(source),
        options,
    })
}

/// Decodes spaces, tabs, line feeds and backslashes, which the kernel writes as `\040` and so on.
fn unescape(text: &str) -> String {
    [
        ("\\040", " "),
        ("\\011", "\t"),
        ("\\012", "\n"),
        ("\\134", "\\"),
    ]
    .iter()
    .fold(text.to_owned(), |text, (escaped, plain)| {
        text.replace(escaped, plain)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::testing::system;

    const MOUNTS: &str = "\
22 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard
30 22 0:40 / /models\\040here rw,noatime shared:2 - nfs4 host:/x rw,vers=4.2,rsize=1048576,nconnect=8
31 22 0:41 / /models\\040here/scratch rw - tmpfs tmpfs rw,size=1k";

    #[test]
    fn longest_matching_mount_point_is_chosen() {
        let (_folder, system) = system(&[("proc/self/mountinfo", MOUNTS)]);
        let of = |path: &str| Mount::for_path(&system, Path::new(path)).unwrap();
        let mount = of("/models here/llama/model.safetensors");
        assert_eq!(mount.file_system, "nfs4");
        assert_eq!(mount.source, "host:/x");
        assert_eq!(mount.option("nconnect"), Some("8"));
        assert_eq!(mount.option("wsize"), None);
        assert!(mount.has("noatime"));
        assert_eq!(of("/models here/scratch/x").file_system, "tmpfs");
        assert_eq!(of("/models").file_system, "ext4");
    }
}
