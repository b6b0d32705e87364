//! Verification modes: the choice of what bytes are compared with.

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, Result};
use crate::options::Location;
use crate::options::flag::parse_flag;

/// Verification mode: whether the bytes of a load are compared with known digests during the load.
///
/// # Examples
///
/// ```
/// # mod tload {
/// #     pub use tload_base::error::Error;
/// #     pub use tload_verify::Verify;
/// # }
/// use tload::Verify;
///
/// assert_eq!("require".parse::<Verify>()?, Verify::Require);
/// let with_manifest = "sha256:/keys/model.json".parse::<Verify>()?;
/// assert_eq!(with_manifest, Verify::Sha256(Some("/keys/model.json".to_owned())));
/// # Ok::<(), tload::Error>(())
/// ```
#[derive(Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verify {
    /// Compares nothing.
    #[default]
    Off,
    /// Compares with the first of these that exists: a tload manifest beside the checkpoint, the
    /// store's own checksum of the whole object, the digest of a hub or an OCI registry, a signed
    /// manifest. The report says what was not compared, and why.
    Auto,
    /// Like [`Self::Auto`], but bytes that cannot be compared are an error before the first tensor:
    /// a file without any digest, and a partly read file whose digests only cover the whole file,
    /// or cover its header only as part of the whole. CRCs are accepted.
    Require,
    /// Like [`Self::Require`], but accepts SHA-256 and BLAKE3 only: from any source, or from the
    /// manifest at this path or URL. CRCs detect damage, but an attacker who can change bytes can
    /// preserve any CRC. A SHA-256 covers a whole file including its header, so a file of which
    /// only some tensors are read is rejected unless a manifest has BLAKE3 of them. A digest is
    /// only as trustworthy as the place that it comes from: keep the manifest where no other user
    /// can write.
    Sha256(Option<String>),
    /// Compares with the CRCs of this tload manifest, a path or a URL; a file that is not in it is
    /// an error before the first tensor. With any explicit manifest, also for [`Self::Sha256`],
    /// these are errors too: an index that the manifest does not list or lists with other bytes,
    /// and, unless files or tensors were selected by name, a file with weights that the manifest
    /// lists and the checkpoint lacks.
    Manifest(String),
}

impl Verify {
    /// Names of the modes.
    pub(crate) const NAMES: [&'static str; 4] = ["off", "auto", "require", SHA256];

    /// Returns whether bytes that cannot be compared are an error.
    pub fn is_strict(&self) -> bool {
        matches!(self, Self::Require | Self::Sha256(_) | Self::Manifest(_))
    }
}

/// Writes `off`, `auto`, `require`, `sha256`, `sha256:` and the manifest's location, or only the
/// location, without secrets.
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

/// Name of the mode that accepts no CRCs.
const SHA256: &str = "sha256";

/// Returns the location of a manifest, without secrets.
fn shown(manifest: &str) -> String {
    Location::parse(manifest).map_or_else(|_| "manifest".to_owned(), |at| at.to_string())
}

impl fmt::Debug for Verify {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Verify({self})")
    }
}

/// Parses the output of [`fmt::Display`], and truth values: true is `auto`, false is `off`. Any
/// other text is the location of a manifest. A manifest that is named like a mode is `./auto`, one
/// whose name begins with `sha256:` is `./sha256:…`.
impl FromStr for Verify {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let empty = || {
            Error::invalid_request(
                "verify is empty; it can be off, auto, require, sha256, sha256:MANIFEST, or the path or URL of a manifest",
            )
        };
        if let Some(manifest) = text.strip_prefix("sha256:") {
            let named = Some(manifest).filter(|manifest| !manifest.is_empty());
            return Ok(Self::Sha256(Some(named.ok_or_else(empty)?.to_owned())));
        }
        if let Some(is_on) = parse_flag(text) {
            return Ok(if is_on { Self::Auto } else { Self::Off });
        }
        Ok(match text.trim() {
            SHA256 => Self::Sha256(None),
            "auto" => Self::Auto,
            "require" => Self::Require,
            "" => return Err(empty()),
            // The name is not trimmed, because it may begin or end with blanks.
            _ => Self::Manifest(text.to_owned()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verify_round_trips_and_defaults_to_manifest() {
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
    fn truth_values_are_modes_and_blanks_around_modes_do_not_count() {
        for (text, wanted) in [
            ("True", Verify::Auto),
            ("1", Verify::Auto),
            ("false", Verify::Off),
            ("0", Verify::Off),
            ("auto ", Verify::Auto),
            (" sha256", Verify::Sha256(None)),
            ("./true", Verify::Manifest("./true".to_owned())),
            ("a b ", Verify::Manifest("a b ".to_owned())),
        ] {
            assert_eq!(text.parse::<Verify>().expect(text), wanted);
        }
        assert!(" ".parse::<Verify>().is_err());
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
