//! Locations: where bytes live, as the user wrote it.
//!
//! Parses and shows locations; opens nothing. The displayed text is safe to print: it leaves out
//! user names, passwords and query strings, which is where URLs carry secrets.

mod protocol;
mod remote_url;
mod signature;
#[cfg(test)]
mod tests;

use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use percent_encoding::percent_decode_str;
use sha2::{Digest as _, Sha256};

use self::protocol::FORMS;
pub use self::protocol::Protocol;
pub use self::remote_url::{RESERVED, RemoteUrl};
pub use self::signature::is_signature;
use self::signature::without_signature;
use super::oci_reference;
use crate::error::{Error, Result, printable, shortened};

/// A path, a `file://` URL, the URL of an object or of a prefix of objects, a model or bucket on a
/// hub (`hf://org/name`), or a model in an OCI registry (`oci://registry/repository:tag`).
///
/// Functions that take a location accept anything that converts to one: a path, or text that is
/// parsed as [`Self::parse`] does. Its display leaves out what may be secret: user, password and
/// query.
///
/// # Examples
///
/// ```
/// # use tload_base::options::Location;
/// let location = Location::try_from("https://user:secret@host/model?sig=secret")?;
/// assert_eq!(location.to_string(), "https://host/model?…");
/// assert!(location.has_secret());
/// # Ok::<(), tload_base::error::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Location {
    place: Place,
    shown: String,
}

#[derive(Clone, PartialEq, Eq, Hash)]
enum Place {
    Path(PathBuf),
    Remote(RemoteUrl),
}

/// Scheme of URLs of files.
const FILE: &str = "file";

impl Location {
    /// Parses a path or a URL.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidRequest`](crate::error::ErrorKind::InvalidRequest) for an empty or
    /// malformed location, [`ErrorKind::Unsupported`](crate::error::ErrorKind::Unsupported) for a
    /// URL of another scheme.
    ///
    /// # Examples
    ///
    /// ```
    /// # use tload_base::options::{Location, Protocol};
    /// let model = Location::parse("s3://bucket/model")?;
    /// assert_eq!(model.protocol(), Some(Protocol::S3));
    /// assert_eq!(Location::parse("/models/llama")?.protocol(), None);
    /// assert!(Location::parse("ftp://host/model").is_err());
    /// # Ok::<(), tload_base::error::Error>(())
    /// ```
    pub fn parse(text: &str) -> Result<Self> {
        if text.is_empty() {
            return Err(Error::invalid_request("the location is empty"));
        }
        if text.contains('\0') {
            return Err(Error::invalid_request("the location contains a zero byte"));
        }
        let Some((scheme, rest)) = text.split_once("://") else {
            return match text.split_once(":/") {
                Some((scheme, _))
                    if Protocol::of_scheme(&scheme.to_ascii_lowercase()).is_some() =>
                {
                    Err(
                        Error::invalid_request(format!("{scheme}:/ is neither a path nor a URL"))
                            .with_hint(format!("write {scheme}://, with two slashes")),
                    )
                }
                _ => Ok(Self::from_path(text)),
            };
        };
        let scheme = scheme.to_ascii_lowercase();
        if scheme == FILE {
            return Self::from_file_url(text, rest);
        }
        let Some(protocol) = Protocol::of_scheme(&scheme) else {
            // Do not show the whole text: a URL may carry credentials. Nor a prefix that is not a
            // scheme: that may be most of the text.
            let message = if is_scheme(&scheme) {
                format!("locations that begin with {scheme}:// cannot be read")
            } else {
                "the location contains :// but does not begin with a URL scheme".to_owned()
            };
            let schemes: Vec<_> = Self::schemes().collect();
            let hint = format!("pass a path, or a URL of {}", schemes.join(", "));
            return Err(Error::unsupported(message).with_hint(hint));
        };
        let url = RemoteUrl::parse(protocol, scheme, rest)?;
        Ok(Self {
            shown: url.shown(),
            place: Place::Remote(url),
        })
    }

    /// Returns the schemes of the URLs that [`Self::parse`] accepts, in lower case.
    pub fn schemes() -> impl Iterator<Item = &'static str> {
        let of_stores = FORMS.iter().flat_map(|form| form.schemes);
        std::iter::once(FILE).chain(of_stores.copied())
    }

    fn from_file_url(text: &str, rest: &str) -> Result<Self> {
        let path = rest.strip_prefix("localhost").unwrap_or(rest);
        if !path.starts_with('/') {
            return Err(Error::invalid_request(format!(
                "file URL {text:?} names a host or a relative path"
            ))
            .with_hint("write file:///absolute/path"));
        }
        let path = percent_decode_str(path).decode_utf8().map_err(|error| {
            Error::invalid_request(format!("file URL {text:?} is not UTF-8")).with_source(error)
        })?;
        Ok(Self {
            place: Place::Path(PathBuf::from(path.as_ref())),
            shown: text.to_owned(),
        })
    }

    /// Creates the location of a path, taken as it is: also one that looks like a URL.
    ///
    /// # Examples
    ///
    /// ```
    /// # use tload_base::options::Location;
    /// let location = Location::from_path("/models/llama");
    /// assert_eq!(location.as_path(), Some("/models/llama".as_ref()));
    /// assert_eq!(location.to_string(), "/models/llama");
    /// ```
    pub fn from_path(path: impl Into<PathBuf>) -> Self {
        let path = path.into();
        let shown = path.display().to_string();
        Self {
            place: Place::Path(path),
            shown,
        }
    }

    /// Returns the path, if the location is on a file system.
    pub fn as_path(&self) -> Option<&Path> {
        match &self.place {
            Place::Path(path) => Some(path),
            Place::Remote(_) => None,
        }
    }

    /// Returns the protocol, if the location is in an object store.
    pub fn protocol(&self) -> Option<Protocol> {
        self.remote().map(|url| url.protocol)
    }

    /// Returns the parts of the URL, if the location is in an object store. They may be secret.
    #[doc(hidden)]
    pub fn remote(&self) -> Option<&RemoteUrl> {
        match &self.place {
            Place::Path(_) => None,
            Place::Remote(url) => Some(url),
        }
    }

    /// Returns the location of `name` inside this directory or below this prefix.
    ///
    /// # Examples
    ///
    /// ```
    /// # use tload_base::options::Location;
    /// let file = Location::parse("s3://bucket/model")?.join("config.json");
    /// assert_eq!(file.url().as_deref(), Some("s3://bucket/model/config.json"));
    /// # Ok::<(), tload_base::error::Error>(())
    /// ```
    #[must_use]
    pub fn join(&self, name: &str) -> Self {
        match &self.place {
            Place::Path(path) => Self::from_path(path.join(name)),
            Place::Remote(url) => Self::from_remote(url.join(name)),
        }
    }

    /// Returns the location of the object with this key or path in the same store.
    #[doc(hidden)]
    #[must_use]
    pub fn at_path(&self, path: &str) -> Self {
        match &self.place {
            Place::Path(_) => self.clone(),
            Place::Remote(url) => Self::from_remote(RemoteUrl {
                path: path.to_owned(),
                ..url.clone()
            }),
        }
    }

    /// Returns the directory or prefix that contains this file or object.
    #[must_use]
    pub fn parent(&self) -> Self {
        match &self.place {
            Place::Path(path) => Self::from_path(path.parent().unwrap_or(Path::new(""))),
            Place::Remote(url) => Self::from_remote(url.parent()),
        }
    }

    /// Returns the path of this file or object relative to `folder`, with `/`; `None` if it is
    /// elsewhere, or has a name that is not UTF-8.
    #[doc(hidden)]
    pub fn below(&self, folder: &Self) -> Option<String> {
        match (&self.place, &folder.place) {
            (Place::Path(path), Place::Path(folder)) => {
                let components = path.strip_prefix(folder).ok()?.components();
                let names: Option<Vec<_>> = components
                    .map(|component| component.as_os_str().to_str())
                    .collect();
                names.map(|names| names.join("/"))
            }
            (Place::Remote(url), Place::Remote(folder)) => url.below(folder),
            (Place::Path(_), Place::Remote(_)) | (Place::Remote(_), Place::Path(_)) => None,
        }
    }

    /// Returns whether it holds more than is displayed: a user, a password, or a query.
    pub fn has_secret(&self) -> bool {
        self.remote()
            .is_some_and(|url| url.host() != url.authority || url.shown().ends_with("?…"))
    }

    /// Returns the URL of a location in an object store, neither truncated nor escaped as it is for
    /// display; `None` for one that [`Self::has_secret`].
    pub fn url(&self) -> Option<String> {
        let url = self.remote().filter(|_| !self.has_secret());
        url.map(RemoteUrl::shown)
    }

    /// Returns a digest of all that selects the file or object: the whole path, or the URL without
    /// user, password and signature, and `origin`, the address of its server beyond the URL. The
    /// displayed text has no query and may be cut.
    #[doc(hidden)]
    pub fn digest(&self, origin: &str) -> String {
        let query = self.query();
        let fields: Vec<&[u8]> = match &self.place {
            Place::Path(path) => vec![path.as_os_str().as_bytes()],
            Place::Remote(url) => vec![
                url.scheme.as_bytes(),
                origin.as_bytes(),
                url.host().as_bytes(),
                url.path.as_bytes(),
                query.as_bytes(),
            ],
        };
        let mut hash = Sha256::new();
        for field in fields {
            // Each field is preceded by its length, so that no two lists of fields have the same
            // bytes.
            hash.update((field.len() as u64).to_le_bytes());
            hash.update(field);
        }
        hexadecimal(&hash.finalize())
    }

    /// Returns the query without a signature. It may be a secret.
    fn query(&self) -> String {
        let query = self.remote().and_then(|url| url.query.as_deref());
        query.map_or_else(String::new, without_signature)
    }

    /// Returns a digest of the query, if it may select the object.
    #[doc(hidden)]
    pub fn query_digest(&self) -> Option<String> {
        let query = self.query();
        (!query.is_empty()).then(|| hexadecimal(&Sha256::digest(query)))
    }

    /// Returns the same file or directory of a hub at a commit, or of a registry in the artifact
    /// with this digest.
    #[doc(hidden)]
    #[must_use]
    pub fn at_commit(&self, commit: &str) -> Self {
        match &self.place {
            Place::Remote(url) if url.protocol == Protocol::Hub => {
                let repository = url.authority.split('@').next().unwrap_or_default();
                Self::from_remote(RemoteUrl {
                    authority: format!("{repository}@{commit}"),
                    ..url.clone()
                })
            }
            Place::Remote(url) if url.protocol == Protocol::Oci => {
                let place = oci_reference::place(&url.authority);
                Self::from_remote(RemoteUrl {
                    authority: format!("{place}@{commit}"),
                    ..url.clone()
                })
            }
            Place::Path(_) | Place::Remote(_) => self.clone(),
        }
    }

    /// Returns the root of the store of a URL; a path as it is.
    #[doc(hidden)]
    #[must_use]
    pub fn root(&self) -> Self {
        match &self.place {
            Place::Remote(url) => Self::from_remote(RemoteUrl {
                path: String::new(),
                ..url.clone()
            }),
            Place::Path(_) => self.clone(),
        }
    }

    /// Creates a location that is only displayed, as `text`: for something that no single path or
    /// URL denotes.
    #[doc(hidden)]
    pub fn shown_as(text: impl Into<String>) -> Self {
        Self {
            place: Place::Path(PathBuf::new()),
            shown: text.into(),
        }
    }

    /// Returns whether this is a location made by [`Self::shown_as`].
    #[doc(hidden)]
    pub fn is_shown_only(&self) -> bool {
        self.as_path() == Some(Path::new(""))
    }

    /// Returns the location of `path` in a store that the caller opened and whose display name is
    /// `name`.
    #[doc(hidden)]
    pub fn custom(name: &str, path: &str) -> Self {
        Self::from_remote(RemoteUrl {
            protocol: Protocol::Custom,
            scheme: "store".to_owned(),
            authority: name.to_owned(),
            path: path.to_owned(),
            query: None,
        })
    }

    /// Returns the last component, without the query string.
    pub fn file_name(&self) -> &str {
        match &self.place {
            Place::Path(path) => path
                .file_name()
                .and_then(|name| name.to_str())
                .unwrap_or(""),
            Place::Remote(url) => url.path.rsplit('/').next().unwrap_or(""),
        }
    }

    /// Returns whether the name ends in a dot and `extension`.
    #[doc(hidden)]
    pub fn has_extension(&self, extension: &str) -> bool {
        Path::new(self.file_name())
            .extension()
            .is_some_and(|found| found == extension)
    }

    fn from_remote(url: RemoteUrl) -> Self {
        Self {
            shown: url.shown(),
            place: Place::Remote(url),
        }
    }
}

/// Returns bytes as hexadecimal digits.
pub fn hexadecimal(bytes: &[u8]) -> String {
    use fmt::Write as _;
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Returns whether a text can be the scheme of a URL (RFC 3986, section 3.1).
fn is_scheme(text: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte);
    text.len() <= 32
        && text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text.bytes().all(allowed)
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&printable(&shortened(&self.shown)))
    }
}

impl fmt::Debug for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Location({:?})", shortened(&self.shown))
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

impl From<&PathBuf> for Location {
    fn from(path: &PathBuf) -> Self {
        Self::from_path(path)
    }
}

impl From<PathBuf> for Location {
    fn from(path: PathBuf) -> Self {
        Self::from_path(path)
    }
}

impl From<&Self> for Location {
    fn from(location: &Self) -> Self {
        location.clone()
    }
}

/// Parses a path or a URL, as [`Location::parse`] does.
macro_rules! try_from_text {
    ($($text:ty),*) => {$(
        impl TryFrom<$text> for Location {
            type Error = Error;

            fn try_from(text: $text) -> Result<Self> {
                Self::parse(text.as_ref())
            }
        }
    )*};
}
try_from_text!(&str, &String, String);
