//! Files beside the weights, which a directory keeps when its checkpoint is replaced: the
//! configuration, the tokenizer, and whatever else is there.

use std::fs::{self, Metadata};
use std::path::Path;

use super::{file_error, sync_directory};
use crate::error::{Error, Result};
use crate::format::{INDEX_SUFFIX, SUFFIX};
use crate::step;

/// Suffix of the records of copies.
const RECORD_SUFFIX: &str = ".tload-copied";

/// Links all of `from` into `to`, except files of weights and what describes them, and gives `to`
/// its permissions.
pub(super) fn keep(from: &Path, to: &Path, metadata: &Metadata) -> Result<()> {
    link_below(from, to, is_kept)?;
    fs::set_permissions(to, metadata.permissions())
        .map_err(|error| file_error("cannot set the permissions", to, error))
}

/// Returns whether the file with this name is none of a checkpoint's weights.
fn is_kept(name: &str) -> bool {
    let is_weights = name.ends_with(SUFFIX) || name.ends_with(INDEX_SUFFIX);
    !is_weights && !name.ends_with(RECORD_SUFFIX) && name != tload_verify::MANIFEST_NAME
}

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
        if kind.is_dir() {
            fs::create_dir(&new).map_err(cannot)?;
            link_below(&path, &new, |_| true)?;
            let permissions = entry.metadata().map_err(failed)?.permissions();
            fs::set_permissions(&new, permissions).map_err(cannot)?;
            sync_directory(&new)?;
        } else if kind.is_symlink() {
            let target = fs::read_link(&path).map_err(cannot)?;
            std::os::unix::fs::symlink(target, &new).map_err(cannot)?;
        } else if kind.is_file() {
            match fs::hard_link(&path, &new) {
                // The new directory has a file of this name already.
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
                linked => linked.map_err(cannot)?,
            }
        } else {
            return Err(Error::invalid_request(
                "is neither a file nor a directory, and cannot be kept",
            )
            .with_location(path.display()));
        }
        step::reach();
    }
    Ok(())
}
