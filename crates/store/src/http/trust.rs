//! Certificates that a store's clients trust in addition to the system's: the option, else the
//! bundle that the store's own tools would take.
//!
//! | store | bundle |
//! |---|---|
//! | S3 | `AWS_CA_BUNDLE`, `ca_bundle` of the profile, `REQUESTS_CA_BUNDLE` (botocore 1.44) |
//! | | then `CURL_CA_BUNDLE` |
//! | Google, Azure, hubs | `REQUESTS_CA_BUNDLE`, `CURL_CA_BUNDLE` (requests 2.34) |
//! | web servers, registries | `CURL_CA_BUNDLE` (curl 8), `REQUESTS_CA_BUNDLE` |
//!
//! `SSL_CERT_FILE` and `SSL_CERT_DIR` name the system's certificates for every client.

use std::path::{Path, PathBuf};

use reqwest::Certificate;

use crate::environment::{Environment, Stamped};
use crate::error::{Error, Result};
use crate::errors::error_body::plain;
use crate::options::store_options::StoreOptions;

/// Option that names a bundle.
const OPTION: &str = "ca_file";

/// Variables of Python's requests, which most tools of clouds and hubs use.
pub(crate) const OF_REQUESTS: [&str; 2] = ["REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"];

/// Variables of curl, and then those that other tools of the machine need.
pub(crate) const OF_CURL: [&str; 2] = ["CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE"];

/// File or directory with certificates to trust.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Bundle {
    path: PathBuf,
    /// Place that names it.
    origin: String,
}

impl Bundle {
    pub(crate) fn new(path: impl Into<PathBuf>, origin: impl Into<String>) -> Self {
        Self {
            path: path.into(),
            origin: origin.into(),
        }
    }

    /// Returns the bundle that the first of these variables names.
    pub(crate) fn of_variables(environment: &Environment, names: &[&'static str]) -> Option<Self> {
        let mut set = names.iter().filter_map(|name| {
            let path = environment.get(name)?;
            Some(Self::new(environment.expanded(path)?, *name))
        });
        set.next()
    }

    /// Returns the bundle of the option, if it is given.
    pub(crate) fn of_option(options: &StoreOptions) -> Option<Self> {
        Some(Self::new(options.get("ca_file")?, OPTION))
    }

    /// Reads the certificates, and the state of the file before that.
    ///
    /// # Errors
    ///
    /// [`crate::error::ErrorKind::InvalidRequest`] for a file without certificates, and the kinds
    /// of I/O for one that cannot be read.
    pub(crate) fn read(&self) -> Result<Trusted> {
        let stamped = Stamped::new(self.path.clone());
        let origin = &self.origin;
        let pem = contents(&self.path).map_err(|error| {
            let message = format!("cannot read the certificates of {origin}");
            Error::from_io(message, error).with_location(self.path.display())
        })?;
        let invalid = |message: String| {
            Error::invalid_request(message)
                .with_location(self.path.display())
                .with_hint(
                    "name a PEM file, text with lines of -----BEGIN CERTIFICATE-----, or a directory of such files with the \
                     names that `openssl rehash` gives them",
                )
        };
        let certificates = Certificate::from_pem_bundle(&pem).map_err(|error| {
            invalid(format!("{origin} names a certificate that cannot be read"))
                .with_source(plain(&error.to_string()))
        })?;
        if certificates.is_empty() {
            return Err(invalid(format!("{origin} names no certificate")));
        }
        Ok(Trusted {
            certificates,
            stamped,
            is_option: self.origin == OPTION,
        })
    }
}

/// Certificates of a bundle.
#[derive(Debug)]
pub(crate) struct Trusted {
    pub(crate) certificates: Vec<Certificate>,
    /// The file or directory that they are from.
    pub(crate) stamped: Stamped,
    pub(crate) is_option: bool,
}

/// Returns the contents of a file, or of all files of a directory in which OpenSSL finds
/// certificates.
#[expect(
    clippy::disallowed_methods,
    reason = "certificates are no file of a checkpoint"
)]
fn contents(path: &Path) -> std::io::Result<Vec<u8>> {
    if !std::fs::metadata(path)?.is_dir() {
        return std::fs::read(path);
    }
    let mut names = Vec::new();
    for entry in std::fs::read_dir(path)? {
        let name = entry?.file_name();
        if name.to_str().is_some_and(is_hashed) {
            names.push(name);
        }
    }
    names.sort_unstable();
    let mut all = Vec::new();
    for name in names {
        // As in OpenSSL, a link to a removed file is no error.
        all.extend(std::fs::read(path.join(name)).unwrap_or_default());
        all.push(b'\n');
    }
    Ok(all)
}

/// Returns whether a file has a name like `9d66eef0.0`: in a directory, OpenSSL opens no other.
fn is_hashed(name: &str) -> bool {
    let (hash, number) = name.split_once('.').unwrap_or((name, ""));
    hash.len() == 8
        && hash.bytes().all(|byte| byte.is_ascii_hexdigit())
        && !number.is_empty()
        && number.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    #[test]
    fn first_variable_counts_and_empty_ones_do_not() {
        let pairs = [
            ("HOME", "/home/me"),
            ("REQUESTS_CA_BUNDLE", ""),
            ("CURL_CA_BUNDLE", "~/ca.pem"),
            ("AWS_CA_BUNDLE", "/aws.pem"),
        ];
        let owned = pairs.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let environment = Environment::new(owned);
        let found = |names: &[&'static str]| Bundle::of_variables(&environment, names);
        let of_curl = Some(Bundle::new("/home/me/ca.pem", "CURL_CA_BUNDLE"));
        assert_eq!(found(&OF_REQUESTS), of_curl);
        assert_eq!(found(&OF_CURL), of_curl);
        let of_aws = Some(Bundle::new("/aws.pem", "AWS_CA_BUNDLE"));
        assert_eq!(found(&["AWS_CA_BUNDLE", "CURL_CA_BUNDLE"]), of_aws);
        assert_eq!(found(&["REQUESTS_CA_BUNDLE"]), None);
    }

    #[test]
    fn missing_and_empty_bundles_are_named() {
        let folder = tempfile::tempdir().expect("a folder");
        let empty = folder.path().join("empty.pem");
        std::fs::write(&empty, "").expect("a file");
        for (path, kind, message) in [
            (
                folder.path().join("missing.pem"),
                ErrorKind::NotFound,
                "cannot read the certificates of CURL_CA_BUNDLE",
            ),
            (
                empty,
                ErrorKind::InvalidRequest,
                "CURL_CA_BUNDLE names no certificate",
            ),
            // The file in it does not have a name that OpenSSL looks for.
            (
                folder.path().to_owned(),
                ErrorKind::InvalidRequest,
                "CURL_CA_BUNDLE names no certificate",
            ),
        ] {
            let error = Bundle::new(&path, "CURL_CA_BUNDLE").read();
            let error = error.expect_err("no certificate");
            assert_eq!((error.kind(), error.message()), (kind, message));
            assert_eq!(error.location(), path.to_str());
        }
    }

    #[test]
    fn names_of_openssl() {
        for (name, wanted) in [
            ("9d66eef0.0", true),
            ("9D66EEF0.12", true),
            ("9d66eef0.r0", false),
            ("9d66eef0", false),
            ("9d66eef0.", false),
            ("ca.pem", false),
        ] {
            assert_eq!(is_hashed(name), wanted, "{name}");
        }
    }
}
