//! Response before it is sent.
//!
//! Owns its headers and the pieces of its body, which are shared with the object and not copied.
//! Created by `answer`, `listing` and `credentials`, sent by `delivery`.

use std::fmt::Write;
use std::ops::Range;
use std::sync::Arc;

/// Run of bytes of a body.
pub(super) enum Piece {
    /// Bytes of an object.
    Shared(Arc<Vec<u8>>, Range<usize>),
    Owned(Vec<u8>),
}

impl Piece {
    pub(super) fn bytes(&self) -> &[u8] {
        match self {
            Self::Shared(bytes, span) => &bytes[span.clone()],
            Self::Owned(bytes) => bytes,
        }
    }
}

pub(super) struct Reply {
    pub(super) status: u16,
    headers: Vec<(String, String)>,
    pub(super) body: Vec<Piece>,
    /// Length of a body that is not sent, for `HEAD`.
    length_unsent: Option<usize>,
    /// Difference of the stated length to that of the body.
    pub(super) length_error: i64,
}

impl Reply {
    pub(super) fn new(status: u16) -> Self {
        Self {
            status,
            headers: Vec::new(),
            body: Vec::new(),
            length_unsent: None,
            length_error: 0,
        }
    }

    pub(super) fn text(status: u16, content_type: &str, text: String) -> Self {
        let mut reply = Self::new(status);
        reply.set("Content-Type", content_type);
        reply.body = vec![Piece::Owned(text.into_bytes())];
        reply
    }

    /// Builds an error in the format of S3.
    pub(super) fn error(status: u16, code: &str, request_id: &str) -> Self {
        let (code, message) = (escape(code), escape(message(code)));
        let text = format!(
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Error><Code>{code}</Code>\
             <Message>{message}</Message><RequestId>{request_id}</RequestId></Error>"
        );
        Self::text(status, "application/xml", text)
    }

    /// Sets a header, replacing one of that name.
    pub(super) fn set(&mut self, name: &str, value: impl Into<String>) {
        self.remove(name);
        self.headers.push((name.to_owned(), value.into()));
    }

    pub(super) fn set_if_absent(&mut self, name: &str, value: String) {
        if !self
            .headers
            .iter()
            .any(|(other, _)| other.eq_ignore_ascii_case(name))
        {
            self.set(name, value);
        }
    }

    pub(super) fn remove(&mut self, name: &str) {
        self.headers
            .retain(|(other, _)| !other.eq_ignore_ascii_case(name));
    }

    pub(super) fn body_len(&self) -> usize {
        self.body.iter().map(|piece| piece.bytes().len()).sum()
    }

    /// Removes this many bytes from the end of the body.
    pub(super) fn shorten(&mut self, mut count: usize) {
        for piece in self.body.iter_mut().rev() {
            let gone = count.min(piece.bytes().len());
            count -= gone;
            match piece {
                Piece::Shared(_, span) => span.end -= gone,
                Piece::Owned(bytes) => bytes.truncate(bytes.len() - gone),
            }
        }
    }

    /// Keeps the length of the body and drops the rest, as a response to `HEAD` must.
    pub(super) fn leave_off_body(&mut self) {
        self.length_unsent = Some(self.body_len());
        self.body.clear();
    }

    /// Formats the status line and the headers.
    pub(super) fn head(&self) -> String {
        let mut head = format!("HTTP/1.1 {} {}\r\n", self.status, reason(self.status));
        for (name, value) in &self.headers {
            write!(head, "{name}: {value}\r\n").expect("a string takes all that is written");
        }
        // RFC 9110, section 8.6: a 304 without a length has no body either.
        if self.status != 304 {
            let length = self.length_unsent.unwrap_or_else(|| self.body_len());
            let length = (length as u64).saturating_add_signed(self.length_error);
            write!(head, "Content-Length: {length}\r\n")
                .expect("a string takes all that is written");
        }
        head + "\r\n"
    }
}

/// Escapes text for an XML element.
pub(super) fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        206 => "Partial Content",
        301 => "Moved Permanently",
        302 => "Found",
        304 => "Not Modified",
        307 => "Temporary Redirect",
        400 => "Bad Request",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "Not Found",
        412 => "Precondition Failed",
        416 => "Range Not Satisfiable",
        429 => "Too Many Requests",
        500 => "Internal Server Error",
        501 => "Not Implemented",
        503 => "Service Unavailable",
        _ => "Unknown",
    }
}

/// Returns the message that S3 sends with a code.
fn message(code: &str) -> &'static str {
    match code {
        "AccessDenied" => "Access Denied",
        "ExpiredToken" => "The provided token has expired.",
        "InvalidAccessKeyId" => "The AWS Access Key Id you provided does not exist in our records.",
        "InvalidRange" => "The requested range is not satisfiable",
        "NoSuchBucket" => "The specified bucket does not exist",
        "NoSuchKey" => "The specified key does not exist.",
        "NotImplemented" => "A header you provided implies functionality that is not implemented",
        "PermanentRedirect" => {
            "The bucket you are attempting to access must be addressed using the specified endpoint."
        }
        "PreconditionFailed" => "At least one of the pre-conditions you specified did not hold",
        "RequestTimeTooSkewed" => {
            "The difference between the request time and the current time is too large."
        }
        "SlowDown" => "Please reduce your request rate.",
        "InternalError" => "We encountered an internal error. Please try again.",
        _ => "The request was refused.",
    }
}
