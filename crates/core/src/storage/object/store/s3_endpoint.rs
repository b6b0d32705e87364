//! Valid endpoints of S3.

use super::environment::Environment;
use crate::error::{Error, ErrorKind, Result};

/// Requires that the endpoint is a URL: signing a request to anything else panics in
/// `object_store`. A bucket before an IP address is one example.
pub(super) fn require_url(endpoint: Option<&str>) -> Result<()> {
    let Some(error) = endpoint.and_then(|endpoint| url::Url::parse(endpoint).err()) else {
        return Ok(());
    };
    Err(Error::new(
        ErrorKind::InvalidRequest,
        format!("the endpoint with the bucket's name added is not a URL: {error}"),
    )
    .with_hint("write endpoint=http://host:port; with an IP address use addressing=path"))
}

/// Variables that name the endpoint, in order of precedence.
pub(super) const ENDPOINTS: [&str; 3] = ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"];

/// Requires that the endpoint that variables name, unless it does not count, has a scheme.
pub(super) fn require_scheme(environment: &Environment, is_ignored: bool) -> Result<()> {
    let set = ENDPOINTS
        .iter()
        .find_map(|name| Some((*name, environment.get(name)?)));
    let Some((name, _)) = set.filter(|(_, value)| !is_ignored && !has_scheme(value)) else {
        return Ok(());
    };
    // Without the value: it may hold a password.
    let message = format!("the variable {name} is not a URL: it has no http:// or https://");
    Err(Error::invalid_request(message).with_hint(format!("set {name}=http://host:port")))
}

fn has_scheme(url: &str) -> bool {
    let scheme = url.split_once("://").map(|(scheme, _)| scheme);
    scheme.is_some_and(|it| {
        ["http", "https"]
            .iter()
            .any(|known| it.eq_ignore_ascii_case(known))
    })
}
