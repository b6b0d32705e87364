//! The crate's one error type: what failed, where, which bytes or tensor, and what to do.
//!
//! Every function of the crate reports failures as [`Error`]. An [`ErrorKind`] is chosen by what
//! the caller can do about it, not by where the error occurred. `Display` is one line and never
//! repeats its source; printers walk the chain.

mod display;
mod failed_request;
mod kind;
mod named;
mod nearest;
mod option_names;
mod os_error;
mod printable;

use std::error::Error as StdError;
use std::fmt;
use std::io;
use std::ops::Range;

pub use display::field_name;
pub use failed_request::FailedRequest;
pub use kind::ErrorKind;
pub use named::named;
pub use nearest::nearest_name;
use option_names::MarkedText;
pub use os_error::thread_hint;
pub use printable::printable;
use printable::{MESSAGE_BYTES_MAX, boundary_before, cut_at, fit, shown};
pub use printable::{cut, shortened};

/// `Result` with the crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Error of a load: one word wide, with its cause as [`StdError::source`].
///
/// Its display is one line: what failed, where, what was found and what was wanted. Advice is apart
/// in [`Self::hint`], and [`Self::kind`] says what a program can do.
///
/// # Examples
///
/// ```
/// # use tload_base::error::{Error, ErrorKind};
/// let error = Error::new(ErrorKind::NotFound, "does not exist")
///     .with_location("/models/llama")
///     .with_hint("check the path");
/// assert_eq!(error.kind(), ErrorKind::NotFound);
/// assert_eq!(error.to_string(), "/models/llama: does not exist");
/// assert_eq!(error.hint(), Some("check the path"));
/// ```
pub struct Error(Box<Inner>);

struct Inner {
    kind: ErrorKind,
    message: MarkedText,
    location: Option<String>,
    tensor: Option<String>,
    range: Option<Range<u64>>,
    hint: Option<MarkedText>,
    request: Option<FailedRequest>,
    comparison: Option<Comparison>,
    ranks: Vec<usize>,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

/// Expected and found values of bytes that failed verification.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Comparison {
    /// The expected checksum or length.
    pub expected: String,
    /// The checksum or length found.
    pub found: String,
    /// Origin of the expectation.
    pub by: String,
}

impl Error {
    /// Creates an error. `message` says what was found and what was wanted, in lower case and
    /// without a full stop. Very long messages are truncated; control characters are escaped: see
    /// [`printable`]. Names of options are written in `‹›`, here and in hints: see
    /// [`Self::chain_with`].
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self(Box::new(Inner {
            kind,
            message: marked(&message.into()),
            location: None,
            tensor: None,
            range: None,
            hint: None,
            request: None,
            comparison: None,
            ranks: Vec::new(),
            source: None,
        }))
    }

    /// Creates an [`ErrorKind::InvalidRequest`].
    pub fn invalid_request(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::InvalidRequest, message)
    }

    /// Creates an [`ErrorKind::Unsupported`].
    pub fn unsupported(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Unsupported, message)
    }

    /// Creates the error for a `text` that is not one of the valid names of `what`.
    #[doc(hidden)]
    pub fn unknown_name(what: &str, text: &str, names: &[&str]) -> Self {
        let list = names.join(", ");
        Self::invalid_request(format!("{what} {text:?} is unknown; it can be {list}"))
            .suggesting(text, names.iter().copied())
    }

    /// Adds the hint "did you mean …?" if one of `names` is near `wanted`.
    #[doc(hidden)]
    #[must_use]
    pub fn suggesting<'a>(self, wanted: &str, names: impl IntoIterator<Item = &'a str>) -> Self {
        match nearest_name(wanted, names) {
            Some(name) => self.with_hint(format!("did you mean {:?}?", shortened(name))),
            None => self,
        }
    }

    /// Sets the file or object that the error is about.
    #[must_use]
    pub fn with_location(mut self, location: impl fmt::Display) -> Self {
        self.0.location = Some(shown(location));
        self
    }

    /// Returns whether the error is about this file or object.
    #[doc(hidden)]
    pub fn is_about(&self, location: impl fmt::Display) -> bool {
        self.location() == Some(&*shown(location))
    }

    /// Sets the object that the error is about, unless a location is set already (a certificate
    /// file, for example).
    #[doc(hidden)]
    #[must_use]
    pub fn or_location(self, location: impl fmt::Display) -> Self {
        if self.0.location.is_some() {
            self
        } else {
            self.with_location(location)
        }
    }

    /// Sets the tensor that the error is about. The name is kept unchanged, and shown escaped and
    /// shortened.
    #[must_use]
    pub fn with_tensor(mut self, tensor: impl Into<String>) -> Self {
        self.0.tensor = Some(tensor.into());
        self
    }

    /// Sets the bytes of the file that the error is about.
    #[must_use]
    pub fn with_range(mut self, range: Range<u64>) -> Self {
        self.0.range = Some(range);
        self
    }

    /// Sets what to do about it, as one imperative sentence without a full stop.
    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.0.hint = Some(marked(&hint.into()));
        self
    }

    /// Sets the failed request to an object store.
    #[must_use]
    pub fn with_request(mut self, request: FailedRequest) -> Self {
        self.0.request = Some(request);
        self
    }

    /// Sets the expected and found values.
    #[must_use]
    pub fn with_comparison(mut self, comparison: Comparison) -> Self {
        self.0.comparison = Some(comparison);
        self
    }

    /// Sets the ranks of the group that the error is about.
    #[must_use]
    pub fn with_ranks(mut self, ranks: impl IntoIterator<Item = usize>) -> Self {
        self.0.ranks = ranks.into_iter().collect();
        self
    }

    /// Sets the cause.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.0.source = Some(source.into());
        self
    }

    /// Returns a copy of the error for another caller that ran into it. Only the `errno` or the
    /// text of the cause is kept.
    #[doc(hidden)]
    #[must_use]
    pub fn again(&self) -> Self {
        let inner = &*self.0;
        Self(Box::new(Inner {
            kind: inner.kind,
            message: inner.message.clone(),
            location: inner.location.clone(),
            tensor: inner.tensor.clone(),
            range: inner.range.clone(),
            hint: inner.hint.clone(),
            request: inner.request.clone(),
            comparison: inner.comparison.clone(),
            ranks: inner.ranks.clone(),
            source: match (&inner.source, self.errno()) {
                (_, Some(errno)) => Some(io::Error::from_raw_os_error(errno).into()),
                (source, None) => source.as_ref().map(|source| source.to_string().into()),
            },
        }))
    }

    /// Adds `context` before the message, for example the variable that a value came from.
    #[must_use]
    pub fn with_context(mut self, context: impl fmt::Display) -> Self {
        let context = fit(&format!("{context}: "));
        self.0.message = self.0.message.behind(&context);
        self
    }

    /// Returns the category: what the caller can do about the error.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Returns what was found and what was wanted, without location, tensor and range.
    pub fn message(&self) -> &str {
        self.0.message.plain()
    }

    /// Returns the file or object, as the user wrote it.
    pub fn location(&self) -> Option<&str> {
        self.0.location.as_deref()
    }

    /// Returns the tensor.
    pub fn tensor(&self) -> Option<&str> {
        self.0.tensor.as_deref()
    }

    /// Returns the bytes of the file, counted from its start.
    pub fn range(&self) -> Option<Range<u64>> {
        self.0.range.clone()
    }

    /// Returns what to do about the error.
    pub fn hint(&self) -> Option<&str> {
        self.0.hint.as_ref().map(MarkedText::plain)
    }

    /// Returns the option whose value the error is about.
    pub fn option(&self) -> Option<&str> {
        self.0.message.subject()
    }

    /// Returns the failed request, if the error is from an object store.
    pub fn request(&self) -> Option<&FailedRequest> {
        self.0.request.as_ref()
    }

    /// Returns the HTTP status of the failed request, if there was a response.
    pub fn status(&self) -> Option<u16> {
        self.request()?.status
    }

    /// Returns the expected and found values, if one file or tensor failed verification.
    pub fn comparison(&self) -> Option<&Comparison> {
        self.0.comparison.as_ref()
    }

    /// Returns the ranks of the group that the error is about: those that are missing, disagree or
    /// failed. Empty without a group.
    pub fn ranks(&self) -> &[usize] {
        &self.0.ranks
    }
}

/// Returns a message or hint as it is stored.
fn marked(text: &str) -> MarkedText {
    if text.len() <= MESSAGE_BYTES_MAX {
        return MarkedText::new(text, printable);
    }
    let end = option_names::end_outside_marks(text, boundary_before(text, MESSAGE_BYTES_MAX));
    MarkedText::new(&cut_at(text, end), printable)
}

/// Returns a count with its noun: `"1 tensor"`, `"2 tensors"`. `noun` must take an `s`.
pub fn counted(count: u64, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

/// Lists ranks: `rank 3`, `ranks 1, 2 and 5`.
pub fn listed_ranks(ranks: &[usize]) -> String {
    let texts: Vec<String> = ranks.iter().map(ToString::to_string).collect();
    match texts.as_slice() {
        [] => "no rank".to_owned(),
        [one] => format!("rank {one}"),
        [most @ .., last] => format!("ranks {} and {last}", most.join(", ")),
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0
            .source
            .as_deref()
            .map(|source| source as &(dyn StdError + 'static))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_message_is_not_cut_inside_mark() {
        let text = format!("{} ‹memory_limit›", "a".repeat(MESSAGE_BYTES_MAX - 5));
        let error = Error::new(ErrorKind::Io, text.as_str());
        let shown = format!(
            "{} … ({} bytes)",
            "a".repeat(MESSAGE_BYTES_MAX - 5),
            text.len()
        );
        assert_eq!(error.message(), shown);
    }

    #[test]
    fn context_precedes_message_and_keeps_marks() {
        let error = Error::new(ErrorKind::Io, "‹depth› is 0").with_context("variable A");
        assert_eq!(error.message(), "variable A: depth is 0");
        assert_eq!(error.option(), None);
        let chain = error.chain_with(|option, _| format!("--{option}"));
        assert_eq!(chain, "variable A: --depth is 0");
    }

    #[test]
    fn is_one_word_wide() {
        assert_eq!(size_of::<Result<(), Error>>(), size_of::<usize>());
    }
}
