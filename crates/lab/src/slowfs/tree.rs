//! The folder behind the mount: numbers for its files, and what the kernel wants to know of them.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::UNIX_EPOCH;

use fuser::{Errno, FileAttr, FileType, INodeNo};

/// What the kernel calls the root.
const ROOT: u64 = INodeNo::ROOT.0;

/// Files get numbers when they are first seen, and keep them: folders of checkpoints are small. Links are followed.
#[derive(Debug)]
pub(super) struct Tree {
    nodes: Mutex<Nodes>,
}

#[derive(Debug)]
struct Nodes {
    /// The file with number `ROOT + index`.
    paths: Vec<PathBuf>,
    numbers: HashMap<PathBuf, u64>,
}

impl Nodes {
    fn number(&mut self, path: &Path) -> u64 {
        if let Some(&number) = self.numbers.get(path) {
            return number;
        }
        let number = ROOT + self.paths.len() as u64;
        self.paths.push(path.to_owned());
        self.numbers.insert(path.to_owned(), number);
        number
    }
}

impl Tree {
    pub(super) fn new(root: &Path) -> Self {
        let mut nodes = Nodes {
            paths: Vec::new(),
            numbers: HashMap::new(),
        };
        nodes.number(root);
        Self {
            nodes: Mutex::new(nodes),
        }
    }

    fn nodes<T>(&self, with: impl FnOnce(&mut Nodes) -> T) -> T {
        with(&mut self.nodes.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn path(&self, number: u64) -> io::Result<PathBuf> {
        let index = number
            .checked_sub(ROOT)
            .and_then(|index| usize::try_from(index).ok());
        self.nodes(|nodes| nodes.paths.get(index?).cloned())
            .ok_or_else(|| io::Error::from_raw_os_error(Errno::ENOENT.code()))
    }

    pub(super) fn find(&self, folder: u64, name: &OsStr) -> io::Result<FileAttr> {
        self.attributes_of(&self.path(folder)?.join(name))
    }

    pub(super) fn attributes(&self, number: u64) -> io::Result<FileAttr> {
        self.attributes_of(&self.path(number)?)
    }

    /// Everything in a folder, in the same order each time as long as it stays the same.
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
            // A link to nowhere is not shown.
            if let Ok(attributes) = self.find(folder, &name) {
                entries.push((attributes.ino.0, attributes.kind, name));
            }
        }
        Ok(entries)
    }

    fn attributes_of(&self, path: &Path) -> io::Result<FileAttr> {
        let metadata = path.metadata()?;
        let kind = FileType::from_std(metadata.file_type())
            .ok_or_else(|| io::Error::from_raw_os_error(Errno::EIO.code()))?;
        let modified = metadata.modified().unwrap_or(UNIX_EPOCH);
        Ok(FileAttr {
            ino: INodeNo(self.nodes(|nodes| nodes.number(path))),
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
}
