//! JSON that is safe to print on a terminal: control characters that JSON allows are escaped too.

use std::fmt::Write as _;
use std::io::{self, Write};

use serde::Serialize;
use tload::internal::printable;

/// Writes `value` as several lines, with a line feed after the last.
pub(crate) fn write(out: &mut dyn Write, value: &impl Serialize) -> io::Result<()> {
    out.write_all(text(value)?.as_bytes())
}

/// Returns the text that [`write()`] writes.
pub(crate) fn text(value: &impl Serialize) -> io::Result<String> {
    Ok(escaped(&serde_json::to_string_pretty(value)?) + "\n")
}

/// Escapes every character that is not printable. JSON syntax is ASCII, so such a character is
/// inside a string, where `\u1234` is valid. Line feeds belong to the layout: inside strings they
/// are already escaped.
fn escaped(json: &str) -> String {
    let mut text = String::with_capacity(json.len());
    let mut units = [0; 2];
    for character in json.chars() {
        let is_plain = character == '\n'
            || (' '..='~').contains(&character)
            || printable(character.encode_utf8(&mut [0; 4])).starts_with(character);
        if is_plain {
            text.push(character);
        } else {
            for unit in character.encode_utf16(&mut units) {
                // Writing to a string cannot fail.
                let _ = write!(text, "\\u{unit:04x}");
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_escapes_control_characters_reversibly() {
        let name = "a\u{1b}[2J\n\u{7f}\u{9b}\u{202e}\u{e0041}é\u{1f980}\"\\";
        let written = text(&[name]).unwrap();
        assert!(
            written.contains("\\u007f\\u009b\\u202e\\udb40\\udc41é\u{1f980}"),
            "{written}"
        );
        assert!(written.lines().all(|line| line == printable(line)));
        let read: Vec<String> = serde_json::from_str(&written).unwrap();
        assert_eq!(read, [name]);
    }
}
