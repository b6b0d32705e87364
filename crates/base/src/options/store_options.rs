//! Options of object stores: names and values, checked when they are set.
//!
//! Knows the names, their meaning and the form of their values; opens nothing and reads no
//! environment. [`StoreOptions::KEYS`], in `store_keys.rs`, is the one list of names: checks, error
//! messages and the documentation of the bindings are derived from it. Read by `store/`.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use super::bytes::parse_bytes;
use super::duration::parse_duration;
use super::flag::parse_flag;
use super::location::{Location, Protocol};
use super::store_keys::{Form, KEYS, StoreKey};
use crate::error::{Error, ErrorKind, Result, printable};
use crate::sync::retry::Retries;

/// Options of object stores: endpoint, credentials, timeouts. A value set here overrides the
/// environment.
///
/// The same options can serve several stores: each uses the keys of its protocol and ignores the
/// rest.
///
/// ```
/// # use tload_base::options as tload;
/// # fn main() -> tload_base::error::Result<()> {
/// use tload::StoreOptions;
///
/// let options = StoreOptions::new()
///     .with("endpoint", "http://127.0.0.1:9000")?
///     .with("anonymous", "true")?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Default, PartialEq, Eq)]
pub struct StoreOptions {
    values: BTreeMap<String, String>,
}

/// Prefix of keys that are request headers: `header.x-team=weights`.
const HEADER_PREFIX: &str = "header.";

/// Keys with these prefixes go to the `object_store` crate as they are, under its own names.
const PASSED_ON: [(&str, Protocol); 3] = [
    ("aws_", Protocol::S3),
    ("google_", Protocol::Gcs),
    ("azure_", Protocol::Azure),
];

impl StoreOptions {
    /// Every key, in the order of the documentation. `header.NAME` and the names of the
    /// `object_store` crate are accepted in addition.
    #[doc(hidden)]
    pub const KEYS: &'static [StoreKey] = KEYS;

    /// Returns empty options: everything comes from the environment.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets a key, replacing its previous value.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidRequest`] if the key is unknown or the value does not have the form of
    /// the key. Keys that begin with `aws_`, `google_` and `azure_` are checked when a store is
    /// opened.
    pub fn set(&mut self, key: impl AsRef<str>, value: impl Into<String>) -> Result<()> {
        let key = key.as_ref().trim().to_ascii_lowercase();
        let value = value.into();
        if let Some(known) = known(&key) {
            check(known, &value)?;
        } else if let Some(name) = key.strip_prefix(HEADER_PREFIX) {
            check_header(name, &value)?;
        } else if !PASSED_ON.iter().any(|(prefix, _)| key.starts_with(prefix)) {
            return Err(unknown(&key));
        }
        self.values.insert(key, value);
        Ok(())
    }

    /// Sets a key as [`set`](Self::set) does and returns the options, for chaining.
    ///
    /// # Errors
    ///
    /// Those of [`set`](Self::set).
    pub fn with(mut self, key: impl AsRef<str>, value: impl Into<String>) -> Result<Self> {
        self.set(key, value)?;
        Ok(self)
    }

    /// Creates options from keys and values.
    ///
    /// # Errors
    ///
    /// Those of [`set`](Self::set).
    pub fn from_pairs<K: AsRef<str>, V: Into<String>>(
        pairs: impl IntoIterator<Item = (K, V)>,
    ) -> Result<Self> {
        let mut options = Self::new();
        for (key, value) in pairs {
            options.set(key, value)?;
        }
        Ok(options)
    }

    /// Splits `key=value`, as written on a command line, into key and value, without the blanks
    /// around them. Checks neither.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidRequest`] without a `=`.
    pub fn parse(text: &str) -> Result<(String, String)> {
        match text.split_once('=') {
            Some((key, value)) if !key.trim().is_empty() => {
                Ok((key.trim().to_owned(), value.trim_matches(' ').to_owned()))
            }
            // The text is not shown: it may be a secret whose key was forgotten.
            _ => Err(invalid("a store option has no key and no `=`".to_owned())
                .with_hint("write key=value, for example region=eu-west-1")),
        }
    }

    /// Returns the keys whose values are secrets or may be: those of which `Debug` does not show
    /// the whole value.
    #[doc(hidden)]
    pub fn secrets(&self) -> impl Iterator<Item = &str> {
        let values = self.values.iter();
        let secrets = values.filter(|(key, value)| shown(key, value) != **value);
        secrets.map(|(key, _)| key.as_str())
    }

    /// Returns whether no key is set.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }
}

/// Keys that also apply to files.
impl StoreOptions {
    /// Returns the value of a key.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.values.get(key).map(String::as_str)
    }

    /// Returns the value of a key that is a count.
    #[doc(hidden)]
    pub fn count(&self, key: &str) -> Option<u32> {
        self.get(key)?.parse().ok()
    }

    /// Returns the value of a key that is a duration.
    #[doc(hidden)]
    pub fn seconds(&self, key: &str) -> Option<Duration> {
        self.get(key).and_then(|text| parse_duration(text).ok())
    }
}

/// Keys that only stores read.
impl StoreOptions {
    /// Returns how often requests are retried and with which backoff.
    #[doc(hidden)]
    pub fn retries(&self) -> Retries {
        self.count("retries")
            .map_or_else(Retries::default, Retries::up_to)
    }

    /// Returns the options without a key.
    #[doc(hidden)]
    #[must_use]
    pub fn without(&self, key: &str) -> Self {
        let mut others = self.clone();
        others.values.remove(key);
        others
    }

    /// Returns the value of a key that is a flag.
    #[doc(hidden)]
    pub fn flag(&self, key: &str) -> Option<bool> {
        self.get(key).and_then(parse_flag)
    }

    /// Returns all keys that are set, with their values.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.values.iter().map(|(key, value)| (&**key, &**value))
    }

    /// Returns the request headers: names in lower case, and values.
    #[doc(hidden)]
    pub fn headers(&self) -> impl Iterator<Item = (&str, &str)> {
        self.iter()
            .filter_map(|(key, value)| Some((key.strip_prefix(HEADER_PREFIX)?, value)))
    }

    /// Returns the keys and values for the `object_store` crate that apply to a protocol.
    #[doc(hidden)]
    pub fn passed_on(&self, protocol: Protocol) -> impl Iterator<Item = (&str, &str)> {
        let prefix = PASSED_ON.iter().find(|(_, of)| *of == protocol);
        self.iter()
            .filter(move |(key, _)| prefix.is_some_and(|(prefix, _)| key.starts_with(prefix)))
    }
}

impl fmt::Debug for StoreOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let values = self.values.iter();
        let shown = values.map(|(key, value)| (key, shown(key, value)));
        f.debug_map().entries(shown).finish()
    }
}

/// Returns a value as it may be shown. Headers and the keys of `object_store` count as secrets,
/// since their contents are unknown.
fn shown(key: &str, value: &str) -> String {
    match known(key) {
        Some(known) if known.secret => "***".to_owned(),
        Some(known) if known.form == Form::Url => without_credentials(value),
        Some(known) if known.form == Form::Locations => {
            let shown: Vec<_> = value.split(',').map(without_credentials).collect();
            shown.join(",")
        }
        Some(_) => value.to_owned(),
        None => "***".to_owned(),
    }
}

/// Returns a URL without user, password, query and fragment.
pub fn without_credentials(url: &str) -> String {
    let end = url.find(['?', '#']).unwrap_or(url.len());
    let url = url.get(..end).unwrap_or_default();
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let (_, host) = authority.rsplit_once('@').unwrap_or(("", authority));
    let colon = if scheme.is_empty() { "" } else { "://" };
    format!("{scheme}{colon}{host}{path}")
}

/// Parses a list of URLs, separated by commas.
pub fn split_locations(list: &str) -> Result<Vec<Location>> {
    let invalid = || {
        // The URL is not shown, because it may hold a password.
        invalid("a mirror is not a URL of an object store or a web server".to_owned())
            .with_hint("write URLs such as http://10.0.0.7:8080/llama, separated by commas")
    };
    let urls = list.split(',').map(str::trim);
    urls.map(|url| {
        let location = Location::parse(url).map_err(|_| invalid())?;
        let is_url = location.remote().is_some();
        is_url.then_some(location).ok_or_else(invalid)
    })
    .collect()
}

fn known(key: &str) -> Option<&'static StoreKey> {
    StoreOptions::KEYS.iter().find(|known| known.name == key)
}

fn check(key: &StoreKey, value: &str) -> Result<()> {
    let words = value.split([' ', ',', ';']).skip(1).filter(|_| !key.secret);
    let mut names = words.filter_map(|word| known(word.split_once('=')?.0));
    if let Some(StoreKey { name, .. }) = names.next() {
        let error = invalid(format!("store option {} holds {name} too", key.name));
        return Err(error.with_hint("write --store for each, or a line for each in TLOAD_STORE"));
    }
    let wanted = match key.form {
        Form::Text if value.is_empty() => "a non-empty text",
        Form::Flag if parse_flag(value).is_none() => "true or false",
        Form::Duration if parse_duration(value).is_err() => {
            "a positive duration such as 500ms, 30s, 2m or 1h30m"
        }
        Form::Count if value.parse::<u32>().is_err() => "a whole number",
        Form::Bytes if parse_bytes(value).is_err() => "a size such as 500GiB or 2TB",
        Form::Addressing if value != "path" && value != "virtual" => "path or virtual",
        Form::CacheCheck if !matches!(value, "always" | "never" | "offline") => {
            "always, never or offline"
        }
        Form::Url if !is_url(value) => "a URL that begins with http:// or https://, without blanks",
        Form::Locations => return split_locations(value).map(drop),
        Form::Text | Form::Url => {
            return require_clean(format!("store option {}", key.name), value);
        }
        Form::Flag
        | Form::Duration
        | Form::Count
        | Form::Bytes
        | Form::Addressing
        | Form::CacheCheck => {
            return Ok(());
        }
    };
    let found = if value.is_empty() {
        "empty".to_owned()
    } else if key.secret || key.form == Form::Url {
        // A URL in the wrong form may still hold a password.
        "something else".to_owned()
    } else {
        format!("{value:?}")
    };
    Err(invalid(format!(
        "store option {} is {found}; it must be {wanted}",
        key.name
    )))
}

/// Rejects control characters, and blanks at the ends: most come with files that secrets are made
/// from. Values end up in headers and URLs, where a line break would begin a new field.
///
/// # Errors
///
/// [`ErrorKind::InvalidRequest`], which shows no value.
pub fn require_clean(name: impl fmt::Display, value: &str) -> Result<()> {
    let is_clean = !value.chars().any(char::is_control) && value.trim() == value;
    let wrong = "contains a control character or a blank at an end, perhaps a trailing line break";
    let error = || invalid(format!("{name} {wrong}"));
    is_clean.then_some(()).ok_or_else(error)
}

fn check_header(name: &str, value: &str) -> Result<()> {
    let token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    if name.is_empty() || !name.bytes().all(token) {
        return Err(invalid(format!(
            "store option {HEADER_PREFIX}{} does not name a request header",
            printable(name)
        )));
    }
    require_clean(format!("store option {name}"), value)
}

fn is_url(text: &str) -> bool {
    let rest = ["http://", "https://"]
        .iter()
        .find_map(|scheme| text.strip_prefix(scheme));
    rest.is_some_and(|rest| rest.starts_with(|it| it != '/') && !rest.contains(char::is_whitespace))
}

fn unknown(key: &str) -> Error {
    let names: Vec<_> = StoreOptions::KEYS.iter().map(|known| known.name).collect();
    invalid(format!(
        "store option {key:?} is unknown; valid keys are {}, {HEADER_PREFIX}NAME, and object_store's own, which begin with aws_, \
         google_ or azure_",
        names.join(", ")
    ))
    .suggesting(key, names)
}

fn invalid(message: String) -> Error {
    Error::new(ErrorKind::InvalidRequest, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn set_rejects_invalid_values() {
        for (key, good, bad) in [
            ("anonymous", "Yes", "maybe"),
            ("connect_timeout", "2.5", "0"),
            ("open_timeout", "1m30s", "soon"),
            ("read_timeout", "30", "-1"),
            ("retries", "0", "many"),
            ("addressing", "virtual", "dns"),
            ("cache_dir", "/var/cache/tload", ""),
            ("cache_limit", "500GiB", "all of it"),
            ("cache_check", "offline", "sometimes"),
            ("endpoint", "https://host:9000", "host:9000"),
            ("endpoint", "https://host/a", "https://host/a b"),
            ("endpoint", "http://a?b=c", "http://a "),
            ("endpoint", "http://h", "http://h region=eu-west-1"),
            ("retries", "2", "2,region=eu-west-1"),
            ("region", "eu-west-1", "eu-west-1 "),
            ("access_key_id", "AKIA", " AKIA"),
            ("proxy", "http://host", "socks5://host"),
            ("region", "eu-west-1", ""),
            ("access_key_id", "AKIA", "AKIA\n"),
            ("header.X-Team", "a b", "a\r\nb: c"),
        ] {
            let mut options = StoreOptions::new();
            options.set(key, good).expect(key);
            let error = options.set(key, bad).expect_err(key);
            assert_eq!(error.kind(), ErrorKind::InvalidRequest);
            let name = key.strip_prefix("header.").unwrap_or(key);
            let message = error.message().to_ascii_lowercase();
            assert!(message.contains(&name.to_ascii_lowercase()), "{error}");
        }
    }

    #[test]
    fn wrong_values_of_secrets_are_not_shown() {
        for (key, value) in [
            ("secret_access_key", "hunter2\n"),
            ("proxy", "user:hunter2@host"),
            ("endpoint", "user:hunter2@host"),
            ("header.authorization", "hunter2\n"),
        ] {
            let error = StoreOptions::new().with(key, value).expect_err(key);
            assert!(!error.chain().contains("hunter2"), "{}", error.chain());
        }
        let error = StoreOptions::parse("hunter2").expect_err("no `=`");
        assert!(!error.chain().contains("hunter2"));
    }

    #[test]
    fn debug_shows_no_secret() {
        let options = StoreOptions::from_pairs([
            ("secret_access_key", "hunter2"),
            ("proxy", "http://user:hunter2@proxy:3128"),
            ("endpoint", "https://user:hunter2@host/a?sig=hunter2"),
            ("header.authorization", "Bearer hunter2"),
            ("aws_secret_access_key", "hunter2"),
            ("region", "eu-west-1"),
        ])
        .expect("options");
        let text = format!("{options:?}");
        assert!(!text.contains("hunter2"), "{text}");
        let secrets: Vec<_> = options.secrets().collect();
        assert_eq!(
            secrets,
            [
                "aws_secret_access_key",
                "endpoint",
                "header.authorization",
                "proxy",
                "secret_access_key"
            ]
        );
        for shown in ["http://proxy:3128", "https://host/a", "eu-west-1", "***"] {
            assert!(text.contains(shown), "{text}");
        }
    }

    #[test]
    fn unknown_keys_get_a_hint() {
        for (key, hint) in [
            ("acces_key_id", Some("did you mean \"access_key_id\"?")),
            ("endpoint_url", Some("did you mean \"endpoint\"?")),
            ("Regon", Some("did you mean \"region\"?")),
            ("colour", None),
        ] {
            let error = StoreOptions::new().with(key, "x").expect_err(key);
            assert_eq!(error.hint(), hint, "{key}");
            assert!(error.message().contains("service_account"), "{error}");
        }
    }

    #[test]
    fn keys_of_object_store_go_to_their_protocol_only() {
        let options = StoreOptions::from_pairs([
            ("aws_imdsv1_fallback", "true"),
            ("azure_use_azure_cli", "true"),
        ])
        .expect("options");
        let passed = |protocol| options.passed_on(protocol).collect::<Vec<_>>();
        assert_eq!(passed(Protocol::S3), [("aws_imdsv1_fallback", "true")]);
        assert_eq!(passed(Protocol::Azure), [("azure_use_azure_cli", "true")]);
        assert!(passed(Protocol::Gcs).is_empty() && passed(Protocol::Http).is_empty());
    }

    #[test]
    fn command_lines_give_key_and_value() {
        let (key, value) = StoreOptions::parse("sas = ?a=b&c=d").expect("a pair");
        assert_eq!((&*key, &*value), ("sas", "?a=b&c=d"));
        assert!(StoreOptions::parse("=x").is_err());
    }

    #[test]
    fn last_option_value_applies() {
        let mut options = StoreOptions::new();
        assert!(options.is_empty());
        assert_eq!(options.retries(), Retries::default());
        options.set("retries", "1").expect("retries");
        options.set("RETRIES", "0").expect("retries");
        assert_eq!(options.retries(), Retries::up_to(0));
    }
}
