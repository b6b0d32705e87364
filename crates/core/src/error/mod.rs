//! The crate's one error type: what failed, where, which bytes or tensor, and what to do.
//!
//! Every function of the crate reports failures as [`Error`]. An [`ErrorKind`] is chosen by what
//! the caller can do about it, not by where the error occurred. `Display` is one line and never
//! repeats its source; printers walk the chain.

mod nearest;
mod option_names;
mod printable;

use std::error::Error as StdError;
use std::fmt;
use std::io;
use std::ops::Range;

pub use nearest::nearest_name;
use option_names::{LIST_NAMES, LISTING_CALL, MarkedText};
pub use printable::printable;
pub(crate) use printable::shortened;
use printable::{MESSAGE_BYTES_MAX, boundary_before, cut_at, fit};

/// `Result` with the crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Declares an enumeration whose variants have names, with the list `ALL` and the function `name`;
/// for the values of an option, also `Display` and `FromStr`.
macro_rules! named {
    (
        $(#[$attribute:meta])* pub enum $type:ident {
            $($(#[$about:meta])* $variant:ident = $name:literal,)*
        }
        $(#[$about_all:meta])* $all_vis:vis const ALL;
        $(#[$about_name:meta])* pub fn name;
        $(impl FromStr as $option:literal;)?
    ) => {
        $(#[$attribute])*
        pub enum $type {
            $($(#[$about])* $variant,)*
        }

        impl $type {
            $(#[$about_all])*
            $all_vis const ALL: [Self; [$($name),*].len()] = [$(Self::$variant),*];

            $(#[$about_name])*
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }
        }

        $(
            impl ::std::fmt::Display for $type {
                fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                    f.write_str(self.name())
                }
            }

            impl ::std::str::FromStr for $type {
                type Err = $crate::error::Error;

                fn from_str(text: &str) -> $crate::error::Result<Self> {
                    let found = Self::ALL.into_iter().find(|value| value.name() == text);
                    found.ok_or_else(|| {
                        let names = Self::ALL.map(Self::name);
                        $crate::error::Error::unknown_name($option, text, &names)
                    })
                }
            }
        )?
    };
}
pub(crate) use named;

named! {
    /// Category of an error, chosen by what the caller can do about it.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    #[non_exhaustive]
    pub enum ErrorKind {
        /// A file, directory, shard or object does not exist: fix the path.
        NotFound = "not_found",
        /// It exists but may not be read: fix the permissions or credentials.
        PermissionDenied = "permission_denied",
        /// The bytes are not a valid checkpoint: get a good file.
        InvalidFormat = "invalid_format",
        /// The bytes do not match their digest: download the file again.
        Corrupt = "corrupt",
        /// A name or pattern selects no tensor: fix the name.
        NoSuchTensor = "no_such_tensor",
        /// The request is contradictory or impossible: fix the call.
        InvalidRequest = "invalid_request",
        /// This engine, kernel or build does not support the request: choose another.
        Unsupported = "unsupported",
        /// A limit or the machine's memory is too small: raise the limit or ask for less.
        OutOfMemory = "out_of_memory",
        /// The operating system failed a read: retry, or check the disk.
        Io = "io",
        /// An object store cannot be reached, or failed repeatedly: retry later, or look at network
        /// and server.
        Remote = "remote",
        /// The GPU or its driver failed: check the GPU, or start a new process.
        Device = "device",
        /// A file or object changed or shrank while it was read: load again when it is no longer
        /// written to.
        Changed = "changed",
        /// The load's deadline passed, or an object store did not respond in time.
        TimedOut = "timed_out",
        /// The caller cancelled the load.
        Cancelled = "cancelled",
        /// Another rank of the group did not join, disagrees, failed or is gone: look at that rank.
        Peer = "peer",
    }
    /// Every kind, so that bindings can prove that they map each of them.
    pub const ALL;
    /// Returns the kind's name in lower case with underscores, as reports and JSON show it.
    pub fn name;
}

impl ErrorKind {
    /// Returns the kind for an error of the operating system.
    pub(crate) fn from_io(error: &io::Error) -> Self {
        // No exhaustive match on purpose: std's list is open, and everything else is plain I/O.
        if error.kind() == io::ErrorKind::InvalidInput && error.raw_os_error().is_none() {
            // Refused before any system call: a path with a zero byte.
            Self::InvalidRequest
        } else if error.kind() == io::ErrorKind::NotFound {
            Self::NotFound
        } else if error.kind() == io::ErrorKind::PermissionDenied {
            Self::PermissionDenied
        } else if error.kind() == io::ErrorKind::OutOfMemory {
            Self::OutOfMemory
        } else if error.kind() == io::ErrorKind::Unsupported {
            Self::Unsupported
        } else {
            Self::Io
        }
    }
}

/// Error of a load: one word wide, with its cause as [`StdError::source`].
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

/// Details of a failed request to an object store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct FailedRequest {
    /// The operation: `"GET"`, `"LIST"`, …
    pub operation: String,
    /// The HTTP status, if a response arrived.
    pub status: Option<u16>,
    /// The store's own name for the failure, for example `"SlowDown"`.
    pub code: Option<String>,
    /// The store's identifier of the request, by which its operators find it.
    pub request_id: Option<String>,
    /// The number of attempts.
    pub attempts: u32,
    /// The origin of the credentials; never the credentials.
    pub credentials: Option<String>,
}

impl fmt::Display for FailedRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.operation)?;
        if let Some(status) = self.status {
            write!(f, ", status {status}")?;
        }
        if let Some(code) = &self.code {
            write!(f, ", code {}", printable(code))?;
        }
        if let Some(id) = &self.request_id {
            write!(f, ", request id {}", printable(id))?;
        }
        write!(f, ", {}", counted(u64::from(self.attempts), "attempt"))?;
        if let Some(credentials) = &self.credentials {
            write!(f, ", credentials: {}", printable(credentials))?;
        }
        Ok(())
    }
}

const SERVER_HINT: &str = "check the server of the file system and the network path to it";

/// Returns the hint for a failure to write a file or to create a directory with this `errno`.
fn write_hint(errno: i32) -> Option<&'static str> {
    match errno {
        libc::EACCES | libc::EPERM => {
            Some("give this user write permission to the directory, or write to another one")
        }
        libc::EROFS => Some("its file system is read-only: write to another directory"),
        libc::ENOSPC => Some("free some space, or write to another disk"),
        libc::EDQUOT => Some("the quota is used up: free some space, or raise the quota"),
        libc::EFBIG => {
            Some("the file is larger than the limit (ulimit -f) or its file system allows")
        }
        libc::ENAMETOOLONG => Some("choose a shorter name: most file systems allow 255 bytes"),
        libc::EISDIR => Some("this is a directory: pass the path of a file"),
        libc::ENOTDIR => Some("one of the directories in its path is a file: choose another path"),
        libc::ENOENT => Some("create the directory first"),
        _ => storage_hint(errno),
    }
}

/// Returns the hint for a storage failure with this `errno`.
fn storage_hint(errno: i32) -> Option<&'static str> {
    match errno {
        libc::EIO => {
            Some("check the disk, or the mount and its server; the kernel log (dmesg) may say more")
        }
        libc::ESTALE => Some("the file was replaced or removed on the server: load again"),
        libc::ENOTCONN => Some("the server of the file system is gone: mount it again"),
        libc::ETIMEDOUT | libc::EAGAIN => Some(SERVER_HINT),
        #[cfg(target_os = "linux")]
        libc::EREMOTEIO => Some(SERVER_HINT),
        libc::EACCES | libc::EPERM => Some("give this user read permission"),
        _ => None,
    }
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

    /// Creates an error from one of the operating system while doing `what` (for example `"cannot
    /// open"`); keeps the `errno`.
    ///
    /// Adds a hint for common storage failures; callers that know more may replace it.
    pub fn from_io(what: impl Into<String>, error: io::Error) -> Self {
        Self::from_os(what.into(), error, storage_hint)
    }

    /// Like [`Self::from_io`], for an operation that writes a file or creates a directory.
    pub fn from_write(what: impl Into<String>, error: io::Error) -> Self {
        Self::from_os(what.into(), error, write_hint)
    }

    fn from_os(what: String, error: io::Error, hint: fn(i32) -> Option<&'static str>) -> Self {
        let hint = error.raw_os_error().and_then(hint);
        let new = Self::new(ErrorKind::from_io(&error), what).with_source(error);
        match hint {
            Some(hint) => new.with_hint(hint),
            None => new,
        }
    }

    /// Creates an [`ErrorKind::InvalidRequest`].
    pub(crate) fn invalid_request(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::InvalidRequest, message)
    }

    /// Creates an [`ErrorKind::Unsupported`].
    pub(crate) fn unsupported(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Unsupported, message)
    }

    /// Creates the error for a `text` that is not one of the valid names of `what`.
    pub(crate) fn unknown_name(what: &str, text: &str, names: &[&str]) -> Self {
        let list = names.join(", ");
        Self::invalid_request(format!("{what} {text:?} is unknown; it can be {list}"))
            .suggesting(text, names.iter().copied())
    }

    /// Adds the hint "did you mean …?" if one of `names` is near `wanted`.
    #[must_use]
    pub fn suggesting<'a>(self, wanted: &str, names: impl IntoIterator<Item = &'a str>) -> Self {
        match nearest_name(wanted, names) {
            Some(name) => self.with_hint(format!("did you mean {:?}?", shortened(name))),
            None => self,
        }
    }

    /// Creates the error for a thread that the system refuses.
    pub(crate) fn cannot_start_thread(error: io::Error) -> Self {
        Self::new(ErrorKind::OutOfMemory, "cannot start a thread")
            .with_hint("raise the limit of processes (ulimit -u)")
            .with_source(error)
    }

    /// Sets the file or object that the error is about.
    #[must_use]
    pub fn with_location(mut self, location: impl fmt::Display) -> Self {
        self.0.location = Some(printable(&shortened(&location.to_string())));
        self
    }

    /// Sets the object that the error is about, unless a location is set already (a certificate
    /// file, for example).
    #[cfg(feature = "object")]
    pub(crate) fn or_location(self, location: impl fmt::Display) -> Self {
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
    pub(crate) fn again(&self) -> Self {
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

    /// Like [`Self::hint`], with options named by `name`: see [`Self::chain_with`].
    pub fn hint_with(&self, name: impl Fn(&str, Option<&str>) -> String) -> Option<String> {
        // The core knows where the names are, the interface how to list them.
        let name = |option: &str, value: Option<&str>| match option {
            LIST_NAMES => name(option, self.location()),
            _ => name(option, value),
        };
        self.0.hint.as_ref().map(|hint| hint.with_names(name))
    }

    /// Returns the hint as it was set, to become part of another hint.
    pub(crate) fn marked_hint(&self) -> Option<String> {
        let mark = |option: &str, value: Option<&str>| match value.filter(|_| option != LIST_NAMES)
        {
            Some(value) => format!("‹{option}={value}›"),
            None => format!("‹{option}›"),
        };
        self.hint_with(mark)
    }

    /// Returns the option whose value the error is about.
    pub fn option(&self) -> Option<&str> {
        self.0.message.subject()
    }

    /// Returns the failed request, if the error is from an object store.
    pub fn request(&self) -> Option<&FailedRequest> {
        self.0.request.as_ref()
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

    /// Returns the operating system's error number, if the chain has one.
    pub fn errno(&self) -> Option<i32> {
        let mut cause: Option<&(dyn StdError + 'static)> = self.source();
        while let Some(error) = cause {
            if let Some(errno) = error
                .downcast_ref::<io::Error>()
                .and_then(io::Error::raw_os_error)
            {
                return Some(errno);
            }
            cause = error.source();
        }
        None
    }

    /// Writes the beginning of the text: location, bytes and tensor, as far as they are known.
    fn write_place(&self, out: &mut impl fmt::Write) -> fmt::Result {
        let inner = &*self.0;
        if let Some(location) = &inner.location {
            out.write_str(location)?;
            if let Some(range) = &inner.range {
                write!(out, " [{}..{}]", range.start, range.end)?;
            }
            out.write_str(": ")?;
        }
        if let Some(tensor) = &inner.tensor {
            // `{:?}` escapes control characters: names come from untrusted files.
            write!(out, "tensor {:?}: ", shortened(tensor))?;
        }
        Ok(())
    }

    /// Returns the text that a program prints: the error, its causes and the failed request if
    /// there is one, each on its own line, then the hint.
    pub fn chain(&self) -> String {
        self.chain_with(field_name)
    }

    /// Like [`Self::chain`], with options named by `name`, which gets the name of the option in
    /// [`Options`](crate::Options) or another struct of options, and the value if the text
    /// recommends or rejects one, as in `cache=auto`. For `list_names` it gets the location, and
    /// returns the call or the command that lists the names of its tensors.
    pub fn chain_with(&self, name: impl Fn(&str, Option<&str>) -> String) -> String {
        let mut text = String::new();
        // Writing to a `String` cannot fail.
        let _ = self.write_place(&mut text);
        text.push_str(&self.0.message.with_names(&name));
        let mut cause: Option<&(dyn StdError + 'static)> = self.source();
        while let Some(error) = cause {
            let line = fit(&error.to_string());
            // A typed cause (`HeaderError`) is kept for programs to match on; the text need not
            // repeat it.
            if !text.ends_with(&line) {
                text.push_str("\n  caused by: ");
                text.push_str(&line);
            }
            cause = error.source();
        }
        if let Some(request) = self.request() {
            text.push_str("\n  request: ");
            text.push_str(&request.to_string());
        }
        if let Some(hint) = self.hint_with(name) {
            text.push_str("\n  hint: ");
            text.push_str(&hint);
        }
        text
    }
}

/// Returns the name that an option has in Rust, and the value behind it.
pub(crate) fn field_name(option: &str, value: Option<&str>) -> String {
    if option == LIST_NAMES {
        return LISTING_CALL.to_owned();
    }
    value.map_or_else(|| option.to_owned(), |value| format!("{option}={value}"))
}

/// Returns a message or hint as it is stored.
fn marked(text: &str) -> MarkedText {
    if text.len() <= MESSAGE_BYTES_MAX {
        return MarkedText::new(text, printable);
    }
    let end = boundary_before(text, MESSAGE_BYTES_MAX);
    let end = option_names::end_outside_marks(text, end);
    MarkedText::new(&cut_at(text, end), printable)
}

/// Returns a count with its noun: `"1 tensor"`, `"2 tensors"`. `noun` must take an `s`.
pub(crate) fn counted(count: u64, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write_place(f)?;
        f.write_str(self.message())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Error({}: {})", self.0.kind.name(), self.chain())
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
    fn display_is_one_line_with_place_and_escaped_tensor() {
        let error = Error::new(ErrorKind::InvalidFormat, "found 3, wanted 4")
            .with_location("a.safetensors")
            .with_range(0..8)
            .with_tensor("x\ny");
        assert_eq!(
            error.to_string(),
            "a.safetensors [0..8]: tensor \"x\\ny\": found 3, wanted 4"
        );
    }

    #[test]
    fn chain_walks_causes_and_ends_with_the_hint() {
        let error = Error::from_io("cannot open", io::Error::from_raw_os_error(libc::EACCES))
            .with_location("a")
            .with_hint("ask for access");
        assert_eq!(error.kind(), ErrorKind::PermissionDenied);
        assert_eq!(error.errno(), Some(libc::EACCES));
        assert_eq!(
            error.chain(),
            "a: cannot open\n  caused by: Permission denied (os error 13)\n  hint: ask for access"
        );
    }

    #[test]
    fn hints_of_writes_are_about_writing() {
        let hint = |errno| {
            let error = io::Error::from_raw_os_error(errno);
            let error = Error::from_write("cannot write", error);
            error.hint().expect("a hint").to_owned()
        };
        for (errno, wanted) in [
            (libc::EACCES, "write permission to the directory"),
            (libc::EPERM, "write permission to the directory"),
            (libc::EROFS, "read-only"),
            (libc::ENOSPC, "free some space"),
            (libc::EDQUOT, "quota"),
            (libc::ENAMETOOLONG, "shorter name"),
            (libc::EISDIR, "is a directory"),
            (libc::EIO, "check the disk"),
        ] {
            assert!(hint(errno).contains(wanted), "{errno}: {}", hint(errno));
            assert!(!hint(errno).contains("read permission"), "{errno}");
        }
        let other = io::Error::from_raw_os_error(libc::EBADF);
        assert_eq!(Error::from_write("cannot write", other).hint(), None);
    }

    #[test]
    fn chain_omits_cause_that_repeats_previous_line() {
        let error = Error::new(ErrorKind::InvalidFormat, "found 3, wanted 4")
            .with_location("a")
            .with_source("found 3, wanted 4");
        assert_eq!(error.chain(), "a: found 3, wanted 4");
    }

    #[test]
    fn location_with_control_characters_is_escaped() {
        let error = Error::new(ErrorKind::NotFound, "gone").with_location("a\x1b[31m\u{9b}é");
        assert_eq!(error.to_string(), "a\\u{1b}[31m\\u{9b}é: gone");
    }

    #[test]
    fn error_texts_are_escaped_and_truncated() {
        let odd = "a\u{1b}[31m\n\u{202e}é";
        let error = Error::new(ErrorKind::Io, odd)
            .with_hint(odd)
            .with_source(Error::new(ErrorKind::Io, odd));
        assert_eq!(error.message(), "a\\u{1b}[31m\\n\\u{202e}é");
        let shown = error.chain();
        assert!(shown.lines().all(|line| line == printable(line)), "{shown}");
        assert_eq!(shown.lines().count(), 2, "cause not repeated: {shown}");

        let long = "é".repeat(5 << 20);
        let error = Error::new(ErrorKind::Io, &*long)
            .with_tensor(&*long)
            .with_location(&*long)
            .with_hint(&*long)
            .with_source(&*long);
        assert!(error.chain().len() < 16_000, "{}", error.chain().len());
        assert!(error.to_string().contains("é… (10485760 bytes)"));
        assert_eq!(error.tensor(), Some(&*long), "for programs");
    }

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
    fn listing_of_names_gets_the_location() {
        let error = Error::new(ErrorKind::NoSuchTensor, "no")
            .with_hint("see ‹list_names›")
            .with_location("a/b");
        let call = |option: &str, at: Option<&str>| format!("{option} {}", at.unwrap_or("-"));
        assert_eq!(error.hint_with(call).as_deref(), Some("see list_names a/b"));
        assert_eq!(error.marked_hint().as_deref(), Some("see ‹list_names›"));
        assert_eq!(error.chain(), "a/b: no\n  hint: see Checkpoint::tensors");
    }

    #[test]
    fn is_one_word_wide() {
        assert_eq!(size_of::<Result<(), Error>>(), size_of::<usize>());
    }

    #[test]
    fn kinds_have_distinct_names() {
        let names: std::collections::HashSet<_> =
            ErrorKind::ALL.iter().map(|kind| kind.name()).collect();
        assert_eq!(names.len(), ErrorKind::ALL.len());
    }
}
