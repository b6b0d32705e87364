//! Entity tags with bytes beyond ASCII (`obs-text`, RFC 9110, 5.5 and 8.8.3) as ASCII texts, since
//! `object_store` reads headers as such. Pure.
//!
//! `"caf\xe9"` becomes `"obs-text caf%E9"`. No entity tag has a space. One that looks like such a
//! text all the same is written in this form too, so each text stands for one tag.

use std::borrow::Cow;

use http::HeaderValue;
use percent_encoding::{AsciiSet, CONTROLS, percent_decode, percent_encode};

const MARK: &[u8] = b"obs-text ";

/// Characters that are encoded beside those beyond ASCII.
const ENCODED: &AsciiSet = &CONTROLS.add(b'%');

/// Splits a tag behind the quote that opens it, and returns whether the rest begins with the mark.
fn split(tag: &[u8]) -> (&[u8], &[u8], bool) {
    let weak = if tag.starts_with(b"W/") { 2 } else { 0 };
    let quote = usize::from(tag.get(weak) == Some(&b'"'));
    let (start, rest) = tag.split_at(weak + quote);
    (start, rest, rest.starts_with(MARK))
}

/// Returns the text for a tag; `None` if the tag itself is one.
pub(crate) fn to_text(tag: &[u8]) -> Option<String> {
    let (start, rest, is_marked) = split(tag);
    if tag.is_ascii() && !is_marked {
        return None;
    }
    let text = |bytes| String::from_utf8_lossy(bytes);
    let encoded = percent_encode(rest, ENCODED);
    Some(format!("{}{}{encoded}", text(start), text(MARK)))
}

/// Returns the text for a tag that a list states in JSON or XML, or that is one already.
pub fn of_list(tag: String) -> String {
    let other = (!tag.is_ascii()).then(|| to_text(tag.as_bytes())).flatten();
    other.unwrap_or(tag)
}

/// Returns the tag that a text stands for; `None` if that is itself.
pub(crate) fn to_tag(text: &HeaderValue) -> Option<HeaderValue> {
    let (start, rest, is_marked) = split(text.as_bytes());
    let encoded = rest.get(MARK.len()..).filter(|_| is_marked)?;
    let decoded: Cow<'_, [u8]> = percent_decode(encoded).into();
    HeaderValue::from_bytes(&[start, &*decoded].concat()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_stand_for_tags() {
        for (tag, text) in [
            (&b"\"caf\xe9\""[..], "\"obs-text caf%E9\""),
            (b"\"caf\xc3\xa9\"", "\"obs-text caf%C3%A9\""),
            (b"W/\"\xff%41\"", "W/\"obs-text %FF%2541\""),
            (b"\xff", "obs-text %FF"),
            (b"\"obs-text caf%E9\"", "\"obs-text obs-text caf%25E9\""),
        ] {
            assert_eq!(to_text(tag).as_deref(), Some(text));
            assert_eq!(of_list(text.to_owned()), text);
            let text = HeaderValue::from_static(text);
            let back = to_tag(&text).expect("a tag");
            assert_eq!(back.as_bytes(), tag);
        }
        for tag in ["\"a\"", "W/\"a%E9\"", "a b", "\"\"", ""] {
            assert_eq!(to_text(tag.as_bytes()), None, "{tag}");
            assert_eq!(to_tag(&HeaderValue::from_static(tag)), None, "{tag}");
            assert_eq!(of_list(tag.to_owned()), tag);
        }
        assert_eq!(
            of_list("\"caf\u{e9}\"".to_owned()),
            "\"obs-text caf%C3%A9\""
        );
        // A header cannot contain the line break that this text encodes.
        let control = HeaderValue::from_static("\"obs-text %0D%0A\"");
        assert_eq!(to_tag(&control), None);
    }
}
