//! Facts about this machine from `/proc` and `/sys`, for `doctor` and the record of a benchmark.
//!
//! Nothing here fails: containers and other systems hide any of these files, and a missing file is
//! reported as [`Unreadable`].

pub(crate) mod disk;
pub mod limits;
pub mod memory;
pub(crate) mod mount;
pub mod record;

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

/// Root directory of `/proc` and `/sys`; a temporary directory in tests.
#[derive(Debug)]
pub struct System {
    root: PathBuf,
}

/// File that could not be read, with the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unreadable {
    path: PathBuf,
    reason: String,
}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "unknown: cannot read {}: {}",
            self.path.display(),
            self.reason
        )
    }
}

impl System {
    /// Returns this machine.
    pub fn real() -> Self {
        Self::at("/")
    }

    /// Returns a machine whose `/proc` and `/sys` are below `root`.
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// Returns the path of a file such as `proc/self/status`.
    pub fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        self.root.join(path)
    }

    /// Returns the text of a file, without white space at the ends.
    pub fn read(&self, path: impl AsRef<Path>) -> Result<String, Unreadable> {
        let path = self.path(path);
        match fs::read(&path) {
            Ok(text) => Ok(String::from_utf8_lossy(&text).trim().to_owned()),
            Err(error) => Err(Unreadable {
                path,
                reason: error.to_string(),
            }),
        }
    }

    /// Returns the value after `key:` in a file of such lines.
    pub fn field(&self, path: &str, key: &str) -> Result<String, Unreadable> {
        let text = self.read(path)?;
        text.lines()
            .filter_map(|line| line.split_once(':'))
            .find(|(name, _)| name.trim() == key)
            .map(|(_, value)| value.trim().to_owned())
            .ok_or_else(|| Unreadable {
                path: self.path(path),
                reason: format!("it has no line {key}"),
            })
    }

    /// Returns the bytes of a [`field`](Self::field) in kB.
    pub fn field_bytes(&self, path: &str, key: &str) -> Result<u64, Unreadable> {
        let value = self.field(path, key)?;
        let kilobytes = value
            .strip_suffix("kB")
            .and_then(|value| value.trim().parse::<u64>().ok());
        kilobytes
            .map(|kilobytes| kilobytes * 1024)
            .ok_or_else(|| Unreadable {
                path: self.path(path),
                reason: format!("{key} is {value:?}, not a number of kB"),
            })
    }

    /// Returns the sorted names in a directory; none if it cannot be listed.
    pub fn list(&self, path: impl AsRef<Path>) -> Vec<String> {
        let entries = fs::read_dir(self.path(path))
            .into_iter()
            .flatten()
            .flatten();
        let mut names: Vec<_> = entries
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .collect();
        names.sort_unstable();
        names
    }
}

#[cfg(test)]
pub(crate) mod testing {
    //! Machine made of files.

    use super::*;

    /// Returns a system with these files, and the guard of its directory.
    pub(crate) fn system(files: &[(&str, &str)]) -> (tempfile::TempDir, System) {
        let folder = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let system = System::at(folder.path());
        (folder, system)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_and_converted() {
        let (_folder, system) = testing::system(&[(
            "proc/self/status",
            "Name:\tx\nVmHWM:\t  12 kB\nSeccomp:\t2\n",
        )]);
        assert_eq!(
            system.field("proc/self/status", "Seccomp").as_deref(),
            Ok("2")
        );
        assert_eq!(
            system.field_bytes("proc/self/status", "VmHWM"),
            Ok(12 * 1024)
        );
    }

    #[test]
    fn unreadable_file_reports_reason() {
        let (_folder, system) = testing::system(&[("proc/self/status", "Name:\tx\n")]);
        let missing = system
            .field("proc/self/status", "Seccomp")
            .unwrap_err()
            .to_string();
        assert!(missing.ends_with("it has no line Seccomp"), "{missing}");
        let missing = system.read("proc/meminfo").unwrap_err().to_string();
        assert!(missing.starts_with("unknown: cannot read "), "{missing}");
        assert_eq!(system.list("sys/class/drm"), Vec::<String>::new());
    }
}
