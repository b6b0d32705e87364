//! Faults, and the requests that they apply to.
//!
//! Owns the rules and their counting. Faults take effect in `answer` (which changes the response)
//! and in `delivery` (which changes how it is sent). Called by `state` once for each request.

use std::fmt;
use std::ops::Range;
use std::time::Duration;

/// Fault of a response.
///
/// Byte counts refer to the body. Unless documented otherwise, a fault leaves the connection open
/// and the response well formed. A fault of delivery applies to any response, including errors.
#[derive(Clone, Debug)]
pub enum Fault {
    /// S3 error with this status and code, such as 503 `SlowDown`.
    Status(u16, String),
    /// S3 error with additional headers, which replace those of the same name.
    StatusWithHeaders {
        /// Status of the response.
        status: u16,
        /// S3 error code, such as `PermanentRedirect`.
        code: String,
        /// Headers to add.
        headers: Vec<(String, String)>,
    },
    /// Closes in good order without a response.
    CutBeforeHeaders,
    /// Resets the connection without a response.
    ResetBeforeHeaders,
    /// Closes in good order after this many bytes.
    CutBody(usize),
    /// Resets the connection after this many bytes. Bytes that the client has not yet read from the
    /// network may be lost with it, so a slow reader can see fewer; up to 64 KiB fit the kernel's
    /// buffers and arrive.
    ResetBody(usize),
    /// Pauses for this long before the response. Cut short by `clear_faults`.
    Delay(Duration),
    /// Stalls before the response until `clear_faults`.
    StallHeaders,
    /// Stalls after this many bytes until `clear_faults`, then sends the rest.
    StallBody(usize),
    /// Sends a few bytes at a time. `clear_faults` sends the rest at once.
    Drip {
        /// Bytes of one write; at least one.
        bytes: usize,
        /// Pause after each write.
        pause: Duration,
    },
    /// Omits the last bytes, states so in `Content-Length`, and claims the whole range in
    /// `Content-Range`.
    ShortBody(usize),
    /// Sends this many bytes more than the range has, and counts them in `Content-Length`.
    LongBody(usize),
    /// Shifts the range in `Content-Range` by this many bytes, and sends the right body.
    WrongContentRange(i64),
    /// Omits `Content-Range` from a 206.
    NoContentRange,
    /// Responds with 200 and the whole object.
    IgnoreRange,
    /// States this `Content-Encoding` of a body that is as it always is.
    Encoded(&'static str),
    /// States this size of the object in `Content-Range`.
    WrongTotal(u64),
    /// Replaces the object right before the response.
    ChangeBefore(Vec<u8>),
    /// Removes the object right before the response.
    RemoveBefore,
    /// Serves the object despite an `If-Match` that names another one.
    IgnoreIfMatch,
    /// Omits `ETag`.
    NoEtag,
    /// Sends the `ETag` as a weak one.
    WeakEtag,
    /// Sends a `Last-Modified` with the wrong day of the week.
    BadLastModified,
    /// Returns the same next page with every page of a listing.
    RepeatedPage,
    /// Returns a next page with a new token with every page of a listing.
    EndlessPages,
    /// Says that each page of a listing is truncated, names no next one, and begins each page with
    /// the first key.
    TruncatedPage,
    /// Flips the bits of the byte at this offset in the object. Applies only to reads that include
    /// that byte.
    Corrupt(u64),
    /// Sends these bytes in place of a response, and closes: another protocol, or half a head.
    Garbage(Vec<u8>),
    /// States this much more in `Content-Length` than is sent, or less; and closes.
    WrongLength(i64),
}

/// Short description, for tables.
impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Status(status, code) => write!(f, "status {status} {code}"),
            Self::StatusWithHeaders {
                status,
                code,
                headers,
            } => {
                write!(f, "status {status} {code}")?;
                let shown = headers.iter().filter(|(name, _)| name != "Location");
                for (name, value) in shown {
                    write!(f, ", {name}: {value}")?;
                }
                Ok(())
            }
            Self::CutBeforeHeaders => f.write_str("closed before headers"),
            Self::ResetBeforeHeaders => f.write_str("reset before headers"),
            Self::CutBody(bytes) => write!(f, "closed after {bytes} bytes of the body"),
            Self::ResetBody(bytes) => write!(f, "reset after {bytes} bytes of the body"),
            Self::Delay(time) => write!(f, "silent for {time:?} before headers"),
            Self::StallHeaders => f.write_str("silent before headers"),
            Self::StallBody(bytes) => write!(f, "silent after {bytes} bytes of the body"),
            Self::Drip { bytes, pause } => write!(f, "{bytes} bytes each {pause:?}"),
            Self::ShortBody(bytes) => write!(f, "a body {bytes} bytes too short"),
            Self::LongBody(bytes) => write!(f, "a body {bytes} bytes too long"),
            Self::WrongContentRange(by) => write!(f, "Content-Range wrong by {by}"),
            Self::NoContentRange => f.write_str("no Content-Range"),
            Self::IgnoreRange => f.write_str("status 200 and all of it"),
            Self::Encoded(encoding) => write!(f, "Content-Encoding: {encoding}"),
            Self::WrongTotal(size) => write!(f, "Content-Range says {size} bytes in all"),
            Self::ChangeBefore(_) => f.write_str("replaced right before"),
            Self::RemoveBefore => f.write_str("removed right before"),
            Self::IgnoreIfMatch => f.write_str("If-Match ignored"),
            Self::NoEtag => f.write_str("no ETag"),
            Self::WeakEtag => f.write_str("a weak ETag"),
            Self::BadLastModified => f.write_str("a Last-Modified that is no date"),
            Self::RepeatedPage => f.write_str("every page names the same next page"),
            Self::EndlessPages => f.write_str("every page names another next page"),
            Self::TruncatedPage => f.write_str("every page is truncated and names no next page"),
            Self::Corrupt(byte) => write!(f, "byte {byte} of the object flipped"),
            Self::Garbage(bytes) => {
                write!(f, "\"{}\" and the end", bytes.escape_ascii())
            }
            Self::WrongLength(by) => write!(f, "Content-Length wrong by {by}"),
        }
    }
}

impl Fault {
    /// Returns S3's request to slow down: 503 `SlowDown`, with `Retry-After` in seconds.
    pub fn slow_down(retry_after_secs: u32) -> Self {
        Self::StatusWithHeaders {
            status: 503,
            code: "SlowDown".to_owned(),
            headers: vec![("Retry-After".to_owned(), retry_after_secs.to_string())],
        }
    }

    /// Returns S3's response for a bucket in another region: 301 with the region and without a
    /// `Location`.
    pub fn wrong_region(region: &str) -> Self {
        Self::StatusWithHeaders {
            status: 301,
            code: "PermanentRedirect".to_owned(),
            headers: vec![("x-amz-bucket-region".to_owned(), region.to_owned())],
        }
    }

    /// Returns a 307 to another URL.
    pub fn redirect(to: &str) -> Self {
        Self::StatusWithHeaders {
            status: 307,
            code: "TemporaryRedirect".to_owned(),
            headers: vec![("Location".to_owned(), to.to_owned())],
        }
    }

    /// Returns S3's response to a wrong clock: 403 `RequestTimeTooSkewed`, with a `Date` far in the
    /// past.
    pub fn clock_skew() -> Self {
        Self::StatusWithHeaders {
            status: 403,
            code: "RequestTimeTooSkewed".to_owned(),
            headers: vec![(
                "Date".to_owned(),
                "Thu, 01 Jan 2015 00:00:00 GMT".to_owned(),
            )],
        }
    }

    /// Returns an S3 error with this status and code.
    pub fn status(status: u16, code: &str) -> Self {
        Self::Status(status, code.to_owned())
    }
}

/// Operation of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// `GET` of an object.
    Get,
    /// `HEAD` of an object.
    Head,
    /// `GET` of a bucket with `list-type=2`.
    List,
    /// `GET` of the credentials endpoint.
    Credentials,
    /// Anything else; the response is 501.
    Other,
}

/// Fault, and the requests that it applies to: any, unless narrowed.
///
/// A rule without [`Rule::on`] never applies to the credentials endpoint.
#[derive(Clone, Debug)]
#[must_use = "a rule does nothing until it is given to a server"]
pub struct Rule {
    fault: Fault,
    left: Option<usize>,
    to_skip: usize,
    every: usize,
    seen: usize,
    path: Option<String>,
    operation: Option<Operation>,
    from_byte: u64,
}

/// Short description, for tables.
impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.fault.fmt(f)?;
        if self.every > 1 {
            write!(f, ", one request in {}", self.every)?;
        }
        match self.left {
            None => f.write_str(", always"),
            Some(1) => f.write_str(", once"),
            Some(times) => write!(f, ", {times} times"),
        }
    }
}

impl Rule {
    /// Applies to one request.
    pub fn once(fault: Fault) -> Self {
        Self::times(1, fault)
    }

    /// Applies to this many requests.
    pub fn times(times: usize, fault: Fault) -> Self {
        let left = Some(times);
        Self {
            fault,
            left,
            to_skip: 0,
            every: 1,
            seen: 0,
            path: None,
            operation: None,
            from_byte: 0,
        }
    }

    /// Applies to all requests until `clear_faults`.
    pub fn always(fault: Fault) -> Self {
        Self {
            left: None,
            ..Self::times(0, fault)
        }
    }

    /// Narrows to paths that contain this text. A path is `bucket/key`, decoded.
    pub fn path(mut self, contains: &str) -> Self {
        self.path = Some(contains.to_owned());
        self
    }

    /// Narrows to this operation.
    pub fn on(mut self, operation: Operation) -> Self {
        self.operation = Some(operation);
        self
    }

    /// Narrows to reads of objects that begin at this byte or later, so that reads of headers pass.
    pub fn from_byte(mut self, offset: u64) -> Self {
        self.from_byte = offset;
        self
    }

    /// Lets this many matching requests pass first.
    pub fn after(mut self, requests: usize) -> Self {
        self.to_skip = requests;
        self
    }

    /// Narrows to the first of so many matching requests, then the first of the next so many; at
    /// least 1.
    pub fn every(mut self, requests: usize) -> Self {
        self.every = requests.max(1);
        self
    }

    fn matches(&self, asked: &Asked<'_>) -> bool {
        let operation = match self.operation {
            Some(operation) => asked.operation == operation,
            None => asked.operation != Operation::Credentials,
        };
        let path = self
            .path
            .as_ref()
            .is_none_or(|path| asked.path.contains(path.as_str()));
        let begin = match asked.operation {
            Operation::Get => asked.begin >= self.from_byte,
            Operation::Head | Operation::List | Operation::Credentials | Operation::Other => {
                self.from_byte == 0
            }
        };
        let has_byte = if let Fault::Corrupt(offset) = &self.fault {
            asked
                .span
                .as_ref()
                .is_some_and(|span| span.contains(offset))
        } else {
            true
        };
        operation && path && begin && has_byte
    }
}

/// Properties of a request that rules match on.
pub(super) struct Asked<'a> {
    pub(super) operation: Operation,
    pub(super) path: &'a str,
    /// First requested byte; 0 without a range.
    pub(super) begin: u64,
    /// Bytes of the object that a correct response would hold.
    pub(super) span: Option<Range<u64>>,
}

/// Active rules, in order.
#[derive(Default)]
pub(super) struct Rules(Vec<Rule>);

impl Rules {
    pub(super) fn add(&mut self, rule: Rule) {
        self.0.push(rule);
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// Returns the fault for this request, and counts it as used.
    pub(super) fn take(&mut self, asked: &Asked<'_>) -> Option<Fault> {
        for rule in &mut self.0 {
            if rule.left == Some(0) || !rule.matches(asked) {
                continue;
            }
            if rule.to_skip > 0 {
                rule.to_skip -= 1;
                continue;
            }
            rule.seen += 1;
            if !(rule.seen - 1).is_multiple_of(rule.every) {
                continue;
            }
            rule.left = rule.left.map(|left| left - 1);
            return Some(rule.fault.clone());
        }
        None
    }
}
