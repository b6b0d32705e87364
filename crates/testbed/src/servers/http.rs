//! Minimal HTTP for setting servers up: one request per connection, with a complete response.
//!
//! HTTP/1.0, so that no server uses chunked responses. Plain text and this machine only; tests of
//! transfers use a real client.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// Maximum pause of a server. Generous: machines that run tests are busy.
const SILENCE_MAX: Duration = Duration::from_secs(60);

/// A request without a body, until [`Request::body`] gives it one.
pub(super) struct Request<'a> {
    method: &'a str,
    target: &'a str,
    headers: Vec<(&'a str, &'a str)>,
    length: u64,
    body: Box<dyn Read + 'a>,
}

/// Response of the server.
#[derive(Debug)]
pub(super) struct Reply {
    pub(super) status: u16,
    pub(super) body: Vec<u8>,
    /// Status line and headers.
    head: String,
}

impl Reply {
    /// Returns the value of a header.
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        let mut pairs = self.head.lines().filter_map(|line| line.split_once(':'));
        let found = pairs.find(|(found, _)| found.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.trim())
    }
}

impl<'a> Request<'a> {
    /// Creates a request. `target` follows the host in an address; its special characters are
    /// already encoded.
    pub(super) fn new(method: &'a str, target: &'a str) -> Self {
        Self {
            method,
            target,
            headers: Vec::new(),
            length: 0,
            body: Box::new(std::io::empty()),
        }
    }

    pub(super) fn header(mut self, name: &'a str, value: &'a str) -> Self {
        self.headers.push((name, value));
        self
    }

    /// Sets the next `length` bytes of `body` as the body.
    pub(super) fn body(mut self, length: u64, body: impl Read + 'a) -> Self {
        self.length = length;
        self.body = Box::new(body.take(length));
        self
    }

    /// Returns the response, whatever its status; `address` is host and port.
    pub(super) fn send(self, address: &str) -> Result<Reply, String> {
        let name = format!("{} http://{address}{}", self.method, self.target);
        self.exchange(address)
            .map_err(|error| format!("{name}: {error}"))
    }

    /// Returns the body of a successful response; any other is an error.
    pub(super) fn succeed(self, address: &str) -> Result<Vec<u8>, String> {
        let name = format!("{} http://{address}{}", self.method, self.target);
        let reply = self.send(address)?;
        if (200..300).contains(&reply.status) {
            return Ok(reply.body);
        }
        let body = String::from_utf8_lossy(&reply.body);
        Err(format!("{name}: status {}: {}", reply.status, body.trim()))
    }

    fn exchange(mut self, address: &str) -> std::io::Result<Reply> {
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(SILENCE_MAX))?;
        stream.set_write_timeout(Some(SILENCE_MAX))?;
        let mut head = Vec::new();
        let Self { method, target, .. } = self;
        write!(head, "{method} {target} HTTP/1.0\r\nhost: {address}\r\n")?;
        for (name, value) in &self.headers {
            write!(head, "{name}: {value}\r\n")?;
        }
        write!(head, "content-length: {}\r\n\r\n", self.length)?;
        stream.write_all(&head)?;
        std::io::copy(&mut self.body, &mut stream)?;
        let mut reply = Vec::new();
        stream.read_to_end(&mut reply)?;
        parse(&reply)
            .ok_or_else(|| std::io::Error::new(std::io::ErrorKind::InvalidData, "no HTTP reply"))
    }
}

fn parse(reply: &[u8]) -> Option<Reply> {
    let head_len = reply.windows(4).position(|end| end == b"\r\n\r\n")?;
    let head = std::str::from_utf8(&reply[..head_len]).ok()?;
    let status = head.split(' ').nth(1)?.get(..3)?.parse().ok()?;
    let body = reply[head_len + 4..].to_vec();
    let head = head.to_owned();
    Some(Reply { status, body, head })
}

/// Encodes `text` as one value of a query or one component of a path: everything except letters,
/// digits and `-._~`.
pub(super) fn encoded(text: &str) -> String {
    text.bytes()
        .map(|byte| match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                char::from(byte).to_string()
            }
            _ => format!("%{byte:02X}"),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reply_splits_into_status_and_body() {
        let reply =
            parse(b"HTTP/1.1 206 Partial Content\r\na: b\r\n\r\nbody\r\n\r\n").expect("a reply");
        assert_eq!((reply.status, &reply.body[..]), (206, &b"body\r\n\r\n"[..]));
        assert_eq!((reply.header("A"), reply.header("c")), (Some("b"), None));
        assert!(parse(b"HTTP/1.1 200 OK\r\n").is_none());
    }

    #[test]
    fn keys_are_encoded() {
        assert_eq!(encoded("a b/ü.bin"), "a%20b%2F%C3%BC.bin");
    }
}
