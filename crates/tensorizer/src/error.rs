//! Errors of invalid `.tensors` files: what was found where, and what was wanted.

use std::fmt;
use std::ops::Range;

use tload_base::error::{Error, ErrorKind, cut, shortened};

/// Longest value in a message, bytes.
const FOUND_BYTES_MAX: usize = 200;

/// A rule of Tensorizer's format that a file breaks, or something in it that tload does not load.
///
/// Displays without the tensor's name, which [`Error`] shows by itself; see [`Self::tensor`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FormatError {
    /// The first bytes are not the magic.
    #[error(
        "found {found:?} at its begin, wanted {:?}, a file of Tensorizer",
        "|TZR|"
    )]
    Magic {
        /// The first bytes.
        found: String,
    },
    /// The version of the file, or of an entry of its index, is not known.
    #[error("found version {found} of the {what}, wanted {wanted}")]
    Version {
        /// Structure that has the version.
        what: &'static str,
        /// The version.
        found: u32,
        /// Known versions.
        wanted: &'static str,
        /// Position of the version.
        position: u64,
    },
    /// A structure ends before something in it.
    #[error("{within} ends within {what}: found {found} bytes, wanted {wanted}")]
    Ends {
        /// Structure that ends.
        within: &'static str,
        /// Value that does not fit.
        what: &'static str,
        /// Bytes that are left.
        found: u64,
        /// Bytes that are needed.
        wanted: u64,
        /// Position of the first of them.
        position: u64,
    },
    /// A value is none that the format allows.
    #[error("{what}: found {found}, wanted {wanted}")]
    Invalid {
        /// Name of the value.
        what: &'static str,
        /// The value.
        found: String,
        /// Allowed values.
        wanted: String,
        /// Bytes of the value.
        range: Range<u64>,
    },
    /// Safetensors, and so tload, has no such element type.
    #[error("dtype {found:?} is none that safetensors has")]
    Dtype {
        /// The dtype, as the file writes it.
        found: String,
    },
    /// An error about one tensor.
    #[error("{error}")]
    OfTensor {
        /// Name of the tensor.
        name: String,
        /// The error.
        error: Box<FormatError>,
    },
}

impl FormatError {
    pub(crate) fn invalid(
        range: Range<u64>,
        what: &'static str,
        found: &impl ToString,
        wanted: impl Into<String>,
    ) -> Self {
        Self::Invalid {
            what,
            found: cut(&found.to_string(), FOUND_BYTES_MAX).into_owned(),
            wanted: wanted.into(),
            range,
        }
    }

    /// Adds the name of the tensor that it is about, unless it has one.
    #[must_use]
    pub(crate) fn of_tensor(self, name: &str) -> Self {
        if self.tensor().is_some() {
            return self;
        }
        Self::OfTensor {
            name: shortened(name).into_owned(),
            error: Box::new(self),
        }
    }

    /// Returns the name of the tensor that it is about.
    pub fn tensor(&self) -> Option<&str> {
        if let Self::OfTensor { name, .. } = self {
            return Some(name);
        }
        None
    }

    /// Returns the bytes of the file that are wrong, where some are.
    pub fn range(&self) -> Option<Range<u64>> {
        match self {
            Self::Magic { .. } => Some(0..5),
            Self::Version { position, .. } => Some(*position..position.saturating_add(4)),
            Self::Ends {
                position, wanted, ..
            } => Some(*position..position.saturating_add(*wanted)),
            Self::Invalid { range, .. } => Some(range.clone()),
            Self::Dtype { .. } => None,
            Self::OfTensor { error, .. } => error.range(),
        }
    }

    fn kind(&self) -> ErrorKind {
        match self {
            Self::Version { .. } | Self::Dtype { .. } => ErrorKind::Unsupported,
            Self::OfTensor { error, .. } => error.kind(),
            Self::Magic { .. } | Self::Ends { .. } | Self::Invalid { .. } => {
                ErrorKind::InvalidFormat
            }
        }
    }

    fn hint(&self) -> &'static str {
        match self {
            Self::Version { .. } => "update tload, or write the file again with tensorizer 2.12",
            Self::Dtype { .. } => {
                "load it with the package tensorizer, and save the tensor in another dtype"
            }
            Self::OfTensor { error, .. } => error.hint(),
            Self::Magic { .. } | Self::Ends { .. } | Self::Invalid { .. } => {
                "the file is damaged, or was not copied completely: get it again"
            }
        }
    }

    /// Returns the crate's error, about the file at `location`.
    pub fn into_error(self, location: impl fmt::Display) -> Error {
        let mut error = Error::new(self.kind(), self.to_string()).with_location(location);
        if let Some(tensor) = self.tensor() {
            error = error.with_tensor(tensor);
        }
        if let Some(range) = self.range() {
            error = error.with_range(range);
        }
        error.with_hint(self.hint()).with_source(self)
    }
}
