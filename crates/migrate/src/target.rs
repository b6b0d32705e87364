//! The safetensors file that is written: at its name when it is complete, and not before.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use serde::ser::SerializeMap as _;
use serde::{Serialize, Serializer};
use tload_format::{
    HEADER_BYTES_MAX, INDEX_SUFFIX, KEY_FILE_NAME, LENGTH_BYTES, SINGLE_NAME, SUFFIX,
};
use tload_partial::Partial;
use tload_tensorizer::Tensor;

use crate::error::{Error, ErrorKind, Result};

/// Key of a header that is no tensor's.
const METADATA: &str = "__metadata__";

/// File in progress. Dropping it removes what was written.
#[derive(Debug)]
pub(crate) struct Target {
    partial: Partial,
    file: File,
}

/// Places of tensors in the file that is written.
#[derive(Debug)]
pub(crate) struct Layout {
    header: Vec<u8>,
    /// For each tensor, the position of its bytes in the file.
    pub(crate) starts: Vec<u64>,
    bytes: u64,
    /// True if some tensors have no bytes in the file of Tensorizer, which can state any length.
    has_zeros: bool,
}

impl Layout {
    /// Lays tensors out as safetensors' own writer does: by size of their elements, the largest
    /// first, so that all are aligned; in file order where these are equal.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`] for names that safetensors cannot have, and for more names than
    /// fit in a header.
    pub(crate) fn new(tensors: &[Tensor]) -> Result<Self> {
        if let Some(tensor) = tensors.iter().find(|it| it.name == METADATA) {
            let message = "safetensors has metadata of this name, and no tensor can have it";
            return Err(Error::unsupported(message).with_tensor(&tensor.name));
        }
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
        if json.len() as u64 > HEADER_BYTES_MAX {
            let message = format!(
                "the header would have {} bytes, and no reader takes more than {HEADER_BYTES_MAX}",
                json.len()
            );
            return Err(Error::unsupported(message));
        }
        let begin = LENGTH_BYTES + json.len() as u64;
        for start in &mut starts {
            *start += begin;
        }
        let mut header = (json.len() as u64).to_le_bytes().to_vec();
        header.append(&mut json);
        Ok(Self {
            header,
            starts,
            bytes: begin + end,
            has_zeros: tensors.iter().any(Tensor::is_meta),
        })
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
        map.serialize_entry(METADATA, &serde_json::json!({"format": "pt"}))?;
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
        refuse_others(folder, is_forced)?;
        std::fs::create_dir_all(folder).map_err(|error| failed(folder, error))?;
        let mut partial = Partial::new(&path)?;
        let file = partial.create_file()?;
        let mut target = Self { partial, file };
        target
            .lay_out(layout)
            .map_err(|error| failed(target.partial.path(), error))?;
        Ok(target)
    }

    /// Reserves the space, so that a full disk is an error before anything is read, and writes the
    /// header. What is not written later reads as zeros, and takes no space.
    fn lay_out(&mut self, layout: &Layout) -> io::Result<()> {
        use rustix::io::Errno;
        if layout.has_zeros {
            self.file.set_len(layout.bytes)?;
            return self.file.write_all(&layout.header);
        }
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
        written.map_err(|error| failed(self.partial.path(), error))
    }

    /// Gives the file its name, once its bytes are on storage.
    pub(crate) fn complete(self, is_forced: bool) -> Result<PathBuf> {
        let path = self.partial.path().to_owned();
        self.partial.complete(is_forced)?;
        Ok(path)
    }
}

/// Returns where [`Convert`](crate::Convert) writes until the file in `folder` is complete.
pub fn temporary(folder: &Path) -> PathBuf {
    tload_partial::beside(&folder.join(SINGLE_NAME))
}

/// Files that describe weights, which those of another checkpoint would not fit.
const DESCRIBING: [&str; 4] = [
    KEY_FILE_NAME,
    "sealed.manifest",
    "tload-manifest.json",
    "model.sig",
];

/// Returns an error if `folder` has weights already. Loads would take those that an index names,
/// so only a single file is ever replaced, and none that other files describe.
fn refuse_others(folder: &Path, is_forced: bool) -> Result<()> {
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed(folder, error)),
    };
    for entry in entries {
        let name = entry.map_err(|error| failed(folder, error))?.file_name();
        let name = name.to_string_lossy();
        let is_same = name == SINGLE_NAME;
        if is_same && is_forced || name.starts_with('.') {
            continue;
        }
        if DESCRIBING.contains(&&*name) {
            let message = "describes the weights of another checkpoint";
            return Err(Error::invalid_request(message)
                .with_location(folder.join(&*name).display())
                .with_hint("pass another directory, or remove the file"));
        }
        if name.ends_with(SUFFIX) || name.ends_with(INDEX_SUFFIX) {
            return Err(
                Error::invalid_request("has weights of another checkpoint already")
                    .with_location(folder.join(&*name).display())
                    .with_hint(if is_same {
                        "pass another directory, or --force to replace it"
                    } else {
                        "pass another directory"
                    }),
            );
        }
    }
    Ok(())
}

fn failed(path: &Path, error: io::Error) -> Error {
    Error::new(ErrorKind::from_io(&error), "cannot write")
        .with_location(path.display())
        .with_source(error)
}
