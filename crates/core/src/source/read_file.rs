//! A file opened for one load: how its bytes are reached, directly or through the page cache.
//!
//! Engines read through it; `load` makes it. When the kernel refuses direct I/O, at opening or only at the first read
//! (overlayfs on squashfs does that), the file is read buffered from then on, and so is every file of the same file system.

use std::collections::HashMap;
use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::file::{cannot_open, open_direct, path_of};
use super::{FileSource, ReadHints, Source};
use crate::error::{Error, ErrorKind, Result};

/// Assumed when the file system does not say: covers disks with 4 KiB sectors.
const ALIGNMENT_UNKNOWN: u64 = 4096;

/// Largest read of a file, bytes. On the 2-core virtual machine of `benches/results/2core-virtio-2026-11-20` extents of 1 to
/// 16 MiB were within 4 % of each other in throughput, and 4 MiB took 0.7 of the CPU time of 1 MiB.
const EXTENT_BYTES: u64 = 4 << 20;

/// Bytes in flight to begin with. There 8 to 49 MiB made no difference beyond that; real arrays will want more, which is for
/// a controller to find (`schedule/depth.rs`).
const IN_FLIGHT_BYTES: u64 = 16 << 20;

/// Reads in flight to begin with: reaches `IN_FLIGHT_BYTES` with extents down to 512 KiB.
const DEPTH: usize = 32;

/// Whether reads go through the page cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Cache {
    /// Past it where the file system can, else through it.
    #[default]
    Auto,
    /// Past it, or fail.
    Direct,
    /// Through it.
    Buffered,
}

impl Cache {
    /// The name that options and reports use.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Direct => "direct",
            Self::Buffered => "buffered",
        }
    }
}

impl fmt::Display for Cache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Cache {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "auto" => Ok(Self::Auto),
            "direct" => Ok(Self::Direct),
            "buffered" => Ok(Self::Buffered),
            _ => Err(Error::unknown_name(
                "cache",
                text,
                &["auto", "direct", "buffered"],
            )),
        }
    }
}

/// How bytes reach memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Past the page cache, by the device's own transfers.
    Direct,
    /// Copied from the page cache.
    Buffered,
}

/// What a file system says of direct I/O on one file.
#[derive(Clone, Debug)]
pub struct DirectIo {
    /// Whether the file opens with `O_DIRECT`.
    pub accepted: bool,
    /// Multiple that memory addresses must be of, bytes, if the file system says.
    pub memory_alignment: Option<u32>,
    /// Multiple that offsets and lengths must be of, bytes, if the file system says.
    pub offset_alignment: Option<u32>,
    /// Why it does not open so.
    pub error: Option<String>,
}

/// The file systems that refused direct I/O during this load, by device number.
#[derive(Debug, Default)]
pub struct RefusedDirect(HashMap<u64, Arc<AtomicBool>>);

/// A file opened for one load.
#[derive(Debug)]
pub struct ReadFile {
    source: Arc<FileSource>,
    direct: Option<File>,
    cache: Cache,
    /// Shared by all files of the file system.
    refused: Arc<AtomicBool>,
    alignment: u64,
}

impl ReadFile {
    /// Opens `source` for reads as `cache` asks; `refused` carries what the load has learned of its file systems.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Changed`] when another file has taken the path; [`ErrorKind::Unsupported`] when direct I/O is demanded
    /// and refused.
    pub fn open(
        source: Arc<FileSource>,
        cache: Cache,
        refused: &mut RefusedDirect,
    ) -> Result<Self> {
        let refused = Arc::clone(refused.0.entry(source.identity().device).or_default());
        let mut opened = Self {
            source,
            direct: None,
            cache,
            refused,
            alignment: 1,
        };
        let wanted = match cache {
            Cache::Buffered => false,
            // Memory has no device to read past it.
            Cache::Auto => !opened.source.file_system().in_memory && !opened.is_refused(),
            Cache::Direct if opened.source.file_system().in_memory => {
                return Err(refused_error(&opened.source));
            }
            Cache::Direct => true,
        };
        if !wanted {
            return Ok(opened);
        }
        let path = path_of(opened.source.location())?;
        match open_direct(opened.source.file(), path) {
            Ok(file) => {
                let metadata = file.metadata().map_err(|error| {
                    Error::from_io("cannot read the file's status", error)
                        .with_location(opened.source.location())
                })?;
                opened.source.verify(&metadata)?;
                opened.alignment = alignment(&file);
                opened.direct = Some(file);
            }
            Err(error) if !refuses_direct(&error) => {
                return Err(cannot_open(error, opened.source.location()));
            }
            Err(error) if cache == Cache::Direct => {
                return Err(refused_error(&opened.source).with_source(error));
            }
            Err(_) => opened.refused.store(true, Ordering::Relaxed),
        }
        Ok(opened)
    }

    /// The file.
    pub fn source(&self) -> &Arc<FileSource> {
        &self.source
    }

    /// How a read that starts now should reach the bytes.
    pub fn access(&self) -> Access {
        if self.direct.is_some() && !self.is_refused() {
            Access::Direct
        } else {
            Access::Buffered
        }
    }

    /// The descriptor for such a read.
    pub fn descriptor(&self, access: Access) -> BorrowedFd<'_> {
        match (&self.direct, access) {
            (Some(direct), Access::Direct) => direct.as_fd(),
            _ => self.source.file().as_fd(),
        }
    }

    /// The kernel refused a well-aligned direct read: this file system is read buffered from now on.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`] when direct I/O was demanded.
    pub fn refuse_direct(&self) -> Result<()> {
        if self.cache == Cache::Direct {
            return Err(refused_error(&self.source));
        }
        self.refused.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Whether direct I/O was refused on this file system.
    pub fn is_refused(&self) -> bool {
        self.refused.load(Ordering::Relaxed)
    }

    /// Offsets, lengths and addresses of direct reads are multiples of this, bytes.
    pub fn alignment(&self) -> u64 {
        self.alignment
    }

    /// How the file likes to be read.
    pub fn hints(&self) -> ReadHints {
        ReadHints {
            extent_bytes: EXTENT_BYTES,
            request_bytes: EXTENT_BYTES,
            alignment: self.alignment,
            // Skipping less than this saves no read: neighbours share a page or two.
            gap_bytes: 64 << 10,
            depth: DEPTH,
            in_flight_bytes: IN_FLIGHT_BYTES,
        }
    }

    /// What the file system says of direct I/O on `source`.
    ///
    /// # Errors
    ///
    /// The location is not a path.
    pub fn probe_direct(source: &FileSource) -> Result<DirectIo> {
        Ok(
            match open_direct(source.file(), path_of(source.location())?) {
                Ok(file) => {
                    let (memory, offset) = stated_alignment(&file).unzip();
                    DirectIo {
                        accepted: true,
                        memory_alignment: memory,
                        offset_alignment: offset,
                        error: None,
                    }
                }
                Err(error) => DirectIo {
                    accepted: false,
                    memory_alignment: None,
                    offset_alignment: None,
                    error: Some(error.to_string()),
                },
            },
        )
    }
}

/// Whether an error of opening is about direct I/O, and not about the file.
fn refuses_direct(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::Unsupported
        || matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EOPNOTSUPP))
}

fn refused_error(source: &FileSource) -> Error {
    Error::new(
        ErrorKind::Unsupported,
        format!(
            "the file system ({}) refuses direct I/O",
            source.file_system().name
        ),
    )
    .with_location(source.location())
    .with_hint("use cache=auto or cache=buffered")
}

/// Never less than 4 KiB: a file system block; reading its other half costs nothing, a read-modify cycle does.
fn alignment(file: &File) -> u64 {
    stated_alignment(file).map_or(ALIGNMENT_UNKNOWN, |(memory, offset)| {
        u64::from(memory.max(offset)).max(ALIGNMENT_UNKNOWN)
    })
}

/// Memory and offset alignment by `statx(STATX_DIOALIGN)` (Linux 6.1), if the file system fills it in.
#[cfg(target_os = "linux")]
fn stated_alignment(file: &File) -> Option<(u32, u32)> {
    use rustix::fs::{AtFlags, StatxFlags};
    const DIOALIGN: u32 = 0x2000;
    let flags = StatxFlags::from_bits_retain(DIOALIGN);
    let statx = rustix::fs::statx(file, "", AtFlags::EMPTY_PATH, flags).ok()?;
    let stated = statx.stx_mask & DIOALIGN != 0 && statx.stx_dio_offset_align > 0;
    stated.then_some((statx.stx_dio_mem_align, statx.stx_dio_offset_align))
}

#[cfg(not(target_os = "linux"))]
fn stated_alignment(_file: &File) -> Option<(u32, u32)> {
    None
}
