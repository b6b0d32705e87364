//! Removes a store's secrets from external texts: a server may repeat what it was sent.
//!
//! Knows the secrets that a store was opened with and, for each failure, those that its requests
//! carried, including those fetched later. A secret is recognised verbatim, in any case;
//! percent-encoded; and within base64. Values shorter than [`LEN_MIN`] bytes are ignored, because
//! they occur in every text. Other transformations of a secret by a server cannot be recognised.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD, URL_SAFE_NO_PAD};
use http::header::{HeaderName, HeaderValue};
use object_store::client::HttpRequest;
use percent_encoding::percent_decode_str;

use super::error_body::plain;
use crate::environment::{Environment, Variables};
use crate::options::Protocol;
use crate::options::location::RemoteUrl;
use crate::options::store_options::StoreOptions;

/// Replacement for a secret.
const MASK: &str = "***";

/// Shortest recognised secret, bytes.
const LEN_MIN: usize = 4;

/// Shorter secrets count only as separate words, and are not recognised in base64.
const LEN_ANYWHERE: usize = 8;

/// Shortest query value that counts as a secret without a telling name.
const QUERY_LEN_MIN: usize = 12;

/// Words in the names of headers, settings and query parameters that hold secrets.
const NAMES: [&str; 11] = [
    "token",
    "secret",
    "key",
    "sas",
    "sig",
    "auth",
    "credential",
    "password",
    "cookie",
    "identity-header",
    "assertion",
];

/// Suffixes of names that hold the location of a secret.
const PLACES: [&str; 5] = ["file", "path", "url", "uri", "endpoint"];

/// Variables with secrets that are not settings of `object_store`.
const VARIABLES: [&str; 5] = [
    "HF_TOKEN",
    "HUGGING_FACE_HUB_TOKEN",
    "AZURE_STORAGE_KEY",
    "AZURE_STORAGE_CONNECTION_STRING",
    "IDENTITY_HEADER",
];

/// Variables that name a proxy, perhaps with a password, and perhaps without a scheme.
const PROXIES: [&str; 6] = [
    "HTTPS_PROXY",
    "https_proxy",
    "HTTP_PROXY",
    "http_proxy",
    "ALL_PROXY",
    "all_proxy",
];

/// Set of secrets to mask.
#[derive(Clone, Default)]
pub(crate) struct Redactor {
    secrets: Vec<String>,
}

impl Redactor {
    /// Collects the secrets that a store is opened with. Those of the environment count even if
    /// others are used, and those for `all` protocols: an environment belongs to one user.
    pub(crate) fn new(
        url: &RemoteUrl,
        options: &StoreOptions,
        environment: &Environment,
        all: impl Iterator<Item = &'static Variables>,
    ) -> Self {
        let mut secrets = Self::default();
        secrets.add_authority(&url.authority, url.protocol);
        if let Some(query) = &url.query {
            secrets.add_query(query);
        }
        for (name, value) in options.iter() {
            match StoreOptions::KEYS.iter().find(|key| key.name == name) {
                Some(key) if key.secret => secrets.add_value(value),
                Some(_) => secrets.add_url(value),
                None => secrets.add_setting(name, value),
            }
        }
        for (name, value) in all.flat_map(|of| environment.settings(of, true)) {
            secrets.add_setting(&name, &value);
        }
        for value in VARIABLES.iter().filter_map(|name| environment.get(name)) {
            secrets.add_value(value);
        }
        for value in PROXIES.iter().filter_map(|name| environment.get(name)) {
            let (_, rest) = value.split_once("://").unwrap_or(("", value));
            secrets.add_url(&format!("http://{rest}"));
        }
        secrets.tidy();
        secrets
    }

    /// Adds a token that was found in a file.
    pub(crate) fn and(mut self, header: Option<&HeaderValue>) -> Self {
        if let Some(text) = header.and_then(|value| value.to_str().ok()) {
            self.add_authorization(text);
        }
        self.tidy();
        self
    }

    /// Masks secrets in a text: these and those that the requests carried.
    pub(crate) fn redact(&self, text: &str, sent: &Sent) -> String {
        let mut carried = sent.secrets();
        carried.tidy();
        let mut shown = text.to_owned();
        // Longest first, because one may contain another.
        let mut secrets: Vec<_> = self.secrets.iter().chain(&carried.secrets).collect();
        secrets.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
        secrets.dedup();
        for secret in secrets {
            shown = masked(&shown, secret);
        }
        shown
    }

    /// Returns the first line of an external text, shortened, without secrets and texts that look
    /// like one.
    pub(crate) fn clean(&self, text: &str, sent: &Sent) -> String {
        plain(&self.redact(text, sent))
    }

    fn add(&mut self, secret: &str) {
        // A key may have several lines, but an error has one.
        for line in secret.lines().map(str::trim) {
            self.secrets.push(line.to_owned());
            let decoded = percent_decode_str(line).decode_utf8();
            self.secrets.extend(decoded.ok().map(Into::into));
        }
    }

    /// Adds a value that may be a query, like shared access signatures, or a list of settings.
    fn add_value(&mut self, value: &str) {
        self.add(value);
        if value.trim_end_matches('=').contains('=') {
            self.add_query(value);
        }
        if value.starts_with('{') {
            // The value is the JSON key of a service account. All strings in it are secrets.
            for text in value.split('"').skip(1).step_by(2) {
                self.add_long(&text.replace("\\n", "\n"));
            }
        }
    }

    fn add_long(&mut self, value: &str) {
        for line in value.lines().filter(|line| line.len() >= QUERY_LEN_MIN) {
            self.add(line);
        }
    }

    fn add_setting(&mut self, name: &str, value: &str) {
        if name.ends_with("authorization") {
            self.add_authorization(value);
        } else if name.starts_with("header.") || is_secret_name(name) {
            self.add_value(value);
        } else {
            self.add_url(value);
        }
    }

    /// Adds the secrets in `Bearer …`, `Basic …`, `AWS4-HMAC-SHA256 Credential=…, …, Signature=…`,
    /// `SharedKey account:…`.
    fn add_authorization(&mut self, text: &str) {
        let value = text.split_once(' ').map_or(text, |(_, value)| value.trim());
        self.add(value);
        if let Some((_, signature)) = value.split_once("Signature=") {
            self.add(signature);
        }
        if let Some((_, credential)) = value.split_once("Credential=") {
            self.add(credential.split(['/', ',']).next().unwrap_or_default());
        }
        if let Some((_, signature)) = value.split_once(':') {
            self.add(signature);
        }
        let pair = STANDARD.decode(value).ok();
        if let Some(pair) = pair.and_then(|pair| String::from_utf8(pair).ok()) {
            self.add_user(&pair);
        }
    }

    /// Adds the password of `user:password`; a user without a password may be a token.
    fn add_user(&mut self, pair: &str) {
        match pair.split_once(':') {
            Some((user, "")) => self.add(user),
            Some((_, password)) => {
                self.add(pair);
                self.add(password);
            }
            None => self.add(pair),
        }
    }

    fn add_authority(&mut self, authority: &str, protocol: Protocol) {
        if protocol == Protocol::Http
            && let Some((user, _)) = authority.rsplit_once('@')
        {
            self.add_user(user);
        }
    }

    /// Adds password and query of a URL.
    fn add_url(&mut self, text: &str) {
        let Some((_, rest)) = text.split_once("://") else {
            return;
        };
        let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
        self.add_authority(authority, Protocol::Http);
        if let Some((_, query)) = rest.split_once('?') {
            self.add_query(query);
        }
    }

    /// Adds the secret values of a query, a form, a shared access signature or a connection string.
    fn add_query(&mut self, query: &str) {
        for pair in query.trim_start_matches('?').split(['&', ';']) {
            let (name, value) = pair.split_once('=').unwrap_or(("token", pair));
            if is_secret_name(&name.to_ascii_lowercase()) {
                self.add(value);
            } else {
                self.add_long(value);
            }
            // The parameter has the form `X-Amz-Credential=KEY/DATE/REGION/…`.
            let decoded = percent_decode_str(value).decode_utf8_lossy();
            if let Some((key, _)) = decoded.split_once('/') {
                self.add_long(key);
            }
        }
    }

    /// Drops values that are no secrets: short ones, and booleans.
    fn tidy(&mut self) {
        self.secrets.retain(|secret| {
            let is_flag = ["true", "false"].contains(&secret.to_ascii_lowercase().as_str());
            secret.len() >= LEN_MIN && !is_flag
        });
        self.secrets.sort_unstable();
        self.secrets.dedup();
    }
}

impl fmt::Debug for Redactor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Redactor").finish_non_exhaustive()
    }
}

/// Returns whether the values of a header, setting or parameter of this name, in lower case, are
/// secrets.
fn is_secret_name(name: &str) -> bool {
    NAMES.iter().any(|word| name.contains(word)) && !PLACES.iter().any(|end| name.ends_with(end))
}

/// Secrets that requests carried. Cheap to record: each request is recorded, and few fail.
#[derive(Clone, Default)]
pub(crate) struct Sent {
    headers: Vec<(HeaderName, HeaderValue)>,
    queries: Vec<http::Uri>,
    forms: Vec<bytes::Bytes>,
}

impl Sent {
    pub(crate) fn add(&mut self, request: &HttpRequest) {
        let headers = request.headers().iter();
        let secret = headers.filter(|(name, _)| is_secret_name(name.as_str()));
        self.headers
            .extend(secret.map(|(name, value)| (name.clone(), value.clone())));
        self.add_uri(request.uri());
        let form = request.body().as_bytes().filter(|form| !form.is_empty());
        self.forms.extend(form.cloned());
    }

    pub(crate) fn add_uri(&mut self, uri: &http::Uri) {
        if uri.query().is_some() {
            self.queries.push(uri.clone());
        }
    }

    fn secrets(&self) -> Redactor {
        let mut secrets = Redactor::default();
        for (name, value) in &self.headers {
            if let Ok(value) = value.to_str() {
                secrets.add_setting(name.as_str(), value);
            }
        }
        for query in self.queries.iter().filter_map(http::Uri::query) {
            secrets.add_query(query);
        }
        for form in &self.forms {
            secrets.add_value(&String::from_utf8_lossy(form));
        }
        secrets
    }
}

impl fmt::Debug for Sent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sent").finish_non_exhaustive()
    }
}

/// Masks one secret in a text, in each of its forms.
fn masked(text: &str, secret: &str) -> String {
    let is_short = secret.len() < LEN_ANYWHERE;
    let is_apart = |start: usize, end: usize| {
        let beside = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
        let bytes = text.as_bytes();
        !is_short
            || !(beside(start.checked_sub(1).and_then(|at| bytes.get(at)))
                || beside(bytes.get(end)))
    };
    let text_bytes = text.as_bytes();
    let mut found: Vec<(usize, usize)> = Vec::new();
    let needles = if is_short {
        Vec::new()
    } else {
        in_base64(secret.as_bytes())
    };
    for start in 0..text.len() {
        let here = &text_bytes[start..];
        let plain = length_as_written(here, secret.as_bytes())
            .or_else(|| length_encoded(here, secret.as_bytes(), u8::eq_ignore_ascii_case))
            .map(|len| (start, start + len))
            .filter(|&(start, end)| is_apart(start, end));
        found.extend(plain);
        let len = needles
            .iter()
            .find_map(|needle| length_encoded(here, needle.as_bytes(), u8::eq));
        // The adjacent characters hold bits of the secret too.
        found.extend(len.map(|len| {
            let is_digit = |byte: &u8| byte.is_ascii_alphanumeric() || b"+/-_=%".contains(byte);
            let before = text_bytes[..start]
                .iter()
                .rev()
                .take_while(|byte| is_digit(byte));
            let after = text_bytes[start + len..]
                .iter()
                .take_while(|byte| is_digit(byte));
            (start - before.count(), start + len + after.count())
        }));
    }
    let mut shown = String::with_capacity(text.len());
    let mut at = 0;
    for (start, end) in found {
        if start >= at {
            shown.push_str(text.get(at..start).unwrap_or_default());
            shown.push_str(MASK);
        }
        at = at.max(end);
    }
    shown.push_str(text.get(at..).unwrap_or_default());
    shown
}

fn length_as_written(text: &[u8], secret: &[u8]) -> Option<usize> {
    let here = text.get(..secret.len())?;
    here.eq_ignore_ascii_case(secret).then_some(secret.len())
}

/// Returns the length of the secret at the beginning of the text, where any character may be
/// percent-encoded.
fn length_encoded(text: &[u8], secret: &[u8], same: fn(&u8, &u8) -> bool) -> Option<usize> {
    let mut at = 0;
    for wanted in secret {
        let (byte, len) = match text.get(at..)? {
            [b'%', high, low, ..] if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() => {
                let digits = [*high, *low];
                let byte = u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?;
                (byte, 3)
            }
            [b'+', ..] if *wanted == b' ' => (b' ', 1),
            [byte, ..] => (*byte, 1),
            [] => return None,
        };
        if !same(&byte, wanted) {
            return None;
        }
        at += len;
    }
    Some(at)
}

/// Returns the base64 forms of a secret, one for each alignment.
fn in_base64(secret: &[u8]) -> Vec<String> {
    let mut forms = Vec::new();
    for before in 0..3 {
        let text = [&[0; 2][..before.min(2)], secret].concat();
        for engine in [STANDARD_NO_PAD, URL_SAFE_NO_PAD] {
            let mut form = engine.encode(&text);
            // The first and the last character may hold bits of adjacent bytes.
            if !text.len().is_multiple_of(3) {
                form.pop();
            }
            form.drain(..[0, 2, 3][before]);
            forms.push(form);
        }
    }
    forms.dedup();
    forms
}

#[cfg(test)]
mod tests {
    use object_store::client::HttpRequestBody;

    use super::*;
    use crate::options::Location;
    use crate::protocols;

    fn redactor(url: &str, options: &[(&str, &str)], variables: &[(&str, &str)]) -> Redactor {
        let location = Location::parse(url).expect(url);
        let options = StoreOptions::from_pairs(options.iter().copied()).expect("options");
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        let environment = Environment::new(variables.iter().map(owned));
        let url = location.remote().expect("a URL");
        Redactor::new(url, &options, &environment, protocols::variables())
    }

    #[test]
    fn secrets_are_masked_in_every_form() {
        let secret = "hf_AbC/d+e f%41xyz";
        let with = redactor("hf://o/n", &[("token", secret)], &[]);
        for text in [
            secret.to_owned(),
            secret.to_lowercase(),
            "hf_AbC%2Fd%2Be%20f%2541xyz".to_owned(),
            "hf_AbC%2fd%2be+f%2541xyz".to_owned(),
            "%68%66%5F%41%62%43%2F%64%2B%65%20%66%25%34%31%78%79%7A".to_owned(),
            // Decoded one time too many.
            "hf_AbC/d+e fAxyz".to_owned(),
        ] {
            let shown = with.redact(&format!("a {text}, b"), &Sent::default());
            assert_eq!(shown, "a ***, b", "{text}");
        }
        for before in ["", "u", "us", "use", "user:"] {
            for after in ["", "x", "xy", "xyz"] {
                let whole = format!("{before}{secret}{after}");
                for text in [STANDARD.encode(&whole), URL_SAFE_NO_PAD.encode(&whole)] {
                    let shown = with.redact(&format!("a {text}, b"), &Sent::default());
                    assert_eq!(shown, "a ***, b", "{whole}");
                    let text = text
                        .replace('+', "%2B")
                        .replace('/', "%2f")
                        .replace('=', "%3D");
                    let shown = with.redact(&format!("a {text}, b"), &Sent::default());
                    assert_eq!(shown, "a ***, b", "{whole}");
                }
            }
        }
    }

    #[test]
    fn text_without_secret_is_unchanged() {
        let url = "https://host/a?v=1&name=main&x=true&sig=a&part=7";
        let with = redactor(
            url,
            &[("header.x-flag", "true"), ("header.x-team", "team")],
            &[],
        );
        for text in ["a 1 main true; steam teams 7", "", "é…", "%", "100%", "%zz"] {
            assert_eq!(with.redact(text, &Sent::default()), text);
        }
        assert_eq!(with.redact("the team: x", &Sent::default()), "the ***: x");
    }

    #[test]
    fn secrets_from_every_source_are_masked() {
        for (url, options, variables) in [
            ("https://u:hunter2hunter2@h/a", &[][..], &[][..]),
            ("https://hunter2hunter2@h/a", &[], &[]),
            ("https://h/a?sig=hunter2hunter2", &[], &[]),
            ("https://h/a?hunter2hunter2", &[], &[]),
            ("https://h/a?x=1&odd=hunter2hunter2", &[], &[]),
            (
                "https://h/a?X-Amz-Credential=hunter2hunter2%2F2026%2Fs3",
                &[],
                &[],
            ),
            ("s3://b/k", &[("session_token", "hunter2hunter2")], &[]),
            (
                "s3://b/k",
                &[("aws_secret_access_key", "hunter2hunter2")],
                &[],
            ),
            ("s3://b/k", &[("header.x-team", "hunter2hunter2")], &[]),
            (
                "s3://b/k",
                &[("header.authorization", "Bearer hunter2hunter2")],
                &[],
            ),
            (
                "s3://b/k",
                &[("header.authorization", "Basic dTpodW50ZXIyaHVudGVyMg==")],
                &[],
            ),
            ("s3://b/k", &[("proxy", "http://u:hunter2hunter2@p:1")], &[]),
            (
                "s3://b/k",
                &[("endpoint", "http://u:hunter2hunter2@p:1")],
                &[],
            ),
            ("az://c/k", &[("sas", "?sv=1&sig=hunter2hunter2")], &[]),
            (
                "s3://b/k",
                &[],
                &[("AWS_SECRET_ACCESS_KEY", "hunter2hunter2")],
            ),
            ("hf://o/n", &[], &[("HF_TOKEN", " hunter2hunter2\n")]),
            (
                "hf://o/n",
                &[],
                &[("HTTPS_PROXY", "http://u:hunter2hunter2@p:1")],
            ),
            ("az://c/k", &[], &[("AZURE_STORAGE_KEY", "hunter2hunter2")]),
            (
                "az://c/k",
                &[],
                &[(
                    "AZURE_STORAGE_CONNECTION_STRING",
                    "AccountName=a;AccountKey=hunter2hunter2",
                )],
            ),
            (
                "gs://b/k",
                &[],
                &[(
                    "GOOGLE_SERVICE_ACCOUNT_KEY",
                    r#"{"private_key": "a\nhunter2hunter2"}"#,
                )],
            ),
        ] {
            let with = redactor(url, options, variables);
            let shown = with.redact("said: hunter2hunter2!", &Sent::default());
            assert_eq!(shown, "said: ***!", "{url} {options:?} {variables:?}");
            assert!(!format!("{with:?}").contains("hunter2"));
        }
    }

    #[test]
    fn sent_secrets_are_masked() {
        let mut request = HttpRequest::new(HttpRequestBody::from(
            "client_secret=hunter2form".to_owned(),
        ));
        *request.uri_mut() = "http://h/?X-Amz-Signature=hunter2query"
            .parse()
            .expect("a URL");
        for (name, value) in [
            (
                "authorization",
                "AWS4-HMAC-SHA256 Credential=hunter2key/2026/s3, Signature=hunter2sign",
            ),
            ("x-amz-security-token", "hunter2token"),
        ] {
            let value = HeaderValue::from_static(value);
            request.headers_mut().insert(name, value);
        }
        let mut sent = Sent::default();
        sent.add(&request);
        let text = "hunter2form hunter2query hunter2key hunter2sign hunter2token bytes";
        let shown = Redactor::default().redact(text, &sent);
        assert_eq!(shown, "*** *** *** *** *** bytes");
        assert!(!format!("{sent:?}").contains("hunter2"));
    }
}
