//! Directory or file that a write makes or replaces: the one rename that makes it the new one.

use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{
    CWD, FlockOperation, OFlags, RenameFlags, XattrFlags, flock, getxattr, renameat_with, setxattr,
};
use rustix::io::Errno;

use super::stage::{ATTRIBUTE, Stage, file_name, lock, resolved};
use super::{beside, file_error, sync_directory};
use crate::error::{Error, ErrorKind, Result};
use crate::format::{KEY_FILE_NAME, SUFFIX};
use crate::options::Location;
use crate::step;
use crate::write_id::WriteId;
use crate::write_options::WriteOptions;

/// Path of the checkpoint, and what was there at the start.
#[derive(Debug)]
pub(super) struct OpenedPath {
    path: PathBuf,
    is_file: bool,
    old: Option<Old>,
}

/// Directory or file that is replaced, held open so that its number is not given to another one.
#[derive(Debug)]
struct Old {
    file: File,
    metadata: Metadata,
    is_empty: bool,
}

impl OpenedPath {
    /// Looks at what is there.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidRequest`] for something that must not be replaced.
    pub(super) fn open(path: &Path, options: &WriteOptions) -> Result<Self> {
        let path = resolved(path)?;
        let old = Old::open(&path)?;
        let is_directory = old.as_ref().is_some_and(|old| old.metadata.is_dir());
        let is_file = !is_directory && Location::from_path(&path).has_extension(&SUFFIX[1..]);
        let refused = |message: &str, hint: &str| {
            let error = Error::invalid_request(message).with_hint(hint);
            Err(error.with_location(path.display()))
        };
        match &old {
            Some(old) if !is_directory && (!is_file || !old.metadata.is_file()) => {
                let message = "is neither a directory nor a safetensors file";
                return refused(message, "write to another place");
            }
            Some(old) if is_directory && old.is_mount(&path) => {
                let message = "is the root of a file system, whose place no directory can take";
                return refused(message, "write to a directory in it");
            }
            Some(old) if !old.is_empty && !options.replace => {
                let what = ["the directory is not empty", "the file exists"];
                let hint = "write to another place, or set the option replace";
                return refused(what[usize::from(is_file)], hint);
            }
            Some(_) if is_directory && path.join(KEY_FILE_NAME).exists() => {
                let message = "is a sealed checkpoint, whose other files would stay encrypted";
                return refused(message, "write to another directory");
            }
            Some(old) if !old.is_empty && options.plain_names && !is_file => {
                let message = "plain names are for a new directory: readers of the old index would read new shards";
                let hint = "write to a new directory: only sealing and plain_names need one";
                return refused(message, hint);
            }
            Some(_) | None => {}
        }
        Ok(Self { path, is_file, old })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn is_file(&self) -> bool {
        self.is_file
    }

    /// Returns the last component.
    pub(super) fn name(&self) -> String {
        file_name(&self.path)
    }

    /// Tries on empty directories in `stage` what [`Self::publish`] will do: an error
    /// should come before the bytes of a checkpoint.
    pub(super) fn probe(&self, stage: &Stage) -> Result<()> {
        let [one, other] = ["one", "other"].map(|name| stage.path().join(name));
        let failed = |error: io::Error| file_error("cannot write", stage.path(), error);
        if let Some(old) = &self.old {
            self.lock(old)?;
            let _ = flock(&old.file, FlockOperation::Unlock);
            if !self.is_file {
                fs::create_dir(&one).map_err(failed)?;
                fs::create_dir(&other).map_err(failed)?;
                self.exchange(&one, &other)?;
                fs::remove_dir(&one).map_err(failed)?;
                fs::remove_dir(&other).map_err(failed)?;
            }
        }
        Ok(())
    }

    /// Makes the files of `stage` those at the destination. Returns the path of what was there, if
    /// that is kept.
    pub(super) fn publish(&self, stage: &mut Stage) -> Result<Option<String>> {
        step::reach();
        let replaced = if self.is_file {
            self.publish_file(stage)?
        } else {
            self.publish_directory(stage)?
        };
        step::reach();
        let stored = sync_directory(self.path.parent().unwrap_or(Path::new("/")));
        step::reach();
        let old = replaced.as_ref();
        let old = old.map_or(String::new(), |old| format!("; what was there is {old}"));
        let hint = format!("the new files are in place, and may be lost if the power fails{old}");
        stored.map_err(|error| error.with_hint(hint))?;
        Ok(replaced)
    }

    fn publish_directory(&self, stage: &mut Stage) -> Result<Option<String>> {
        let failed = |error: io::Error| file_error("cannot rename to", &self.path, error);
        let Some(old) = &self.old else {
            stage.sync(None)?;
            step::reach();
            // A directory does not take the place of one that has files.
            return match fs::rename(stage.path(), &self.path) {
                Ok(()) => {
                    stage.became_destination();
                    Ok(None)
                }
                Err(_) if self.path.exists() => Err(self.conflict()),
                Err(error) => Err(failed(error)),
            };
        };
        beside::keep(&self.path, stage.path())?;
        stage.sync(Some(old.metadata.permissions()))?;
        step::reach();
        self.lock(old)?;
        self.exchange(stage.path(), &self.path)?;
        stage.became_destination();
        step::reach();
        if old.is_empty && fs::remove_dir(stage.path()).is_ok() {
            return Ok(None);
        }
        beside::keep_late(stage.path(), &self.path);
        step::reach();
        Ok(Some(stage.keep_replaced().display().to_string()))
    }

    fn exchange(&self, one: &Path, other: &Path) -> Result<()> {
        let exchanged = renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE);
        exchanged.map_err(|error| match error {
            Errno::INVAL | Errno::NOSYS | Errno::NOTSUP | Errno::XDEV => {
                Error::unsupported("the file system cannot exchange two directories")
                    .with_location(self.path.display())
                    .with_hint("write to a new directory")
            }
            error => file_error("cannot rename to", &self.path, error),
        })
    }

    fn publish_file(&self, stage: &Stage) -> Result<Option<String>> {
        let written = stage.path().join(self.name());
        let failed = |error: io::Error| file_error("cannot rename to", &self.path, error);
        if let Some(id) = id_of(stage.path()) {
            let _ = setxattr(&written, ATTRIBUTE, id.as_bytes(), XattrFlags::empty());
        }
        if let Some(old) = &self.old {
            self.lock(old)?;
            fs::set_permissions(&written, old.metadata.permissions()).map_err(failed)?;
            fs::rename(&written, &self.path).map_err(failed)?;
        } else {
            match move_new(&written, &self.path) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                    return Err(self.conflict());
                }
                Err(error) => return Err(failed(error)),
            }
        }
        Ok(None)
    }

    /// Locks what is replaced, until the write ends, and requires that no other writer has replaced
    /// it.
    fn lock(&self, old: &Old) -> Result<()> {
        let locked = lock(&old.file);
        step::reach();
        let failed = |error| file_error("cannot open", &self.path, error);
        let now = fs::metadata(&self.path).map_err(failed)?;
        if (now.dev(), now.ino()) != (old.metadata.dev(), old.metadata.ino()) {
            return Err(self.conflict());
        }
        match locked {
            Err(Errno::WOULDBLOCK) => {
                let error = Error::new(ErrorKind::Io, "another program has locked it");
                Err(error
                    .with_location(self.path.display())
                    .with_hint("end that program, or let it lock another file: flock(1) does so"))
            }
            // Where the file system has no locks, two writers could both pass the test above.
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// Returns the error for a destination that another writer was faster at.
    fn conflict(&self) -> Error {
        let by = match writer(&self.path) {
            Some(id) => format!("write {id}"),
            None => "another program".to_owned(),
        };
        let message = format!("{by} was faster: it has written what is there now");
        Error::new(ErrorKind::Changed, message)
            .with_location(self.path.display())
            .with_hint("see that no two programs write to the same place, and write again")
    }
}

/// Moves a file to where nothing is.
fn move_new(from: &Path, to: &Path) -> io::Result<()> {
    match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) => fs::hard_link(from, to),
        moved => Ok(moved?),
    }
}

/// Returns the identifier of the write that made a directory or file.
fn writer(path: &Path) -> Option<String> {
    let of_shards = || {
        let names = fs::read_dir(path).ok()?;
        let mut names = names.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        names.find_map(|name| Some(WriteId::of_shard(&name)?.to_string()))
    };
    id_of(path).or_else(of_shards)
}

fn id_of(path: &Path) -> Option<String> {
    let mut text = [0; 32];
    let len = getxattr(path, ATTRIBUTE, &mut text[..]).ok()?;
    let id = WriteId::parse(std::str::from_utf8(&text[..len]).ok()?)?;
    Some(id.to_string())
}

impl Old {
    /// Returns whether another file system begins here than that of the directory above.
    fn is_mount(&self, path: &Path) -> bool {
        let above = path.parent().and_then(|above| fs::metadata(above).ok());
        above.is_none_or(|above| above.dev() != self.metadata.dev())
    }

    fn open(path: &Path) -> Result<Option<Self>> {
        let failed = |error| file_error("cannot open", path, error);
        let mut options = File::options();
        // A pipe is refused later, and not waited for.
        let flags = OFlags::NONBLOCK.bits().cast_signed();
        let file = match options.read(true).custom_flags(flags).open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed(error)),
        };
        let metadata = file.metadata().map_err(failed)?;
        let is_empty = if metadata.is_dir() {
            fs::read_dir(path).map_err(failed)?.next().is_none()
        } else {
            metadata.len() == 0
        };
        Ok(Some(Self {
            file,
            metadata,
            is_empty,
        }))
    }
}
