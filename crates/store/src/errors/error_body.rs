//! Parses the body of an error response, and removes secrets from quoted texts. Pure; called by
//! `response_capture.rs` and `failure.rs`.

use serde_json::Value;

use crate::error::printable;

/// Maximum length of a message, characters: it becomes one line of an error.
const MESSAGE_MAX: usize = 300;

/// Error code and text of a store. Stores respond in XML (S3, Azure, Google's XML interface), token
/// services in JSON.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Reply {
    pub(crate) code: Option<String>,
    pub(crate) message: Option<String>,
    pub(crate) region: Option<String>,
}

impl Reply {
    pub(crate) fn from_body(body: &[u8]) -> Self {
        let Ok(text) = std::str::from_utf8(body) else {
            return Self::default();
        };
        match serde_json::from_str::<Value>(text) {
            Ok(json) => Self::from_json(&json),
            Err(_) => Self {
                code: element(text, "Code"),
                message: element(text, "Message"),
                region: element(text, "Region"),
            },
        }
    }

    /// Parses `{"error": "invalid_grant", "error_description": "…"}` or `{"error": {"status": "…",
    /// "message": "…"}}`, and `{"errors": [{"code": "…", "message": "…"}]}` of OCI registries.
    fn from_json(json: &Value) -> Self {
        let first = json.get("errors").and_then(|all| all.get(0));
        let json = first.unwrap_or(json);
        let owned = |value: Option<&Value>| value.and_then(Value::as_str).map(str::to_owned);
        let error = json.get("error");
        Self {
            code: owned(error)
                .or_else(|| owned(error.and_then(|error| error.get("status"))))
                .or_else(|| owned(json.get("code"))),
            message: owned(json.get("error_description"))
                .or_else(|| owned(error.and_then(|error| error.get("message"))))
                .or_else(|| owned(json.get("message"))),
            region: None,
        }
    }
}

/// Returns the text of the first element of this name. These bodies are flat and do not need an XML
/// parser.
fn element(text: &str, name: &str) -> Option<String> {
    let (_, rest) = text.split_once(&format!("<{name}>"))?;
    let (inner, _) = rest.split_once(&format!("</{name}>"))?;
    let inner = inner.trim();
    (!inner.is_empty() && !inner.contains('<')).then(|| {
        inner
            .replace("&lt;", "<")
            .replace("&gt;", ">")
            .replace("&quot;", "\"")
            .replace("&apos;", "'")
            .replace("&#34;", "\"")
            .replace("&#39;", "'")
            .replace("&amp;", "&")
    })
}

/// Returns the first line of an external text, without parts that look like secrets: queries,
/// fragments and users of URLs, signatures. The redactor removes known secrets.
pub(crate) fn plain(text: &str) -> String {
    let line = text.trim().lines().next().unwrap_or_default();
    let words: Vec<_> = line.split(' ').map(scrub_word).collect();
    let mut shown: String = words.join(" ").chars().take(MESSAGE_MAX).collect();
    if words.join(" ").chars().count() > MESSAGE_MAX {
        shown.push('…');
    }
    printable(&shown)
}

/// Names of secrets in queries, headers and connection strings; in lower case.
const SECRET_NAMES: [&str; 12] = [
    "signature=",
    "sig=",
    "x-amz-",
    "x-goog-",
    "token=",
    "key=",
    "secret=",
    "password=",
    "credential=",
    "awsaccesskeyid=",
    "accountkey=",
    "authorization:",
];

fn scrub_word(word: &str) -> String {
    let mut shown = word.to_owned();
    if let Some(at) = shown.find("://") {
        if let Some(query) = shown.find(['?', '#']) {
            shown.truncate(query);
            shown.push_str("?…");
        }
        let start = at + "://".len();
        let authority = shown.get(start..).unwrap_or_default();
        let length = authority.find('/').unwrap_or(authority.len());
        if let Some(end) = authority.get(..length).and_then(|host| host.rfind('@')) {
            shown.replace_range(start..=start + end, "");
        }
    }
    let lower = shown.to_ascii_lowercase();
    if SECRET_NAMES.iter().any(|name| lower.contains(name)) {
        return "…".to_owned();
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_and_messages_in_xml_and_json() {
        let reply = |code: &str, message: &str, region: Option<&str>| Reply {
            code: Some(code.to_owned()),
            message: Some(message.to_owned()),
            region: region.map(str::to_owned),
        };
        for (body, wanted) in [
            (
                "<?xml version=\"1.0\"?><Error><Code>AuthorizationHeaderMalformed</Code>\
                 <Message>the region &apos;a&apos; is wrong</Message><Region>eu-west-1</Region></Error>",
                reply(
                    "AuthorizationHeaderMalformed",
                    "the region 'a' is wrong",
                    Some("eu-west-1"),
                ),
            ),
            (
                r#"{"error": "invalid_grant", "error_description": "Bad Request"}"#,
                reply("invalid_grant", "Bad Request", None),
            ),
            (
                r#"{"error": {"code": 403, "status": "FORBIDDEN", "message": "no"}}"#,
                reply("FORBIDDEN", "no", None),
            ),
            ("<html><Message>a<b></Message></html>", Reply::default()),
            ("", Reply::default()),
        ] {
            assert_eq!(Reply::from_body(body.as_bytes()), wanted, "{body}");
        }
        assert_eq!(Reply::from_body(b"\xff"), Reply::default());
    }

    #[test]
    fn plain_drops_suspected_secrets() {
        for (text, wanted) in [
            ("plain words (os error 111)", "plain words (os error 111)"),
            (
                "GET https://user:hunter2@host/a?sig=hunter2 failed",
                "GET https://host/a?… failed",
            ),
            ("query X-Amz-Signature=hunter2&x=y is bad", "query … is bad"),
            ("first line\nsecond: hunter2", "first line"),
            ("see https://host/docs/@home", "see https://host/docs/@home"),
        ] {
            assert_eq!(plain(text), wanted);
        }
        let long = plain(&"x".repeat(1000));
        assert_eq!(long.chars().count(), MESSAGE_MAX + 1);
    }
}
