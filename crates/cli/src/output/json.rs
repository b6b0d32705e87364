//! JSON for programs that a terminal can show too: what terminals obey is escaped beyond what JSON demands.

use std::fmt::Write as _;
use std::io::{self, Write};

use serde::Serialize;
use tload::printable;

/// Writes `value` over several lines, and ends the last.
pub(crate) fn write(out: &mut dyn Write, value: &impl Serialize) -> io::Result<()> {
    out.write_all(text(value)?.as_bytes())
}

/// The same as a text.
pub(crate) fn text(value: &impl Serialize) -> io::Result<String> {
    Ok(escaped(&serde_json::to_string_pretty(value)?) + "\n")
}

/// JSON itself is ASCII, so whatever is found here is in a text and may be written as `\u1234` there. Line feeds are the layout's: in
/// texts they are escaped already.
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
    fn programs_read_what_terminals_do_not_obey() {
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
