//! Requests as they are read from a socket.
//!
//! Owns reading and parsing one head; knows nothing of objects. Called by `listener`.
//!
//! The last byte of a head stays in the kernel until [`take_last_byte`]: closing a socket with
//! unread bytes makes Linux send a reset in place of an orderly end (RFC 2525, section 2.17), and
//! the standard library has no other way to send one.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::ops::Range;

/// Maximum length of a head, more than tload's clients send; the limit of S3 is 8 KiB.
const HEAD_BYTES_MAX: usize = 64 << 10;

/// First byte of a TLS connection (RFC 8446, section 5.1), and the response of servers without TLS
/// to it.
const TLS_HANDSHAKE: u8 = 22;
const NO_TLS: &[u8] = b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";

/// Head of a request, parsed.
pub(super) struct Head {
    pub(super) method: String,
    /// Path, decoded, without the leading slash.
    pub(super) path: String,
    /// Query, decoded, in the order sent.
    pub(super) query: Vec<(String, String)>,
    /// Headers with names in lower case; if a header is sent twice, the last.
    pub(super) headers: BTreeMap<String, String>,
    pub(super) keep_alive: bool,
}

impl Head {
    pub(super) fn parse(head: &[u8]) -> Option<Self> {
        let text = str::from_utf8(head).ok()?;
        let mut lines = text.split("\r\n");
        let words: Vec<&str> = lines.next()?.split(' ').collect();
        let [method, target, version] = words[..] else {
            return None;
        };
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let mut headers = BTreeMap::new();
        for line in lines.take_while(|line| !line.is_empty()) {
            let (name, value) = line.split_once(':')?;
            headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
        }
        let asks = headers
            .get("connection")
            .map(|value| value.to_ascii_lowercase());
        let keep_alive = version == "HTTP/1.1" && asks.as_deref() != Some("close");
        let query = query
            .split('&')
            .filter(|pair| !pair.is_empty())
            .map(|pair| {
                let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
                (
                    decode(&name.replace('+', " ")),
                    decode(&value.replace('+', " ")),
                )
            });
        Some(Self {
            method: method.to_owned(),
            path: decode(path.strip_prefix('/')?),
            query: query.collect(),
            headers,
            keep_alive,
        })
    }

    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(String::as_str)
    }

    pub(super) fn query(&self, name: &str) -> Option<&str> {
        self.query
            .iter()
            .find(|(key, _)| key == name)
            .map(|(_, value)| value.as_str())
    }

    pub(super) fn wanted(&self) -> Wanted {
        self.header("range").map_or(Wanted::All, Wanted::parse)
    }
}

/// Bytes requested by a `Range` header, before the size of the object is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    /// No header, or one that HTTP says to ignore: another unit, several ranges, an end before the
    /// start.
    All,
    /// From the first byte to the second, exclusive.
    Between(u64, u64),
    From(u64),
    Last(u64),
}

impl Wanted {
    fn parse(value: &str) -> Self {
        Self::try_parse(value).unwrap_or(Self::All)
    }

    fn try_parse(value: &str) -> Option<Self> {
        let (first, last) = value.strip_prefix("bytes=")?.split_once('-')?;
        if first.is_empty() {
            return last.parse().ok().map(Self::Last);
        }
        let first = first.parse().ok()?;
        if last.is_empty() {
            return Some(Self::From(first));
        }
        let last: u64 = last.parse().ok()?;
        (last >= first).then(|| Self::Between(first, last.saturating_add(1)))
    }

    /// Returns the bytes of an object of this size, or `None` if it has none of them, which is
    /// status 416.
    pub(super) fn within(self, size: u64) -> Option<Range<u64>> {
        let span = match self {
            Self::All => return Some(0..size),
            Self::Between(begin, end) => begin..end.min(size),
            Self::From(begin) => begin..size,
            Self::Last(count) => size.saturating_sub(count)..size,
        };
        (!span.is_empty()).then_some(span)
    }

    /// Returns the first requested byte, as far as it is known without the object.
    pub(super) fn begin(self) -> u64 {
        match self {
            Self::Between(begin, _) | Self::From(begin) => begin,
            Self::All | Self::Last(_) => 0,
        }
    }
}

/// Reads one head, all but its last byte. `None` if the client has closed.
pub(super) fn read_head(mut stream: &TcpStream) -> io::Result<Option<Vec<u8>>> {
    let mut head = Vec::new();
    let mut window = [0; 8192];
    loop {
        let seen = stream.peek(&mut window)?;
        if seen == 0 {
            return Ok(None);
        }
        let before = head.len();
        head.extend_from_slice(&window[..seen]);
        if head[0] == TLS_HANDSHAKE {
            stream.read_exact(&mut window[..seen])?;
            stream.write_all(NO_TLS)?;
            return Ok(None);
        }
        if let Some(end) = end_of_head(&head, before.saturating_sub(3)) {
            stream.read_exact(&mut window[..end - 1 - before])?;
            head.truncate(end);
            return Ok(Some(head));
        }
        stream.read_exact(&mut window[..seen])?;
        if head.len() > HEAD_BYTES_MAX {
            return Err(io::Error::from(io::ErrorKind::InvalidData));
        }
    }
}

fn end_of_head(bytes: &[u8], from: usize) -> Option<usize> {
    let found = bytes[from..]
        .windows(4)
        .position(|four| four == b"\r\n\r\n")?;
    Some(from + found + 4)
}

/// Reads the byte that [`read_head`] left, so that the connection may close in good order or go on.
pub(super) fn take_last_byte(mut stream: &TcpStream) -> io::Result<()> {
    stream.read_exact(&mut [0])
}

/// Reads and drops the body of a request that has one.
pub(super) fn skip_body(stream: &TcpStream, head: &Head) -> io::Result<()> {
    if head.header("transfer-encoding").is_some() {
        return Err(io::Error::from(io::ErrorKind::Unsupported));
    }
    let length = head
        .header("content-length")
        .map_or(Ok(0), str::parse)
        .map_err(|_| io::Error::from(io::ErrorKind::InvalidData))?;
    io::copy(&mut stream.take(length), &mut io::sink()).map(drop)
}

/// Decodes percent encoding; invalid sequences are kept.
fn decode(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        let code = (byte == b'%').then(|| text.get(at + 1..at + 3)).flatten();
        if let Some(code) = code.and_then(|code| u8::from_str_radix(code, 16).ok()) {
            out.push(code);
            at += 3;
        } else {
            out.push(byte);
            at += 1;
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn range_is_clamped_to_object() {
        for (header, size, span) in [
            ("bytes=0-9", 100, Some(0..10)),
            ("bytes=90-200", 100, Some(90..100)),
            ("bytes=99-", 100, Some(99..100)),
            ("bytes=-30", 100, Some(70..100)),
            ("bytes=-300", 100, Some(0..100)),
            ("bytes=100-", 100, None),
            ("bytes=-0", 100, None),
            ("bytes=0-0", 0, None),
            ("bytes=9-0", 100, Some(0..100)),
            ("bytes=0-1,5-6", 100, Some(0..100)),
            ("lines=0-1", 100, Some(0..100)),
        ] {
            assert_eq!(Wanted::parse(header).within(size), span, "{header}");
        }
    }

    #[test]
    fn path_and_query_are_decoded() {
        let head = Head::parse(
            b"GET /b/a%20b%2Fc%zz?x=1%2B1&y=a+b&z HTTP/1.1\r\nHost: h\r\nX: a:b\r\n\r\n",
        )
        .expect("this is a head");
        assert_eq!(head.path, "b/a b/c%zz");
        assert_eq!(
            (head.query("x"), head.query("y"), head.query("z")),
            (Some("1+1"), Some("a b"), Some(""))
        );
        assert_eq!(head.header("x"), Some("a:b"));
        assert!(head.keep_alive);
    }
}
