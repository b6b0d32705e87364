//! Fetches the token of another identity provider, which Google exchanges for its own token: from
//! a file, a URL or a program. Called by `external_account.rs`.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::{HeaderName, HeaderValue};
use object_store::client::{HttpClient, HttpRequest, HttpRequestBody};
use serde_json::Value;
use url::Url;

use super::external_account::{ask, no_subject};
use crate::credentials::program::answer;
use crate::environment::Environment;
use crate::error::printable;
use crate::files::open_plain;

/// Variable that permits to run programs, as in Google's own tools: the file may come from
/// anywhere.
const ALLOWS_PROGRAMS: &str = "GOOGLE_EXTERNAL_ACCOUNT_ALLOW_EXECUTABLES";

/// Default and limits of the time that a program may take, milliseconds (AIP-4117).
const WAIT: u64 = 30_000;
const WAITS: std::ops::RangeInclusive<u64> = 5_000..=120_000;

/// Longest file that is read, bytes, and the time to read it: its file system may hang.
const FILE_MAX: u64 = 64 << 10;
const FILE_WAIT: Duration = Duration::from_secs(30);

/// Contents of a file or of a response.
pub(super) type Fetched = Vec<u8>;

/// Place of the subject token.
pub(super) enum Subject {
    File(PathBuf, Format),
    Url(Url, Vec<(HeaderName, HeaderValue)>, Format),
    Program(Program),
}

/// Form of the token in a file or a response.
pub(super) enum Format {
    Text,
    /// Field of a JSON object.
    Json(String),
}

/// Program that prints a token.
pub(super) struct Program {
    name: String,
    words: Vec<String>,
    wait_max: Duration,
    /// File in which the program keeps its last output.
    output: Option<PathBuf>,
    variables: Vec<(&'static str, String)>,
}

/// Reason why a source cannot be used. It completes "the external account of Google …".
pub(super) struct Unusable {
    pub(super) what: String,
    /// True if another tool might use it.
    pub(super) is_unsupported: bool,
}

impl Unusable {
    fn invalid(what: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            is_unsupported: false,
        }
    }

    fn unsupported(what: impl Into<String>) -> Self {
        Self {
            what: what.into(),
            is_unsupported: true,
        }
    }
}

impl Subject {
    /// Parses `credential_source`.
    pub(super) fn parse(source: &Value, environment: &Environment) -> Result<Self, Unusable> {
        let field = |name: &str| source.get(name).and_then(Value::as_str);
        if source.get("environment_id").is_some() {
            return Err(Unusable::unsupported(
                "takes its token from AWS, which is not supported",
            ));
        }
        if source.get("certificate").is_some() {
            return Err(Unusable::unsupported(
                "takes its token from a client certificate, which is not supported",
            ));
        }
        if let Some(path) = field("file") {
            let path = environment.expanded(path);
            let path =
                path.ok_or_else(|| Unusable::invalid("names a file below an unknown HOME"))?;
            return Ok(Self::File(path, Format::parse(source)?));
        }
        if let Some(url) = field("url") {
            let url = Url::parse(url).ok().filter(|url| {
                ["http", "https"].contains(&url.scheme()) && url.host_str().is_some()
            });
            let url = url.ok_or_else(|| Unusable::invalid("has no URL as url of its source"))?;
            return Ok(Self::Url(url, headers(source)?, Format::parse(source)?));
        }
        if let Some(program) = source.get("executable") {
            return Program::parse(program, environment).map(Self::Program);
        }
        Err(Unusable::unsupported(
            "takes its token from a source of an unknown kind",
        ))
    }

    /// Adds what a program is told about the account.
    pub(super) fn of(mut self, audience: &str, token_type: &str, email: Option<String>) -> Self {
        if let Self::Program(program) = &mut self {
            let mut set = |name, value| program.variables.push((name, value));
            set("GOOGLE_EXTERNAL_ACCOUNT_AUDIENCE", audience.to_owned());
            set("GOOGLE_EXTERNAL_ACCOUNT_TOKEN_TYPE", token_type.to_owned());
            if let Some(email) = email {
                set("GOOGLE_EXTERNAL_ACCOUNT_IMPERSONATED_EMAIL", email);
            }
        }
        self
    }

    /// Returns the URL that the token is fetched from.
    pub(super) fn url(&self) -> Option<&Url> {
        match self {
            Self::Url(url, ..) => Some(url),
            Self::File(..) | Self::Program(_) => None,
        }
    }

    /// Fetches the token.
    pub(super) async fn fetch(&self, client: &HttpClient) -> object_store::Result<String> {
        let (place, text, format) = match self {
            Self::File(path, format) => {
                let place = printable(&path.display().to_string());
                let text = contents(path).await.map_err(|error| {
                    let message = format!("cannot read the token in {place}");
                    no_subject(message, Some(error.to_string()))
                })?;
                (place, text, format)
            }
            Self::Url(url, headers, format) => {
                let mut request = HttpRequest::new(HttpRequestBody::empty());
                // A parsed URL is always a valid URI.
                *request.uri_mut() = url.as_str().parse().unwrap_or_default();
                request.headers_mut().extend(headers.iter().cloned());
                let place = url.host_str().unwrap_or_default().to_owned();
                (place, ask(client, request).await?, format)
            }
            Self::Program(program) => return program.run().await,
        };
        let token = format.token(&text);
        token.ok_or_else(|| no_subject(format!("there is no token in what {place} holds"), None))
    }
}

/// Returns the headers of requests to the URL of a source.
fn headers(source: &Value) -> Result<Vec<(HeaderName, HeaderValue)>, Unusable> {
    let Some(headers) = source.get("headers").and_then(Value::as_object) else {
        return Ok(Vec::new());
    };
    let parsed = headers.iter().map(|(name, value)| {
        let invalid = || Unusable::invalid("has a header that cannot be sent");
        let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| invalid())?;
        let mut value = value
            .as_str()
            .and_then(|value| HeaderValue::from_str(value).ok())
            .ok_or_else(invalid)?;
        value.set_sensitive(true);
        Ok((name, value))
    });
    parsed.collect()
}

impl Format {
    fn parse(source: &Value) -> Result<Self, Unusable> {
        let field = |name: &str| source.pointer(&format!("/format/{name}"))?.as_str();
        match field("type").unwrap_or("text") {
            "text" => Ok(Self::Text),
            "json" => {
                let name = field("subject_token_field_name");
                let missing = || Unusable::invalid("names no field of its JSON token");
                Ok(Self::Json(name.ok_or_else(missing)?.to_owned()))
            }
            _ => Err(Unusable::unsupported("has a token in an unknown format")),
        }
    }

    fn token(&self, text: &[u8]) -> Option<String> {
        let text = std::str::from_utf8(text).ok()?;
        let token = match self {
            Self::Text => text.trim().to_owned(),
            Self::Json(name) => {
                let document: Value = serde_json::from_str(text).ok()?;
                document.get(name)?.as_str()?.to_owned()
            }
        };
        Some(token).filter(|token| !token.is_empty())
    }
}

impl Program {
    fn parse(source: &Value, environment: &Environment) -> Result<Self, Unusable> {
        if environment.get(ALLOWS_PROGRAMS) != Some("1") {
            let what = format!("runs a program, which needs {ALLOWS_PROGRAMS}=1");
            return Err(Unusable::invalid(what));
        }
        let command = source.get("command").and_then(Value::as_str);
        let mut words = command.unwrap_or_default().split_whitespace();
        let name = words
            .next()
            .ok_or_else(|| Unusable::invalid("names no command"))?;
        let wait = source.get("timeout_millis").and_then(Value::as_u64);
        let wait = wait.unwrap_or(WAIT);
        if !WAITS.contains(&wait) {
            return Err(Unusable::invalid(
                "has a timeout_millis out of 5000 to 120000",
            ));
        }
        let output = source.get("output_file").and_then(Value::as_str);
        let output = output.map(PathBuf::from);
        let told = output.iter().map(|path| {
            let path = path.display().to_string();
            ("GOOGLE_EXTERNAL_ACCOUNT_OUTPUT_FILE", path)
        });
        Ok(Self {
            name: name.to_owned(),
            words: words.map(str::to_owned).collect(),
            wait_max: Duration::from_millis(wait),
            variables: told.collect(),
            output,
        })
    }

    /// Returns the token that the program left in its file if it is valid, or runs it.
    async fn run(&self) -> object_store::Result<String> {
        if let Some(path) = &self.output
            && let Ok(text) = contents(path).await
            && let Some(token) = kept_token(&text)
        {
            return Ok(token);
        }
        let shown = printable(&self.name);
        let mut command = Command::new(&self.name);
        command
            .args(&self.words)
            .envs(self.variables.iter().cloned());
        let answer = answer(&mut command, Vec::new(), self.wait_max).await;
        let (_, text) =
            answer.map_err(|reason| no_subject(format!("the program {shown} {reason}"), None))?;
        token_of(&text).map_err(|what| no_subject(format!("the program {shown} {what}"), None))
    }
}

/// Reads a regular file that is not longer than [`FILE_MAX`].
async fn contents(path: &Path) -> io::Result<Vec<u8>> {
    let path = path.to_owned();
    let reading = tokio::task::spawn_blocking(move || {
        let file = open_plain(&path)?;
        read_bounded(file)
    });
    let late = |_| {
        let message = format!("it took longer than {FILE_WAIT:?}");
        io::Error::new(io::ErrorKind::TimedOut, message)
    };
    tokio::time::timeout(FILE_WAIT, reading)
        .await
        .map_err(late)??
}

fn read_bounded(file: File) -> io::Result<Vec<u8>> {
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    let mut text = Vec::new();
    let mut bounded = file.take(FILE_MAX + 1);
    bounded.read_to_end(&mut text)?;
    if bounded.limit() == 0 {
        return Err(io::Error::other(format!(
            "it is longer than {FILE_MAX} bytes"
        )));
    }
    Ok(text)
}

/// Returns the token in the file of a program, which must say until when it is valid (AIP-4117).
fn kept_token(text: &[u8]) -> Option<String> {
    let response: Value = serde_json::from_slice(text).ok()?;
    response.get("expiration_time")?.as_u64()?;
    token_of(text).ok()
}

/// Returns the token in the response of a program.
fn token_of(text: &[u8]) -> Result<String, &'static str> {
    let answer: Value = serde_json::from_slice(text).map_err(|_| "printed no JSON")?;
    if answer.get("version").and_then(Value::as_u64) != Some(1) {
        return Err("printed a response of another version than 1");
    }
    if answer.get("success").and_then(Value::as_bool) != Some(true) {
        // The program's text is not shown, because it may be a secret.
        return Err("reports a failure");
    }
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let expires = answer.get("expiration_time").and_then(Value::as_u64);
    if expires.is_some_and(|expires| expires <= now.as_secs()) {
        return Err("printed a token that has expired");
    }
    let field = |name: &str| answer.get(name)?.as_str().map(str::to_owned);
    let is_saml = field("token_type").is_some_and(|kind| kind.ends_with(":saml2"));
    let token = field(if is_saml { "saml_response" } else { "id_token" });
    token
        .filter(|token| !token.is_empty())
        .ok_or("printed no token")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn parsed(source: &Value) -> Result<Subject, String> {
        let allowed = [(ALLOWS_PROGRAMS.to_owned(), "1".to_owned())];
        Subject::parse(source, &Environment::new(allowed)).map_err(|unusable| unusable.what)
    }

    #[test]
    fn unusable_sources_are_explained() {
        for (source, wanted) in [
            (json!({}), "unknown kind"),
            (json!({"environment_id": "aws1"}), "from AWS"),
            (json!({"certificate": {}}), "client certificate"),
            (json!({"url": "file:///etc/shadow"}), "no URL"),
            (
                json!({"file": "a", "format": {"type": "xml"}}),
                "unknown format",
            ),
            (json!({"file": "a", "format": {"type": "json"}}), "no field"),
            (
                json!({"url": "http://h/", "headers": {"a b": "c"}}),
                "header",
            ),
            (json!({"executable": {"command": " "}}), "no command"),
            (
                json!({"executable": {"command": "a", "timeout_millis": 1}}),
                "timeout_millis",
            ),
        ] {
            let what = parsed(&source).err().expect("unusable");
            assert!(what.contains(wanted), "{source}: {what}");
        }
        let program = json!({"executable": {"command": "a b"}});
        let forbidden = Subject::parse(&program, &Environment::default()).err();
        assert!(forbidden.is_some_and(|unusable| unusable.what.contains(ALLOWS_PROGRAMS)));
        assert!(parsed(&program).is_ok());
    }

    #[test]
    fn tokens_are_found_in_every_format() {
        let json = Format::Json("value".to_owned());
        for (format, text, wanted) in [
            (&Format::Text, " abc\n", Some("abc")),
            (&Format::Text, " \n", None),
            (&json, r#"{"value": "abc"}"#, Some("abc")),
            (&json, r#"{"value": 1}"#, None),
            (&json, r#"{"other": "abc"}"#, None),
            (&json, "abc", None),
        ] {
            assert_eq!(format.token(text.as_bytes()).as_deref(), wanted, "{text}");
        }
    }

    #[test]
    fn short_regular_files_are_read_only() {
        let folder = tempfile::tempdir().expect("a folder");
        let write = |name: &str, len: usize| {
            let path = folder.path().join(name);
            std::fs::write(&path, vec![b'a'; len]).expect("writes");
            path
        };
        let longest = usize::try_from(FILE_MAX).expect("fits");
        let pipe = folder.path().join("pipe");
        let mode = rustix::fs::Mode::RWXU;
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, mode, 0)
            .expect("a pipe");
        let mut builder = tokio::runtime::Builder::new_current_thread();
        let runtime = builder.enable_time().build().expect("a runtime");
        for (path, wanted) in [
            (write("whole", longest), Ok(longest)),
            (write("long", longest + 1), Err("longer than 65536 bytes")),
            (folder.path().to_owned(), Err("not a regular file")),
            // It has no writer.
            (pipe, Err("not a regular file")),
            (PathBuf::from("/dev/zero"), Err("not a regular file")),
        ] {
            match (runtime.block_on(contents(&path)), wanted) {
                (Ok(text), Ok(len)) => assert_eq!(text.len(), len),
                (Err(error), Err(wanted)) => {
                    assert!(error.to_string().contains(wanted), "{error}");
                }
                (found, _) => panic!("{}: {found:?}", path.display()),
            }
        }
    }

    #[test]
    fn kept_tokens_must_say_until_when_they_are_valid() {
        for (expires, is_used) in [
            (json!(u64::MAX), true),
            (json!(1), false),
            (json!("never"), false),
            (Value::Null, false),
        ] {
            let response = json!({
                "version": 1, "success": true, "id_token": "abc", "expiration_time": expires,
            });
            let token = kept_token(response.to_string().as_bytes());
            assert_eq!(token.is_some(), is_used, "{expires}");
        }
        let unlimited = json!({"version": 1, "success": true, "id_token": "abc"});
        assert!(kept_token(unlimited.to_string().as_bytes()).is_none());
    }

    #[test]
    fn responses_of_programs() {
        let saml = "urn:ietf:params:oauth:token-type:saml2";
        for (response, wanted) in [
            (
                json!({"version": 1, "success": true, "id_token": "abc"}),
                Ok("abc"),
            ),
            (
                json!({"version": 1, "success": true, "token_type": saml, "saml_response": "abc"}),
                Ok("abc"),
            ),
            (
                json!({"version": 1, "success": true, "id_token": "abc", "expiration_time": 1}),
                Err("expired"),
            ),
            (
                json!({"version": 1, "success": false, "code": "hunter2", "message": "hunter2"}),
                Err("failure"),
            ),
            (json!({"version": 2, "success": true}), Err("version")),
            (json!({"version": 1, "success": true}), Err("no token")),
            (json!("hunter2"), Err("version")),
        ] {
            match (token_of(response.to_string().as_bytes()), wanted) {
                (Ok(token), Ok(wanted)) => assert_eq!(token, wanted),
                (Err(what), Err(wanted)) => {
                    assert!(what.contains(wanted), "{response}: {what}");
                }
                (found, _) => panic!("{response}: {found:?}"),
            }
        }
    }
}
