//! Copy to a directory or to a store, whichever the target is.

use std::path::PathBuf;

use tload_copy::{CopyControl, CopyJob, CopyOptions, CopyReport};

use crate::error::Result;
use crate::job::UploadJob;
use crate::options::{Location, StoreOptions};

/// Copy to a directory or to a store.
#[derive(Debug)]
#[doc(hidden)]
pub enum AnyCopy {
    /// To a directory.
    Disk(Box<CopyJob>),
    /// To a store.
    Store(Box<UploadJob>),
}

impl AnyCopy {
    /// Creates a copy. With options of a store, the target is in one.
    ///
    /// # Errors
    ///
    /// The target is no URL of a store.
    pub fn new(
        source: Location,
        target: PathBuf,
        options: CopyOptions,
        store: StoreOptions,
        target_store: Option<StoreOptions>,
    ) -> Result<Self> {
        let Some(target_store) = target_store else {
            let copy = CopyJob::new(source, target).options(options).store(store);
            return Ok(Self::Disk(Box::new(copy)));
        };
        let target = Location::parse(&target.to_string_lossy())?;
        let copy = UploadJob::new(source, target).options(options).store(store);
        Ok(Self::Store(Box::new(copy.target_store(target_store))))
    }

    /// Returns a handle that observes and cancels the copy.
    pub fn control(&self) -> CopyControl {
        match self {
            Self::Disk(copy) => copy.control(),
            Self::Store(copy) => copy.control(),
        }
    }

    /// Runs the copy.
    ///
    /// # Errors
    ///
    /// Those of the copy.
    pub fn run(self) -> Result<CopyReport> {
        match self {
            Self::Disk(copy) => copy.run(),
            Self::Store(copy) => copy.run(),
        }
    }
}
