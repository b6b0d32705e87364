//! Truth values in text, alike wherever an option is a flag. Pure.

/// Parses a truth value: `true`, `yes`, `on` or `1`; `false`, `no`, `off` or `0`. Case and blanks
/// around it do not count.
pub fn parse_flag(text: &str) -> Option<bool> {
    match text.trim().to_ascii_lowercase().as_str() {
        "true" | "yes" | "on" | "1" => Some(true),
        "false" | "no" | "off" | "0" => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_words_and_digits() {
        for (text, flag) in [
            ("true", Some(true)),
            (" Yes ", Some(true)),
            ("1", Some(true)),
            ("OFF", Some(false)),
            ("0", Some(false)),
            ("", None),
            ("2", None),
            ("maybe", None),
        ] {
            assert_eq!(parse_flag(text), flag, "{text:?}");
        }
    }
}
