//! Read-only overlay mounts: only `mincore` finds the cached pages of their files.

use std::path::{Path, PathBuf};

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use tempfile::TempDir;

/// Overlay mount that shows the files of another folder, until it is dropped.
pub(crate) struct Overlay {
    folder: TempDir,
}

impl Overlay {
    /// Mounts an overlay over `lower`.
    ///
    /// # Errors
    ///
    /// Returns the reason why the mount is not possible here.
    pub(crate) fn mount(lower: &Path) -> Result<Self, String> {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("cargo made it");
        let overlay = Self { folder };
        // An overlay without an upper folder has two lower ones at least.
        let empty = overlay.folder.path().join("empty");
        std::fs::create_dir(&empty).expect("a temporary folder");
        std::fs::create_dir(overlay.path()).expect("a temporary folder");
        let layers = format!("lowerdir={}:{}", lower.display(), empty.display());
        let layers = std::ffi::CString::new(layers).expect("a path");
        let (kind, flags) = ("overlay", MountFlags::RDONLY);
        mount(kind, overlay.path(), kind, flags, layers.as_c_str())
            .map_err(|errno| format!("cannot mount one: {errno}"))?;
        Ok(overlay)
    }

    /// Returns the folder of the mount.
    pub(crate) fn path(&self) -> PathBuf {
        self.folder.path().join("merged")
    }
}

impl Drop for Overlay {
    fn drop(&mut self) {
        // Fails if it was never mounted.
        let _ = unmount(self.path(), UnmountFlags::DETACH);
    }
}
