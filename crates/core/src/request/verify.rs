//! Whether what is read is compared with what it should be.

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, ErrorKind, Result};
use crate::source::Location;

/// Whether the bytes of a load are compared with digests that somebody has made of them, while they pass.
#[derive(Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verify {
    /// Nothing is compared.
    #[default]
    Off,
    /// With what there is: a manifest of tload's beside the checkpoint, else the store's own checksum of the whole object, else what
    /// the hub says of the file, else a signed manifest. The report says what was not compared, and why.
    Auto,
    /// As [`Self::Auto`], and what cannot be compared is an error before the first read: a file of which nothing is known, and
    /// one that is read only in part while only its whole could be compared.
    Require,
    /// With this manifest of tload's, a path or a URL; what is not in it is an error before the first read.
    Manifest(String),
}

impl Verify {
    /// Whether what cannot be compared is an error.
    pub fn is_strict(&self) -> bool {
        matches!(self, Self::Require | Self::Manifest(_))
    }
}

/// `off`, `auto`, `require`, or where the manifest is, without secrets.
impl fmt::Display for Verify {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str("off"),
            Self::Auto => f.write_str("auto"),
            Self::Require => f.write_str("require"),
            Self::Manifest(manifest) => match Location::parse(manifest) {
                Ok(location) => location.fmt(f),
                Err(_) => f.write_str("manifest"),
            },
        }
    }
}

impl fmt::Debug for Verify {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Verify({self})")
    }
}

/// Of what [`fmt::Display`] writes; any other text is where a manifest is. One that is named like a choice is `./auto`.
impl FromStr for Verify {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Ok(match text {
            "off" => Self::Off,
            "auto" => Self::Auto,
            "require" => Self::Require,
            "" => {
                return Err(Error::new(
                    ErrorKind::InvalidRequest,
                    "verify is empty; it can be off, auto, require, or where a manifest is",
                ));
            }
            manifest => Self::Manifest(manifest.to_owned()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_are_read_back_and_anything_else_is_a_manifest() {
        for text in ["off", "auto", "require", "m/tload-manifest.json", "./auto"] {
            let verify: Verify = text.parse().expect("a choice");
            assert_eq!(verify.to_string(), text);
            assert_eq!(
                matches!(verify, Verify::Manifest(_)),
                text.contains('/'),
                "{text}"
            );
        }
        assert!("".parse::<Verify>().is_err());
        assert_eq!(Verify::default(), Verify::Off);
    }

    #[test]
    fn secrets_of_a_manifests_url_are_not_shown() {
        let verify: Verify = "https://user:hunter2@host/m.json?sig=hunter2"
            .parse()
            .expect("a choice");
        assert!(!format!("{verify} {verify:?}").contains("hunter2"));
    }
}
