//! A disk that is full, from the first byte to the last that a write needs: the old checkpoint
//! stays, and nothing is left beside it.

use std::fs::File;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::Command;

use tempfile::tempdir;
use tload_base::error::{ErrorKind, Result};
use tload_testbed::{pause_between_looks, require};
use tload_write::{WriteOptions, WriteReport};

use crate::expected::{Tensors, tensors};
use crate::files::{names, read, stream, write};

/// Page of a tmpfs: the unit of its space.
const PAGE: u64 = 4096;

/// Steps of one page; then come steps of sixteen.
const PAGES: u64 = 64;

const MIB: u64 = 1 << 20;

/// Looks at the space that is taken, half a millisecond or more apart.
const LOOKS_MAX: usize = 100_000;

/// Small file system, unmounted on drop.
struct Disk(tempfile::TempDir);

impl Disk {
    fn mount() -> Option<Self> {
        let folder = tempdir().expect("a folder");
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=16M", "tmpfs"]);
        let done = mount.arg(folder.path()).output();
        let is_mounted = done.is_ok_and(|output| output.status.success());
        let mounted = is_mounted.then_some(()).ok_or("cannot mount a tmpfs");
        require(mounted.map_err(str::to_owned)).map(|()| Self(folder))
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    /// Leaves `bytes` of space.
    fn fill(&self, bytes: u64) {
        let path = self.path().join("filler");
        let _ = std::fs::remove_file(&path);
        let free = self.free();
        let file = File::create(path).expect("is created");
        let flags = rustix::fs::FallocateFlags::empty();
        let len = free.saturating_sub(bytes);
        if len > 0 {
            rustix::fs::fallocate(&file, flags, 0, len).expect("there is space");
        }
    }
}

impl Disk {
    /// Waits until only the files that have names take space, and returns what is free. A child of
    /// another test, until it executes its program, holds files open that have been removed.
    fn free(&self) -> u64 {
        let mut looks = 0;
        loop {
            let stat = rustix::fs::statvfs(self.path()).expect("is told");
            let taken = (stat.f_blocks - stat.f_bfree) * stat.f_frsize;
            if taken <= space_of(self.path()) {
                return stat.f_bavail * stat.f_frsize;
            }
            looks += 1;
            assert!(looks < LOOKS_MAX, "files that were removed stay open");
            pause_between_looks();
        }
    }
}

/// Returns the space that the files below a directory take.
fn space_of(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).expect("is listed");
    let spaces = entries.map(|entry| {
        let path = entry.expect("is listed").path();
        let metadata = path.symlink_metadata().expect("is there");
        if metadata.is_dir() {
            space_of(&path)
        } else {
            metadata.blocks() * 512
        }
    });
    spaces.sum()
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0.path()).status();
    }
}

type Form = fn(&Path, &Tensors, WriteOptions) -> Result<WriteReport>;

#[test]
fn full_disk_leaves_old_checkpoint() {
    let Some(disk) = Disk::mount() else { return };
    let (old, new) = (tensors(4, 9_000, 1), tensors(6, 90_000, 2));
    let path = disk.path().join("model");
    let options = WriteOptions::new().replace(true).max_shard_bytes(70_000);
    let forms: [(&str, Form, WriteOptions); 3] = [
        ("planned", write, options.clone()),
        ("manifest", write, options.clone().manifest(true)),
        ("stream", stream, options),
    ];
    for (name, form, options) in forms {
        disk.fill(8 * MIB);
        write(&path, &old, WriteOptions::new().replace(true)).expect("there is space");
        tload_write::remove_incomplete(
            &tload_base::options::Location::from_path(&path),
            &tload_base::options::StoreOptions::new(),
        )
        .expect("is removed");
        let mut failed = 0;
        let coarse = (4..160).map(|it| it * 16);
        for free in (0..PAGES).chain(coarse).map(|pages| pages * PAGE) {
            disk.fill(free);
            match form(&path, &new, options.clone()) {
                Ok(_) => {
                    break;
                }
                Err(error) => {
                    assert_eq!(
                        error.kind(),
                        ErrorKind::OutOfMemory,
                        "{name} {free}: {error}"
                    );
                    assert!(read(&path) == old, "{name} with {free} bytes");
                    assert_eq!(names(disk.path()), ["filler", "model"], "{name}: {error}");
                    failed += 1;
                }
            }
        }
        println!("{name}: {failed} failures");
        assert!(failed > 30, "{name}: {failed}");
        assert!(read(&path) == new, "{name}");
    }
}
