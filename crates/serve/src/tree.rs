//! The files that are served: a directory with all below it, or one file.

use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::io::Errno;
use tload::internal::storage::{ConfinedDir, ConfinedEntry};
use tload::verify::{Digest, MANIFEST_NAME};
use tload::{Error, ErrorKind, Location, Result};

use crate::digests::{Digests, Stated};
use crate::listing::Entry;
use crate::target::{Target, is_visible};

/// Files that are served.
#[derive(Debug)]
pub(crate) struct Tree {
    /// May be a link: each request follows it, so that it can be switched.
    path: PathBuf,
    /// Name of the only file, if it is not a directory.
    only: Option<OsString>,
    digests: Digests,
}

/// File or directory that a request names.
#[derive(Debug)]
pub(crate) enum Found {
    /// Also its SHA-256, if that is known.
    File(File, Metadata, Option<Digest>),
    Directory(Vec<Entry>),
    /// A directory whose address lacks the slash at the end.
    NeedsSlash,
}

impl Tree {
    pub(crate) fn open(location: &Location) -> Result<Self> {
        let path = location.as_path().unwrap_or_else(|| Path::new(""));
        // Absolute, so that it stays the same if the process changes its working directory.
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        let root = ConfinedDir::open(location)?;
        let entry = root.find(&Location::from_path(path.clone()))?;
        let metadata = entry.metadata()?;
        let only = if metadata.is_dir() {
            // Fails now if it may not be listed, rather than at each request.
            entry.read_dir()?;
            None
        } else {
            entry.open_file()?;
            Some(path.file_name().unwrap_or_default().to_owned())
        };
        Ok(Self {
            path,
            only,
            digests: Digests::default(),
        })
    }

    /// Finds what `target` names.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotFound`] also for links that lead out of the directory, and for whatever is
    /// neither a file nor a directory.
    pub(crate) fn find(&self, target: &Target) -> Result<Found> {
        if let Some(only) = &self.only {
            return self.find_only(only, target);
        }
        let root = self.root()?;
        let entry = locate(&root, &target.path())?;
        let metadata = entry.metadata()?;
        if metadata.is_dir() {
            if !target.is_directory {
                return Ok(Found::NeedsSlash);
            }
            return self
                .list(&root, &entry, &target.path())
                .map(Found::Directory);
        }
        if target.is_directory || !metadata.is_file() {
            return Err(not_found());
        }
        let path = target.path();
        // Before the file is opened: a file that takes its place is younger than this manifest.
        let stated = path
            .parent()
            .and_then(|directory| self.stated(&root, directory));
        let (file, metadata) = entry.open_file()?;
        let digest = stated
            .zip(path.file_name())
            .and_then(|(stated, name)| stated.of(name, &metadata));
        Ok(Found::File(file, metadata, digest))
    }

    /// Returns what the manifest in a directory states.
    fn stated(&self, root: &ConfinedDir, directory: &Path) -> Option<Arc<Stated>> {
        let manifest = locate(root, &directory.join(MANIFEST_NAME)).ok()?;
        self.digests.of(directory, &manifest)
    }

    fn find_only(&self, only: &OsStr, target: &Target) -> Result<Found> {
        let entry = locate(&self.root()?, Path::new(""))?;
        match (&*target.components, target.is_directory) {
            ([], _) => Ok(Found::Directory(vec![listed(
                only,
                &entry.metadata()?,
                None,
            )])),
            ([name], false) if name == only => {
                let (file, metadata) = entry.open_file()?;
                Ok(Found::File(file, metadata, None))
            }
            _ => Err(not_found()),
        }
    }

    /// Opens the directory outside of which nothing is served.
    fn root(&self) -> Result<ConfinedDir> {
        ConfinedDir::open(&Location::from_path(self.path.clone()))
    }

    /// Lists a directory by name. Entries that are not served are left out.
    fn list(
        &self,
        root: &ConfinedDir,
        directory: &ConfinedEntry,
        path: &Path,
    ) -> Result<Vec<Entry>> {
        let mut entries = Vec::new();
        let stated = self.stated(root, path);
        for entry in directory.read_dir()? {
            let name = entry
                .map_err(|error| Error::from_io("cannot list the directory", error))?
                .file_name();
            if !is_visible(name.as_bytes()) {
                continue;
            }
            let found = locate(root, &path.join(&name));
            match found.and_then(|it| it.metadata()) {
                Ok(metadata) if metadata.is_dir() || metadata.is_file() => {
                    entries.push(listed(&name, &metadata, stated.as_deref()));
                }
                Err(error) if lacks_descriptors(&error) => return Err(error),
                // One that cannot be examined, or is gone by now, cannot be fetched either.
                Ok(_) | Err(_) => {}
            }
        }
        entries.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(entries)
    }
}

/// Finds what is at `path` in `root`, unless a link leads out of it or to something hidden.
fn locate(root: &ConfinedDir, path: &Path) -> Result<ConfinedEntry> {
    // Joining an empty path would add a slash, which the path of a file must not have.
    let path = if path.as_os_str().is_empty() {
        root.path().to_owned()
    } else {
        root.path().join(path)
    };
    let found = root.find(&Location::from_path(path)).map_err(|error| {
        match (error.kind(), error.errno()) {
            // Without a number, the refusal is ours: a link leads out of the directory.
            (ErrorKind::PermissionDenied, None) => not_found(),
            _ => error,
        }
    })?;
    // The names of the request are visible. Those that links lead to may not be.
    let real = found.path();
    let below = match real.strip_prefix(root.path()) {
        Ok(below) => below,
        // The blobs of a hub's cache.
        Err(_) => Path::new(real.file_name().unwrap_or_default()),
    };
    let mut names = below.iter().map(OsStr::as_bytes);
    names.all(is_visible).then_some(found).ok_or_else(not_found)
}

/// Returns whether an error is that this process or the system has too many files open.
pub(super) fn lacks_descriptors(error: &Error) -> bool {
    const SCARCE: [Errno; 2] = [Errno::MFILE, Errno::NFILE];
    let found = error.errno();
    found.is_some_and(|errno| SCARCE.map(Errno::raw_os_error).contains(&errno))
}

fn listed(name: &OsStr, metadata: &Metadata, stated: Option<&Stated>) -> Entry {
    Entry {
        name: name.to_owned(),
        is_directory: metadata.is_dir(),
        bytes: (!metadata.is_dir()).then_some(metadata.len()),
        modified: metadata.modified().ok(),
        digest: stated.and_then(|stated| stated.of(name, metadata)),
    }
}

fn not_found() -> Error {
    Error::new(ErrorKind::NotFound, "not found")
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn find(tree: &Tree, path: &str) -> Result<Found> {
        tree.find(&Target::parse(path).expect("a path that may be served"))
    }

    fn names(found: Result<Found>) -> Vec<String> {
        let Ok(Found::Directory(entries)) = found else {
            panic!("not a directory");
        };
        let names = entries.into_iter().map(|entry| entry.name.into_string());
        names.collect::<std::result::Result<_, _>>().unwrap()
    }

    #[test]
    fn only_regular_files_and_directories_inside_are_served() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("root");
        std::fs::create_dir_all(root.join("deep")).unwrap();
        std::fs::create_dir_all(root.join(".git/deep")).unwrap();
        for name in ["b", "a", ".hidden", "deep/c", ".git/deep/x"] {
            std::fs::write(root.join(name), name).unwrap();
        }
        std::fs::write(folder.path().join("secret"), "x").unwrap();
        std::fs::create_dir(folder.path().join("outside")).unwrap();
        std::fs::write(folder.path().join("outside/d"), "x").unwrap();
        for (to, name) in [
            ("../secret", "out"),
            ("/etc/hostname", "absolute"),
            ("../outside", "far"),
            ("gone", "dangling"),
            ("loop", "loop"),
            ("/dev/zero", "zero"),
            ("deep/c", "in"),
            (".hidden", "readme"),
            (".git", "docs"),
            ("../.git/deep", "deep/object"),
            ("readme", "chain"),
        ] {
            symlink(to, root.join(name)).unwrap();
        }
        let fifo = std::process::Command::new("mkfifo")
            .arg(root.join("fifo"))
            .status();
        assert!(fifo.unwrap().success());

        let tree = Tree::open(&Location::from_path(root.clone())).unwrap();
        assert_eq!(names(find(&tree, "/")), ["a", "b", "deep", "in"]);
        assert_eq!(names(find(&tree, "/deep/")), ["c"]);
        assert!(matches!(find(&tree, "/in"), Ok(Found::File(..))));
        assert!(matches!(find(&tree, "/deep"), Ok(Found::NeedsSlash)));
        for path in [
            "/out",
            "/absolute",
            "/far",
            "/far/",
            "/far/d",
            "/dangling",
            "/zero",
            "/fifo",
            "/readme",
            "/chain",
            "/docs",
            "/docs/",
            "/docs/deep/x",
            "/deep/object/",
            "/deep/object/x",
            "/a/",
            "/a/b",
            "/gone",
        ] {
            let error = find(&tree, path).expect_err(path);
            let kind = error.kind();
            // A path below a file is an error of its own in the kernel.
            assert!(
                kind == ErrorKind::NotFound || path == "/a/b",
                "{path}: {error}"
            );
        }
        assert!(find(&tree, "/loop").is_err());
    }

    #[test]
    fn single_file_is_all_there_is() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["a", "b"] {
            std::fs::write(folder.path().join(name), name).unwrap();
        }
        let tree = Tree::open(&Location::from_path(folder.path().join("a"))).unwrap();
        assert_eq!(names(find(&tree, "/")), ["a"]);
        assert!(matches!(find(&tree, "/a"), Ok(Found::File(..))));
        for path in ["/b", "/a/", "/a/b"] {
            let error = find(&tree, path).expect_err(path);
            assert_eq!(error.kind(), ErrorKind::NotFound, "{path}");
        }
    }

    /// A request that has begun sees one of the directories, and no file of it is missing.
    #[test]
    fn switch_of_a_link_during_a_request_hides_no_file() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        for name in ["one", "two"] {
            std::fs::create_dir(at(name)).unwrap();
            std::fs::write(at(name).join("a"), name).unwrap();
        }
        symlink("one", at("served")).unwrap();
        let tree = Tree::open(&Location::from_path(at("served"))).unwrap();
        let root = tree.root().unwrap();
        std::fs::remove_file(at("served")).unwrap();
        symlink("two", at("served")).unwrap();
        let read = |root: &ConfinedDir| {
            let (file, _) = locate(root, Path::new("a")).unwrap().open_file().unwrap();
            std::io::read_to_string(file).unwrap()
        };
        assert_eq!(read(&root), "one");
        assert_eq!(read(&tree.root().unwrap()), "two");
    }
}
