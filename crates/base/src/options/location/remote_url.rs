//! URLs of object stores: their parts, what of them is shown, and paths below them. Pure.

use std::fmt;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

use super::Protocol;
use crate::error::{Error, Result};

/// URL of an object store, split into the parts that identify the store and the object.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct RemoteUrl {
    /// Protocol of the scheme.
    pub protocol: Protocol,
    /// Scheme as written, in lower case, without `://`.
    pub scheme: String,
    /// Bucket, ARN of an access point, or container; for HTTP host and port, with any user
    /// information before an `@`; for a hub the repository, with any revision after an `@`; for a
    /// registry host, repository, and tag or digest.
    pub authority: String,
    /// Key or path without its leading slash, as written: keys of S3, GCS and Azure are not
    /// percent-encoded, paths of HTTP are.
    pub path: String,
    /// Query string of an HTTP URL: may be a signature.
    pub query: Option<String>,
}

/// Characters that are percent-encoded in the path of a URL: all but those that RFC 3986 calls
/// unreserved.
pub const RESERVED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

impl RemoteUrl {
    pub(super) fn parse(protocol: Protocol, scheme: String, rest: &str) -> Result<Self> {
        let form = protocol.form();
        if let Some(split) = form.split {
            let (authority, path) = split(rest)?;
            return Ok(Self {
                protocol,
                scheme,
                authority,
                path,
                query: None,
            });
        }
        // Keys may contain anything, but not encoded paths.
        let (mut rest, mut query) = (rest, None);
        if form.is_encoded {
            rest = rest.split('#').next().unwrap_or_default();
            if let Some((path, text)) = rest.split_once('?') {
                (rest, query) = (path, Some(text.to_owned()));
            }
        }
        let (authority, path) = split_authority(protocol, rest);
        let url = Self {
            protocol,
            scheme,
            authority: authority.to_owned(),
            path: path.to_owned(),
            query,
        };
        if url.host().is_empty() {
            let wanted = form.authority;
            return Err(Error::invalid_request(format!(
                "the URL {} names no {wanted}",
                url.shown()
            ))
            .with_hint(format!("write {}://{wanted}/path", url.scheme)));
        }
        let is_user = |before: &str| !url.names_account() || before.contains(':');
        let before = authority.rsplit_once('@').map(|(before, _)| before);
        if protocol != Protocol::Http && before.is_some_and(is_user) {
            return Err(Error::invalid_request(format!(
                "the URL {} has credentials in it",
                url.without_user()
            ))
            .with_hint("pass credentials as store options, or in the environment"));
        }
        Ok(url)
    }

    /// Returns whether an `@` separates container and account (`container@account.host`), not a
    /// user and password from a host.
    fn names_account(&self) -> bool {
        self.scheme.starts_with("abfs")
    }

    /// Returns the authority without user and password.
    pub fn host(&self) -> &str {
        let is_whole = self.protocol == Protocol::Custom || self.protocol.form().split.is_some();
        if self.names_account() || is_whole {
            return &self.authority;
        }
        self.authority
            .rsplit_once('@')
            .map_or(self.authority.as_str(), |(_, host)| host)
    }

    /// Returns scheme and host only: the text before an `@` may be a secret, whatever the scheme.
    fn without_user(&self) -> String {
        let authority = &self.authority;
        let host = authority
            .rsplit_once('@')
            .map_or(&**authority, |(_, host)| host);
        format!("{}://{host}/…", self.scheme)
    }

    /// Returns the URL without user, password and query.
    pub fn shown(&self) -> String {
        let query = if self.query.is_some() { "?…" } else { "" };
        let slash = if self.path.is_empty() { "" } else { "/" };
        // A key may contain a question mark; a signature after one is there by mistake.
        let (path, query) = match self.path.split_once('?') {
            Some((path, query)) if query.contains('=') => (path, "?…"),
            _ => (self.path.as_str(), query),
        };
        format!("{}://{}{slash}{path}{query}", self.scheme, self.host())
    }

    /// Returns the URL of `name` below this one. Keeps the query: it may be what grants access to
    /// the whole directory.
    pub(super) fn join(&self, name: &str) -> Self {
        let path = self.path.trim_end_matches('/');
        let slash = if path.is_empty() { "" } else { "/" };
        let name = if self.protocol.form().is_encoded {
            let components = name.split('/');
            let encoded = components.map(|one| utf8_percent_encode(one, RESERVED).to_string());
            encoded.collect::<Vec<_>>().join("/")
        } else {
            name.to_owned()
        };
        Self {
            path: format!("{path}{slash}{name}"),
            ..self.clone()
        }
    }

    /// Returns the name that [`Self::join`] needs to get here from `folder`.
    pub(super) fn below(&self, folder: &Self) -> Option<String> {
        let is_beside = (self.protocol, &self.scheme, &self.authority)
            == (folder.protocol, &folder.scheme, &folder.authority);
        let above = folder.path.trim_end_matches('/');
        let path = self.path.strip_prefix(above).filter(|_| is_beside)?;
        let name = match path.strip_prefix('/') {
            Some(name) => name,
            None if above.is_empty() => path,
            None => return None,
        };
        if self.protocol.form().is_encoded {
            return Some(percent_decode_str(name).decode_utf8().ok()?.into_owned());
        }
        Some(name.to_owned())
    }

    pub(super) fn parent(&self) -> Self {
        let path = self.path.trim_end_matches('/');
        Self {
            path: path
                .rsplit_once('/')
                .map_or("", |(parent, _)| parent)
                .to_owned(),
            ..self.clone()
        }
    }
}

/// Splits the rest of a URL behind `://` into authority and path. The ARN of an access point has a
/// slash of its own: `arn:aws:s3:REGION:ACCOUNT:accesspoint/NAME`.
fn split_authority(protocol: Protocol, rest: &str) -> (&str, &str) {
    let Some((authority, path)) = rest.split_once('/') else {
        return (rest, "");
    };
    let is_cut = authority.starts_with("arn:") && authority.ends_with(":accesspoint");
    if protocol != Protocol::S3 || !is_cut {
        return (authority, path);
    }
    let name = path.split('/').next().unwrap_or_default();
    let (arn, path) = rest.split_at(authority.len() + 1 + name.len());
    (arn, path.strip_prefix('/').unwrap_or_default())
}

impl fmt::Debug for RemoteUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RemoteUrl({:?})", self.shown())
    }
}
