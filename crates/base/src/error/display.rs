//! Text of errors: one line, or the chain of causes with the hint, and names of options in it.

use std::error::Error as StdError;
use std::fmt;

use super::Error;
use super::option_names::{LIST_NAMES, LISTING_CALL};
use super::printable::{fit, shortened};

impl Error {
    /// Like [`Self::hint`], with options named by `name`: see [`Self::chain_with`].
    #[doc(hidden)]
    pub fn hint_with(&self, name: impl Fn(&str, Option<&str>) -> String) -> Option<String> {
        // The core knows where the names are, the interface how to list them.
        let name = |option: &str, value: Option<&str>| match option {
            LIST_NAMES => name(option, self.location()),
            _ => name(option, value),
        };
        self.0.hint.as_ref().map(|hint| hint.with_names(name))
    }

    /// Returns the hint as it was set, to become part of another hint.
    #[doc(hidden)]
    pub fn marked_hint(&self) -> Option<String> {
        let mark = |option: &str, value: Option<&str>| match value.filter(|_| option != LIST_NAMES)
        {
            Some(value) => format!("‹{option}={value}›"),
            None => format!("‹{option}›"),
        };
        self.hint_with(mark)
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
    /// `LoadOptions` or another struct of options, and the value if the text recommends or rejects
    /// one, as in `cache=auto`. For `list_names` it gets the location, and returns the call or the
    /// command that lists the names of its tensors.
    #[doc(hidden)]
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
pub fn field_name(option: &str, value: Option<&str>) -> String {
    if option == LIST_NAMES {
        return LISTING_CALL.to_owned();
    }
    value.map_or_else(|| option.to_owned(), |value| format!("{option}={value}"))
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

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;
    use crate::error::{ErrorKind, printable};

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
    fn listing_of_names_gets_the_location() {
        let error = Error::new(ErrorKind::NoSuchTensor, "no")
            .with_hint("see ‹list_names›")
            .with_location("a/b");
        let call = |option: &str, at: Option<&str>| format!("{option} {}", at.unwrap_or("-"));
        assert_eq!(error.hint_with(call).as_deref(), Some("see list_names a/b"));
        assert_eq!(error.marked_hint().as_deref(), Some("see ‹list_names›"));
        assert_eq!(error.chain(), "a/b: no\n  hint: see Checkpoint::tensors");
    }
}
