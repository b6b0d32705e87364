//! Where bytes live, as the user wrote it.
//!
//! Parses and shows locations; opens nothing. What is shown is safe to print.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use percent_encoding::percent_decode_str;

use crate::error::{Error, ErrorKind, Result, printable};

/// A path or a `file://` URL.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Location {
    path: PathBuf,
    text: String,
}

impl Location {
    /// Reads a path or a URL.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidRequest`] for an empty text or a `file://` URL of another host, [`ErrorKind::Unsupported`] for any
    /// other scheme.
    pub fn parse(text: &str) -> Result<Self> {
        if text.is_empty() {
            return Err(Error::new(
                ErrorKind::InvalidRequest,
                "the location is empty",
            ));
        }
        if text.contains('\0') {
            return Err(Error::new(
                ErrorKind::InvalidRequest,
                format!("the location {text:?} holds a zero byte, which no path can"),
            ));
        }
        let Some((scheme, rest)) = text.split_once("://") else {
            return Ok(Self {
                path: PathBuf::from(text),
                text: text.to_owned(),
            });
        };
        if !scheme.eq_ignore_ascii_case("file") {
            // Not the whole text: a URL may carry credentials.
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!("locations that begin with {scheme}:// cannot be read by this build"),
            )
            .with_hint("give a path or a file:// URL"));
        }
        let path = rest.strip_prefix("localhost").unwrap_or(rest);
        if !path.starts_with('/') {
            return Err(Error::new(
                ErrorKind::InvalidRequest,
                format!("file URL {text:?} names a host or a relative path"),
            )
            .with_hint("write file:///absolute/path"));
        }
        let path = percent_decode_str(path).decode_utf8().map_err(|error| {
            Error::new(
                ErrorKind::InvalidRequest,
                format!("file URL {text:?} is not UTF-8"),
            )
            .with_source(error)
        })?;
        Ok(Self {
            path: PathBuf::from(path.as_ref()),
            text: text.to_owned(),
        })
    }

    /// The location of a path, taken as it is.
    pub fn from_path(path: impl Into<PathBuf>) -> Self {
        let path = path.into();
        let text = path.display().to_string();
        Self { path, text }
    }

    /// The path, if the location is on a file system.
    pub fn as_path(&self) -> Option<&Path> {
        Some(&self.path)
    }

    /// The location of `name` inside this folder, or beside this file.
    pub(crate) fn join(&self, name: &str) -> Self {
        Self::from_path(self.path.join(name))
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&printable(&self.text))
    }
}

impl FromStr for Location {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Self::parse(text)
    }
}

impl From<&Path> for Location {
    fn from(path: &Path) -> Self {
        Self::from_path(path)
    }
}

impl From<PathBuf> for Location {
    fn from(path: PathBuf) -> Self {
        Self::from_path(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_and_file_urls() {
        for (text, path) in [
            ("model", "model"),
            ("/m/a b", "/m/a b"),
            ("file:///m/a%20b", "/m/a b"),
            ("file://localhost/m", "/m"),
        ] {
            let location = Location::parse(text).expect(text);
            assert_eq!(location.as_path(), Some(Path::new(path)));
            assert_eq!(location.to_string(), text);
        }
    }

    #[test]
    fn refused_ones_say_why_and_show_no_secret() {
        let error = Location::parse("s3://key:secret@bucket/x").expect_err("no object stores");
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(!error.chain().contains("secret"));
        let error = Location::parse("file://host/x").expect_err("another host");
        assert_eq!(error.kind(), ErrorKind::InvalidRequest);
        assert_eq!(
            Location::parse("").expect_err("empty").kind(),
            ErrorKind::InvalidRequest
        );
    }
}
