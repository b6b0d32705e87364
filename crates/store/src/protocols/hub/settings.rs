//! Finds a hub's endpoint and token: options over the variables that `huggingface_hub`
//! reads.

use std::path::PathBuf;

use http::HeaderValue;

use crate::builder::Opening;
use crate::credentials::origin::ANONYMOUS;
use crate::environment::Environment;
use crate::error::{Error, Result};
use crate::protocols::hub_cache::home;

const ENDPOINT: &str = "https://huggingface.co";

/// Returns the URL of the hub, without a trailing slash.
///
/// # Errors
///
/// [`crate::error::ErrorKind::InvalidRequest`] for a variable that holds no URL; options are
/// already checked.
pub(crate) fn endpoint(opening: &Opening) -> Result<String> {
    let option = opening.options.get("endpoint");
    let endpoint = option
        .or_else(|| opening.environment.get("HF_ENDPOINT"))
        .unwrap_or(ENDPOINT)
        .trim()
        .trim_end_matches('/');
    let is_url = ["http://", "https://"]
        .iter()
        .any(|scheme| endpoint.starts_with(scheme));
    // The endpoint is not shown, because it may carry credentials.
    if !is_url || endpoint.contains(['?', '#', '@']) {
        return Err(Error::invalid_request(
            "the hub's endpoint is not a plain http:// or https:// URL",
        )
        .with_location(opening.url.shown())
        .with_hint("write scheme, host and at most a path in the option endpoint or HF_ENDPOINT"));
    }
    Ok(endpoint.to_owned())
}

/// Token that is sent with every request to the hub, and to no other host.
pub(crate) struct Token {
    /// Marked as sensitive: not shown.
    pub(crate) header: Option<HeaderValue>,
    /// Origin of the token, for display.
    pub(crate) source: String,
}

impl Token {
    /// Finds the token.
    ///
    /// # Errors
    ///
    /// [`crate::error::ErrorKind::InvalidRequest`] for a token that cannot be sent, and the kinds
    /// of I/O for a token file that cannot be read.
    pub(crate) fn find(opening: &Opening) -> Result<Self> {
        let anonymous = Self {
            header: None,
            source: ANONYMOUS.to_owned(),
        };
        let (options, environment) = (opening.options, opening.environment);
        if let Some(token) = options.get("token") {
            return Self::new(token, "option token");
        }
        let implicit = !environment.is_set("HF_HUB_DISABLE_IMPLICIT_TOKEN");
        if options.flag("anonymous") == Some(true) || !implicit {
            return Ok(anonymous);
        }
        for variable in ["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"] {
            if let Some(token) = environment.get(variable) {
                return Self::new(token, variable);
            }
        }
        let Some(path) = token_path(environment) else {
            return Ok(anonymous);
        };
        let shown = path.display();
        match std::fs::read_to_string(&path) {
            Ok(text) if text.trim().is_empty() => Ok(anonymous),
            Ok(text) => Self::new(&text, &format!("file {shown}")),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(anonymous),
            Err(error) => Err(Error::from_io("cannot read the hub's token file", error)
                .with_location(shown)
                .with_hint("set HF_TOKEN or HF_TOKEN_PATH, or anonymous=true")),
        }
    }

    fn new(token: &str, source: &str) -> Result<Self> {
        // Files with tokens end in a line break, and variables sometimes do.
        let header = HeaderValue::from_str(&format!("Bearer {}", token.trim()));
        let mut header = header.map_err(|_| {
            Error::invalid_request(format!(
                "the hub's token holds a character that cannot be sent; it comes from: {source}"
            ))
            .with_hint("pass the token as the hub shows it, hf_…")
        })?;
        header.set_sensitive(true);
        Ok(Self {
            header: Some(header),
            source: source.to_owned(),
        })
    }
}

pub(super) fn token_path(environment: &Environment) -> Option<PathBuf> {
    match environment.get("HF_TOKEN_PATH") {
        Some(path) => environment.expanded(path),
        None => Some(home(environment)?.join("token")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;
    use crate::options::Location;
    use crate::options::store_options::StoreOptions;
    use crate::protocols::hub::PROTOCOL;

    fn environment(variables: &[(&str, &str)]) -> Environment {
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        Environment::new(variables.iter().map(owned))
    }

    fn with<T>(
        variables: &[(&str, &str)],
        options: &[(&str, &str)],
        ask: impl FnOnce(&Opening) -> T,
    ) -> T {
        let location = Location::parse("hf://org/name").expect("a location");
        let options = StoreOptions::from_pairs(options.iter().copied()).expect("options");
        let url = location.remote().expect("a URL");
        let environment = environment(variables);
        ask(&Opening::without_secrets(
            &PROTOCOL,
            url,
            &options,
            &environment,
        ))
    }

    #[test]
    fn endpoint_is_option_then_variable_then_hub() {
        let mirror = [("HF_ENDPOINT", "https://mirror/hf/")];
        let option = [("endpoint", "http://h:1")];
        for (variables, options, wanted) in [
            (&[][..], &[][..], ENDPOINT),
            (&mirror, &[], "https://mirror/hf"),
            (&mirror, &option, "http://h:1"),
        ] {
            let found = with(variables, options, endpoint).expect("an endpoint");
            assert_eq!(found, wanted);
        }
        for wrong in ["mirror", "https://user:hunter2@mirror", "https://mirror/?a"] {
            let error = with(&[("HF_ENDPOINT", wrong)], &[], endpoint).expect_err(wrong);
            assert_eq!(error.kind(), ErrorKind::InvalidRequest);
            assert!(!error.chain().contains("hunter2"), "{}", error.chain());
        }
    }

    #[test]
    fn token_is_option_then_variable_then_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let home = folder.path().to_str().expect("UTF-8");
        std::fs::write(folder.path().join("token"), "hf_file\n").expect("a file");
        std::fs::write(folder.path().join("other"), "hf_other").expect("a file");
        let other = format!("{home}/other");
        let in_home = ("HF_HOME", home);
        for (variables, options, wanted, source) in [
            (&[][..], &[][..], None, "anonymous"),
            (&[in_home], &[], Some("hf_file"), "/token"),
            (
                &[in_home, ("HF_TOKEN_PATH", &*other)],
                &[],
                Some("hf_other"),
                "/other",
            ),
            (
                &[in_home, ("HF_TOKEN", " hf_variable\n")],
                &[],
                Some("hf_variable"),
                "HF_TOKEN",
            ),
            (
                &[("HF_TOKEN", "hf_variable")],
                &[("token", "hf_option")],
                Some("hf_option"),
                "option token",
            ),
            (
                &[("HF_TOKEN", "hf_variable")],
                &[("anonymous", "true")],
                None,
                "anonymous",
            ),
            (
                &[
                    ("HF_TOKEN", "hf_variable"),
                    ("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1"),
                ],
                &[],
                None,
                "anonymous",
            ),
        ] {
            let token = with(variables, options, Token::find).expect("found");
            let found = token.header.as_ref().map(|header| {
                assert!(!format!("{header:?}").contains("hf_"), "shown in Debug");
                header.to_str().expect("text").to_owned()
            });
            assert_eq!(found, wanted.map(|token| format!("Bearer {token}")));
            assert!(token.source.ends_with(source), "{}", token.source);
        }
        let error = with(&[("HF_TOKEN", "hunter2\u{7f}")], &[], Token::find);
        let Err(error) = error else {
            panic!("it cannot be sent");
        };
        assert_eq!(error.kind(), ErrorKind::InvalidRequest);
        assert!(!error.chain().contains("hunter2"), "{}", error.chain());
    }
}
