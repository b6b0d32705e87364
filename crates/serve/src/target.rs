//! Paths that requests name, as components below the served directory. Pure.
//!
//! The first of two checks. This one refuses names that no list contains: hidden ones, `..`, and
//! those that decode to a separator or a NUL. [`tload::internal::storage::ConfinedDir`] then checks
//! where links lead.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, percent_encode};

/// Bytes of a component that are not written as they are.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

/// Path below the served directory.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) components: Vec<OsString>,
    /// True if it ends in a slash, as addresses of directories do.
    pub(crate) is_directory: bool,
}

impl Target {
    /// Decodes the path of a request. Returns `None` for one that is never served.
    pub(crate) fn parse(path: &str) -> Option<Self> {
        let path = path.strip_prefix('/')?;
        if path.is_empty() {
            return Some(Self {
                components: Vec::new(),
                is_directory: true,
            });
        }
        let (path, is_directory) = match path.strip_suffix('/') {
            Some(path) => (path, true),
            None => (path, false),
        };
        let components: Option<_> = path.split('/').map(component).collect();
        Some(Self {
            components: components?,
            is_directory,
        })
    }

    /// Returns the relative path that the components form.
    pub(crate) fn path(&self) -> PathBuf {
        self.components.iter().collect()
    }

    /// Returns the encoded path of a directory, from the root.
    pub(crate) fn directory(&self) -> String {
        let components = self.components.iter();
        let encoded = components.map(|it| encode(it) + "/");
        format!("/{}", encoded.collect::<String>())
    }
}

/// Decodes one component.
fn component(text: &str) -> Option<OsString> {
    let bytes: Vec<u8> = percent_decode_str(text).collect();
    let is_served = is_visible(&bytes) && !bytes.contains(&b'/') && !bytes.contains(&0);
    is_served.then(|| OsString::from_vec(bytes))
}

/// Returns whether a file of this name is served: its name has no leading dot.
pub(crate) fn is_visible(name: &[u8]) -> bool {
    name.first().is_some_and(|&first| first != b'.')
}

/// Encodes a name as one component of an address.
pub(crate) fn encode(name: &OsStr) -> String {
    percent_encode(name.as_bytes(), ENCODED).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(path: &str) -> Option<(String, bool)> {
        let target = Target::parse(path)?;
        let path = target.path().to_string_lossy().into_owned();
        Some((path, target.is_directory))
    }

    #[test]
    fn paths_are_decoded_once() {
        for (path, wanted, is_directory) in [
            ("/", "", true),
            ("/a", "a", false),
            ("/a/", "a", true),
            ("/a/b.safetensors", "a/b.safetensors", false),
            ("/a%20b", "a b", false),
            ("/a+b", "a+b", false),
            ("/%C3%BC", "ü", false),
            ("/a%252e", "a%2e", false),
            ("/100%", "100%", false),
            ("/a..b/c...", "a..b/c...", false),
        ] {
            assert_eq!(
                parse(path),
                Some((wanted.to_owned(), is_directory)),
                "{path}"
            );
        }
    }

    #[test]
    fn hostile_and_hidden_paths_are_refused() {
        for path in [
            "",
            "a",
            "*",
            "//",
            "//etc/passwd",
            "/a//b",
            "/..",
            "/../a",
            "/a/..",
            "/a/../b",
            "/.",
            "/./a",
            "/%2e%2e/a",
            "/%2E%2e",
            "/a/%2e%2e/%2e%2e/b",
            "/.%2e/a",
            "/a%2fb",
            "/%2fetc",
            "/..%2f..%2fetc",
            "/a%00",
            "/a\0b",
            "/.git/config",
            "/%2egit",
            "/a/.hidden",
            "/.hidden/",
            "/a//",
        ] {
            assert_eq!(parse(path), None, "{path:?}");
        }
        // On Unix a backslash is a character of a name.
        assert_eq!(parse("/..\\a"), None);
        assert_eq!(parse("/a\\..\\b").unwrap().0, "a\\..\\b");
    }

    #[test]
    fn addresses_of_directories_stay_on_the_server() {
        let target = Target::parse("/a%20b/%3Cc%3E").unwrap();
        assert_eq!(target.directory(), "/a%20b/%3Cc%3E/");
        // A redirect to `//host` would lead to another server.
        assert_eq!(Target::parse("//host/a"), None);
        assert_eq!(Target::parse("/%2Fhost/"), None);
    }
}
