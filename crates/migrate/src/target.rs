//! The safetensors file that is written: at its name when it is complete, and not before.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use serde::ser::SerializeMap as _;
use serde::{Serialize, Serializer};
use tload_format::{LENGTH_BYTES, SINGLE_NAME};
use tload_tensorizer::Tensor;

use crate::error::{Error, ErrorKind, Result};

/// File in progress. Dropping it removes what was written.
#[derive(Debug)]
pub(crate) struct Target {
    path: PathBuf,
    partial: PathBuf,
    file: File,
    is_complete: bool,
}

/// Places of tensors in the file that is written.
#[derive(Debug)]
pub(crate) struct Layout {
    header: Vec<u8>,
    /// For each tensor, the position of its bytes in the file.
    pub(crate) starts: Vec<u64>,
    bytes: u64,
}

impl Layout {
    /// Lays tensors out as safetensors' own writer does: by size of their elements, the largest
    /// first, so that all are aligned; in file order where these are equal.
    pub(crate) fn new(tensors: &[Tensor]) -> Self {
        let mut order: Vec<usize> = (0..tensors.len()).collect();
        order.sort_by_key(|at| std::cmp::Reverse(tensors[*at].dtype.bits()));
        let mut entries = Vec::with_capacity(tensors.len());
        let mut starts = vec![0; tensors.len()];
        let mut end = 0;
        for at in order {
            starts[at] = end;
            end += tensors[at].byte_len;
            entries.push((&tensors[at], [starts[at], end]));
        }
        let mut json = serde_json::to_vec(&Entries(entries)).expect("texts and numbers");
        // Spaces align the first tensor, as safetensors does.
        json.resize(json.len().next_multiple_of(8), b' ');
        let begin = LENGTH_BYTES + json.len() as u64;
        for start in &mut starts {
            *start += begin;
        }
        let mut header = (json.len() as u64).to_le_bytes().to_vec();
        header.append(&mut json);
        Self {
            header,
            starts,
            bytes: begin + end,
        }
    }
}

struct Entries<'a>(Vec<(&'a Tensor, [u64; 2])>);

#[derive(Serialize)]
struct Entry<'a> {
    dtype: &'static str,
    shape: &'a [usize],
    data_offsets: [u64; 2],
}

impl Serialize for Entries<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len() + 1))?;
        // transformers requires it.
        map.serialize_entry("__metadata__", &serde_json::json!({"format": "pt"}))?;
        for (tensor, data_offsets) in &self.0 {
            let entry = Entry {
                dtype: tensor.dtype.name(),
                shape: &tensor.shape,
                data_offsets: *data_offsets,
            };
            map.serialize_entry(&tensor.name, &entry)?;
        }
        map.end()
    }
}

impl Target {
    /// Begins the file in `folder`, which is created if it does not exist.
    pub(crate) fn begin(folder: &Path, is_forced: bool, layout: &Layout) -> Result<Self> {
        let path = folder.join(SINGLE_NAME);
        if !is_forced && path.symlink_metadata().is_ok() {
            return Err(Error::invalid_request("exists already")
                .with_location(path.display())
                .with_hint("pass another directory, or --force to replace it"));
        }
        let partial = folder.join(format!(".{SINGLE_NAME}.tload-partial"));
        let opened = std::fs::create_dir_all(folder).and_then(|()| {
            let mut options = OpenOptions::new();
            options.write(true).create(true).truncate(true);
            options
                .custom_flags(rustix::fs::OFlags::NOFOLLOW.bits().cast_signed())
                .open(&partial)
        });
        let file = opened.map_err(|error| failed(&partial, error))?;
        let mut target = Self {
            path,
            partial,
            file,
            is_complete: false,
        };
        target
            .lay_out(layout)
            .map_err(|error| failed(&target.partial, error))?;
        Ok(target)
    }

    /// Reserves the space, so that a full disk is an error before anything is read, and writes the
    /// header. What is not written later reads as zeros.
    fn lay_out(&mut self, layout: &Layout) -> io::Result<()> {
        use rustix::io::Errno;
        match rustix::fs::fallocate(
            &self.file,
            rustix::fs::FallocateFlags::empty(),
            0,
            layout.bytes,
        ) {
            // Some file systems cannot.
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => {
                self.file.set_len(layout.bytes)?;
            }
            reserved => reserved?,
        }
        self.file.write_all(&layout.header)
    }

    pub(crate) fn write_at(&self, bytes: &[u8], position: u64) -> Result<()> {
        let written = self.file.write_all_at(bytes, position);
        written.map_err(|error| failed(&self.partial, error))
    }

    /// Gives the file its name, once its bytes are on storage.
    pub(crate) fn complete(mut self) -> Result<PathBuf> {
        let folder = self.path.parent().map_or(Path::new("."), |folder| {
            if folder.as_os_str().is_empty() {
                Path::new(".")
            } else {
                folder
            }
        });
        let named = self.file.sync_all().and_then(|()| {
            std::fs::rename(&self.partial, &self.path)?;
            let folder = OpenOptions::new().read(true).open(folder)?;
            folder.sync_all()
        });
        named.map_err(|error| failed(&self.path, error))?;
        self.is_complete = true;
        Ok(self.path.clone())
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        if !self.is_complete {
            // The error that ended the conversion counts.
            let _ = std::fs::remove_file(&self.partial);
        }
    }
}

fn failed(path: &Path, error: io::Error) -> Error {
    Error::new(ErrorKind::from_io(&error), "cannot write")
        .with_location(path.display())
        .with_source(error)
}
