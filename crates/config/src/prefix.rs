//! Prefixes of locations: which locations a table is for, and where its mirrors have the same.

use percent_encoding::percent_decode_str;
use tload::{Error, Location, Protocol, Result};
use tload_base::options::split_locations;

/// Endings of locations that are files, whose mirrors are those of their directory.
const FILES: [&str; 2] = [".safetensors", ".json"];

/// Beginning of URLs, at the end of a component.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Prefix {
    /// Without the slashes at its end, but with those of `s3://`.
    text: String,
    protocol: Protocol,
}

impl Prefix {
    /// Checks the name of a table.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let wrong = |message: String| {
            Error::invalid_request(message)
                .with_hint("write the beginning of URLs, for example s3://models/")
        };
        let Some((scheme, rest)) = text.split_once("://") else {
            return Err(wrong("is no beginning of a URL".to_owned()));
        };
        let scheme = scheme.to_ascii_lowercase();
        let Some(protocol) = protocol_of(&scheme) else {
            let schemes = Location::schemes().filter(|scheme| protocol_of(scheme).is_some());
            return Err(
                wrong("has a scheme that no store has".to_owned()).suggesting(&scheme, schemes)
            );
        };
        let authority = rest.split('/').next().unwrap_or_default();
        let has_user = protocol == Protocol::Http && authority.contains('@');
        if has_user || rest.contains(['?', '#']) {
            return Err(wrong("has a user, a password or a query".to_owned()));
        }
        Ok(Self {
            text: format!("{scheme}://{}", rest.trim_end_matches('/')),
            protocol,
        })
    }

    /// Returns the length, by which longer prefixes come later.
    pub(crate) fn len(&self) -> usize {
        self.text.len()
    }

    /// Returns the part of `url` behind this prefix, without slashes around it, if it begins with
    /// the prefix.
    pub(crate) fn rest<'a>(&self, url: &'a str) -> Option<&'a str> {
        let rest = url.strip_prefix(&self.text)?;
        let revisions: &[char] = match self.protocol {
            Protocol::Hub => &['/', '@'],
            Protocol::Oci => &['/', '@', ':'],
            Protocol::S3 | Protocol::Gcs | Protocol::Azure | Protocol::Http | Protocol::Custom => {
                &['/']
            }
        };
        let is_whole = self.text.ends_with("://") || rest.is_empty() || rest.starts_with(revisions);
        is_whole.then(|| rest.trim_matches('/'))
    }
}

/// Returns the protocol of a scheme of stores. One of the URLs is valid for each protocol.
fn protocol_of(scheme: &str) -> Option<Protocol> {
    let forms = ["a/b", "a@b.c/d", "a.b/c:d"];
    let mut urls = forms.iter().map(|rest| format!("{scheme}://{rest}"));
    urls.find_map(|url| Location::parse(&url).ok()?.protocol())
}

/// Returns the URL of a location in a store, without user, password and query.
pub(crate) fn url(location: &Location) -> Option<String> {
    let shown = location.remote()?.shown();
    Some(shown.strip_suffix("?…").unwrap_or(&shown).to_owned())
}

/// Returns the places below each of the URLs in `list`, separated by commas, that have the same as
/// `url`, of which `rest` is the part behind the prefix.
pub(crate) fn below(list: &str, url: &str, rest: &str) -> Result<String> {
    if list.is_empty() {
        return Ok(String::new());
    }
    let mut rest = rest;
    if rest.starts_with(['@', ':']) {
        // The revision of what the prefix names whole.
        rest = rest.split_once('/').map_or("", |(_, rest)| rest);
    }
    if FILES.iter().any(|ending| rest.ends_with(ending)) {
        rest = rest.rsplit_once('/').map_or("", |(directory, _)| directory);
    }
    let is_encoded = url.starts_with("http");
    let decoded = percent_decode_str(rest).decode_utf8_lossy();
    let name = if is_encoded { &*decoded } else { rest };
    let places = split_locations(list)?.into_iter().map(|place| {
        let place = if name.is_empty() {
            place
        } else {
            place.join(name)
        };
        place.url().unwrap_or_else(|| place.to_string())
    });
    Ok(places.collect::<Vec<_>>().join(","))
}
