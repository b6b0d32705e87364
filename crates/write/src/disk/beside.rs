//! Files beside the weights, which a directory keeps when its checkpoint is replaced: the
//! configuration, the tokenizer, and whatever else is there.

use std::fs;
use std::io;
use std::path::Path;

use super::{file_error, sync_directory};
use crate::error::{Error, Result};
use crate::format::{INDEX_SUFFIX, SUFFIX};
use crate::step;

/// Suffix of the records of copies.
const RECORD_SUFFIX: &str = ".tload-copied";

/// Links all of `from` into `to`, except files of weights and what describes them.
pub(super) fn keep(from: &Path, to: &Path) -> Result<()> {
    link_below(from, to, is_kept)
}

/// Links what was made in `from` after [`keep`] into `to`, which has taken its place.
pub(super) fn keep_late(from: &Path, to: &Path) {
    if let Err(error) = keep(from, to).and_then(|()| sync_directory(to)) {
        tracing::warn!(path = %from.display(), %error, "cannot keep files of the old directory");
    }
}

/// Returns whether the file with this name is none of a checkpoint's weights.
fn is_kept(name: &str) -> bool {
    let is_weights = name.ends_with(SUFFIX) || name.ends_with(INDEX_SUFFIX);
    !is_weights && !name.ends_with(RECORD_SUFFIX) && name != tload_verify::MANIFEST_NAME
}

/// Links what `to` does not have.
fn link_below(from: &Path, to: &Path, is_kept: fn(&str) -> bool) -> Result<()> {
    let failed = |error| file_error("cannot list", from, error);
    for entry in fs::read_dir(from).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name();
        if !is_kept(&name.to_string_lossy()) {
            continue;
        }
        let (path, new) = (entry.path(), to.join(&name));
        let kind = entry.file_type().map_err(failed)?;
        let cannot = |error| file_error("cannot keep", &path, error);
        // The new directory may have one of this name already.
        let unless_there = |made: io::Result<()>| match made {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            made => made.map_err(cannot),
        };
        if kind.is_dir() {
            unless_there(fs::create_dir(&new))?;
            link_below(&path, &new, |_| true)?;
            let permissions = entry.metadata().map_err(failed)?.permissions();
            fs::set_permissions(&new, permissions).map_err(cannot)?;
            sync_directory(&new)?;
        } else if kind.is_symlink() {
            let target = fs::read_link(&path).map_err(cannot)?;
            unless_there(std::os::unix::fs::symlink(target, &new))?;
        } else if kind.is_file() {
            unless_there(fs::hard_link(&path, &new))?;
        } else {
            let message = "is neither a file nor a directory, and cannot be kept";
            return Err(Error::invalid_request(message).with_location(path.display()));
        }
        step::reach();
    }
    Ok(())
}
