//! Describes errors in untrusted JSON without repeating its contents: a file that is not a manifest
//! may be anyone's, and errors are displayed and logged.

/// Returns the position of an error and the value wanted there. Never quotes the text at that
/// position.
pub(super) fn wrong_json(error: &serde_json::Error) -> String {
    let text = error.to_string();
    if !error.is_data() {
        // Syntax errors hold only the parser's own text.
        return text;
    }
    let quoted = ["invalid type: ", "invalid value: ", "invalid length "];
    if quoted.iter().any(|start| text.starts_with(start)) {
        // The last occurrence is the parser's, whatever the text holds.
        let wanted = text.rsplit_once(", expected ").map(|(_, wanted)| wanted);
        return wanted.map_or_else(|| place(error), |wanted| format!("wanted {wanted}"));
    }
    if text.starts_with("unknown ") {
        return format!("unknown field{}", place(error));
    }
    // Holds only names of our own fields, or our own text.
    text
}

fn place(error: &serde_json::Error) -> String {
    format!(" at line {} column {}", error.line(), error.column())
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[expect(dead_code, reason = "is read")]
    struct Wanted {
        bytes: u64,
        names: Vec<String>,
    }

    #[test]
    fn json_error_does_not_quote_input() {
        for (json, wanted) in [
            (r#"{"bytes":"hunter2"}"#, "wanted u64 at line 1 column 18"),
            (
                r#"{"bytes":"hunter2, expected hunter2"}"#,
                "wanted u64 at line 1 column 36",
            ),
            (r#"{"bytes":-7771}"#, "wanted u64 at line 1 column 14"),
            (
                r#"{"names":"hunter2"}"#,
                "wanted a sequence at line 1 column 18",
            ),
            (r#"{"hunter2":1}"#, "unknown field at line 1 column 10"),
            (
                r#"{"bytes":1}"#,
                "missing field `names` at line 1 column 11",
            ),
            (
                r#"{"bytes":1,"bytes":1}"#,
                "duplicate field `bytes` at line 1 column 18",
            ),
            ("{hunter2", "key must be a string at line 1 column 2"),
            ("7771", "wanted struct Wanted at line 1 column 4"),
        ] {
            let error = serde_json::from_str::<Wanted>(json).expect_err(json);
            let text = wrong_json(&error);
            assert_eq!(text, wanted, "{json}");
            assert!(
                !text.contains("hunter2") && !text.contains("7771"),
                "{text}"
            );
        }
    }
}
