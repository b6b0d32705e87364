//! The token that every request must have, if one is set.

use std::fmt;
use std::fs;
use std::path::Path;

use http::HeaderMap;
use http::header::AUTHORIZATION;
use subtle::ConstantTimeEq;
use tload::{Error, ErrorKind, Result};

/// Most bytes of a token. A longer file is something else, given by mistake.
const LENGTH_MAX: usize = 4096;

/// A bearer token. Never shown.
pub(crate) struct Token(Vec<u8>);

impl Token {
    /// Reads the token from a file, without the white space around it.
    pub(crate) fn read(path: &Path) -> Result<Self> {
        #[expect(clippy::disallowed_methods, reason = "a file of the server, no shard")]
        let text = fs::read(path).map_err(|error| {
            Error::from_io("cannot read the token", error).with_location(path.display())
        })?;
        let token = text.trim_ascii();
        let problem = if token.is_empty() {
            "the token is empty"
        } else if token.len() > LENGTH_MAX {
            "the token is longer than 4096 bytes"
        } else if !token.iter().all(u8::is_ascii_graphic) {
            "the token contains other characters than visible ASCII"
        } else {
            return Ok(Self(token.to_owned()));
        };
        Err(Error::new(ErrorKind::InvalidRequest, problem)
            .with_location(path.display())
            .with_hint("write one line of letters and digits: openssl rand -hex 32 > FILE"))
    }

    /// Returns whether a request has this token. Takes equally long for all of its length.
    pub(crate) fn permits(&self, headers: &HeaderMap) -> bool {
        let mut values = headers.get_all(AUTHORIZATION).iter();
        let (Some(value), None) = (values.next(), values.next()) else {
            return false;
        };
        let Some((scheme, token)) = value.as_bytes().split_at_checked(SCHEME.len()) else {
            return false;
        };
        scheme.eq_ignore_ascii_case(SCHEME) && token.trim_ascii().ct_eq(&self.0).into()
    }
}

const SCHEME: &[u8] = b"Bearer ";

impl fmt::Debug for Token {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Token(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &[u8]) -> Result<Token> {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), text).unwrap();
        Token::read(file.path())
    }

    #[test]
    fn only_the_whole_token_permits() {
        let token = read(b" abc123 \n").unwrap();
        let permits = |text: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(AUTHORIZATION, text.parse().unwrap());
            token.permits(&headers)
        };
        for right in ["Bearer abc123", "bearer abc123", "BEARER  abc123"] {
            assert!(permits(right), "{right}");
        }
        for wrong in [
            "",
            "Bearer",
            "Bearer ",
            "Bearer abc12",
            "Bearer abc1234",
            "Bearer ABC123",
            "abc123",
            "Basic abc123",
            "Bearer abc123, abc123",
            "Bearerabc123",
        ] {
            assert!(!permits(wrong), "{wrong}");
        }
        assert!(!token.permits(&HeaderMap::new()));
        let mut twice = HeaderMap::new();
        for _ in 0..2 {
            twice.append(AUTHORIZATION, "Bearer abc123".parse().unwrap());
        }
        assert!(!token.permits(&twice));
    }

    #[test]
    fn unusable_tokens_are_errors_that_do_not_show_them() {
        for text in [&b""[..], b" \n", b"two words", b"l\xc3\xbc", &[b'a'; 5000]] {
            let error = read(text).expect_err("unusable");
            assert_eq!(error.kind(), ErrorKind::InvalidRequest);
            assert!(!error.chain().contains("two words"), "{error}");
        }
        assert!(!format!("{:?}", read(b"abc123").unwrap()).contains("abc"));
    }
}
