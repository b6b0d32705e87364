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
    /// one that is read only in part while only its whole, or its header only as part of that, could be compared. CRCs are enough.
    Require,
    /// As [`Self::Require`], and only SHA-256 counts: with what there is, or with the manifest at this path or URL. CRCs find damage, but
    /// whoever may change bytes can have them keep any CRC. A SHA-256 is of a whole file, header and all, so a file of which only some
    /// tensors are read is refused. It is as good as the place that it is from: keep the manifest where nobody else can write.
    Sha256(Option<String>),
    /// With this manifest of tload's, a path or a URL, by its CRCs; what is not in it is an error before the first read. So is, for
    /// [`Self::Sha256`] with a manifest too, an index that it does not list or lists with other bytes, and, unless files or tensors
    /// were selected by their names, a file with weights that it lists and that the checkpoint does not have.
    Manifest(String),
}

impl Verify {
    /// Whether what cannot be compared is an error.
    pub fn is_strict(&self) -> bool {
        matches!(self, Self::Require | Self::Sha256(_) | Self::Manifest(_))
    }
}

/// `off`, `auto`, `require`, `sha256`, `sha256:` and where the manifest is, or only where it is, without secrets.
impl fmt::Display for Verify {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str("off"),
            Self::Auto => f.write_str("auto"),
            Self::Require => f.write_str("require"),
            Self::Sha256(None) => f.write_str(SHA256),
            Self::Sha256(Some(manifest)) => write!(f, "{SHA256}:{}", shown(manifest)),
            Self::Manifest(manifest) => f.write_str(&shown(manifest)),
        }
    }
}

/// What the choice of SHA-256 is called.
const SHA256: &str = "sha256";

/// Where a manifest is, without secrets.
fn shown(manifest: &str) -> String {
    Location::parse(manifest).map_or_else(|_| "manifest".to_owned(), |at| at.to_string())
}

impl fmt::Debug for Verify {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Verify({self})")
    }
}

/// Of what [`fmt::Display`] writes; any other text is where a manifest is. One that is named like a choice is `./auto`, one whose name
/// begins with `sha256:` is `./sha256:…`.
impl FromStr for Verify {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let empty = || {
            Error::new(
                ErrorKind::InvalidRequest,
                "verify is empty; it can be off, auto, require, sha256, sha256:MANIFEST, or where a manifest is",
            )
        };
        if let Some(manifest) = text.strip_prefix("sha256:") {
            let named = Some(manifest).filter(|manifest| !manifest.is_empty());
            return Ok(Self::Sha256(Some(named.ok_or_else(empty)?.to_owned())));
        }
        Ok(match text {
            SHA256 => Self::Sha256(None),
            "off" => Self::Off,
            "auto" => Self::Auto,
            "require" => Self::Require,
            "" => return Err(empty()),
            manifest => Self::Manifest(manifest.to_owned()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_are_read_back_and_anything_else_is_a_manifest() {
        for text in [
            "off",
            "auto",
            "require",
            "sha256",
            "m/tload-manifest.json",
            "./auto",
            "./sha256:m.json",
        ] {
            let verify: Verify = text.parse().expect("a choice");
            assert_eq!(verify.to_string(), text);
            assert_eq!(
                matches!(verify, Verify::Manifest(_)),
                text.contains('/'),
                "{text}"
            );
        }
        for text in ["sha256:m/tload-manifest.json", "sha256:s3://b/m.json"] {
            let verify: Verify = text.parse().expect("a choice");
            assert_eq!(verify.to_string(), text);
            assert!(verify.is_strict() && matches!(verify, Verify::Sha256(Some(_))));
        }
        assert!("".parse::<Verify>().is_err() && "sha256:".parse::<Verify>().is_err());
        assert_eq!(Verify::default(), Verify::Off);
    }

    #[test]
    fn secrets_of_a_manifests_url_are_not_shown() {
        let verify: Verify = "https://user:hunter2@host/m.json?sig=hunter2"
            .parse()
            .expect("a choice");
        assert!(!format!("{verify} {verify:?}").contains("hunter2"));
        let verify: Verify = "sha256:https://user:hunter2@host/m.json?sig=hunter2"
            .parse()
            .expect("a choice");
        assert!(!format!("{verify} {verify:?}").contains("hunter2"));
    }
}
