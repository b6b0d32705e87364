//! Converts the path of a URL to the path of an object in its store. Pure.

use object_store::path::Path;
use percent_encoding::percent_decode_str;

use crate::error::{Error, Result};
use crate::options::Protocol;
use crate::options::location::RemoteUrl;

/// Returns the path of the object or prefix that a URL names.
///
/// Keys are literal: `%20` in a key is three characters. Paths of HTTP URLs stay percent-encoded as
/// they were written (`web.rs` says why). One trailing slash is dropped.
///
/// # Errors
///
/// [`crate::error::ErrorKind::InvalidRequest`] for empty components, `.` and `..`, which
/// `object_store` cannot address, and for encoded bytes that are not UTF-8, a slash or a control
/// character.
pub fn object_path(url: &RemoteUrl) -> Result<Path> {
    let invalid = |what: &str| {
        Error::invalid_request(format!("the path has {what}, which cannot be addressed"))
            .with_location(url.shown())
    };
    let path = url.path.strip_suffix('/').unwrap_or(&url.path);
    if path.is_empty() {
        return if url.path.is_empty() {
            Ok(Path::default())
        } else {
            Err(invalid("an empty component"))
        };
    }
    let mut components = Vec::new();
    for written in path.split('/') {
        let meant = if url.protocol == Protocol::Http {
            percent_decode_str(written)
                .decode_utf8()
                .map_err(|_| invalid("a component that is not UTF-8"))?
        } else {
            written.into()
        };
        match &*meant {
            "" => return Err(invalid("an empty component (two slashes in a row)")),
            "." | ".." => return Err(invalid("a component of dots")),
            text if text.contains('/') => return Err(invalid("an encoded slash")),
            text if text.chars().any(char::is_control) => {
                return Err(invalid("a control character"));
            }
            _ => components.push(written),
        }
    }
    Path::parse(components.join("/")).map_err(|_| invalid("an unsupported character"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;
    use crate::options::Location;

    fn path(url: &str) -> Result<Path> {
        let location = Location::parse(url)?;
        object_path(location.remote().expect("a URL"))
    }

    #[test]
    fn paths_are_as_written() {
        for (url, wanted) in [
            ("s3://b", ""),
            ("s3://b/", ""),
            ("s3://b/m/x", "m/x"),
            ("s3://b/m/", "m"),
            ("s3://b/a%20b?c#d~[1]", "a%20b?c#d~[1]"),
            ("gs://b/a b", "a b"),
            ("az://c/é", "é"),
            ("https://h/a%20b/c%2Bd+e?q", "a%20b/c%2Bd+e"),
            ("https://h/100%", "100%"),
        ] {
            assert_eq!(path(url).expect(url).as_ref(), wanted, "{url}");
        }
    }

    #[test]
    fn unaddressable_paths_are_rejected() {
        for url in [
            "s3://b//",
            "s3://b//x",
            "s3://b/m//x",
            "s3://b/m//",
            "s3://b/../x",
            "gs://b/./x",
            "s3://b/a\nb",
            "https://h/a%2Fb",
            "https://h/%2e%2e/x",
            "https://h/%00",
            "https://h/%ff",
        ] {
            let error = path(url).expect_err(url);
            assert_eq!(error.kind(), ErrorKind::InvalidRequest, "{url}");
            assert!(error.location().is_some());
        }
    }
}
