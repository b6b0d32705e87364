//! Folder behind the mount: numbers for its files, and their attributes for the kernel.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::UNIX_EPOCH;

use fuser::{Errno, FileAttr, FileType, INodeNo};

/// Inode number of the root in the mount.
const ROOT: u64 = INodeNo::ROOT.0;

/// Files get numbers when they are first seen, and keep them: folders of checkpoints are small. A
/// file that replaces another gets a number of its own. Links are followed.
#[derive(Debug)]
pub(super) struct Tree {
    root: PathBuf,
    nodes: Mutex<Nodes>,
}

/// Device and inode of a real file.
type Identity = (u64, u64);

#[derive(Debug)]
struct Nodes {
    /// Path of the file with number `ROOT + index`, and its identity.
    known: Vec<(PathBuf, Identity)>,
    numbers: HashMap<(PathBuf, Identity), u64>,
}

impl Nodes {
    fn number(&mut self, path: &Path, identity: Identity) -> u64 {
        let key = (path.to_owned(), identity);
        if let Some(&number) = self.numbers.get(&key) {
            return number;
        }
        let number = ROOT + self.known.len() as u64;
        self.known.push(key.clone());
        self.numbers.insert(key, number);
        number
    }
}

/// Returns the error for a file that does not exist any more.
fn stale() -> io::Error {
    io::Error::from_raw_os_error(Errno::ESTALE.code())
}

impl Tree {
    pub(super) fn new(root: &Path) -> io::Result<Self> {
        let mut nodes = Nodes {
            known: Vec::new(),
            numbers: HashMap::new(),
        };
        nodes.number(root, identity(&root.metadata()?));
        Ok(Self {
            root: root.to_owned(),
            nodes: Mutex::new(nodes),
        })
    }

    fn nodes<T>(&self, with: impl FnOnce(&mut Nodes) -> T) -> T {
        with(&mut self.nodes.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn known(&self, number: u64) -> io::Result<(PathBuf, Identity)> {
        let index = number
            .checked_sub(ROOT)
            .and_then(|index| usize::try_from(index).ok());
        self.nodes(|nodes| nodes.known.get(index?).cloned())
            .ok_or_else(|| io::Error::from_raw_os_error(Errno::ENOENT.code()))
    }

    /// Returns the path of the real file with this number, if it is still in its place.
    pub(super) fn path(&self, number: u64) -> io::Result<PathBuf> {
        let (path, known) = self.known(number)?;
        if identity(&path.metadata()?) == known {
            Ok(path)
        } else {
            Err(stale())
        }
    }

    /// Returns the path below the folder of a file, or of an entry in it, for rules.
    pub(super) fn name(&self, number: u64, inside: &OsStr) -> String {
        let path = self.known(number).map(|(path, _)| path).unwrap_or_default();
        let below = path.strip_prefix(&self.root).unwrap_or(&path).join(inside);
        let name = below.to_string_lossy().into_owned();
        name.trim_end_matches('/').to_owned()
    }

    pub(super) fn find(&self, folder: u64, name: &OsStr) -> io::Result<FileAttr> {
        let path = self.path(folder)?.join(name);
        let metadata = path.metadata()?;
        let number = self.nodes(|nodes| nodes.number(&path, identity(&metadata)));
        attributes(number, &metadata)
    }

    /// Returns the attributes of a file, or of a replaced file that is still open.
    pub(super) fn attributes(&self, number: u64, open: Option<&File>) -> io::Result<FileAttr> {
        let found = self.path(number).and_then(|path| path.metadata());
        match (found, open) {
            (Err(_), Some(file)) => attributes(number, &file.metadata()?),
            (found, _) => attributes(number, &found?),
        }
    }

    /// Lists a folder, in a stable order as long as it does not change.
    pub(super) fn list(&self, folder: u64) -> io::Result<Vec<(u64, FileType, OsString)>> {
        let mut entries = vec![
            (folder, FileType::Directory, OsString::from(".")),
            (ROOT, FileType::Directory, OsString::from("..")),
        ];
        let mut names = Vec::new();
        for entry in self.path(folder)?.read_dir()? {
            names.push(entry?.file_name());
        }
        names.sort();
        for name in names {
            // A dangling link is not shown.
            if let Ok(attributes) = self.find(folder, &name) {
                entries.push((attributes.ino.0, attributes.kind, name));
            }
        }
        Ok(entries)
    }
}

fn identity(metadata: &Metadata) -> Identity {
    (metadata.dev(), metadata.ino())
}

fn attributes(number: u64, metadata: &Metadata) -> io::Result<FileAttr> {
    let kind = FileType::from_std(metadata.file_type())
        .ok_or_else(|| io::Error::from_raw_os_error(Errno::EIO.code()))?;
    let modified = metadata.modified().unwrap_or(UNIX_EPOCH);
    Ok(FileAttr {
        ino: INodeNo(number),
        size: metadata.size(),
        blocks: metadata.blocks(),
        atime: modified,
        mtime: modified,
        ctime: modified,
        crtime: modified,
        kind,
        perm: u16::try_from(metadata.mode() & 0o7777).expect("twelve bits"),
        nlink: 1,
        uid: metadata.uid(),
        gid: metadata.gid(),
        rdev: 0,
        blksize: 4096,
        flags: 0,
    })
}
