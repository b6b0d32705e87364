//! Responses: status, headers, and the text or file that follows. Pure.

use std::fmt::Write;
use std::fs::File;
use std::ops::Range;
use std::time::SystemTime;

use http::StatusCode;

use crate::objects::Object;
use crate::version::Version;

/// Value of the header `Server`.
const SERVER: &str = concat!("tload/", env!("CARGO_PKG_VERSION"));

#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) status: StatusCode,
    pub(crate) headers: Vec<(&'static str, String)>,
    pub(crate) body: Body,
}

#[derive(Debug)]
pub(crate) enum Body {
    /// No body, as 304 requires.
    None,
    Text(String),
    File(File, Version, Range<u64>),
    Object(Object, Range<u64>),
}

impl Response {
    /// Creates a response that only states its status.
    pub(crate) fn plain(status: StatusCode) -> Self {
        let text = format!("{status}\n");
        Self::text(status, "text/plain; charset=utf-8", text)
    }

    pub(crate) fn text(status: StatusCode, content_type: &str, text: String) -> Self {
        Self {
            status,
            headers: vec![("Content-Type", content_type.to_owned())],
            body: Body::Text(text),
        }
    }

    pub(crate) fn with(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }

    /// Returns the number of bytes of the body.
    pub(crate) fn len(&self) -> u64 {
        match &self.body {
            Body::None => 0,
            Body::Text(text) => text.len() as u64,
            Body::File(_, _, range) | Body::Object(_, range) => range.end - range.start,
        }
    }

    /// Returns the head as it is sent.
    ///
    /// # Errors
    ///
    /// The name of a header whose value has a control character. It could end the line, and add
    /// headers or a whole response of its author's choice: values may come from a store.
    pub(crate) fn head(&self, now: SystemTime, keeps_alive: bool) -> Result<String, &'static str> {
        if let Some((name, _)) =
            (self.headers.iter()).find(|(_, value)| value.contains(char::is_control))
        {
            return Err(name);
        }
        let reason = self.status.canonical_reason().unwrap_or_default();
        let mut head = format!("HTTP/1.1 {} {reason}\r\n", self.status.as_str());
        let mut add = |name: &str, value: &str| {
            // Writing to a string cannot fail.
            let _ = write!(head, "{name}: {value}\r\n");
        };
        add("Date", &httpdate::fmt_http_date(now));
        add("Server", SERVER);
        add("X-Content-Type-Options", "nosniff");
        for (name, value) in &self.headers {
            add(name, value);
        }
        if !matches!(self.body, Body::None) {
            add("Content-Length", &self.len().to_string());
        }
        if !keeps_alive {
            add("Connection", "close");
        }
        Ok(head + "\r\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn head_ends_with_an_empty_line() {
        let response = Response::plain(StatusCode::NOT_FOUND).with("Allow", "GET");
        let head = response.head(SystemTime::UNIX_EPOCH, false).unwrap();
        let wanted = format!(
            "HTTP/1.1 404 Not Found\r\nDate: Thu, 01 Jan 1970 00:00:00 GMT\r\nServer: {SERVER}\r\n\
             X-Content-Type-Options: nosniff\r\nContent-Type: text/plain; charset=utf-8\r\n\
             Allow: GET\r\nContent-Length: 14\r\nConnection: close\r\n\r\n"
        );
        assert_eq!(head, wanted);
    }

    #[test]
    fn control_characters_are_in_no_header() {
        for character in (0..=0x9f).filter_map(char::from_u32) {
            let value = format!("\"a{character}b\"");
            let response = Response::plain(StatusCode::OK).with("ETag", &*value);
            let head = response.head(SystemTime::UNIX_EPOCH, true);
            let wanted = if character.is_control() {
                Err("ETag")
            } else {
                Ok(())
            };
            assert_eq!(head.map(drop), wanted, "{value:?}");
        }
    }
}
