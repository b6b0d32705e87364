//! Failure as JSON: the value of the key `error` in the JSON that commands print or write.

use serde::Serialize;
use tload::Error;
use tload_config::flag;

use super::error::chain;

/// The fields of an error, under the names that its attributes have in Python.
#[derive(Debug, Serialize)]
pub(crate) struct Failure<'a> {
    kind: &'static str,
    /// The text printed on standard error, with causes and hint.
    message: String,
    location: Option<&'a str>,
    tensor: Option<&'a str>,
    /// Start and end of the byte range in the file; the end is exclusive.
    range: Option<(u64, u64)>,
    hint: Option<String>,
    errno: Option<i32>,
    operation: Option<&'a str>,
    status: Option<u16>,
    code: Option<&'a str>,
    request_id: Option<&'a str>,
    attempts: Option<u32>,
    credentials: Option<&'a str>,
    expected: Option<&'a str>,
    found: Option<&'a str>,
    by: Option<&'a str>,
    ranks: &'a [usize],
    exit_status: u8,
}

impl<'a> Failure<'a> {
    pub(crate) fn new(error: &'a Error, exit_status: u8) -> Self {
        let request = error.request();
        let comparison = error.comparison();
        Self {
            kind: error.kind().name(),
            message: chain(error),
            location: error.location(),
            tensor: error.tensor(),
            range: error.range().map(|range| (range.start, range.end)),
            hint: error.hint_with(flag),
            errno: error.errno(),
            operation: request.map(|it| it.operation.as_str()),
            status: request.and_then(|it| it.status),
            code: request.and_then(|it| it.code.as_deref()),
            request_id: request.and_then(|it| it.request_id.as_deref()),
            attempts: request.map(|it| it.attempts),
            credentials: request.and_then(|it| it.credentials.as_deref()),
            expected: comparison.map(|it| it.expected.as_str()),
            found: comparison.map(|it| it.found.as_str()),
            by: comparison.map(|it| it.by.as_str()),
            ranks: error.ranks(),
            exit_status,
        }
    }
}

/// Result of a command, possibly partial, and `error` beside its fields if the command failed.
#[derive(Debug, Serialize)]
pub(crate) struct Outcome<'a, T> {
    #[serde(flatten)]
    result: Option<&'a T>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<Failure<'a>>,
}

impl<'a, T> Outcome<'a, T> {
    /// Combines `result`, which must serialize as an object, with `error`.
    pub(crate) fn new(result: &'a T, error: Option<Failure<'a>>) -> Self {
        Self {
            result: Some(result),
            error,
        }
    }
}

impl<'a> Outcome<'a, ()> {
    /// Returns the outcome of a command without a result.
    pub(crate) fn failed(error: Failure<'a>) -> Self {
        Self {
            result: None,
            error: Some(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{json, to_value};
    use tload::ErrorKind;
    use tload::verify::Comparison;

    use super::*;

    #[test]
    fn failure_has_every_field_and_names_flags() {
        let error = Error::new(ErrorKind::Corrupt, "‹memory_limit› is 1")
            .with_location("m/a.safetensors")
            .with_tensor("x")
            .with_range(8..16)
            .with_comparison(Comparison {
                expected: "crc32c:1".to_owned(),
                found: "crc32c:2".to_owned(),
                by: "manifest".to_owned(),
            })
            .with_ranks([0, 3])
            .with_source(std::io::Error::from_raw_os_error(5))
            .with_hint("raise ‹timeout›");
        let written = to_value(Outcome::failed(Failure::new(&error, 11))).unwrap();
        assert_eq!(
            written,
            json!({"error": {
                "kind": "corrupt",
                "message": chain(&error),
                "location": "m/a.safetensors",
                "tensor": "x",
                "range": [8, 16],
                "hint": "raise --timeout",
                "errno": 5,
                "operation": null, "status": null, "code": null,
                "request_id": null, "attempts": null, "credentials": null,
                "expected": "crc32c:1", "found": "crc32c:2", "by": "manifest",
                "ranks": [0, 3],
                "exit_status": 11,
            }})
        );
    }

    #[test]
    fn outcome_has_result_and_optional_error() {
        let error = Error::new(ErrorKind::Io, "failed");
        let result = json!({"files": 1});
        let failed = Outcome::new(&result, Some(Failure::new(&error, 1)));
        let written = to_value(failed).unwrap();
        assert_eq!(written["files"], 1);
        assert_eq!(written["error"]["kind"], "io");
        let written = to_value(Outcome::new(&result, None)).unwrap();
        assert_eq!(written, result);
    }
}
