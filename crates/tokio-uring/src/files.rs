//! Files of a load for `tokio-uring`: each has its own descriptor, which the crate closes.
//!
//! A load may have a thousand shards, each with two descriptors already. A third and fourth one are
//! therefore made on demand, and unused ones are closed when the system has no more.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::rc::Rc;
use std::sync::Arc;

use tokio_uring::fs::File;

use tload_base::error::{Error, Result};
use tload_storage::{Access, ReadFile, Source};

/// Files, and the descriptors made so far.
pub(crate) struct Files {
    files: Arc<[ReadFile]>,
    /// Indexed by file, access and number of reopenings of the file.
    opened: RefCell<HashMap<(usize, bool, usize), Rc<File>>>,
}

impl Files {
    /// Creates the table without any descriptors.
    pub(crate) fn new(files: Arc<[ReadFile]>) -> Self {
        Self {
            files,
            opened: RefCell::default(),
        }
    }

    /// Returns a file of the load.
    pub(crate) fn get(&self, source: usize) -> &ReadFile {
        &self.files[source]
    }

    /// Returns a file opened for reading through `access`.
    ///
    /// # Errors
    ///
    /// No more descriptors are available, and all of those made here are in use.
    pub(crate) fn open(&self, source: usize, access: Access) -> Result<Rc<File>> {
        let file = &self.files[source];
        let key = (source, access == Access::Direct, file.openings());
        let mut opened = self.opened.borrow_mut();
        if let Some(file) = opened.get(&key) {
            return Ok(Rc::clone(file));
        }
        let duplicate = || file.descriptor(access).try_clone_to_owned();
        let descriptor = duplicate().or_else(|error| {
            if !matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE)) {
                return Err(error);
            }
            opened.retain(|_, file| Rc::strong_count(file) > 1);
            duplicate()
        });
        let descriptor = descriptor.map_err(|error| failure(file, error))?;
        let new = Rc::new(File::from_std(descriptor.into()));
        opened.insert(key, Rc::clone(&new));
        Ok(new)
    }
}

fn failure(file: &ReadFile, error: io::Error) -> Error {
    Error::from_io("cannot duplicate the file's descriptor", error)
        .with_location(file.source().location())
        .with_hint("raise the limit of open files (ulimit -n), or use ‹engine=auto›")
}
