//! Texts from outside, made fit to be shown: escaped, and of bounded length.

use std::borrow::Cow;
use std::fmt;

/// Returns `text` escaped for printing. Names come from untrusted files; terminals obey control
/// characters (C0, DEL, C1), and invisible characters reorder visible ones ("Trojan Source",
/// CVE-2021-42574). Both are escaped as Rust writes them, for example `\n`, `\u{1b}` and
/// `\u{202e}`; everything else is unchanged.
///
/// All output of tload passes through this function or through Rust's `{:?}`, which escapes a
/// superset.
///
/// ```
/// # use tload_base::error as tload;
/// assert_eq!(tload::printable("a\u{1b}[2J\u{202e}é\n"), "a\\u{1b}[2J\\u{202e}é\\n");
/// ```
pub fn printable(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for character in text.chars() {
        if character.is_control() || is_unseen(character) {
            shown.extend(character.escape_default());
        } else {
            shown.push(character);
        }
    }
    shown
}

/// Returns whether a character has no shape of its own but hides others or changes how they are
/// shown: Unicode's category Cf as far as it is in use for text (Unicode 16,
/// `DerivedGeneralCategory.txt`), line and paragraph separators, and tags.
fn is_unseen(character: char) -> bool {
    matches!(
        character,
        '\u{ad}'
            | '\u{61c}'
            | '\u{180e}'
            | '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{feff}'
            | '\u{fff9}'..='\u{fffb}'
            | '\u{e0000}'..='\u{e007f}'
    )
}

/// Maximum number of bytes of a file or tensor name that a message shows: a hostile name may be 100
/// MB long. File systems allow 255 per component; paths of a few components are shown whole.
const NAME_BYTES_MAX: usize = 1024;

/// Maximum number of bytes of a message, including the names in it.
pub(super) const MESSAGE_BYTES_MAX: usize = 4096;

/// Returns a name, truncated if it is very long.
pub fn shortened(name: &str) -> Cow<'_, str> {
    cut(name, NAME_BYTES_MAX)
}

/// Returns a location as errors show it.
pub(super) fn shown(location: impl fmt::Display) -> String {
    printable(&shortened(&location.to_string()))
}

/// Truncates `text` at a character boundary near `bytes_max` and appends its full length.
pub fn cut(text: &str, bytes_max: usize) -> Cow<'_, str> {
    if text.len() <= bytes_max {
        return Cow::Borrowed(text);
    }
    Cow::Owned(cut_at(text, boundary_before(text, bytes_max)))
}

/// Returns the last character boundary in `text` that is not after `at`.
pub(super) fn boundary_before(text: &str, at: usize) -> usize {
    let is_boundary = |at: &usize| text.is_char_boundary(*at);
    (0..=at).rev().find(is_boundary).unwrap_or(0)
}

/// Truncates `text` at a character boundary and appends its full length.
pub(super) fn cut_at(text: &str, end: usize) -> String {
    format!("{}… ({} bytes)", &text[..end], text.len())
}

/// Returns a message as it is stored: truncated and escaped.
pub(super) fn fit(text: &str) -> String {
    printable(&cut(text, MESSAGE_BYTES_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invisible_characters_are_escaped_by_rust_debug() {
        // Only up to the tags: others belong to particular scripts, and do not affect letters.
        for character in ('\0'..'\u{e0080}').filter(|&c| is_unseen(c) || c.is_control()) {
            let debug = format!("{:?}", format!("a{character}"));
            assert!(debug.contains('\\'), "{:x}", u32::from(character));
        }
    }
}
