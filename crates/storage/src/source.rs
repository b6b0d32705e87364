//! [`Source`]: the common interface of every kind of source.

use std::sync::Arc;

use crate::{FileSource, ObjectSource, error::Result, memory::Transform, options::Location};

/// Source that engines read, and how another one's bytes follow from it.
type Stored<'a> = (&'a Arc<dyn Source>, &'a Arc<dyn Transform>);

/// A file or an object in the state in which it was opened. Fetches small ranges, for headers.
pub trait Source: std::fmt::Debug + Send + Sync {
    /// Returns the source's location.
    fn location(&self) -> &Location;

    /// Returns the length in bytes, as seen when the source was opened.
    fn len(&self) -> u64;

    /// Returns whether the source has no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the bytes at `offset`: `len` of them, or up to the end of the source.
    fn fetch(&self, offset: u64, len: usize) -> Result<Vec<u8>>;

    /// Checks that the source is unchanged since it was opened, where fetches have not checked
    /// that.
    ///
    /// # Errors
    ///
    /// [`crate::error::ErrorKind::Changed`], and any error of the check itself.
    fn verify_unchanged(&self) -> Result<()> {
        Ok(())
    }

    /// Like [`Self::verify_unchanged`], and requires that the path or key does not lead to
    /// something else.
    #[doc(hidden)]
    fn verify_in_place(&self) -> Result<()> {
        self.verify_unchanged()
    }

    /// Requires a validator that ties several responses to one state of the source.
    ///
    /// # Errors
    ///
    /// [`crate::error::ErrorKind::Unsupported`] for an object without one, unless the options of
    /// its store allow that.
    #[doc(hidden)]
    fn require_versioned(&self) -> Result<()> {
        Ok(())
    }

    /// Returns whether both are the same file or object.
    #[doc(hidden)]
    fn is(&self, other: &dyn Source) -> bool {
        self.location() == other.location()
    }

    /// Returns what tells states of the source apart, in words that another process compares.
    #[doc(hidden)]
    fn validator(&self) -> String {
        "unknown".to_owned()
    }

    /// Returns the commit of a hub that the source is of, or the digest of an artifact's manifest.
    /// Contents of a commit never change, wherever they are read from.
    #[doc(hidden)]
    fn commit_name(&self) -> Option<&str> {
        None
    }

    /// Makes the cache forget the source: its bytes turned out to be wrong. From now on, they are
    /// read from the origin. Returns false if they were before.
    #[doc(hidden)]
    fn clear_cached(&self) -> bool {
        false
    }

    /// Returns the file, if it is one.
    #[doc(hidden)]
    fn as_file(&self) -> Option<&FileSource> {
        None
    }

    /// Returns the object, if it is one.
    #[doc(hidden)]
    fn as_object(&self) -> Option<&ObjectSource> {
        None
    }

    /// Returns the source that engines read, and how the bytes follow from it, if they do.
    #[doc(hidden)]
    fn stored(&self) -> Option<Stored<'_>> {
        None
    }
}
