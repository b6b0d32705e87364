//! Files on a file system: written into a directory beside their destination, which takes its place
//! by a rename.
//!
//! `stage` is that directory, `destination` what it becomes, `beside` what it keeps of the
//! directory that it replaces. `disk_writers` write buffers, `direct_file` is one file for them.

mod beside;
mod destination;
mod direct_file;
mod disk_writers;
pub(crate) mod stage;

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{Mode, OFlags};

use self::destination::OpenedPath;
use self::direct_file::DirectFile;
use self::disk_writers::{DiskWriters, Written};
use self::stage::Stage;
use crate::error::{Error, Result};
use crate::format::INDEX_NAME;
use crate::plan::Naming;
use crate::step;
use crate::target::{Buffer, Output, Target};
use crate::write_id::WriteId;
use crate::write_options::WriteOptions;

/// Directory or file that is being written.
pub(crate) struct DiskTarget {
    naming: Naming,
    destination: OpenedPath,
    stage: Stage,
    writers: Arc<DiskWriters>,
}

impl DiskTarget {
    /// Prepares to write a directory, or a file if `path` has the name of one.
    pub(crate) fn open(path: &Path, options: &WriteOptions) -> Result<Self> {
        let id = WriteId::draw();
        let destination = OpenedPath::open(path, options)?;
        let stage = Stage::create(destination.path(), &id)?;
        destination.probe(&stage)?;
        let only = destination.is_file().then(|| destination.name());
        Ok(Self {
            naming: Naming {
                id,
                only,
                is_plain: options.plain_names,
                indexes_one: false,
            },
            destination,
            stage,
            writers: DiskWriters::start()?,
        })
    }
}

impl Target for DiskTarget {
    fn naming(&self) -> &Naming {
        &self.naming
    }

    fn create(&mut self, name: &str, len: Option<u64>) -> Result<Box<dyn Output>> {
        let path = self.stage.path().join(name);
        step::reach();
        let file = Arc::new(DirectFile::create(&path, len)?);
        step::reach();
        let writers = Arc::clone(&self.writers);
        Ok(Box::new(Written::new(writers, file)))
    }

    fn rename(&mut self, name: String, wanted: String) -> Result<String> {
        let path = self.stage.path().join(&wanted);
        fs::rename(self.stage.path().join(name), &path)
            .map_err(|error| file_error("cannot rename to", &path, error))?;
        step::reach();
        Ok(wanted)
    }

    fn write_small(&mut self, name: &str, text: &[u8]) -> Result<()> {
        let path = self.stage.path().join(name);
        let failed = |error| file_error("cannot write", &path, error);
        let mut file = File::create_new(&path).map_err(failed)?;
        step::reach();
        file.write_all(text).map_err(failed)?;
        step::reach();
        file.sync_all().map_err(failed)
    }

    fn commit(&mut self, index: Option<&[u8]>) -> Result<Option<String>> {
        if let Some(text) = index {
            self.write_small(INDEX_NAME, text)?;
        }
        self.destination.publish(&mut self.stage)
    }

    fn is_direct(&self) -> bool {
        self.writers.is_direct()
    }
}

impl Output for Written {
    fn buffer(&mut self) -> Result<Buffer> {
        self.writers().buffer()
    }

    fn put(&mut self, offset: u64, buffer: Buffer, len: usize) -> Result<()> {
        self.send(offset, buffer, len);
        Ok(())
    }

    fn finish(self: Box<Self>, len: u64) -> Result<()> {
        self.writers().wait()?;
        self.file().finish(len)
    }
}

/// Returns the error for a failed operation on a file or directory that is written.
pub(crate) fn file_error(what: &str, path: &Path, error: impl Into<io::Error>) -> Error {
    Error::from_write(what, error.into()).with_location(path.display())
}

/// Stores the entries of a directory.
pub(crate) fn sync_directory(path: &Path) -> Result<()> {
    open_directory(path)
        .and_then(|directory| directory.sync_all())
        .map_err(|error| file_error("cannot store the directory", path, error))
}

/// Opens a directory to lock it, or to store its entries.
fn open_directory(path: &Path) -> io::Result<File> {
    let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(rustix::fs::open(path, flags, Mode::empty())?.into())
}
